// ABC: what one segment of one head adds to its states, every slot weighed against an anchor of the
// segment's own, so that no segment waits for another.
//
//     forward   C[m] = sum over tokens of 2^(s_i - lse) (k_i | v_i)      lse: logsumexp of the segment's s
//     backward  C[m] = sum over tokens of 2^(z - z_t) (scale d_t q_t | a_t do_t)   z before the segment
//
// grid      x = ((b * H + h) * NS + segment) * groups + group of SLABS slabs of the K + V columns; with SLABS
//           0 one block a segment, which finds the logsumexps and no more
// block     8 warps: four groups of 16 slots (and 64 more each), two halves of a slab's columns
// stream    slab by slab, the segment's chunks of k, then of v
// numerics  f32 accumulators, tokens in order
// arch      sm_80 and later
#pragma once
#include "abc/abc_chunk.cuh"

namespace scanjit::dev {

template <class Cfg>
struct AbcSummaryTraits : AbcTraits<Cfg> {
  static constexpr int kSmemBytes = abc::summary_smem_bytes(Cfg::SLOT_STEPS, Cfg::SEGMENT_CHUNKS, Cfg::STAGES);
};

// A chunk's logsumexp to kAfter, the segment's so far to kState.
template <class Cfg>
__device__ __forceinline__ void sum_slots(const u16* tiles, int rows, const Slots<Cfg>& slots, bool first) {
  constexpr int kParts = abc::kThreads / AbcTraits<Cfg>::kSlots, kPartRows = kTile / kParts;
  const int m = threadIdx.x / kParts, part = threadIdx.x % kParts;
  const u16* tile = tiles + m / kTile * kTileElements;
  const auto value = [&](int row) {
    return row < rows && m < slots.M ? low_value<Cfg::DTYPE>(tile[tile_at(row, m % kTile)]) * kLog2E : never();
  };
  float most = never(), sum = 0;
  for (int r = 0; r < kPartRows; ++r) most = fmaxf(most, value(part * kPartRows + r));
  for (int r = 0; r < kPartRows; ++r) sum += share(value(part * kPartRows + r), most);
  float lse = most == never() ? never() : most + log2_of(sum);
  for (int step = 1; step < kParts; step *= 2) lse = log_add(lse, __shfl_xor_sync(0xffffffffu, lse, step));
  if (part == 0) {
    slots.at(kAfter, m) = lse;
    slots.at(kState, m) = first ? lse : log_add(slots.at(kState, m), lse);
  }
}

template <class Cfg>
__device__ __forceinline__ void abc_summary(const abc::AbcParams& p) {
  using Traits = AbcTraits<Cfg>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const i64 chunks = (p.T + kTile - 1) / kTile, segments = (chunks + Cfg::SEGMENT_CHUNKS - 1) / Cfg::SEGMENT_CHUNKS;
  const int key_tiles = abc::tiles(p.K), slabs = key_tiles + abc::tiles(p.V);
  const int groups = Cfg::SLABS == 0 ? 1 : abc::ceil_div(slabs, max(Cfg::SLABS, 1));
  const int key_columns = abc::padded8(p.K), value_columns = abc::padded8(p.V), columns = key_columns + value_columns;
  const int group = static_cast<int>(blockIdx.x % groups);
  const i64 head = blockIdx.x / groups / segments, segment = blockIdx.x / groups % segments;
  const i64 first = segment * Cfg::SEGMENT_CHUNKS;
  const int count = static_cast<int>(chunks - first < Cfg::SEGMENT_CHUNKS ? chunks - first : Cfg::SEGMENT_CHUNKS);
  const int rows = static_cast<int>(p.T - first * kTile < count * kTile ? p.T - first * kTile : count * kTile);
  const i64 row0 = head / p.H * p.T * p.H + head % p.H + first * kTile * p.H;
  u16* slot_tiles = reinterpret_cast<u16*>(shared_bytes);
  u16* ring = slot_tiles + Cfg::SEGMENT_CHUNKS * Traits::kSlotTiles * kTileElements;
  const Slots<Cfg> slots{reinterpret_cast<float*>(ring + Cfg::STAGES * TileStream<Cfg, false>::kTiles * kTileElements), p.M};
  Run* runs = reinterpret_cast<Run*>(slots.rows + abc::kSlotRows * Traits::kSlots);
  const int slab0 = group * Cfg::SLABS, slab1 = min(slab0 + Cfg::SLABS, slabs);
  const int key_slabs = max(min(slab1, key_tiles) - slab0, 0);
  const int value_slabs = max(slab1 - max(slab0, key_tiles), 0), value0 = max(slab0 - key_tiles, 0);
  int run_count = 0;
  {
    const u16* keys = static_cast<const u16*>(Cfg::BACKWARD ? p.q : p.k) + row0 * p.K + slab0 * kTile;
    const u16* values = static_cast<const u16*>(Cfg::BACKWARD ? p.dout : p.v) + row0 * p.V + value0 * kTile;
    if (threadIdx.x == 0) {
      if (key_slabs > 0) runs[0] = {nullptr, nullptr, keys, p.H * p.K, 0, p.K - slab0 * kTile, key_slabs};
      if (value_slabs > 0) runs[key_slabs > 0] = {nullptr, nullptr, values, p.H * p.V, 0, p.V - value0 * kTile, value_slabs};
    }
    run_count = (key_slabs > 0) + (value_slabs > 0);
  }
  // Shares of the segment for its slots: one set forward, one for each of keys and values backward.
  const auto load_weights = [&](const void* tensor, i64 row, i64 stride, int width, bool vector) {
    for (int i = 0; i < count; ++i) {
      for (int t = 0; t < Traits::kSlotTiles; ++t) {
        u16* tile = slot_tiles + (i * Traits::kSlotTiles + t) * kTileElements;
        const Matrix from{static_cast<const u16*>(tensor) + row + i * kTile * stride + t * kTile, stride};
        if (vector) load_tile<true>(tile, from, rows - i * kTile, width - t * kTile);
        else load_tile<Cfg::ALIGNED>(tile, from, rows - i * kTile, width - t * kTile);
      }
    }
    copy_async_commit();
  };
  const i64 weight_row = (head * p.T + first * kTile) * abc::padded8(p.M);
  const auto z_start = [&](i64 chunk, int m) { return p.z_starts[(head * (chunks + 1) + chunk) * p.M + m]; };
  // Weights decayed from the start of each chunk become decayed from the start of the segment.
  const auto decay_weights = [&] {
    for (int i = 1; i < count; ++i) {
      u16* tiles = slot_tiles + i * Traits::kSlotTiles * kTileElements;
      __syncthreads();
      slots.fill(kAfter, [&](int m) {
        const float z = segment == 0 && p.z0 == nullptr
                            ? low_value<Cfg::DTYPE>(static_cast<const u16*>(p.s)[row0 * p.M + m]) * kLog2E
                            : z_start(first, m);
        return decay(z, z_start(first + i, m));
      });
      __syncthreads();
#pragma unroll
      for (int n = 0; n < Slots<Cfg>::N; ++n) {
        const float2 factor = slots.pair(kAfter, n);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          u32& pair = Slots<Cfg>::pair_in(tiles, own_row(half), n);
          // Slots past M have no factor (-inf), their weights are 0.
          const float low = slots.exists(Slots<Cfg>::own(n)) ? low_value<Cfg::DTYPE>(pair) * factor.x : 0.0f;
          const float high = slots.exists(Slots<Cfg>::own(n) + 1) ? high_value<Cfg::DTYPE>(pair) * factor.y : 0.0f;
          pair = round_pair<Cfg::DTYPE>(low, high);
        }
      }
    }
  };
  if constexpr (Cfg::BACKWARD) load_weights(key_slabs > 0 ? p.decayed_d : p.decayed_a, weight_row, abc::padded8(p.M), p.M, true);
  else load_weights(p.s, row0 * p.M, p.H * p.M, p.M, false);
  __syncthreads();
  TileStream<Cfg, false> stream{runs, ring, run_count, count - 1, 1, rows, p.M, 0};
  stream.start();
  copy_async_wait<Cfg::STAGES - 1>();
  __syncthreads();
  if constexpr (Cfg::BACKWARD) {
    decay_weights();
  } else {
    for (int i = 0; i < count; ++i) {
      sum_slots<Cfg>(slot_tiles + i * Traits::kSlotTiles * kTileElements, rows - i * kTile, slots, i == 0);
      __syncthreads();
      if (group == 0)
        for (int m = threadIdx.x; m < p.M; m += abc::kThreads) p.chunk_lse[(head * chunks + first + i) * p.M + m] = slots.at(kAfter, m);
      __syncthreads();
    }
    if (group == 0)
      for (int m = threadIdx.x; m < p.M; m += abc::kThreads) p.segment_lse[(head * segments + segment) * p.M + m] = slots.at(kState, m);
    for (int i = 0; i < count && Cfg::SLABS > 0; ++i)
      share_of_slots<Cfg>(slot_tiles + i * Traits::kSlotTiles * kTileElements, min(rows - i * kTile, kTile), slots, kState);
  }

