// KDA forward on the GPU against the f64 recurrence: every generator and gate, awkward lengths,
// splits; and its bits: packed, strided, in slices, under every config, continued from checkpoints.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "gpu/case.hpp"
#include "gpu/kda_run.hpp"

namespace scanjit::test {
namespace {

using reference::KdaInputKind;
using reference::KdaInputs;
using reference::KdaOutputs;

constexpr reference::KdaGate kGates[] = {
    reference::KdaGate::kBounded, reference::KdaGate::kSoftplus, reference::KdaGate::kPrecomputed,
    reference::KdaGate::kScalar};

KdaInputs shape_of(std::vector<std::int64_t> lengths, std::int64_t H, std::int64_t HV,
                   reference::KdaGate gate = reference::KdaGate::kBounded, std::int64_t K = 128,
                   std::int64_t V = 128) {
  KdaInputs shape;
  shape.lengths = std::move(lengths);
  shape.H = H;
  shape.HV = HV;
  shape.K = K;
  shape.V = V;
  shape.gate = gate;
  return shape;
}

KdaInputs inputs_of(const KdaInputs& shape, KdaInputKind kind, bool h0, std::uint64_t seed = 7,
                    bool g_bf16 = true) {
  reference::KdaGeneratorOptions options;
  options.kind = kind;
  options.h0 = h0;
  options.seed = seed;
  options.g_bf16 = g_bf16;
  return must(reference::generate_kda(shape, options));
}

// One run; nothing may be written outside of the tensors.
KdaRun whole(Gpu& gpu, const KdaInputs& inputs, const KdaOptions& options = {}) {
  KdaRun result = must(run(gpu, inputs, options));
  CHECK(result.damage == "");
  return result;
}

void check_within(const KdaErrors& errors, const reference::KdaTolerance& limit) {
  CHECK(errors.o <= limit.o);
  CHECK(errors.ht <= limit.ht);
}

// Sequence n of the inputs alone.
KdaInputs alone(const KdaInputs& all, std::size_t n) {
  KdaInputs one = all;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < n; ++i) first += all.lengths[i];
  const std::int64_t length = all.lengths[n];
  const auto cut = [&](const auto& from, auto& to, std::int64_t begin, std::int64_t count,
                       std::int64_t row) {
    to.assign(from.begin() + begin * row, from.begin() + (begin + count) * row);
  };
  one.lengths = {length};
  cut(all.q, one.q, first, length, all.H * all.K);
  cut(all.k, one.k, first, length, all.H * all.K);
  cut(all.v, one.v, first, length, all.HV * all.V);
  cut(all.g, one.g, first, length,
      all.gate == reference::KdaGate::kScalar ? all.HV : all.HV * all.K);
  cut(all.beta, one.beta, first, length, all.HV);
  if (!all.h0.empty()) cut(all.h0, one.h0, static_cast<std::int64_t>(n), 1, all.HV * all.K * all.V);
  return one;
}

// Tokens [begin, end) of the only sequence.
KdaInputs part(const KdaInputs& all, std::int64_t begin, std::int64_t end) {
  KdaInputs two = all;
  two.lengths = {begin, end - begin, all.lengths.front() - end};
  if (!all.h0.empty()) {
    const std::vector<float> h0 = all.h0;
    two.h0.clear();
    for (int i = 0; i < 3; ++i) two.h0.insert(two.h0.end(), h0.begin(), h0.end());
  }
  return alone(two, 1);
}

}  // namespace

