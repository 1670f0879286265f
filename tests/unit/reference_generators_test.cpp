// The inputs that kernels are tested with: repeatable, shaped as promised, and stable.
#include "reference/generators.hpp"

#include <cmath>
#include <numeric>
#include <set>

#include "reference/compare.hpp"
#include "reference/half.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::reference;

namespace {

GatedDeltaHProblem small_problem() {
  GatedDeltaHProblem p;
  p.B = 2;
  p.T = 150;
  p.H = 2;
  p.HV = 4;
  p.K = 24;
  p.V = 20;
  p.BT = 32;
  p.has_g = p.has_gk = p.has_h0 = p.has_ht = true;
  return p;
}

GatedDeltaHInputs made(const GatedDeltaHProblem& problem, const GeneratorOptions& options) {
  Result<GatedDeltaHInputs> inputs = generate(problem, options);
  INFO(inputs.status().to_string());
  REQUIRE(inputs.ok());
  return std::move(inputs).value();
}

GatedDeltaHOutputs scanned(const GatedDeltaHInputs& inputs) {
  Result<GatedDeltaHOutputs> outputs = gated_delta_h(inputs);
  INFO(outputs.status().to_string());
  REQUIRE(outputs.ok());
  return std::move(outputs).value();
}

template <class T>
void hash_in(std::uint64_t* hash, const std::vector<T>& values) {  // FNV-1a over the bytes
  for (const T& value : values) {
    std::uint64_t bits = 0;
    if constexpr (std::is_same_v<T, float>) {
      bits = std::bit_cast<std::uint32_t>(value);
    } else {
      bits = static_cast<std::uint64_t>(value);
    }
    for (std::size_t i = 0; i < sizeof(T); ++i)
      *hash = (*hash ^ ((bits >> (8 * i)) & 0xff)) * 0x100000001b3ULL;
  }
}
std::uint64_t hash_of(const GatedDeltaHInputs& in) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  hash_in(&hash, in.k);
  hash_in(&hash, in.w);
  hash_in(&hash, in.u);
  hash_in(&hash, in.g);
  hash_in(&hash, in.gk);
  hash_in(&hash, in.h0);
  return hash;
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  ErrorSum sum;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum.add(static_cast<std::int64_t>(i), a[i], b[i]);
  REQUIRE(sum.finish().non_finite == 0);
  return sum.finish().relative_l2;
}

}  // namespace

TEST_CASE("a seed means the same bits on every machine and with any number of threads",
          "[reference]") {
  GeneratorOptions options;
  options.seed = 12345;
  options.threads = 1;
  const GatedDeltaHInputs inputs = made(small_problem(), options);
  options.threads = 5;
  CHECK(hash_of(made(small_problem(), options)) == hash_of(inputs));
  options.seed = 12346;
  CHECK(hash_of(made(small_problem(), options)) != hash_of(inputs));
  // Written down once: another compiler, libm or processor must come to the same.
  CHECK(hash_of(inputs) == 0xe3df16fb82bdd2d2ULL);
}

TEST_CASE("keys are unit rows, gates accumulate downwards inside their chunk", "[reference]") {
  GatedDeltaHProblem p = small_problem();
  p.has_gk = false;
  for (const InputKind kind : {InputKind::kWy, InputKind::kIndependent}) {
    GeneratorOptions options;
    options.kind = kind;
    const GatedDeltaHInputs in = made(p, options);
    double worst = 0;
    for (std::size_t row = 0; row < in.k.size() / 24; ++row) {
      double square = 0;
      for (std::size_t i = 0; i < 24; ++i)
        square += std::pow(static_cast<double>(bf16_to_float(in.k[row * 24 + i])), 2);
      worst = std::max(worst, std::abs(square - 1));
    }
    CHECK(worst < 4e-3);
    int rising = 0, outside = 0;
    for (std::size_t t = 0; t < 150; ++t) {
      const float gate = in.g[t * 4], before = t % 32 == 0 ? 0 : in.g[(t - 1) * 4];
      rising += gate > before ? 1 : 0;
      outside += gate < before - 0.1F ? 1 : 0;
    }
    CHECK(rising == 0);
    CHECK(outside == 0);
  }
}

TEST_CASE("base e holds the same gates as base 2, times ln 2", "[reference]") {
  GatedDeltaHProblem p = small_problem();
  const GatedDeltaHInputs two = made(p, {});
  p.gate_base = GateBase::kE;
  const GatedDeltaHInputs e = made(p, {});
  for (const std::size_t i : {std::size_t{0}, std::size_t{77}, std::size_t{500}}) {
    CHECK(static_cast<double>(e.g[i]) ==
          Approx(static_cast<double>(two.g[i]) * std::log(2.0)).epsilon(1e-6));
    CHECK(static_cast<double>(e.gk[i]) ==
          Approx(static_cast<double>(two.gk[i]) * std::log(2.0)).epsilon(1e-6));
  }
}