  float* summary = p.summaries + (head * segments + segment) * p.M * columns;
#pragma unroll 1
  for (int slab = slab0; slab < slab1; ++slab) {
    const bool value = slab >= key_tiles;
    if (Cfg::BACKWARD && slab == key_tiles && key_slabs > 0) {
      __syncthreads();
      load_weights(p.decayed_a, weight_row, abc::padded8(p.M), p.M, true);
      copy_async_wait<0>();
      __syncthreads();
      decay_weights();
    }
    float sums[Traits::kSlotTiles][4][4] = {};
    const u16* tiles = stream.next();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int t = 0; t < Traits::kSlotTiles; ++t) {
        u32 a[4][4];
        const u32 address = columns_address(slot_tiles + (i * Traits::kSlotTiles + t) * kTileElements);
#pragma unroll
        for (int step = 0; step < 4; ++step) load_columns(a[step], address, step);
        multiply_by_columns<Cfg::DTYPE, 4>(sums[t], a, tiles + i * kTileElements);
      }
    }
    const int column0 = value ? key_columns + (slab - key_tiles) * kTile : slab * kTile;
    const int left = value ? value_columns - (slab - key_tiles) * kTile : key_columns - slab * kTile;
    const float factor = Cfg::BACKWARD && !value ? p.scale : 1.0f;
#pragma unroll
    for (int t = 0; t < Traits::kSlotTiles; ++t) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int m = t * kTile + own_row(half);
          if (m < p.M && own_column(n) < left)
            *reinterpret_cast<float2*>(summary + static_cast<i64>(m) * columns + column0 + own_column(n)) =
                make_float2(sums[t][n][2 * half] * factor, sums[t][n][2 * half + 1] * factor);
        }
      }
    }
  }
}

}  // namespace scanjit::dev
