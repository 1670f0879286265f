// KDA forward on synthetic memory: sizes and contents of its tensors. The gates are slow, since a
// state that decays at once would be denormal numbers and zeros.
#include <algorithm>
#include <cmath>

#include "core/checked_math.hpp"
#include "ops/kda_forward.hpp"
#include "ops/problem_checks.hpp"
#include "ops/synthetic.hpp"

namespace scanjit::ops {
namespace {

constexpr std::int64_t kBT = scanjit::kda_forward::kChunkTokens;
constexpr std::int64_t kPatternBytes = 2 << 20;  // of the widest token tensor
constexpr std::int64_t kStatePatternBytes = 1 << 20;
constexpr float kSlowestDecay = 0x1p-24F, kDecays = 0x1p-16F;  // natural logarithm, a token
constexpr float kBetaLogit = -8;

std::int64_t size_of(DType type) { return type == DType::kF32 ? 4 : 2; }

void put_float(unsigned char* host, std::int64_t place, float value, DType type) {
  if (type == DType::kF32) {
    std::memcpy(host + place * 4, &value, 4);
  } else {
    const std::uint16_t rounded = to_16_bits(value, DType::kBf16);
    std::memcpy(host + place * 2, &rounded, 2);
  }
}

// The raw gate of a log decay -x, A_log and dt_bias being 0.
float raw_gate(const KdaForwardProblem& p, float x) {
  switch (p.gate) {
    case KdaGate::kBounded: return -std::log(-p.lower_bound / x - 1);
    case KdaGate::kSoftplus: return std::log(std::expm1(x));
    default: return -x;
  }
}

}  // namespace

std::int64_t KdaForward::tokens_per_sequence() const noexcept {
  if (rows_ == 0 || N_ == 0) return 0;
  return problem_.max_tokens > 0 ? problem_.max_tokens : ceil_divide(rows_, N_);
}

std::int64_t KdaForward::floor_bytes() const noexcept {
  const KdaForwardProblem& p = problem_;
  if (N_ == 0) return 0;
  const std::int64_t gates = p.gate == KdaGate::kScalar ? p.HV : p.HV * p.K;
  const std::int64_t states = (p.has_h0 ? 1 : 0) + (p.has_ht ? 1 : 0) + p.checkpoints;
  return rows_ * (2 * p.H * p.K * 2 + 2 * p.HV * p.V * 2 + gates * size_of(p.g_dtype) +
                  p.HV * size_of(p.beta_dtype)) +
         N_ * states * p.HV * p.K * p.V * size_of(p.state_dtype);
}

std::shared_ptr<const OpProblem> KdaForward::for_timing(std::int64_t max_bytes) const {
  if (N_ == 0 || rows_ == 0) return nullptr;
  KdaForwardProblem p = problem_;
  p.aligned16 = aligned_;
  p.q_stride = p.k_stride = p.v_stride = p.g_stride = p.beta_stride = p.o_stride = 0;
  p.h0_slot_stride = p.ht_slot_stride = p.h0_slots = p.ht_slots = 0;
  p.max_tokens = 0;
  return largest_that_fits(
      [&](std::int64_t tokens) -> std::shared_ptr<const OpProblem> {
        const auto T = p.packed ? checked_multiply(N_, tokens) : tokens;
        if (!T) return nullptr;
        p.T = *T;
        const auto made = make(p);
        return made.ok() ? *made : nullptr;
      },
      tokens_per_sequence(), kBT, max_bytes);
}

std::int64_t KdaForward::pattern_tokens() const noexcept {
  const KdaForwardProblem& p = problem_;
  const std::int64_t row = std::max(p.HV * p.K * size_of(p.g_dtype), p.HV * p.V * 2);
  const std::int64_t chunks = std::max<std::int64_t>(1, kPatternBytes / (row * kBT));
  return std::min(rows_, chunks * kBT);
}

std::vector<Tensor> KdaForward::tensors() const {
  const KdaForwardProblem& p = problem_;
  std::vector<Tensor> list;
  const auto add = [&](std::size_t number, const char* name, std::int64_t bytes,
                       std::int64_t pattern, bool output) {
    if (bytes > 0)
      list.push_back({number, name, bytes, output ? 0 : std::min(pattern, bytes), output});
  };
  const std::int64_t tokens = pattern_tokens(), state = p.HV * p.K * p.V * size_of(p.state_dtype);
  const auto add_rows = [&](std::size_t number, const char* name, std::int64_t row) {
    add(number, name, rows_ * row, tokens * row, false);
  };
  add_rows(kQ, "q", p.H * p.K * 2);
  add_rows(kK, "k", p.H * p.K * 2);
  add_rows(kV, "v", p.HV * p.V * 2);
  add_rows(kG, "g", (p.gate == KdaGate::kScalar ? p.HV : p.HV * p.K) * size_of(p.g_dtype));
  add_rows(kBeta, "beta", p.HV * size_of(p.beta_dtype));
  if (p.has_A_log) add(kALog, "A_log", p.HV * 4, p.HV * 4, false);
  if (p.has_dt_bias) add(kDtBias, "dt_bias", p.HV * p.K * 4, p.HV * p.K * 4, false);
  if (p.has_h0) add(kH0, "h0", N_ * state, kStatePatternBytes, false);
  const std::int64_t index_bytes = N_ * bytes_of(p.index_type);
  if (p.has_h0_indices) add(kH0Indices, "h0_indices", index_bytes, index_bytes, false);
  if (p.has_ht_indices) add(kHtIndices, "ht_indices", index_bytes, index_bytes, false);
  const std::int64_t length_bytes = (N_ + 1) * bytes_of(p.cu_seqlens_type);
  if (p.packed) add(kCuSeqlens, "cu_seqlens", length_bytes, length_bytes, false);
  const std::int64_t offset_bytes = N_ * p.checkpoints * 4;
  add(kCheckpointOffsets, "checkpoint_offsets", offset_bytes, offset_bytes, false);
  add(kO, "o", rows_ * p.HV * p.V * 2, 0, true);
  if (p.has_ht) add(kHt, "ht", N_ * state, 0, true);
  add(kCheckpoints, "checkpoints", N_ * p.checkpoints * state, 0, true);
  return list;
}

void KdaForward::fill_pattern(std::size_t tensor, unsigned char* host) const {
  const KdaForwardProblem& p = problem_;
  const std::int64_t tokens = pattern_tokens();
  auto* halves = reinterpret_cast<std::uint16_t*>(host);
  Random random(tensor + 1);
  switch (tensor) {
    case kQ:
    case kK:
      for_each_key_row(tensor + 1, tokens, p.H, p.K,
                       [&](std::int64_t t, std::int64_t h, const std::vector<float>& row) {
                         std::uint16_t* to = halves + (t * p.H + h) * p.K;
                         for (std::size_t i = 0; i < row.size(); ++i)
                           to[i] = to_16_bits(row[i], DType::kBf16);
                       });
      return;
    case kV:
      for (std::int64_t i = 0; i < tokens * p.HV * p.V; ++i)
        halves[i] = to_16_bits(random.normal(), DType::kBf16);
      return;
    case kG: {
      const std::int64_t columns = p.gate == KdaGate::kScalar ? p.HV : p.HV * p.K;
      for (std::int64_t i = 0; i < tokens * columns; ++i)
        put_float(host, i, raw_gate(p, kSlowestDecay + kDecays * random.uniform()), p.g_dtype);
      return;
    }
    case kBeta:
      for (std::int64_t i = 0; i < tokens * p.HV; ++i) {
        const float logit = kBetaLogit + random.normal();
        put_float(host, i, p.beta_sigmoid ? logit : 1 / (1 + std::exp(-logit)), p.beta_dtype);
      }
      return;
    case kALog:
    case kDtBias: {
      const std::int64_t bytes = (tensor == kALog ? p.HV : p.HV * p.K) * 4;
      std::memset(host, 0, static_cast<std::size_t>(bytes));
      return;
    }
    case kH0: {
      const std::int64_t size = size_of(p.state_dtype);
      const std::int64_t count = std::min(kStatePatternBytes, N_ * p.HV * p.K * p.V * size) / size;
      for (std::int64_t i = 0; i < count; ++i)
        put_float(host, i, 0.1F * random.normal(), p.state_dtype);
      return;
    }
    case kH0Indices:
    case kHtIndices:
      for (std::int64_t n = 0; n < N_; ++n) put_index(host, n, n, p.index_type);
      return;
    case kCuSeqlens:
      for (std::int64_t n = 0; n <= N_; ++n)
        put_index(host, n, n * tokens_per_sequence(), p.cu_seqlens_type);
      return;
    case kCheckpointOffsets:
      // Halfway, at the end of a chunk.
      for (std::int64_t i = 0; i < N_ * p.checkpoints; ++i)
        put_index(host, i, tokens_per_sequence() / 2 / kBT * kBT, IndexType::kInt32);
      return;
    default: return;
  }
}

}  // namespace scanjit::ops
