#pragma once
/// \file
/// The gated-delta state scan: the recurrence over chunks inside every Gated DeltaNet and KDA
/// layer. fla computes the same function in `chunk_gated_delta_rule_fwd_kernel_h_blockdim64`; the
/// equations are those of the chunkwise form of "Gated Delta Networks" (Yang, Kautz, Hatamizadeh,
/// 2024).
///
/// For each sequence and value head, S = h0 (or 0) in f32; for each chunk c of BT tokens:
///
///     h[c]     = round(S)
///     v'       = u_c - (w_c . round(S))            f32 accumulation, u subtracted after the dot
///     v_new    = round(v')
///     v''      = v' * 2^(g_last - g_r)             if g; g_last: the gate of the last valid row
///     S        = S * 2^(g_last)                    if g
///     S[i,:]   = S[i,:] * 2^(gk_last[i])           if gk (after g)
///     S        = S + k_c^T . round(v'')
///     ht       = S after the last chunk
///
/// | tensor  | shape            | dtype        |                                                  |
/// |---------|------------------|--------------|--------------------------------------------------|
/// | `k`     | [B,T,H,K]        | bf16 or f16  | keys                                             |
/// | `w`     | [B,T,HV,K]       | as k         |                                                  |
/// | `u`     | [B,T,HV,V]       | as k         |                                                  |
/// | `g`     | [B,T,HV]         | f32          | optional gate, cumulative inside its chunk       |
/// | `gk`    | [B,T,HV,K]       | f32          | optional, the same per key column                |
/// | `h0`    | [N,HV,K,V]       | f32          | optional initial state, or a pool of states      |
/// | `h`     | [chunks,HV,K,V]  | as k         | optional out: the state at the start of a chunk  |
/// | `v_new` | [B,T,HV,V]       | as k         | optional out                                     |
/// | `ht`    | [N,HV,K,V]       | f32          | optional out: final state, or a pool of states   |
///
/// Dense: N = B, every sequence T tokens. Packed: B = 1 and `cu_seqlens[N+1]` on the device cuts
/// the token axis; a chunk never crosses a sequence; sequence n owns ceil(T_n/BT) chunks of `h`,
/// stored sequence after sequence. Layout `vk` stores every state as [V,K]. All sizes and strides
/// are in elements.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit {

/// What does not change between calls of one layer: shapes, types, which tensors exist.
struct GatedDeltaHProblem {
  DType dtype = DType::kBf16;  ///< of k, w, u, h, v_new: kBf16 or kF16
  std::int64_t B = 1;          ///< batch; must be 1 when packed
  std::int64_t T = 0;          ///< tokens of each batch row (packed: of all sequences together)
  std::int64_t H = 0;          ///< key heads
  std::int64_t HV = 0;         ///< value heads, a multiple of H
  std::int64_t K = 128;        ///< 1..256
  std::int64_t V = 128;        ///< any positive
  std::int64_t BT = 64;        ///< 16, 32 or 64

  bool packed = false;         ///< `cu_seqlens` is given
  std::int64_t sequences = 0;  ///< N when packed; dense: leave 0 or equal to B
  IndexType cu_seqlens_type = IndexType::kInt64;
  bool has_chunk_offsets = false;  ///< the caller gives the first chunk of each sequence (packed)

  GateBase gate_base = GateBase::kTwo;
  StateLayout layout = StateLayout::kKV;
  bool has_g = false;
  bool has_gk = false;
  bool has_h0 = false;
  bool has_h = true;
  bool has_v_new = true;
  bool has_ht = false;

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
  std::int64_t k_stride = 0;
  std::int64_t w_stride = 0;
  std::int64_t u_stride = 0;
  std::int64_t g_stride = 0;
  std::int64_t gk_stride = 0;
  std::int64_t v_new_stride = 0;
  std::int64_t h0_slot_stride = 0;  ///< distance between states of h0; 0: HV*K*V
  std::int64_t ht_slot_stride = 0;  ///< the same of ht

  /// Chunks that `h` has room for when packed; 0: floor((T + N*(BT-1))/BT). Smaller only with a
  /// host copy of the lengths at launch. A sequence whose chunks do not fit is a bad sequence.
  std::int64_t chunk_capacity = 0;

  /// An upper bound of the longest sequence, if known: it chooses the tuned class, never the
  /// result.
  std::int64_t max_tokens = 0;

  /// Every pointer is 16-byte aligned. False: element alignment is enough, at some cost in speed;
  /// strides and rows that are not multiples of 16 bytes are noticed without this.
  bool aligned16 = true;

  /// "default": bits depend on nothing but a sequence's own data and options. "any": the tuner may
  /// choose a class. The scan has one class so far.
  std::string numerics = "default";
};

/// Device addresses of one launch. An optional tensor that the problem has must be given, one that
/// it has not must be null. Inputs may overlap inputs; `v_new` may be exactly `u` (same stride) and
/// `ht` exactly `h0` (same stride, slots and indices); otherwise an output overlaps nothing.
struct GatedDeltaHArgs {
  const void* k = nullptr;
  const void* w = nullptr;
  const void* u = nullptr;
  const float* g = nullptr;
  const float* gk = nullptr;
  const float* h0 = nullptr;
  const void* h0_indices = nullptr;
  const void* cu_seqlens = nullptr;
  const void* chunk_offsets = nullptr;  ///< [N], `cu_seqlens_type`
  const void* ht_indices = nullptr;
  void* h = nullptr;
  void* v_new = nullptr;
  float* ht = nullptr;

  /// Optional u32 on the device, zeroed by the caller: bits are set in it for 1 bad lengths, 2 bad
  /// h0_indices, 4 bad ht_indices (-1 is legal and sets none). Lengths are bad that are negative or
  /// end past T, and so is a sequence whose chunks, be they none, do not lie from 0 to the chunk
  /// capacity of `h`. Nothing is written for a sequence with bad lengths, though its indices are
  /// reported all the same; nothing outside the tensors is touched.
  std::uint32_t* status = nullptr;

  /// Optional host copy of `cu_seqlens` (N+1 values): checked before the launch.
  const std::int64_t* host_cu_seqlens = nullptr;
};

/// Bytes of workspace that a launch of this problem can need, whatever its config among those that
/// need no more than `limit`; independent of tuning. Errors: kInvalidArgument and kUnsupported, as
/// `Engine::plan`; kUnsupported if every config needs more.
[[nodiscard]] Result<std::int64_t> workspace_bound(
    const GatedDeltaHProblem& problem,
    std::int64_t limit = std::numeric_limits<std::int64_t>::max());

}  // namespace scanjit
