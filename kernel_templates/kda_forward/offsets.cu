// First chunk and first segment of every packed sequence, and their numbers at [N]:
//
//     chunk_offsets[n] = sum over i < n of ceil(tokens_i / 64);  segment_offsets[n] = sum of max(1, ceil(chunks_i / L))
//
// One block. Each round takes kOffsetsThreads sequences, one a thread, adds up with warp shuffles and
// carries the totals on. cu_seqlens is not trusted: a bad sequence counts as empty.
#pragma once
#include "kda_forward/locate.cuh"

namespace scanjit::dev {

template <class Cfg>
struct KdaOffsetsTraits {
  static constexpr int kThreads = kda_forward::kOffsetsThreads;
  static constexpr int kSmemBytes = 0;
};

template <class Cfg>
__device__ __forceinline__ void kda_offsets(const kda_forward::OffsetsParams& p) {
  constexpr int kWarps = kda_forward::kOffsetsThreads / 32;
  __shared__ i64 warp_total[kWarps][2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 carry[2] = {0, 0};
  for (i64 first = 0; first < p.N; first += kda_forward::kOffsetsThreads) {
    const i64 n = first + threadIdx.x;
    i64 own[2] = {0, 0};
    if (n < p.N) {
      own[0] = chunks_of(load_sequence<Cfg::INDEX64>(p.cu_seqlens, n, p.T).tokens);
      own[1] = own[0] <= p.segment_chunks ? 1 : (own[0] + p.segment_chunks - 1) / p.segment_chunks;
    }
    i64 inclusive[2] = {own[0], own[1]};
    for (int step = 1; step < 32; step *= 2) {
      for (int i = 0; i < 2; ++i) {
        const i64 other = __shfl_up_sync(0xffffffffu, inclusive[i], step);
        if (lane >= step) inclusive[i] += other;
      }
    }
    if (lane == 31) warp_total[warp][0] = inclusive[0], warp_total[warp][1] = inclusive[1];
    __syncthreads();
    i64 before[2] = {0, 0}, all[2] = {0, 0};
    for (int w = 0; w < kWarps; ++w) {
      for (int i = 0; i < 2; ++i) {
        if (w < warp) before[i] += warp_total[w][i];
        all[i] += warp_total[w][i];
      }
    }
    if (n < p.N) {
      p.chunk_offsets[n] = carry[0] + before[0] + inclusive[0] - own[0];
      p.segment_offsets[n] = carry[1] + before[1] + inclusive[1] - own[1];
    }
    carry[0] += all[0], carry[1] += all[1];
    __syncthreads();
  }
  if (threadIdx.x == 0) p.chunk_offsets[p.N] = carry[0], p.segment_offsets[p.N] = carry[1];
}

}  // namespace scanjit::dev
