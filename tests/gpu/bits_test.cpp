// The same sequences in every arrangement: alone or packed among others, dense, with strides, in
// pools, in the other layout, at odd addresses, in place, twice. The bits of a sequence never
// change.

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpu/arrange.hpp"
#include "gpu/case.hpp"
#include "gpu/run.hpp"

namespace scanjit::test {
namespace {

struct Widths {
  DType dtype = DType::kBf16;
  std::int64_t H = 2, HV = 4, K = 128, V = 128, BT = 64;
  bool g = true, gk = false;
};

GatedDeltaHProblem packed_problem(const Widths& widths, const std::vector<std::int64_t>& lengths) {
  GatedDeltaHProblem p;
  p.dtype = widths.dtype;
  p.packed = true;
  p.sequences = static_cast<std::int64_t>(lengths.size());
  for (const std::int64_t length : lengths) p.T += length;
  p.H = widths.H;
  p.HV = widths.HV;
  p.K = widths.K;
  p.V = widths.V;
  p.BT = widths.BT;
  p.has_g = widths.g;
  p.has_gk = widths.gk;
  p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
  return p;
}

reference::GatedDeltaHInputs inputs_of(const GatedDeltaHProblem& p,
                                       const std::vector<std::int64_t>& lengths) {
  reference::GeneratorOptions generator;
  generator.gates = reference::GateSet::kSlow;
  generator.lengths = p.packed ? lengths : std::vector<std::int64_t>{};
  generator.seed = 21;
  return must(reference::generate(p, generator));
}

/// A few configs: the engine's own, and one of every kernel.
std::vector<std::optional<Config>> some_configs(Gpu& gpu, const GatedDeltaHProblem& p) {
  std::vector<std::optional<Config>> configs = {std::nullopt};
  for (const Config& config : must(varied_configs(gpu, p, 1))) configs.emplace_back(config);
  return configs;
}

std::int64_t compared_sequences = 0;

void check_same(const std::string& what, const std::vector<SequenceBits>& wanted,
                const std::vector<SequenceBits>& got) {
  REQUIRE(wanted.size() == got.size());
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    INFO(what << ", sequence " << n << ": h differs in " << differing(wanted[n].h, got[n].h)
              << ", v_new in " << differing(wanted[n].v_new, got[n].v_new) << ", ht in "
              << differing(wanted[n].ht, got[n].ht) << " elements");
    CHECK(wanted[n] == got[n]);
    ++compared_sequences;
  }
}

}  // namespace

TEST_CASE("Sequences of one chunk that blocks take in turn have the bits of any other config",
          "[gpu][bits_turns]") {
  SCANJIT_TEST_GPU(gpu);
  std::int64_t runs = 0;
  for (const std::int64_t T : {1, 63, 64}) {
    for (const bool odd : {false, true}) {
      GatedDeltaHProblem p;
      p.B = 400;  // more items than a GPU runs at once
      p.T = T;
      p.H = 1;
      p.HV = 2;
      p.V = odd ? 72 : 128;
      p.has_gk = odd;
      if (odd) p.H = p.HV;
      if (odd) p.layout = StateLayout::kVK;
      p.has_g = p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
      const reference::GatedDeltaHInputs inputs = inputs_of(p, {});
      const std::vector<Config> configs = must(varied_configs(gpu, p));
      RunOptions options;
      options.config = configs.front();
      const RunResult wanted = must(run(gpu, inputs, options));
      for (const Config& config : configs) {
        options.config = config;
        const RunResult got = must(run(gpu, inputs, options));
        INFO("T " << T << " V " << p.V << " " << to_string(config) << ": "
                  << bit_difference(wanted, got) << got.damage);
        CHECK(bit_difference(wanted, got).empty());
        CHECK(got.damage.empty());
        ++runs;
      }
    }
  }
  report_counts("{\"what\":\"bits_turns\",\"runs\":" + std::to_string(runs) + "}");
}

