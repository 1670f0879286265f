#pragma once
/// \file
/// KDA forward: the prefill of Kimi Delta Attention layers, and with a scalar gate that of Gated
/// DeltaNet layers. The equations are those of "Kimi Linear" (2025).
///
/// For each sequence and value head, S [K,V] = h0 (or 0) in f32; for each token t, with q and k
/// normalised if `normalize_qk` (divided by sqrt(sum of squares + 1e-6)), beta_t = sigmoid(beta) if
/// `beta_sigmoid`, and the log decay a_t per key column:
///
///     S   = Diag(exp(a_t)) S
///     S   = S + beta_t k_t (v_t - S^T k_t)^T
///     o_t = scale * S^T q_t
///     ht  = S after the last token
///
/// | gate         | a, natural logarithm; below -60 counts as -60  |
/// |--------------|------------------------------------------------|
/// | kBounded     | lower_bound * sigmoid(exp(A_log)*(g+dt_bias))  |
/// | kSoftplus    | -exp(A_log) * softplus(g + dt_bias)            |
/// | kPrecomputed | g                                              |
/// | kScalar      | g, one a token and value head                  |
///
/// | tensor               | shape                       | dtype         |                          |
/// |----------------------|-----------------------------|---------------|--------------------------|
/// | `q`, `k`             | [B,T,H,K]                   | bf16          |                          |
/// | `v`                  | [B,T,HV,V]                  | bf16          |                          |
/// | `g`                  | [B,T,HV,K]; scalar [B,T,HV] | `g_dtype`     |                          |
/// | `beta`               | [B,T,HV]                    | `beta_dtype`  |                          |
/// | `A_log`, `dt_bias`   | [HV], [HV,K]                | f32           | optional; absent: 0      |
/// | `h0`                 | [N,HV,K,V]                  | `state_dtype` | optional, or a pool      |
/// | `o`                  | [B,T,HV,V]                  | bf16          | out                      |
/// | `ht`                 | [N,HV,K,V]                  | `state_dtype` | optional out, or a pool  |
/// | `checkpoint_offsets` | [N,Q]                       | int32         | with `checkpoints`       |
/// | `checkpoints`        | [N,Q,HV,K,V]                | `state_dtype` | optional out             |
///
/// Value head j uses key head j / (HV/H). Layout `vk` stores every state as [V,K].
/// Checkpoint q of sequence n is the state after `checkpoint_offsets[n,q]` tokens, for prefix
/// caches: a multiple of 64, from 0 to the sequence's length; any other value writes nothing.
///
/// Dense: N = B, every sequence T tokens. Packed: B = 1 and `cu_seqlens[N+1]` on the device cuts
/// the token axis. All sizes and strides are in elements.
///
/// A sequence may be split into segments of `Config::segment_chunks` chunks of 64 tokens, counted
/// from its start, which are worked on at once: for each, what it does to a state (S_out = M S_in +
/// b, both f32), then the states between them in order, then every segment from its own. That is
/// another order of sums and so a numerics class of its own, "split16" for segments of 16 chunks;
/// the serial form is class "default". docs/kernels/kda_forward.md tells how, how fast, how exact.

#include <cstdint>
#include <limits>
#include <string>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit {

/// How the log decay comes from g. The numbers are persisted: never change one.
enum class KdaGate : int { kBounded = 1, kSoftplus = 2, kPrecomputed = 3, kScalar = 4 };
/// "bounded", "softplus", "precomputed", "scalar"
[[nodiscard]] const char* to_string(KdaGate gate) noexcept;

/// What does not change between calls of one layer: shapes, types, which tensors exist.
struct KdaForwardProblem {
  std::int64_t B = 1;    ///< batch; must be 1 when packed
  std::int64_t T = 0;    ///< tokens of each batch row (packed: of all sequences together)
  std::int64_t H = 0;    ///< heads of q and k
  std::int64_t HV = 0;   ///< value heads, a multiple of H
  std::int64_t K = 128;  ///< 64, 128 or 256
  std::int64_t V = 128;  ///< 64, 128 or 256

  bool packed = false;         ///< `cu_seqlens` is given
  std::int64_t sequences = 0;  ///< N when packed; dense: leave 0 or equal to B
  IndexType cu_seqlens_type = IndexType::kInt64;

