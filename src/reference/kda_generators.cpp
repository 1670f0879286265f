// Inputs for KDA forward. As in generators.cpp, no function of libm but sqrt is used.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "reference/half.hpp"
#include "reference/kda_forward.hpp"
#include "reference/random.hpp"

namespace scanjit::reference {

namespace {

// One stream of random numbers per tensor. The numbers are part of what a seed means: never change
// one.
enum Stream : std::uint64_t {
  kQStream = 101,
  kKStream = 102,
  kVStream = 103,
  kGStream = 104,
  kBetaStream = 105,
  kALogStream = 106,
  kDtBiasStream = 107,
  kH0Stream = 108,
};

constexpr double kLog2E = 1.44269504088896340736;
constexpr double kFarAway = 1e4;  // a raw gate whose sigmoid is 0 or 1

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
double exact_exp(double x) { return exact_exp2(x * kLog2E); }

float stored(double value, bool bf16) {
  return bf16 ? bf16_to_float(double_to_bf16(value)) : static_cast<float>(value);
}

/// x with sigmoid(x) = p.
double inverse_sigmoid(double p) {
  if (p <= 0) return -kFarAway;
  if (p >= 1) return kFarAway;
  return exact_log(p) - exact_log(1 - p);
}
/// x with softplus(x) = y >= 0.
double inverse_softplus(double y) {
  if (y <= 0) return -kFarAway;
  return y > 30 ? y : exact_log(y < 1e-5 ? y + y * y / 2 : exact_exp(y) - 1);
}

class Generator {
 public:
  Generator(const KdaInputs& shape, const KdaGeneratorOptions& options)
      : options_(options), in_(shape) {}

  KdaInputs run() {
    std::int64_t tokens = 0;
    for (const std::int64_t length : in_.lengths) tokens += length;
    const bool unit = !in_.normalize_qk || options_.kind == KdaInputKind::kSlow;
    fill_rows(&in_.q, tokens * in_.H, kQStream, unit);
    fill_rows(&in_.k, tokens * in_.H, kKStream, unit);
    in_.v.resize(at(tokens * in_.HV * in_.V));
    for (std::size_t i = 0; i < in_.v.size(); ++i) in_.v[i] = double_to_bf16(normal(kVStream, i));
    fill_parameters();
    fill_gates(tokens);
    in_.beta.resize(at(tokens * in_.HV));
    for (std::size_t i = 0; i < in_.beta.size(); ++i) {
      const double logit = normal(kBetaStream, i) - (options_.kind == KdaInputKind::kSlow ? 8 : 0);
      in_.beta[i] =
          stored(in_.beta_sigmoid ? logit : 1 / (1 + exact_exp(-logit)), options_.beta_bf16);
    }
    in_.h0.clear();
    if (options_.h0) in_.h0.resize(in_.lengths.size() * at(in_.HV * in_.K * in_.V));
    for (std::size_t i = 0; i < in_.h0.size(); ++i)
      in_.h0[i] = static_cast<float>(0.1 * normal(kH0Stream, i));
    return std::move(in_);
  }

 private:
  double normal(Stream stream, std::size_t i) const {
    return random_normal(options_.seed, stream, i);
  }

  void fill_rows(std::vector<std::uint16_t>* tensor, std::int64_t rows, Stream stream, bool unit) {
    tensor->resize(at(rows * in_.K));
    std::vector<double> row(at(in_.K));
    for (std::int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (std::int64_t i = 0; i < in_.K; ++i) {
        row[at(i)] = normal(stream, at(r * in_.K + i));
        squares += row[at(i)] * row[at(i)];
      }
      const double factor = unit && squares > 0 ? 1 / std::sqrt(squares) : 1;
      for (std::int64_t i = 0; i < in_.K; ++i)
        (*tensor)[at(r * in_.K + i)] = double_to_bf16(row[at(i)] * factor);
    }
  }

  bool raw_gates() const { return in_.gate == KdaGate::kBounded || in_.gate == KdaGate::kSoftplus; }

  void fill_parameters() {
    in_.A_log.clear();
    in_.dt_bias.clear();
    if (!options_.parameters || !raw_gates()) return;
    in_.A_log.resize(at(in_.HV));
    in_.dt_bias.resize(at(in_.HV * in_.K));
    for (std::size_t i = 0; i < in_.A_log.size(); ++i)
      in_.A_log[i] = static_cast<float>(0.8 * random_uniform(options_.seed, kALogStream, i) - 0.4);
    for (std::size_t i = 0; i < in_.dt_bias.size(); ++i)
      in_.dt_bias[i] = static_cast<float>(0.3 * normal(kDtBiasStream, i));
  }

  /// The log decay that the kind asks for; not of kRandom.
  double log_decay(std::int64_t token, std::size_t element) const {
    switch (options_.kind) {
      case KdaInputKind::kSaturated: return -5;
      case KdaInputKind::kBurst: return token % 71 < 8 ? -20 : 0;
      case KdaInputKind::kSlow: return -0x1p-16 * random_uniform(options_.seed, kGStream, element);
      default: return 0;
    }
  }

  void fill_gates(std::int64_t tokens) {
    const std::int64_t columns = in_.gate == KdaGate::kScalar ? 1 : in_.K, row = in_.HV * columns;
    in_.g.resize(at(tokens * row));
    for (std::int64_t i = 0; i < tokens * row; ++i) {
      const std::int64_t head = i % row / columns, column = i % columns;
      double raw = 0;
      if (options_.kind == KdaInputKind::kRandom) {
        raw = normal(kGStream, at(i));
        if (!raw_gates()) raw = -exact_log(1 + exact_exp(raw));
      } else {
        raw = solve(log_decay(i / row, at(i)), head, column);
      }
      in_.g[at(i)] = stored(raw, options_.g_bf16 && in_.gate != KdaGate::kScalar);
    }
  }

  /// The g that gives log decay a.
  double solve(double a, std::int64_t head, std::int64_t column) const {
    if (!raw_gates()) return a;
    const double rate = in_.A_log.empty() ? 1 : exact_exp(static_cast<double>(in_.A_log[at(head)]));
    const double bias =
        in_.dt_bias.empty() ? 0 : static_cast<double>(in_.dt_bias[at(head * in_.K + column)]);
    return (in_.gate == KdaGate::kBounded ? inverse_sigmoid(a / in_.lower_bound) / rate
                                          : inverse_softplus(-a / rate)) -
           bias;
  }

  const KdaGeneratorOptions& options_;
  KdaInputs in_;
};

}  // namespace

const char* to_string(KdaInputKind kind) noexcept {
  switch (kind) {
    case KdaInputKind::kRandom: return "random";
    case KdaInputKind::kZero: return "zero";
    case KdaInputKind::kSaturated: return "saturated";
    case KdaInputKind::kBurst: return "burst";
    case KdaInputKind::kSlow: return "slow";
  }
  return "unknown";
}

Result<KdaInputs> generate_kda(const KdaInputs& shape, const KdaGeneratorOptions& options) {
  SCANJIT_TRY(check_kda_shape(shape));
  if (shape.gate == KdaGate::kBounded && options.kind == KdaInputKind::kBurst) {
    return invalid_argument("burst decays by 20 a token; a bounded gate ends at " +
                            std::to_string(shape.lower_bound));
  }
  try {
    return Generator(shape, options).run();
  } catch (const std::exception&) {  // bad_alloc, or length_error from a vector
    return Status(ErrorCode::kOutOfMemory, "no memory for the generated inputs");
  }
}

}  // namespace scanjit::reference
