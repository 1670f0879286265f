// The state that every segment of a sequence starts from, f32, segments in order:
//
//     S_0 = h0 or 0;  S_(s+1) = M_s S_s + b_s;  from zero: S_1 = b_0, with no product
//
// tensors   summaries [segments,HV,V+K,K] f32: b and M, transposed; states [segments,HV,V,K] f32   global memory
// grid      x = (n * HV + hv) * V/kMergeColumns + columns: the value columns of a state are independent
// block     2K threads: a thread owns one key row of the new columns and every other column of M.
// pipeline  M streams through kMergeSlabs slabs of kMergeRows of its columns (rows of M^T), across segments.
// barriers  __syncthreads: after a slab is used; after the halves are written; after the state is written.
// numerics  fused multiply-adds in f32 in a fixed order: even columns of M, odd columns, their sum, then b.
// arch      sm_80 and later.
#pragma once
#include "common/bulk.cuh"
#include "kda_forward/locate.cuh"

namespace scanjit::dev {

template <class Cfg>
struct KdaMergeTraits {
  static constexpr int K = Cfg::K, kThreads = 2 * K, kColumns = kda_forward::kMergeColumns;
  static constexpr int kRows = kda_forward::kMergeRows, kSlabs = kda_forward::kMergeSlabs;
  static constexpr int kSlabsOfM = K / kRows;
  struct alignas(128) Shared {
    float slab[kSlabs][kRows][K];
    float4 state[K];
    float4 half[K];
    alignas(128) u64 full[16];
  };
  static constexpr int kSmemBytes = sizeof(Shared);
};

// Asks for slab number `slab` of all that the block will use, if there is one.
template <class Cfg>
__device__ __forceinline__ void begin_slab(typename KdaMergeTraits<Cfg>::Shared& shared, const float* M, i64 segment_stride, i64 slab, i64 slabs) {
  using Traits = KdaMergeTraits<Cfg>;
  constexpr int kBytes = Traits::kRows * Cfg::K * 4;
  const int at = static_cast<int>(slab % Traits::kSlabs);
  const float* from = M + slab / Traits::kSlabsOfM * segment_stride + slab % Traits::kSlabsOfM * (Traits::kRows * Cfg::K);
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0 && slab < slabs) {
    barrier_arrive_expect(&shared.full[at], kBytes);
    bulk_load(shared.slab[at], from, kBytes, &shared.full[at]);
  }
#else
  if (slab < slabs) {
    unsigned char* to = reinterpret_cast<unsigned char*>(shared.slab[at]);
    for (int i = static_cast<int>(threadIdx.x) * 16; i < kBytes; i += Traits::kThreads * 16)
      copy_async_16(to + i, reinterpret_cast<const unsigned char*>(from) + i);
  }
  copy_async_commit();
#endif
}

template <class Cfg>
__device__ __forceinline__ void kda_merge(const kda_forward::MergeParams& p) {
  using Traits = KdaMergeTraits<Cfg>;
  constexpr int K = Cfg::K, V = Cfg::V, kTiles = V / Traits::kColumns;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(shared_bytes);
  const i64 head = blockIdx.x / kTiles, n = head / p.HV;
  const int hv = static_cast<int>(head % p.HV), value0 = static_cast<int>(blockIdx.x % kTiles) * Traits::kColumns;
  const int key = static_cast<int>(threadIdx.x) % K, half = static_cast<int>(threadIdx.x) / K;
  const Place place = place_of_sequence<Cfg>(p.sequences, n);
  const i64 segments = place.chunks <= p.sequences.segment_chunks ? 1 : (place.chunks + p.sequences.segment_chunks - 1) / p.sequences.segment_chunks;
  i64 first = n * segments;
  if constexpr (Cfg::PACKED) {
    first = p.sequences.segment_offsets[n];
    if (first + segments > p.sequences.segment_capacity) return;
  }
  unsigned status = 0;
  const i64 slot = h0_slot_of<Cfg>(p.h0_indices, n, p.h0_slots, status);

  const i64 state_stride = static_cast<i64>(p.HV) * V * K, summary_stride = static_cast<i64>(p.HV) * (V + K) * K;
  float* states = p.states + (first * p.HV + hv) * (static_cast<i64>(V) * K);
  const float* b = p.summaries + (first * p.HV + hv) * (static_cast<i64>(V + K) * K);
  const float* M = b + static_cast<i64>(V) * K;
  const bool from_zero = slot < 0;
  // From zero the first segment's M is not used.
  const i64 skipped = from_zero ? 1 : 0, steps = segments - 1 - skipped;
  const float* first_M = M + skipped * summary_stride;
  const i64 slabs = steps > 0 ? steps * Traits::kSlabsOfM : 0;
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kSlabs; ++i) barrier_init(&shared.full[i], 1);
    barrier_init_fence();
  }
  __syncthreads();
