// The KDA oracle: values worked out by hand, the chunked form against the recurrence, segments
// against the whole, and mistakes that the tolerances must catch.
#include <cmath>
#include <utility>

#include "reference/half.hpp"
#include "reference/kda_forward.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::reference;

namespace {

KdaOutputs recurred(const KdaInputs& in, const std::vector<KdaCheckpoint>& checkpoints = {},
                    int threads = 0) {
  Result<KdaOutputs> out = kda_forward(in, checkpoints, threads);
  INFO(out.status().to_string());
  REQUIRE(out.ok());
  return std::move(out).value();
}
KdaOutputs chunked(const KdaInputs& in, const KdaChunkedOptions& options = {}) {
  Result<KdaOutputs> out = kda_forward_chunked(in, options);
  INFO(out.status().to_string());
  REQUIRE(out.ok());
  return std::move(out).value();
}
KdaInputs made(const KdaInputs& shape, const KdaGeneratorOptions& options) {
  Result<KdaInputs> in = generate_kda(shape, options);
  INFO(in.status().to_string());
  REQUIRE(in.ok());
  return std::move(in).value();
}

double relative(const std::vector<double>& got, const std::vector<double>& reference) {
  REQUIRE(got.size() == reference.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - reference[i]) * (got[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

std::vector<std::uint16_t> bf16(const std::vector<double>& values) {
  std::vector<std::uint16_t> out;
  for (const double value : values) out.push_back(double_to_bf16(value));
  return out;
}

KdaInputs shape_of(std::int64_t K, std::int64_t V, std::vector<std::int64_t> lengths,
                   KdaGate gate = KdaGate::kBounded) {
  KdaInputs shape;
  shape.K = K;
  shape.V = V;
  shape.lengths = std::move(lengths);
  shape.gate = gate;
  return shape;
}

/// One key column, one value column, nothing normalised, two tokens.
KdaInputs two_tokens() {
  KdaInputs in = shape_of(1, 1, {2}, KdaGate::kPrecomputed);
  in.normalize_qk = in.beta_sigmoid = false;
  in.q = bf16({2, 1});
  in.k = bf16({1, 2});
  in.v = bf16({3, 5});
  in.g = {0, static_cast<float>(-std::log(2.0))};
  in.beta = {0.5F, 0.25F};
  return in;
}

}  // namespace

TEST_CASE("kda: two tokens by hand", "[unit][reference][kda]") {
  KdaInputs in = two_tokens();
  // S = 0.5*1*3 = 1.5, o = 2*1.5; S = 0.75, then + 0.25*2*(5 - 2*0.75) = 2.5, o = 1*2.5
  KdaOutputs out = recurred(in, {{0, 0}, {0, 1}, {0, 2}});
  CHECK(out.o[0] == 3);
  CHECK(out.o[1] == Approx(2.5).epsilon(1e-6));
  CHECK(out.ht[0] == Approx(2.5).epsilon(1e-6));
  CHECK(out.checkpoints[0] == 0);
  CHECK(out.checkpoints[1] == 1.5);
  CHECK(out.checkpoints[2] == out.ht[0]);

  // From h0 = 4: S = 4 + 0.5*(3 - 4) = 3.5, o = 7; S = 1.75 + 0.5*(5 - 3.5) = 2.5
  in.h0 = {4};
  out = recurred(in);
  CHECK(out.o[0] == 7);
  CHECK(out.ht[0] == Approx(2.5).epsilon(1e-6));

  in.scale = 0.5;
  CHECK(recurred(in).o[0] == 3.5);
}

TEST_CASE("kda: rows are normalised, beta is a logit, value heads share a key head",
          "[unit][reference][kda]") {
  KdaInputs in = shape_of(2, 2, {1}, KdaGate::kScalar);
  in.HV = 2;
  in.q = bf16({4, 3});
  in.k = bf16({3, 4});
  in.v = bf16({10, 20, 1, 2});
  in.g = {0, 0};
  in.beta = {0, 0};  // sigmoid 0.5
  const KdaOutputs out = recurred(in);
  // k = (0.6, 0.8), q = (0.8, 0.6), scale = 2^-1/2
  const double root = std::sqrt(0.5);
  const std::vector<double> ht = {3, 6, 4, 8, 0.3, 0.6, 0.4, 0.8},
                            o = {4.8 * root, 9.6 * root, 0.48 * root, 0.96 * root};
  CHECK(relative(out.ht, ht) < 1e-7);
  CHECK(relative(out.o, o) < 1e-7);
}

TEST_CASE("kda: every gate gives the decay of its formula", "[unit][reference][kda]") {
  // No update (beta 0): ht = exp(a) h0.
  KdaInputs in = shape_of(1, 1, {1});
  in.beta_sigmoid = false;
  in.q = in.k = in.v = bf16({1});
  in.beta = {0};
  in.h0 = {1};
  in.g = {0.5F};
  in.A_log = {static_cast<float>(std::log(2.0))};
  in.dt_bias = {-0.5F};
  CHECK(recurred(in).ht[0] == Approx(std::exp(-2.5)));  // -5 * sigmoid(0)
  in.dt_bias = {0.5F};
  CHECK(recurred(in).ht[0] == Approx(std::exp(-5 / (1 + std::exp(-2.0)))));
  in.gate = KdaGate::kSoftplus;
  CHECK(recurred(in).ht[0] == Approx(std::pow(1 + std::exp(1.0), -2)));
  in.A_log = {};
  in.dt_bias = {};
  in.g = {0};
  CHECK(recurred(in).ht[0] == Approx(0.5));
  in.gate = KdaGate::kPrecomputed;
  in.g = {-1};
  CHECK(recurred(in).ht[0] == Approx(std::exp(-1.0)));
  in.g = {-100};
  CHECK(recurred(in).ht[0] == Approx(std::exp(-60.0)));
  in.gate = KdaGate::kScalar;
  CHECK(recurred(in).ht[0] == Approx(std::exp(-60.0)));
}

TEST_CASE("kda: the chunked form is the recurrence", "[unit][reference][kda]") {
  const KdaGate gates[] = {KdaGate::kBounded, KdaGate::kSoftplus, KdaGate::kPrecomputed,
                           KdaGate::kScalar};
  const KdaInputKind kinds[] = {KdaInputKind::kRandom, KdaInputKind::kZero,
                                KdaInputKind::kSaturated, KdaInputKind::kBurst,
                                KdaInputKind::kSlow};
  for (const KdaGate gate : gates) {
    for (const KdaInputKind kind : kinds) {
      if (gate == KdaGate::kBounded && kind == KdaInputKind::kBurst) continue;
      INFO("gate " << static_cast<int>(gate) << " " << to_string(kind));
      KdaInputs shape = shape_of(16, 24, {0, 1, 15, 16, 17, 63, 64, 65, 150}, gate);
      shape.H = 2;
      shape.HV = 4;
      KdaGeneratorOptions options;
      options.kind = kind;
      options.seed = 7;
      options.h0 = kind != KdaInputKind::kZero;
      const KdaInputs in = made(shape, options);
      const KdaOutputs exact = recurred(in), got = chunked(in);
      CHECK(relative(got.o, exact.o) < 1e-11);
      CHECK(relative(got.ht, exact.ht) < 1e-11);
    }
  }
}

TEST_CASE("kda: segments are the whole", "[unit][reference][kda]") {
  for (const KdaInputKind kind : {KdaInputKind::kRandom, KdaInputKind::kSlow}) {
    for (const bool h0 : {false, true}) {
      INFO(to_string(kind) << " h0 " << h0);
      KdaGeneratorOptions options;
      options.kind = kind;
      options.h0 = h0;
      const KdaInputs in = made(shape_of(32, 16, {5 * 64 + 9, 64, 0}), options);
      const KdaOutputs whole = chunked(in);
      for (const std::int64_t segment_chunks : {1, 2, 5, 6}) {
        const KdaOutputs split = chunked(in, {false, segment_chunks});
        CHECK(relative(split.o, whole.o) < 1e-11);
        CHECK(relative(split.ht, whole.ht) < 1e-11);
      }
      // Two segments from a zero state: b is handed on as it is.
      if (!h0) CHECK(chunked(in, {false, 3}).o == whole.o);
    }
  }
}

TEST_CASE("kda: a checkpoint is the final state of the tokens before it",
          "[unit][reference][kda]") {
  KdaGeneratorOptions options;
  options.h0 = true;
  KdaInputs in = made(shape_of(16, 80, {100}), options);
  const KdaOutputs whole = recurred(in, {{0, 64}}, 1);
  CHECK(recurred(in, {}, 3).o == whole.o);
  in.lengths = {64};
  in.q.resize(64 * 16);
  in.k.resize(64 * 16);
  in.v.resize(64 * 80);
  in.g.resize(64 * 16);
  in.beta.resize(64);
  CHECK(recurred(in).ht == whole.checkpoints);
}

TEST_CASE("kda: the roundings of a kernel lie inside the tolerances, mistakes outside",
          "[unit][reference][kda]") {
  KdaGeneratorOptions options;
  options.kind = KdaInputKind::kSlow;
  options.h0 = true;
  KdaInputs in = made(shape_of(64, 64, {4096}), options);
  KdaOutputs exact = recurred(in);
  const auto errors = [&](std::int64_t segment_chunks, KdaMistake mistake) {
    const KdaOutputs out = chunked(in, {true, segment_chunks, mistake});
    return std::pair(relative(out.o, exact.o), relative(out.ht, exact.ht));
  };
  const auto serial = errors(0, KdaMistake::kNone), split = errors(16, KdaMistake::kNone);
  INFO("serial " << serial.first << " " << serial.second << ", split " << split.first << " "
                 << split.second);
  CHECK(serial.first < kKdaSerial.o);
  CHECK(serial.second < kKdaSerial.ht);
  CHECK(split.first < kKdaSplit.o);
  CHECK(split.second < kKdaSplit.ht);
  CHECK(split.first < kKdaSplitRatio * serial.first);
  CHECK(split.second < kKdaSplitRatio * serial.second);

  const auto state = errors(0, KdaMistake::kStateRounded);
  INFO("state in bf16 " << state.first << " " << state.second);
  CHECK((state.first > kKdaSerial.o || state.second > kKdaSerial.ht));
  for (const KdaMistake mistake : {KdaMistake::kTransitionRounded, KdaMistake::kTransitionZero}) {
    const auto wrong = errors(16, mistake);
    INFO("mistake " << static_cast<int>(mistake) << " " << wrong.first << " " << wrong.second);
    CHECK((wrong.first > kKdaSplit.o || wrong.second > kKdaSplit.ht));
  }

  // Updates as weak as these commute but for their squares: the order needs stronger ones.
  for (float& logit : in.beta) logit += 4;
  exact = recurred(in);
  const auto firm = errors(16, KdaMistake::kNone),
             reversed = errors(16, KdaMistake::kTransitionWrongSide);
  INFO("stronger updates " << firm.first << " " << firm.second << ", reversed " << reversed.first
                           << " " << reversed.second);
  CHECK(firm.first < kKdaSplit.o);
  CHECK(firm.second < kKdaSplit.ht);
  CHECK((reversed.first > kKdaSplit.o || reversed.second > kKdaSplit.ht));
}

TEST_CASE("kda: generated gates decay as their kind says", "[unit][reference][kda]") {
  // One token, beta 0 by value: ht = exp(a) h0 with h0 = 1.
  for (const KdaGate gate : {KdaGate::kBounded, KdaGate::kSoftplus, KdaGate::kPrecomputed}) {
    for (const KdaInputKind kind :
         {KdaInputKind::kZero, KdaInputKind::kSaturated, KdaInputKind::kSlow}) {
      INFO("gate " << static_cast<int>(gate) << " " << to_string(kind));
      KdaGeneratorOptions options;
      options.kind = kind;
      options.g_bf16 = false;
      KdaInputs in = made(shape_of(64, 1, {1}, gate), options);
      in.beta_sigmoid = false;
      in.beta = {0};
      in.h0.assign(64, 1);
      for (const double factor : recurred(in).ht) {
        const double a = std::log(factor);
        if (kind == KdaInputKind::kZero) CHECK(a == 0);
        if (kind == KdaInputKind::kSaturated) CHECK(a == Approx(-5).epsilon(1e-4));
        if (kind == KdaInputKind::kSlow) CHECK((a <= 0 && a > -0x1.01p-16));
      }
    }
  }
}

TEST_CASE("kda: the same seed gives the same inputs, another one others",
          "[unit][reference][kda]") {
  const KdaInputs shape = shape_of(8, 8, {20});
  const KdaInputs one = made(shape, {KdaInputKind::kRandom, 1}),
                  again = made(shape, {KdaInputKind::kRandom, 1}),
                  other = made(shape, {KdaInputKind::kRandom, 2});
  CHECK(one.q == again.q);
  CHECK(one.g == again.g);
  CHECK(one.beta == again.beta);
  CHECK(one.q != other.q);
  CHECK(one.g != other.g);
}

TEST_CASE("kda: sizes that do not fit are named", "[unit][reference][kda]") {
  KdaInputs in = two_tokens();
  in.beta.pop_back();
  const Result<KdaOutputs> out = kda_forward(in);
  REQUIRE_FALSE(out.ok());
  CHECK(out.status().code() == ErrorCode::kInvalidArgument);
  CHECK(out.status().message().find("beta has 1 elements") != std::string::npos);

  CHECK_FALSE(kda_forward(two_tokens(), {{0, 3}}).ok());
  CHECK_FALSE(kda_forward(two_tokens(), {{1, 0}}).ok());
  KdaInputs heads = shape_of(8, 8, {4});
  heads.H = 2;
  heads.HV = 3;
  CHECK_FALSE(generate_kda(heads, {}).ok());
  CHECK_FALSE(generate_kda(shape_of(8, 8, {4}), {KdaInputKind::kBurst}).ok());
  CHECK_FALSE(generate_kda(shape_of(8, 8, {-1}), {}).ok());
}