TEST_CASE("Zeros have the same sign under every config", "[gpu][bits_turns]") {
  SCANJIT_TEST_GPU(gpu);
  GatedDeltaHProblem p;
  p.T = 128;
  p.H = p.HV = 1;
  p.has_g = p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
  reference::GatedDeltaHInputs inputs = inputs_of(p, {});
  // Every product of w and the state is -0, and so is u.
  std::fill(inputs.w.begin(), inputs.w.end(), std::uint16_t{0});
  std::fill(inputs.u.begin(), inputs.u.end(), std::uint16_t{0x8000});
  std::fill(inputs.h0.begin(), inputs.h0.end(), -1.0F);
  const std::vector<Config> configs = must(varied_configs(gpu, p));
  RunOptions options;
  options.config = configs.front();
  const RunResult wanted = must(run(gpu, inputs, options));
  for (const Config& config : configs) {
    options.config = config;
    const RunResult got = must(run(gpu, inputs, options));
    INFO(to_string(config) << ": " << bit_difference(wanted, got));
    CHECK(bit_difference(wanted, got).empty());
  }
}

TEST_CASE("A sequence's bits do not depend on what is packed beside it", "[gpu][bits_alone]") {
  SCANJIT_TEST_GPU(gpu);
  const std::vector<std::int64_t> lengths = {1, 63, 64, 0, 65, 200, 517, 129};
  for (const Widths& widths : {Widths{}, Widths{DType::kF16, 1, 3, 96, 200, 32, true, true},
                               Widths{DType::kBf16, 2, 2, 33, 17, 16, false, true}}) {
    const GatedDeltaHProblem p = packed_problem(widths, lengths);
    const reference::GatedDeltaHInputs inputs = inputs_of(p, lengths);
    std::vector<SequenceBits> wanted;
    for (const std::optional<Config>& config : some_configs(gpu, p)) {
      RunOptions options;
      options.config = config;
      const std::vector<SequenceBits> together =
          sequence_bits(inputs, must(run(gpu, inputs, options)));
      if (wanted.empty()) wanted = together;
      check_same("packed, another config", wanted, together);
      for (const bool packed : {true, false}) {
        for (std::int64_t n = 0; n < p.sequences; ++n) {
          const reference::GatedDeltaHInputs one = must(alone(inputs, n, packed));
          const std::vector<SequenceBits> bits = sequence_bits(one, must(run(gpu, one, options)));
          check_same(
              std::string("alone, ") + (packed ? "packed" : "dense") + ", K=" + std::to_string(p.K),
              {wanted[static_cast<std::size_t>(n)]}, bits);
        }
      }
    }
  }
  report_counts("{\"what\":\"bits_alone\",\"compared\":" + std::to_string(compared_sequences) +
                "}");
}