TEST_CASE("KDA keeps to its limits under every generator and gate", "[gpu][kda_oracle]") {
  SCANJIT_TEST_GPU(gpu);
  const std::int64_t tokens = number_from_environment("SCANJIT_GPU_KDA_TOKENS", 16384);
  std::vector<KdaWanted> wanted;
  for (const auto gate : kGates) {
    KdaInputs tiny = inputs_of(shape_of({64}, 1, 2, gate), KdaInputKind::kRandom, true);
    for (const bool bf16 : {true, false}) {
      KdaOptions options;
      options.g_bf16 = bf16;
      wanted.push_back({problem_of(tiny, options), {}});
    }
  }
  must(compile_all(gpu, wanted));
  for (const auto gate : kGates) {
    for (const KdaInputKind kind :
         {KdaInputKind::kRandom, KdaInputKind::kZero, KdaInputKind::kSaturated,
          KdaInputKind::kBurst, KdaInputKind::kSlow}) {
      if (kind == KdaInputKind::kBurst && gate == reference::KdaGate::kBounded) continue;
      // A log decay of bf16 would be another generator.
      const bool bf16 =
          gate == reference::KdaGate::kBounded || gate == reference::KdaGate::kSoftplus;
      const KdaInputs inputs = inputs_of(shape_of({tokens}, 1, 2, gate), kind, true, 7, bf16);
      KdaOptions options;
      options.g_bf16 = bf16;
      const KdaErrors errors =
          errors_of(whole(gpu, inputs, options), must(reference::kda_forward(inputs)));
      INFO(to_string(static_cast<KdaGate>(static_cast<int>(gate))) << " " << to_string(kind));
      std::printf("kda_oracle %s %s: o %.3e ht %.3e\n",
                  to_string(static_cast<KdaGate>(static_cast<int>(gate))), to_string(kind),
                  errors.o, errors.ht);
      check_within(errors, reference::kKdaSerial);
    }
  }
}

TEST_CASE("KDA's limits catch what is wrong", "[gpu][kda_controls]") {
  SCANJIT_TEST_GPU(gpu);
  const KdaInputs inputs = inputs_of(shape_of({700}, 2, 4), KdaInputKind::kRandom, true);
  const KdaRun result = whole(gpu, inputs);
  check_within(errors_of(result, must(reference::kda_forward(inputs))), reference::kKdaSerial);
  const auto caught = [&](const char* what, const auto& spoil) {
    INFO(what);
    KdaInputs other = inputs;
    spoil(other);
    const KdaErrors errors = errors_of(result, must(reference::kda_forward(other)));
    CHECK(errors.o > reference::kKdaSerial.o);
  };
  caught("the other key head", [](KdaInputs& in) {
    for (std::size_t t = 0; t < 700; ++t)
      std::swap_ranges(in.k.begin() + static_cast<std::ptrdiff_t>(t * 256),
                       in.k.begin() + static_cast<std::ptrdiff_t>(t * 256 + 128),
                       in.k.begin() + static_cast<std::ptrdiff_t>(t * 256 + 128));
  });
  caught("gates a token late",
         [](KdaInputs& in) { std::rotate(in.g.begin(), in.g.end() - 4 * 128, in.g.end()); });
  caught("no bias", [](KdaInputs& in) { in.dt_bias.clear(); });
  caught("no normalisation", [](KdaInputs& in) { in.normalize_qk = false; });
  caught("no initial state", [](KdaInputs& in) { in.h0.clear(); });
}

