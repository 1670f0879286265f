// Where a sequence lies: lengths, chunks and pool slots, read from device memory that is not trusted.
#pragma once
#include "common/types.cuh"

namespace scanjit::dev {

template <bool INDEX64>
__device__ __forceinline__ i64 load_index(const void* array, i64 i) {
  if constexpr (INDEX64) return static_cast<const i64*>(array)[i];
  return static_cast<const int*>(array)[i];
}

struct Sequence {
  i64 begin;    // first token row
  i64 tokens;
  bool bad;     // negative, decreasing or past the end
};

// Sequence n of cu_seqlens[N+1] over `total` tokens. A bad one has no tokens.
template <bool INDEX64>
__device__ __forceinline__ Sequence load_sequence(const void* cu_seqlens, i64 n, i64 total) {
  const i64 begin = load_index<INDEX64>(cu_seqlens, n), end = load_index<INDEX64>(cu_seqlens, n + 1);
  const bool bad = begin < 0 || end < begin || end > total;
  return {bad ? 0 : begin, bad ? 0 : end - begin, bad};
}

// Chunks of the sequences before n, added up by the calling warp (all lanes take part; n <= 64 or so).
template <bool INDEX64, int BT>
__device__ __forceinline__ i64 chunks_before(const void* cu_seqlens, i64 n, i64 total) {
  i64 sum = 0;
  for (i64 i = threadIdx.x % 32; i < n; i += 32) sum += (load_sequence<INDEX64>(cu_seqlens, i, total).tokens + BT - 1) / BT;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

}  // namespace scanjit::dev