#endif
  for (int i = 0; i < Traits::kSlabs; ++i) begin_slab<Cfg>(shared, first_M, summary_stride, i, slabs);

  // S_0, and from zero S_1.
  float S[Traits::kColumns] = {};
  const auto store = [&](i64 segment) {
#pragma unroll
    for (int c = 0; c < Traits::kColumns; ++c) states[segment * state_stride + (value0 + c) * K + key] = S[c];
  };
  if (half == 0) {
    if (!from_zero) {
      const i64 base = slot * p.h0_slot_stride + static_cast<i64>(hv) * K * V;
#pragma unroll
      for (int c = 0; c < Traits::kColumns; ++c) S[c] = load_state<Cfg>(p.h0, base + state_element<Cfg>(key, value0 + c));
    }
    store(0);
    if (from_zero && segments > 1) {
#pragma unroll
      for (int c = 0; c < Traits::kColumns; ++c) S[c] = b[(value0 + c) * K + key];
      store(1);
    }
    shared.state[key] = make_float4(S[0], S[1], S[2], S[3]);
  }
  __syncthreads();

  i64 slab = 0;
  for (i64 step = 0; step < steps; ++step) {
    const i64 segment = skipped + step;
    float next[Traits::kColumns] = {};
    if (half == 0) {
#pragma unroll
      for (int c = 0; c < Traits::kColumns; ++c) next[c] = b[segment * summary_stride + (value0 + c) * K + key];
    }
    float sum[Traits::kColumns] = {};
    for (int part = 0; part < Traits::kSlabsOfM; ++part, ++slab) {
      const int at = static_cast<int>(slab % Traits::kSlabs);
#if __CUDA_ARCH__ >= 900
      barrier_wait(&shared.full[at], static_cast<u32>(slab / Traits::kSlabs) & 1);
#else
      copy_async_wait<Traits::kSlabs - 1>();
      __syncthreads();
#endif
      // Each half takes every other row of the slab.
#pragma unroll
      for (int row = 0; row < Traits::kRows / 2; ++row) {
        const float m = shared.slab[at][2 * row + half][key];
        const float4 s = shared.state[part * Traits::kRows + 2 * row + half];
        sum[0] = __fmaf_rn(m, s.x, sum[0]), sum[1] = __fmaf_rn(m, s.y, sum[1]);
        sum[2] = __fmaf_rn(m, s.z, sum[2]), sum[3] = __fmaf_rn(m, s.w, sum[3]);
      }
      __syncthreads();
      begin_slab<Cfg>(shared, first_M, summary_stride, slab + Traits::kSlabs, slabs);
    }
    if (half == 1) shared.half[key] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    __syncthreads();
    if (half == 0) {
      const float4 other = shared.half[key];
      S[0] = sum[0] + other.x + next[0], S[1] = sum[1] + other.y + next[1];
      S[2] = sum[2] + other.z + next[2], S[3] = sum[3] + other.w + next[3];
      shared.state[key] = make_float4(S[0], S[1], S[2], S[3]);
      store(segment + 1);
    }
    __syncthreads();
  }
}

}  // namespace scanjit::dev