TEST_CASE(
    "KDA keeps to its limits at awkward lengths, widths and layouts, with the same bits "
    "however the tensors lie",
    "[gpu][kda_lengths]") {
  SCANJIT_TEST_GPU(gpu);
  struct Row {
    reference::KdaGate gate;
    std::int64_t H, HV, K, V;
  };
  const Row rows[] = {{reference::KdaGate::kBounded, 1, 2, 128, 128},
                      {reference::KdaGate::kSoftplus, 2, 2, 64, 256},
                      {reference::KdaGate::kPrecomputed, 1, 1, 256, 64},
                      {reference::KdaGate::kScalar, 1, 2, 128, 128}};
  const std::vector<std::vector<std::int64_t>> lengths = {
      {1}, {15}, {16}, {17}, {63}, {64}, {65}, {0}, {0, 1, 64, 0, 65, 129, 16, 300}};
  std::vector<KdaOptions> ways(4);
  ways[0].packed = ways[2].packed = ways[3].packed = true;
  ways[2].pad = 24;
  ways[3].pad = 3;
  ways[3].offset_elements = 1;
  ways[3].layout = StateLayout::kKV;
  std::vector<KdaWanted> wanted;
  for (const Row& row : rows) {
    const KdaInputs tiny = inputs_of(shape_of({64}, row.H, row.HV, row.gate, row.K, row.V),
                                     KdaInputKind::kRandom, true);
    for (const KdaOptions& way : ways) wanted.push_back({problem_of(tiny, way), {}});
  }
  must(compile_all(gpu, wanted));
  for (const Row& row : rows) {
    for (const auto& length : lengths) {
      std::string text;
      for (const std::int64_t one : length) text += " " + std::to_string(one);
      INFO("gate " << static_cast<int>(row.gate) << " K " << row.K << " V " << row.V << ":"
                   << text);
      const KdaInputs inputs = inputs_of(shape_of(length, row.H, row.HV, row.gate, row.K, row.V),
                                         KdaInputKind::kRandom, true);
      const KdaRun packed = whole(gpu, inputs, ways[0]);
      check_within(errors_of(packed, must(reference::kda_forward(inputs))), reference::kKdaSerial);
      for (std::size_t w = 1; w < ways.size(); ++w) {
        if (!ways[w].packed && length.size() > 1) continue;
        INFO("way " << w);
        CHECK(bit_difference(packed, whole(gpu, inputs, ways[w])) == "");
      }
    }
  }
  // Each of many alone.
  const KdaInputs many =
      inputs_of(shape_of({0, 1, 64, 0, 65, 129, 16, 300}, 1, 2), KdaInputKind::kRandom, true);
  const KdaRun together = whole(gpu, many, ways[0]);
  std::size_t o_at = 0;
  for (std::size_t n = 0; n < many.lengths.size(); ++n) {
    INFO("sequence " << n);
    const KdaRun one = whole(gpu, alone(many, n), ways[0]);
    CHECK(std::equal(one.o.begin(), one.o.end(),
                     together.o.begin() + static_cast<std::ptrdiff_t>(o_at)));
    CHECK(std::equal(one.ht.begin(), one.ht.end(),
                     together.ht.begin() + static_cast<std::ptrdiff_t>(n * one.ht.size())));
    o_at += one.o.size();
  }
  const KdaInputs longer = inputs_of(shape_of({12289}, 1, 2), KdaInputKind::kRandom, true);
  check_within(errors_of(whole(gpu, longer, ways[0]), must(reference::kda_forward(longer))),
               reference::kKdaSerial);
}