// k, beta, v and the gates of a token do not depend on the chunk length, and u and w are solved for
// exactly so that the scan is the token-by-token delta rule. So the final state must not depend on
// it either: this holds the equations of the generator and those of the oracle against each other.
TEST_CASE("the final state does not depend on the chunk length", "[reference]") {
  for (const GateSet gates : {GateSet::kStrong, GateSet::kSlow, GateSet::kNone}) {
    for (const int which : {0, 1, 2, 3}) {
      GatedDeltaHProblem p = small_problem();
      p.dtype = DType::kF16;
      p.has_g = (which & 1) != 0;
      p.has_gk = (which & 2) != 0;
      p.gate_base = which == 3 ? GateBase::kE : GateBase::kTwo;
      GeneratorOptions options;
      options.gates = gates;
      std::vector<std::vector<double>> final_states;
      for (const std::int64_t BT : {16, 32, 64}) {
        p.BT = BT;
        final_states.push_back(scanned(made(p, options)).ht);
      }
      INFO(to_string(gates) << " g=" << p.has_g << " gk=" << p.has_gk);
      // Only the rounding of the inputs to f16 differs. A wrong sign or row gives 0.1 and more.
      CHECK(relative_difference(final_states[0], final_states[2]) < 3e-3);
      CHECK(relative_difference(final_states[1], final_states[2]) < 3e-3);
    }
  }
}

TEST_CASE("without gates the state stays bounded for 16,384 tokens", "[reference]") {
  GatedDeltaHProblem p;
  p.T = 16384;
  p.H = p.HV = 1;
  p.K = p.V = 64;
  p.has_ht = true;
  p.has_v_new = false;
  GeneratorOptions options;
  options.gates = GateSet::kNone;
  const GatedDeltaHOutputs out = scanned(made(p, options));
  const double square = std::inner_product(out.ht.begin(), out.ht.end(), out.ht.begin(), 0.0);
  CHECK(std::sqrt(square / (64 * 64)) < 10);
  CHECK(std::sqrt(square / (64 * 64)) > 0.1);
  CHECK(std::all_of(out.h.begin(), out.h.end(), [](double x) { return std::abs(x) < 100; }));
}

TEST_CASE("what no kernel may use is NaN", "[reference]") {
  GatedDeltaHProblem p = small_problem();
  p.B = 1;
  p.packed = true;
  p.sequences = 2;
  p.k_stride = 2 * 24 + 5;
  p.h0_slots = 3;
  p.h0_slot_stride = 4 * 24 * 20 + 7;
  GeneratorOptions options;
  options.lengths = {33, 100};
  const GatedDeltaHInputs in = made(p, options);
  CHECK(in.cu_seqlens == std::vector<std::int64_t>{0, 33, 133});
  const auto is_nan = [](std::uint16_t bits) { return std::isnan(bf16_to_float(bits)); };
  for (std::size_t token = 0; token < 150; ++token) {
    const bool used = token < 133;
    CHECK(is_nan(in.k[token * 53 + 47]) != used);  // the row's last element
    CHECK(is_nan(in.k[token * 53 + 48]));          // the gap behind it
    CHECK(is_nan(in.w[token * 96]) != used);
    CHECK(is_nan(in.u[token * 80 + 79]) != used);
    CHECK(std::isnan(in.g[token * 4]) != used);
    CHECK(std::isnan(in.gk[token * 96 + 95]) != used);
  }
  CHECK(!std::isnan(in.h0[4 * 24 * 20 - 1]));
  CHECK(std::isnan(in.h0[4 * 24 * 20]));
}

TEST_CASE("lengths, slots and offsets are chosen where none are given", "[reference]") {
  GatedDeltaHProblem p = small_problem();
  p.B = 1;
  p.packed = true;
  p.sequences = 4;
  p.has_h0_indices = p.has_ht_indices = p.has_chunk_offsets = true;
  p.h0_slots = 2;
  p.ht_slots = 3;
  const GatedDeltaHInputs in = made(p, {});
  CHECK(in.cu_seqlens == std::vector<std::int64_t>{0, 38, 76, 113, 150});
  CHECK(in.chunk_offsets == std::vector<std::int64_t>{0, 2, 4, 6});
  CHECK(std::set<std::int64_t>(in.h0_indices.begin(), in.h0_indices.end()) ==
        std::set<std::int64_t>{0, 1});
  CHECK(in.ht_indices[3] == -1);
  CHECK(std::set<std::int64_t>(in.ht_indices.begin(), in.ht_indices.end()) ==
        std::set<std::int64_t>{-1, 0, 1, 2});
}

TEST_CASE("options that do not fit the problem are refused", "[reference]") {
  GatedDeltaHProblem p = small_problem();
  GeneratorOptions options;
  options.lengths = {150, 150};
  CHECK(generate(p, options).status().code() == ErrorCode::kInvalidArgument);  // not packed
  p.B = 1;
  p.packed = true;
  p.sequences = 2;
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{150}, std::vector<std::int64_t>{-1, 10},
        std::vector<std::int64_t>{100, 51}}) {
    options.lengths = lengths;
    CHECK(generate(p, options).status().code() == ErrorCode::kInvalidArgument);
  }
  options.lengths = {100, 50};
  CHECK(generate(p, options).ok());
  p.K = 257;
  CHECK(generate(p, options).status().message().find("K is 257") != std::string::npos);
}
