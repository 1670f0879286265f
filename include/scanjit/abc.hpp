#pragma once
/// \file
/// ABC (attention with bounded-memory control), forward and backward: linear attention whose memory
/// is M slots that tokens are written to by a softmax over time and read from by a softmax over
/// slots: "ABC: Attention with Bounded-memory Control" (Peng et al., 2022), with a running
/// normaliser for each slot as in fla's `chunk_abc`. For each batch row and head, with
/// scale = K^-1/2:
///
///     z_t  = logsumexp(z0, s_0 .. s_t)      per slot, f32 (without z0: over s alone)
///     p_t  = exp(s_t - z_t)
///     d_t  = exp(z_{t-1} - z_t);            d_0 = exp(z0 - z_0), or 1 without z0
///     Hk_t = Hk_{t-1} Diag(d_t) + k_t p_t^T                     [K,M]
///     a_t  = softmax over slots of scale * Hk_t^T q_t
///     Hv_t = Diag(d_t) Hv_{t-1} + p_t v_t^T                     [M,V]
///     o_t  = Hv_t^T a_t
///
/// | tensor         | shape       | dtype       |                                            |
/// |----------------|-------------|-------------|--------------------------------------------|
/// | `q`, `k`       | [B,T,H,K]   | bf16 or f16 | queries, keys                              |
/// | `v`            | [B,T,H,V]   | as q        | values                                     |
/// | `s`            | [B,T,H,M]   | as q        | slots' logits (natural), -inf allowed      |
/// | `hk0`, `hkt`   | [B,H,K,M]   | f32         | optional initial, final state of keys      |
/// | `hv0`, `hvt`   | [B,H,M,V]   | f32         | optional initial, final state of values    |
/// | `z0`, `zt`     | [B,H,M]     | f32         | optional, their normaliser (natural log)   |
/// | `o`            | [B,T,H,V]   | as q        | out                                        |
/// | `dout`         | [B,T,H,V]   | as q        | backward: the loss's derivative by o       |
/// | `dhkt`, `dhvt` | as hkt, hvt | f32         | backward, optional: by the final states    |
/// | `dq` .. `ds`   | as q .. s   | as q        | backward, out                              |
/// | `dhk0`, `dhv0`, `dz0` | as hk0, hv0, z0 | f32 | backward, out, where those are given   |
///
/// A slot whose s so far (and z0) is all -inf has p = 0 and d = 1, is constant for the derivative,
/// and takes part in the softmax with its computed score. A sequence is continued from hkt, hvt and
/// zt together. `ds` is the derivative of exactly this, through z.
///
/// All tensors are contiguous, all sizes in elements. The states are kept between chunks of 64
/// tokens, every `n` of them in the class "segments<n>".

#include <cstdint>
#include <limits>
#include <string>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit {

/// What forward and backward of one layer have in common.
struct AbcProblem {
  DType dtype = DType::kBf16;  ///< of q, k, v, s, o and their derivatives: kBf16 or kF16
  std::int64_t B = 1;          ///< batch
  std::int64_t T = 0;          ///< tokens of each batch row
  std::int64_t H = 0;          ///< heads
  std::int64_t K = 256;        ///< 1..256
  std::int64_t M = 64;         ///< slots, 1..128
  std::int64_t V = 512;        ///< 1..512

  bool has_hk0 = false;  ///< each of the three by itself; absent states are zero
  bool has_hv0 = false;
  bool has_z0 = false;

  /// Forward: fill `saved`, a buffer of `abc_saved_bytes` that the caller owns. Backward: read it
  /// instead of computing its content again, with the same bits. Both calls must agree in every
  /// field of this struct.
  bool has_saved = false;

  /// Every pointer is 16-byte aligned. False: element alignment is enough, at some cost in speed;
  /// K, M and V that are no multiples of 8 are noticed without this.
  bool aligned16 = true;

  /// "default", "segments1", "segments2", "segments4" or "any". Each but "any" is one class: its
  /// bits for a batch row depend on nothing but that row's tensors and options. More chunks a
  /// segment take less workspace. docs/kernels/abc.md says which class "default" is. "any" lets the
  /// tuner choose, and goes without `saved`.
  std::string numerics = "default";

  /// The most workspace that a config may need, in bytes. Where segments need more, longer ones
  /// serve if the class allows, else the serial form of "default" and "any".
  std::int64_t workspace_limit = std::numeric_limits<std::int64_t>::max();
};

struct AbcForwardProblem : AbcProblem {
  bool has_hkt = false;
  bool has_hvt = false;
  bool has_zt = false;
};

/// The initial states that exist have their derivatives computed.
struct AbcBackwardProblem : AbcProblem {
  bool has_dhkt = false;  ///< absent: zero
  bool has_dhvt = false;
};

/// Device addresses that both directions read. An optional tensor that the problem has must be
/// given, one that it has not must be null; so everywhere below.
struct AbcInputs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* s = nullptr;
  const float* hk0 = nullptr;
  const float* hv0 = nullptr;
  const float* z0 = nullptr;
};

/// Inputs may overlap inputs; `hkt`, `hvt` and `zt` may be exactly `hk0`, `hv0` and `z0`; otherwise
/// an output overlaps nothing. So in the backward, where nothing is in place.
struct AbcForwardArgs : AbcInputs {
  void* o = nullptr;
  float* hkt = nullptr;
  float* hvt = nullptr;
  float* zt = nullptr;
  void* saved = nullptr;  ///< out, 256-byte aligned
};

struct AbcBackwardArgs : AbcInputs {
  const void* dout = nullptr;
  const float* dhkt = nullptr;
  const float* dhvt = nullptr;
  const void* saved = nullptr;  ///< what the forward of the same inputs wrote, 256-byte aligned
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  void* ds = nullptr;
  float* dhk0 = nullptr;
  float* dhv0 = nullptr;
  float* dz0 = nullptr;
};

/// Bytes of `saved`: the states before every segment, the normaliser before every chunk, and the
/// final states. Errors: kInvalidArgument and kUnsupported, as `Engine::plan`; kInvalidArgument if
/// `numerics` is "any", which does not fix what is saved.
[[nodiscard]] Result<std::int64_t> abc_saved_bytes(const AbcProblem& problem);

/// Bytes of workspace that a launch of this problem can need, whatever its config among those that
/// need no more than `limit` (and `workspace_limit`); independent of tuning. Errors:
/// kInvalidArgument and kUnsupported, as `Engine::plan`; kUnsupported if every config needs more.
[[nodiscard]] Result<std::int64_t> workspace_bound(
    const AbcForwardProblem& problem,
    std::int64_t limit = std::numeric_limits<std::int64_t>::max());
[[nodiscard]] Result<std::int64_t> workspace_bound(
    const AbcBackwardProblem& problem,
    std::int64_t limit = std::numeric_limits<std::int64_t>::max());

}  // namespace scanjit