TEST_CASE("A sequence's bits do not depend on how tensors lie", "[gpu][bits_arranged]") {
  SCANJIT_TEST_GPU(gpu);
  const std::vector<std::int64_t> lengths = {130, 130, 130};
  for (const Widths& widths : {Widths{}, Widths{DType::kF16, 2, 4, 64, 64, 64, true, true},
                               Widths{DType::kBf16, 1, 2, 100, 72, 32, true, false}}) {
    const GatedDeltaHProblem p = packed_problem(widths, lengths);
    const reference::GatedDeltaHInputs inputs = inputs_of(p, lengths);
    for (const std::optional<Config>& config : some_configs(gpu, p)) {
      RunOptions options;
      options.config = config;
      const RunResult first = must(run(gpu, inputs, options));
      const std::vector<SequenceBits> wanted = sequence_bits(inputs, first);
      const auto check = [&](const std::string& what, const GatedDeltaHProblem& problem,
                             const RunOptions& how,
                             const std::vector<std::int64_t>& h0_indices = {},
                             const std::vector<std::int64_t>& ht_indices = {}) {
        const reference::GatedDeltaHInputs arranged =
            must(rearranged(inputs, problem, h0_indices, ht_indices));
        RunOptions with = how;
        // A config that the other arrangement does not allow (an unaligned path may need more room)
        // is the engine's own there.
        if (with.config) {
          const std::vector<Config> legal = must(legal_configs(gpu, problem));
          if (std::find(legal.begin(), legal.end(), *with.config) == legal.end())
            with.config.reset();
        }
        check_same(what, wanted, sequence_bits(arranged, must(run(gpu, arranged, with))));
      };
      check("again", p, options);

      GatedDeltaHProblem dense = p;
      dense.packed = false;
      dense.B = p.sequences;
      dense.sequences = 0;
      dense.T = lengths.front();
      check("dense", dense, options);

      GatedDeltaHProblem strided = p;
      strided.k_stride = p.H * p.K + 8;
      strided.w_stride = p.HV * p.K + 16;
      strided.u_stride = p.HV * p.V + 24;
      strided.g_stride = p.has_g ? p.HV + 4 : 0;
      strided.gk_stride = p.has_gk ? p.HV * p.K + 8 : 0;
      strided.v_new_stride = p.HV * p.V + 8;
      check("strides", strided, options);

      GatedDeltaHProblem odd = p;  // strides that no 16-byte row allows
      odd.k_stride = p.H * p.K + 1;
      odd.w_stride = p.HV * p.K + 3;
      odd.u_stride = p.HV * p.V + 5;
      odd.v_new_stride = p.HV * p.V + 7;
      check("odd strides", odd, options);

      GatedDeltaHProblem unaligned = p;
      unaligned.aligned16 = false;
      RunOptions misaligned = options;
      misaligned.misalign_elements = 3;
      check("odd addresses", unaligned, misaligned);

      GatedDeltaHProblem other_layout = p;
      other_layout.layout = StateLayout::kVK;
      check("layout vk", other_layout, options);

      GatedDeltaHProblem pooled = p;
      pooled.has_h0_indices = pooled.has_ht_indices = true;
      pooled.h0_slots = 5;
      pooled.ht_slots = 4;
      pooled.h0_slot_stride = p.HV * p.K * p.V + 4;
      pooled.ht_slot_stride = p.HV * p.K * p.V + 8;
      check("pools", pooled, options, {4, 0, 2}, {3, 1, 0});
      pooled.index_type = IndexType::kInt32;
      pooled.cu_seqlens_type = IndexType::kInt32;
      check("pools, 32-bit indices and lengths", pooled, options, {1, 3, 0}, {0, 2, 1});

      RunOptions in_place = options;
      in_place.ht_in_place = in_place.v_new_in_place = true;
      check("ht in place of h0 and v_new in place of u", p, in_place);
    }
  }
  report_counts("{\"what\":\"bits_arranged\",\"compared\":" + std::to_string(compared_sequences) +
                "}");
}

TEST_CASE("Leaving out outputs changes no bit of the others", "[gpu][bits_optional]") {
  SCANJIT_TEST_GPU(gpu);
  const std::vector<std::int64_t> lengths = {130, 64, 15};
  const GatedDeltaHProblem p = packed_problem({}, lengths);
  const reference::GatedDeltaHInputs inputs = inputs_of(p, lengths);
  const std::vector<SequenceBits> wanted = sequence_bits(inputs, must(run(gpu, inputs, {})));
  for (int set = 1; set < 8; ++set) {
    GatedDeltaHProblem fewer = p;
    fewer.has_h = (set & 1) != 0;
    fewer.has_v_new = (set & 2) != 0;
    fewer.has_ht = (set & 4) != 0;
    std::vector<SequenceBits> expected = wanted;
    for (SequenceBits& bits : expected) {
      if (!fewer.has_h) bits.h.clear();
      if (!fewer.has_v_new) bits.v_new.clear();
      if (!fewer.has_ht) bits.ht.clear();
    }
    const reference::GatedDeltaHInputs arranged = must(rearranged(inputs, fewer));
    check_same("outputs " + std::to_string(set), expected,
               sequence_bits(arranged, must(run(gpu, arranged, {}))));
  }
}

}  // namespace scanjit::test