TEST_CASE("a split of KDA is as exact as the serial form", "[gpu][kda_split]") {
  SCANJIT_TEST_GPU(gpu);
  const std::int64_t longest = number_from_environment("SCANJIT_GPU_KDA_SPLIT", 65536);
  constexpr std::int64_t kSegments[] = {1, 2, 3, 4, 16, 48, 64};
  std::vector<KdaWanted> wanted;
  for (const bool h0 : {false, true}) {
    KdaInputs long_one = inputs_of(shape_of({64}, 1, 1), KdaInputKind::kSlow, h0);
    long_one.lengths = {longest};
    KdaOptions options;
    wanted.push_back({problem_of(long_one, options), {}});
    for (const std::int64_t segments : kSegments) {
      options.numerics = "split" + std::to_string((longest / 64 + segments - 1) / segments);
      wanted.push_back({problem_of(long_one, options), {}});
    }
  }
  must(compile_all(gpu, wanted));
  for (const std::int64_t tokens : {std::int64_t{16384}, longest}) {
    for (const bool h0 : {false, true}) {
      const KdaInputs inputs = inputs_of(shape_of({tokens}, 1, 1), KdaInputKind::kSlow, h0);
      const KdaOutputs oracle = must(reference::kda_forward(inputs));
      const KdaRun serial = whole(gpu, inputs);
      const KdaErrors own = errors_of(serial, oracle);
      std::printf("kda_split %lld tokens%s: serial o %.3e ht %.3e\n",
                  static_cast<long long>(tokens), h0 ? ", h0" : "", own.o, own.ht);
      for (const std::int64_t segments : kSegments) {
        const std::int64_t L = (tokens / 64 + segments - 1) / segments;
        KdaOptions options;
        options.numerics = "split" + std::to_string(L);
        const KdaRun split = whole(gpu, inputs, options);
        INFO(tokens << " tokens, h0 " << h0 << ", " << segments << " segments");
        CHECK(split.config.segment_chunks == L);
        const KdaErrors errors = errors_of(split, oracle), apart = errors_of(split, serial);
        std::printf("kda_split   %lld segments: o %.3e (%.3fx) ht %.3e (%.3fx), apart %.3e %.3e\n",
                    static_cast<long long>(segments), errors.o, errors.o / own.o, errors.ht,
                    errors.ht / own.ht, apart.o, apart.ht);
        check_within(errors, reference::kKdaSplit);
        CHECK(errors.o <= reference::kKdaSplitRatio * own.o);
        CHECK(errors.ht <= reference::kKdaSplitRatio * own.ht);
        CHECK(apart.o <= reference::kKdaSplitApart);
        CHECK(apart.ht <= reference::kKdaSplitApart);
        if (segments == 1 || (segments == 2 && !h0)) CHECK(bit_difference(serial, split) == "");
      }
    }
  }
  // Packed, with sequences of no, one and several segments; from pools, one from zero.
  const KdaInputs mixed =
      inputs_of(shape_of({0, 100, 1300, 64, 777}, 1, 2), KdaInputKind::kSlow, true);
  KdaInputs from_zero = mixed;
  std::fill_n(from_zero.h0.begin() + 2 * 2 * 128 * 128, 2 * 128 * 128, 0.F);
  KdaOptions options;
  options.packed = true;
  options.numerics = "split4";
  options.h0_indices = {3, 4, -1, 0, 6};
  options.ht_indices = {1, 0, 2, -1, 5};
  options.slots = 7;
  const KdaRun pooled = whole(gpu, from_zero, options);
  options.h0_indices.clear();
  options.ht_indices.clear();
  const KdaRun plain = whole(gpu, from_zero, options);
  const KdaErrors errors = errors_of(plain, must(reference::kda_forward(from_zero)));
  check_within(errors, reference::kKdaSerial);
  // Sequence 2 starts from zero in one by its index, in the other by zeros: the product with M_0 of
  // zeros is zero.
  CHECK(pooled.o == plain.o);
  const std::size_t state = 2 * 128 * 128;
  const std::int64_t slots[] = {1, 0, 2, -1, 5};
  for (std::size_t n = 0; n < 5; ++n) {
    if (slots[n] < 0) continue;
    CHECK(std::memcmp(pooled.ht.data() + static_cast<std::size_t>(slots[n]) * state,
                      plain.ht.data() + n * state, state * 4) == 0);
  }
  for (const std::size_t untouched : {3, 4, 6}) CHECK(std::isnan(pooled.ht[untouched * state]));
}

TEST_CASE("every config of a class, slices and repetition give KDA the same bits",
          "[gpu][kda_bits]") {
  SCANJIT_TEST_GPU(gpu);
  const KdaInputs inputs =
      inputs_of(shape_of({0, 1, 64, 1000, 65, 2048}, 2, 4), KdaInputKind::kRandom, true);
  for (const char* numerics : {"default", "split5"}) {
    KdaOptions options;
    options.packed = true;
    options.numerics = numerics;
    const std::vector<Config> configs = must(legal_configs(gpu, problem_of(inputs, options)));
    REQUIRE(configs.size() >= 8);
    std::vector<KdaWanted> wanted;
    for (const Config& config : configs) wanted.push_back({problem_of(inputs, options), config});
    must(compile_all(gpu, wanted));
    const KdaRun first = whole(gpu, inputs, options);
    for (const Config& config : configs) {
      INFO(numerics << " " << to_string(config));
      options.config = config;
      for (int repeat = 0; repeat < 3; ++repeat)
        CHECK(bit_difference(first, whole(gpu, inputs, options)) == "");
    }
  }
  // Slices; less than a quarter would not hold one chunk of every sequence.
  KdaOptions options;
  options.packed = true;
  const KdaRun serial = whole(gpu, inputs, options);
  for (const std::int64_t parts : {2, 3, 4}) {
    options.workspace_limit = serial.workspace_bytes / parts;
    const KdaRun sliced = whole(gpu, inputs, options);
    INFO(parts << " parts of the workspace");
    CHECK(sliced.workspace_bytes <= options.workspace_limit);
    CHECK(bit_difference(serial, sliced) == "");
  }
}

