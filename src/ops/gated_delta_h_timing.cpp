// The gated-delta scan on synthetic memory: sizes and contents of its tensors.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/checked_math.hpp"
#include "ops/gated_delta_h.hpp"
#include "ops/problem_checks.hpp"
#include "ops/synthetic.hpp"

namespace scanjit::ops {
namespace {

constexpr std::int64_t kPatternBytes = 2 << 20;  // of the widest token tensor
constexpr std::int64_t kStatePatternBytes = 1 << 20;
constexpr float kStrongestDecay = 0.1F;  // log2 units a token

}  // namespace

std::int64_t GatedDeltaH::tokens_per_sequence() const noexcept {
  if (rows_ == 0 || N_ == 0) return 0;
  return problem_.max_tokens > 0 ? problem_.max_tokens : ceil_divide(rows_, N_);
}

std::int64_t GatedDeltaH::floor_bytes() const noexcept {
  const GatedDeltaHProblem& p = problem_;
  if (N_ == 0) return 0;
  const std::int64_t state = p.HV * p.K * p.V;
  // As if all sequences had one length, give or take a token.
  const std::int64_t tokens = rows_ / N_, longer = rows_ % N_;
  const std::int64_t chunks =
      (N_ - longer) * ceil_divide(tokens, p.BT) + longer * ceil_divide(tokens + 1, p.BT);
  std::int64_t bytes = rows_ * (p.H * p.K + p.HV * p.K + p.HV * p.V * (p.has_v_new ? 2 : 1)) * 2;
  if (p.has_g) bytes += rows_ * p.HV * 4;
  if (p.has_gk) bytes += chunks * p.HV * p.K * 4;
  if (p.has_h) bytes += chunks * state * 2;
  if (p.has_h0) bytes += N_ * state * 4;
  if (p.has_ht) bytes += N_ * state * 4;
  return bytes;
}

std::int64_t GatedDeltaH::pattern_tokens() const noexcept {
  const GatedDeltaHProblem& p = problem_;
  const std::int64_t row =
      std::max({p.H * p.K * 2, p.HV * p.K * (p.has_gk ? 4 : 2), p.HV * p.V * 2});
  const std::int64_t chunks = std::max<std::int64_t>(1, kPatternBytes / (row * p.BT));
  return std::min(rows_, chunks * p.BT);
}

std::vector<Tensor> GatedDeltaH::tensors() const {
  const GatedDeltaHProblem& p = problem_;
  std::vector<Tensor> list;
  const std::int64_t tokens = pattern_tokens(), state = p.HV * p.K * p.V;
  const auto add = [&](std::size_t number, const char* name, std::int64_t bytes,
                       std::int64_t pattern, bool output) {
    if (bytes > 0)
      list.push_back({number, name, bytes, output ? 0 : std::min(pattern, bytes), output});
  };
  add(kK, "k", rows_ * p.H * p.K * 2, tokens * p.H * p.K * 2, false);
  add(kW, "w", rows_ * p.HV * p.K * 2, tokens * p.HV * p.K * 2, false);
  add(kU, "u", rows_ * p.HV * p.V * 2, tokens * p.HV * p.V * 2, false);
  // g is not repeated: it must begin anew with each chunk of each sequence.
  if (p.has_g) add(kG, "g", rows_ * p.HV * 4, rows_ * p.HV * 4, false);
  if (p.has_gk) add(kGk, "gk", rows_ * p.HV * p.K * 4, tokens * p.HV * p.K * 4, false);
  if (p.has_h0) add(kH0, "h0", N_ * state * 4, kStatePatternBytes, false);
  const std::int64_t index_bytes = N_ * bytes_of(p.index_type);
  if (p.has_h0_indices) add(kH0Indices, "h0_indices", index_bytes, index_bytes, false);
  if (p.has_ht_indices) add(kHtIndices, "ht_indices", index_bytes, index_bytes, false);
  const std::int64_t length_bytes = bytes_of(p.cu_seqlens_type);
  if (p.packed)
    add(kCuSeqlens, "cu_seqlens", (N_ + 1) * length_bytes, (N_ + 1) * length_bytes, false);
  if (p.has_chunk_offsets)
    add(kChunkOffsets, "chunk_offsets", N_ * length_bytes, N_ * length_bytes, false);
  if (p.has_h) add(kH, "h", capacity_ * state * 2, 0, true);
  if (p.has_v_new) add(kVNew, "v_new", rows_ * p.HV * p.V * 2, 0, true);
  if (p.has_ht) add(kHt, "ht", N_ * state * 4, 0, true);
  return list;
}

std::shared_ptr<const OpProblem> GatedDeltaH::for_timing(std::int64_t max_bytes) const {
  if (N_ == 0 || rows_ == 0) return nullptr;
  GatedDeltaHProblem p = problem_;
  p.aligned16 = aligned_;
  p.k_stride = p.w_stride = p.u_stride = p.g_stride = p.gk_stride = p.v_new_stride = 0;
  p.h0_slot_stride = p.ht_slot_stride = p.h0_slots = p.ht_slots = 0;
  p.chunk_capacity = 0;
  p.max_tokens = 0;
  return largest_that_fits(
      [&](std::int64_t tokens) -> std::shared_ptr<const OpProblem> {
        const auto T = p.packed ? checked_multiply(N_, tokens) : tokens;
        if (!T) return nullptr;
        p.T = *T;
        const auto made = make(p);
        return made.ok() ? *made : nullptr;
      },
      tokens_per_sequence(), p.BT, max_bytes);
}

void GatedDeltaH::fill_pattern(std::size_t tensor, unsigned char* host) const {
  const GatedDeltaHProblem& p = problem_;
  const std::int64_t tokens = pattern_tokens();
  auto* halves = reinterpret_cast<std::uint16_t*>(host);
  auto* floats = reinterpret_cast<float*>(host);
  switch (tensor) {
    case kK:
      for_each_key_row(1, tokens, p.H, p.K,
                       [&](std::int64_t t, std::int64_t h, const std::vector<float>& row) {
                         std::uint16_t* to = halves + (t * p.H + h) * p.K;
                         for (std::size_t i = 0; i < row.size(); ++i)
                           to[i] = to_16_bits(row[i], p.dtype);
                       });
      return;
    case kW: {
      // w = beta k with beta below 2 / |k^T k|, so that a chunk's update of the state contracts
      // even without gates: BT random unit rows in K dimensions have |k^T k| <= (1 + sqrt(BT/K))^2
      // or so.
      const double spread = 1 + std::sqrt(static_cast<double>(p.BT) / static_cast<double>(p.K));
      const auto beta = static_cast<float>(1 / (spread * spread));
      for_each_key_row(
          1, tokens, p.H, p.K, [&](std::int64_t t, std::int64_t h, const std::vector<float>& row) {
            for (std::int64_t hv = h * (p.HV / p.H); hv < (h + 1) * (p.HV / p.H); ++hv) {
              std::uint16_t* to = halves + (t * p.HV + hv) * p.K;
              for (std::size_t i = 0; i < row.size(); ++i)
                to[i] = to_16_bits(beta * row[i], p.dtype);
            }
          });
      return;
    }
    case kU: {
      Random random(2);
      for (std::int64_t i = 0; i < tokens * p.HV * p.V; ++i)
        halves[i] = to_16_bits(random.normal(), p.dtype);
      return;
    }
    case kG: {
      Random random(3);
      std::int64_t row = 0;
      for (std::int64_t n = 0; n < N_; ++n) {
        for (std::int64_t t = 0; t < tokens_per_sequence(); ++t, ++row) {
          for (std::int64_t hv = 0; hv < p.HV; ++hv) {
            const float before = t % p.BT == 0 ? 0 : floats[(row - 1) * p.HV + hv];
            floats[row * p.HV + hv] = before - kStrongestDecay * random.uniform();
          }
        }
      }
      return;
    }
    case kGk: {
      Random random(4);
      const std::int64_t columns = p.HV * p.K;
      for (std::int64_t i = 0; i < tokens * columns; ++i) {
        const float before = i / columns % p.BT == 0 ? 0 : floats[i - columns];
        floats[i] = before - kStrongestDecay * random.uniform();
      }
      return;
    }
    case kH0: {
      Random random(5);
      const std::int64_t count = std::min(kStatePatternBytes, N_ * p.HV * p.K * p.V * 4) / 4;
      for (std::int64_t i = 0; i < count; ++i) floats[i] = random.normal();
      return;
    }
    case kH0Indices:
    case kHtIndices:
      for (std::int64_t n = 0; n < N_; ++n) put_index(host, n, n, p.index_type);
      return;
    case kCuSeqlens:
    case kChunkOffsets: {
      std::int64_t token = 0, chunk = 0;
      for (std::int64_t n = 0; n < N_; ++n) {
        put_index(host, n, tensor == kCuSeqlens ? token : chunk, p.cu_seqlens_type);
        token += tokens_per_sequence();
        chunk += ceil_divide(tokens_per_sequence(), p.BT);
      }
      if (tensor == kCuSeqlens) put_index(host, N_, token, p.cu_seqlens_type);
      return;
    }
    default: return;
  }
}

}  // namespace scanjit::ops