  KdaGate gate = KdaGate::kBounded;
  float lower_bound = -5;           ///< of kBounded: from -5 to less than 0
  bool has_A_log = false;           ///< kBounded and kSoftplus only
  bool has_dt_bias = false;         ///< likewise
  DType g_dtype = DType::kBf16;     ///< kBf16 or kF32; kScalar: kF32
  DType beta_dtype = DType::kBf16;  ///< kBf16 or kF32
  bool normalize_qk = true;
  bool beta_sigmoid = true;
  float scale = 0;  ///< 0: K^-1/2

  bool has_h0 = false;
  bool has_ht = false;
  DType state_dtype = DType::kF32;  ///< of h0, ht and checkpoints: kF32 or kBf16
  StateLayout layout = StateLayout::kVK;
  std::int64_t checkpoints = 0;  ///< Q, checkpoints a sequence

  /// States as pools [slots,HV,K,V]: `h0_indices[N]`, `ht_indices[N]` name the slot of a sequence.
  /// Index -1 or out of range: start from zero / write nothing. `h0_indices` may repeat unless ht
  /// is the same pool; `ht_indices` must be distinct (not checked: they live on the device).
  bool has_h0_indices = false;
  bool has_ht_indices = false;
  IndexType index_type = IndexType::kInt64;  ///< of both index arrays
  std::int64_t h0_slots = 0;                 ///< pool size; 0: N
  std::int64_t ht_slots = 0;                 ///< pool size; 0: N

  /// Distance between tokens, in elements; 0: contiguous. Heads and the last axis are contiguous, a
  /// batch row is T tokens.
  std::int64_t q_stride = 0;
  std::int64_t k_stride = 0;
  std::int64_t v_stride = 0;
  std::int64_t g_stride = 0;
  std::int64_t beta_stride = 0;
  std::int64_t o_stride = 0;
  std::int64_t h0_slot_stride = 0;  ///< distance between states of h0; 0: HV*K*V
  std::int64_t ht_slot_stride = 0;  ///< the same of ht

  /// An upper bound of the longest sequence, if known: it chooses the tuned class, never the
  /// result.
  std::int64_t max_tokens = 0;

  /// q, k, v, g and o are 16-byte aligned. False: element alignment is enough, at some cost in
  /// speed; strides that are not multiples of 16 bytes are noticed without this.
  bool aligned16 = true;

  /// "default": serial; bits depend on nothing but a sequence's own data and options. "split16" and
  /// so on: always into segments of so many chunks. "any": the tuner may choose.
  std::string numerics = "default";

  /// Most bytes of workspace; 0: no limit. Below what all chunks at once need, the serial form
  /// works through slices of the token axis, with the same bits.
  std::int64_t workspace_limit = 0;
};

/// Device addresses of one launch. An optional tensor that the problem has must be given, one that
/// it has not must be null. Inputs may overlap inputs; `ht` may be exactly `h0` (same stride, slots
/// and indices); otherwise an output overlaps nothing.
struct KdaForwardArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* g = nullptr;
  const void* beta = nullptr;
  const float* A_log = nullptr;
  const float* dt_bias = nullptr;
  const void* h0 = nullptr;
  const void* h0_indices = nullptr;
  const void* cu_seqlens = nullptr;
  const void* ht_indices = nullptr;
  const std::int32_t* checkpoint_offsets = nullptr;
  void* o = nullptr;
  void* ht = nullptr;
  void* checkpoints = nullptr;

  /// Optional u32 on the device, zeroed by the caller: bits are set in it for 1 bad lengths, 2 bad
  /// h0_indices, 4 bad ht_indices (-1 is legal and sets none). Lengths are bad that are negative or
  /// end past T, or, overlapping, make more chunks than T tokens can have. Nothing is written for a
  /// sequence with bad lengths, and nothing outside the tensors is touched.
  std::uint32_t* status = nullptr;

  /// Optional host copy of `cu_seqlens` (N+1 values): checked before the launch.
  const std::int64_t* host_cu_seqlens = nullptr;
};

/// Bytes of workspace that a launch of this problem can need, whatever its config among those that
/// need no more than `limit` (and `workspace_limit`); independent of tuning. Errors:
/// kInvalidArgument and kUnsupported, as `Engine::plan`; kUnsupported if every config needs more.
[[nodiscard]] Result<std::int64_t> workspace_bound(
    const KdaForwardProblem& problem,
    std::int64_t limit = std::numeric_limits<std::int64_t>::max());

}  // namespace scanjit