TEST_CASE("a checkpoint of KDA is the end of a call, and a call goes on from it with the same bits",
          "[gpu][kda_checkpoints]") {
  SCANJIT_TEST_GPU(gpu);
  const KdaInputs inputs = inputs_of(shape_of({1000}, 1, 2), KdaInputKind::kRandom, true);
  for (const char* numerics : {"default", "split4"}) {
    KdaOptions options;
    options.numerics = numerics;
    const KdaRun plain = whole(gpu, inputs, options);
    options.checkpoint_offsets = {{0, 512, -1, 100, 960, 2048, 1000}};
    const KdaRun marked = whole(gpu, inputs, options);
    CHECK(bit_difference(plain, marked) == "");
    const std::size_t state = 2 * 128 * 128;
    const auto checkpoint = [&](std::size_t q) { return marked.checkpoints.data() + q * state; };
    CHECK(std::memcmp(checkpoint(0), inputs.h0.data(), state * 4) == 0);
    for (const std::size_t none : {2, 3, 5, 6}) {
      INFO(none);
      CHECK(std::isnan(checkpoint(none)[0]));
      CHECK(std::isnan(checkpoint(none)[state - 1]));
    }
    KdaOptions same;
    same.numerics = numerics;
    for (const auto& [q, tokens] : {std::pair{std::size_t{1}, 512}, {std::size_t{4}, 960}}) {
      const KdaRun ends = whole(gpu, part(inputs, 0, tokens), same);
      CHECK(std::memcmp(checkpoint(q), ends.ht.data(), state * 4) == 0);
      KdaInputs rest = part(inputs, tokens, 1000);
      rest.h0.assign(checkpoint(q), checkpoint(q) + state);
      const KdaRun later = whole(gpu, rest, same);
      if (std::string(numerics) != "default") continue;  // segments are counted from the start
      CHECK(std::equal(later.o.begin(), later.o.end(), plain.o.begin() + tokens * 2 * 128));
      CHECK(std::memcmp(later.ht.data(), plain.ht.data(), state * 4) == 0);
    }
  }
}

TEST_CASE("bad lengths and indices on the device are told and touch nothing", "[gpu][kda_status]") {
  SCANJIT_TEST_GPU(gpu);
  const KdaInputs inputs = inputs_of(shape_of({130, 70, 200}, 1, 1), KdaInputKind::kRandom, true);
  for (const char* numerics : {"default", "split1"}) {
    INFO(numerics);
    KdaOptions options;
    options.packed = true;
    options.numerics = numerics;
    const KdaRun good = whole(gpu, inputs, options);
    CHECK(good.status == 0);
    // The second sequence ends before it begins, the third begins at its end and is past T.
    options.cu_seqlens = {0, 130, 129, 100000};
    const KdaRun bad = whole(gpu, inputs, options);
    CHECK(bad.status == 1);
    const std::size_t row = 128, state = 128 * 128;
    CHECK(std::memcmp(bad.o.data(), good.o.data(), 130 * row * 2) == 0);
    CHECK(std::memcmp(bad.ht.data(), good.ht.data(), state * 4) == 0);
    CHECK(std::isnan(bad.ht[state]));
    CHECK(std::isnan(bad.ht[2 * state]));
    CHECK(bad.o[130 * row] == 0xFFFF);

    // Overlapping: with the third there are more chunks than 400 tokens of three sequences make.
    options.cu_seqlens = {0, 300, 100, 400};
    const KdaRun overlapping = whole(gpu, inputs, options);
    CHECK(overlapping.status == 1);
    CHECK(std::isnan(overlapping.ht[2 * state]));
    CHECK(overlapping.o[300 * row] == 0xFFFF);

    options.cu_seqlens.clear();
    options.slots = 3;
    options.h0_indices = {0, 3, -2};
    options.ht_indices = {2, 1, 7};
    const KdaRun indices = whole(gpu, inputs, options);
    CHECK(indices.status == 6);
    CHECK(std::memcmp(indices.o.data(), good.o.data(), 130 * row * 2) == 0);
    CHECK(std::memcmp(indices.ht.data() + 2 * state, good.ht.data(), state * 4) == 0);
    CHECK(std::isnan(indices.ht[0]));
  }
}

}  // namespace scanjit::test
