// First chunk of every sequence: chunk_offsets[n] = sum over i < n of ceil(tokens_i / BT).
//
// One block. Each round takes kOffsetsThreads sequences, one a thread, adds up with warp shuffles and
// carries the total on. cu_seqlens is not trusted: a bad sequence counts as empty.
#pragma once
#include "common/sequences.cuh"
#include "gated_delta_h/gated_delta_h_params.h"

namespace scanjit::dev {

template <class Cfg>
struct ChunkOffsetsTraits {
  static constexpr int kThreads = gated_delta_h::kOffsetsThreads;
  static constexpr int kSmemBytes = 0;
};

template <class Cfg>
__device__ __forceinline__ void chunk_offsets(const gated_delta_h::OffsetsParams& p) {
  constexpr int kWarps = gated_delta_h::kOffsetsThreads / 32;
  __shared__ i64 warp_total[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 carry = 0;
  for (i64 first = 0; first < p.N; first += gated_delta_h::kOffsetsThreads) {
    const i64 n = first + threadIdx.x;
    i64 chunks = 0;
    if (n < p.N) chunks = (load_sequence<Cfg::INDEX64>(p.cu_seqlens, n, p.T).tokens + Cfg::BT - 1) / Cfg::BT;
    i64 inclusive = chunks;
    for (int step = 1; step < 32; step *= 2) {
      const i64 other = __shfl_up_sync(0xffffffffu, inclusive, step);
      if (lane >= step) inclusive += other;
    }
    if (lane == 31) warp_total[warp] = inclusive;
    __syncthreads();
    i64 before = 0, all = 0;
    for (int i = 0; i < kWarps; ++i) {
      if (i < warp) before += warp_total[i];
      all += warp_total[i];
    }
    const i64 offset = carry + before + inclusive - chunks;
    if (n < p.N) {
      if constexpr (Cfg::INDEX64) static_cast<i64*>(p.chunk_offsets)[n] = offset;
      else static_cast<int*>(p.chunk_offsets)[n] = static_cast<int>(offset);
    }
    carry += all;
    __syncthreads();
  }
}

}  // namespace scanjit::dev
