// ABC, the serial form of the states: one block takes a slab of 64 columns of one head's states through all
// segments, where abc_summary has a block for each segment and abc_scan joins them. The same bits.
//
//     forward   state[g] = H;   H = H 2^(z before g - z after g) + C[g] 2^(lse[g] - z after g)
//     backward  dstate[g] = dH;  dH = dH 2^(z before g - z after g) + C[g], from the last segment on
//
// C[g] as in abc_summary; z and lse are there.
//
// grid      x = (b * H + h) * slabs + slab of the K and V columns
// block     8 warps: four groups of 16 slots (and 64 more each), two halves of the slab's columns
// stream    segment by segment: the weights (or s) of its chunks, then the slab of its tokens
// barriers  __syncthreads twice a segment: tiles and rows have arrived; weights are decayed in place
// numerics  f32 accumulators, tokens in order; one fused multiply-add a segment
// arch      sm_80 and later
#pragma once
#include "abc/abc_slots.cuh"

namespace scanjit::dev {

template <class Cfg>
struct AbcWalkTraits : AbcTraits<Cfg> {
  static constexpr int kSmemBytes = abc::walk_smem_bytes(Cfg::SLOT_STEPS, Cfg::SEGMENT_CHUNKS, Cfg::STAGES);
};

// What one slot of one segment is weighed by.
enum WalkRow : int { kAnchor, kDecay, kShare, kChunkDecay };  // kChunkDecay + i - 1: of chunk i of the segment
inline constexpr int kWalkRows = abc::kSlotRows / 2;          // of one segment; the next one's lie behind them

template <class Cfg>
struct Walk {
  static constexpr int kLength = Cfg::SEGMENT_CHUNKS, kSlotTiles = AbcTraits<Cfg>::kSlotTiles;
  static constexpr int kStageTiles = abc::walk_stage_tiles(Cfg::SLOT_STEPS, kLength);
  static_assert(kChunkDecay + kLength - 1 <= kWalkRows, "SEGMENT_CHUNKS must leave room for the rows of two segments");
  const abc::AbcParams& p;
  i64 chunks, segments, head, row0;
  bool value;             // the slab is one of Hv
  int column, width;      // its first column in v, do (or k, q), and how many these have
  int column0, left;      // in the states' scratch
  i64 columns;
  u16* ring;
  Slots<Cfg> slots;

  __device__ __forceinline__ Walk(const abc::AbcParams& params, unsigned char* shared_bytes) : p(params) {
    const int key_tiles = abc::tiles(p.K), slabs = key_tiles + abc::tiles(p.V);
    const int slab = static_cast<int>(blockIdx.x % slabs);
    head = blockIdx.x / slabs;
    chunks = (p.T + kTile - 1) / kTile;
    segments = (chunks + kLength - 1) / kLength;
    row0 = head / p.H * p.T * p.H + head % p.H;
    value = slab >= key_tiles;
    column = (value ? slab - key_tiles : slab) * kTile;
    width = value ? p.V : p.K;
    column0 = value ? abc::padded8(p.K) + column : column;
    left = abc::padded8(width) - column;
    columns = abc::padded8(p.K) + abc::padded8(p.V);
    ring = reinterpret_cast<u16*>(shared_bytes);
    slots = {reinterpret_cast<float*>(ring + Cfg::STAGES * kStageTiles * kTileElements), p.M};
  }
  __device__ __forceinline__ i64 segment_at(i64 step) const { return Cfg::BACKWARD ? segments - 1 - step : step; }
  __device__ __forceinline__ int count(i64 segment) const {
    return static_cast<int>(min(chunks - segment * kLength, static_cast<i64>(kLength)));
  }
  // Tokens from chunk i of the segment on, at most 64.
  __device__ __forceinline__ int rows(i64 segment, int i) const {
    return static_cast<int>(min(p.T - (segment * kLength + i) * kTile, static_cast<i64>(kTile)));
  }
  __device__ __forceinline__ u16* weight_tiles(u16* stage, int i) const { return stage + i * kSlotTiles * kTileElements; }
  __device__ __forceinline__ u16* token_tile(u16* stage, int i) const {
    return stage + (kLength * kSlotTiles + i) * kTileElements;
  }
  __device__ __forceinline__ u16* stage_at(i64 step) const {
    return ring + static_cast<int>(step % Cfg::STAGES) * kStageTiles * kTileElements;
  }
  __device__ __forceinline__ void load(i64 step) const {
    if (step < segments) {
      const i64 segment = segment_at(step);
      u16* stage = stage_at(step);
      const u16* tokens = static_cast<const u16*>(value ? (Cfg::BACKWARD ? p.dout : p.v) : (Cfg::BACKWARD ? p.q : p.k));
      const u16* decayed = static_cast<const u16*>(value ? p.decayed_a : p.decayed_d);
      const int weight_columns = abc::padded8(p.M);
      for (int i = 0; i < count(segment); ++i) {
        const i64 token = (segment * kLength + i) * kTile;
        for (int t = 0; t < kSlotTiles; ++t) {
          u16* tile = weight_tiles(stage, i) + t * kTileElements;
          if constexpr (Cfg::BACKWARD)
            load_tile<true>(tile, {decayed + (head * p.T + token) * weight_columns + t * kTile, weight_columns}, rows(segment, i), p.M - t * kTile);
          else
            load_tile<Cfg::ALIGNED>(tile, {static_cast<const u16*>(p.s) + (row0 + token * p.H) * p.M + t * kTile, p.H * p.M}, rows(segment, i), p.M - t * kTile);
        }
        load_tile<Cfg::ALIGNED>(token_tile(stage, i), {tokens + (row0 + token * p.H) * width + column, p.H * width}, rows(segment, i), width - column);
      }
    }
    copy_async_commit();
  }

  // One thread a slot: z around a segment, before it is turned into rows.
  struct Edges {
    float before, after, lse, chunk[kLength];
  };
  __device__ __forceinline__ float z_start(i64 chunk, int m) const { return p.z_starts[(head * (chunks + 1) + chunk) * p.M + m]; }
  __device__ __forceinline__ Edges edges(i64 step) const {
    const int m = threadIdx.x;
    Edges e{never(), never(), never()};
    if (step >= segments || m >= p.M) return e;
    const i64 segment = segment_at(step), first = segment * kLength;
    e.before = segment == 0 && p.z0 == nullptr ? low_value<Cfg::DTYPE>(static_cast<const u16*>(p.s)[row0 * p.M + m]) * kLog2E
                                               : z_start(first, m);
    e.after = z_start(min(first + kLength, chunks), m);
    if constexpr (!Cfg::BACKWARD) e.lse = p.segment_lse[(head * segments + segment) * p.M + m];
#pragma unroll
    for (int i = 1; i < kLength; ++i)
      if (Cfg::BACKWARD && i < count(segment)) e.chunk[i] = z_start(first + i, m);
    return e;
  }
  __device__ __forceinline__ int row(i64 step, int which) const { return static_cast<int>(step % 2) * kWalkRows + which; }
  __device__ __forceinline__ void put(i64 step, const Edges& e) const {
    const int m = threadIdx.x;
    if (m >= AbcTraits<Cfg>::kSlots) return;
    slots.at(row(step, kDecay), m) = decay(e.before, e.after);
    if constexpr (Cfg::BACKWARD) {
#pragma unroll
      for (int i = 1; i < kLength; ++i) slots.at(row(step, kChunkDecay + i - 1), m) = decay(e.before, e.chunk[i]);
    } else {
      slots.at(row(step, kAnchor), m) = e.lse;
      slots.at(row(step, kShare), m) = share(e.lse, e.after);
    }
  }

  // The place of a thread's element in [K,M] and [M,V] tensors; null if absent or padding.
  template <class Float>
  __device__ __forceinline__ Float* place(Float* hk, Float* hv, int m, int own) const {
    const int at = column + own;
    if (m >= p.M || at >= width) return nullptr;
    if (value) return hv ? hv + (head * p.M + m) * p.V + at : nullptr;
    return hk ? hk + (head * p.K + at) * p.M + m : nullptr;
  }
};

template <class Cfg>
__device__ __forceinline__ void abc_walk(const abc::AbcParams& p) {
  using Traits = AbcTraits<Cfg>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const Walk<Cfg> w(p, shared_bytes);
  float h[Traits::kSlotTiles][4][4];
#pragma unroll
  for (int t = 0; t < Traits::kSlotTiles; ++t) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float* at = Cfg::BACKWARD ? w.place(p.dhkt, p.dhvt, t * kTile + own_row(e / 2), own_column(n) + e % 2)
                                        : w.place(p.hk0, p.hv0, t * kTile + own_row(e / 2), own_column(n) + e % 2);
        h[t][n][e] = at ? *at : 0.0f;
      }
    }
  }
  for (int i = 0; i < Cfg::STAGES - 1; ++i) w.load(i);
  w.put(0, w.edges(0));
  u16* states = static_cast<u16*>(Cfg::BACKWARD ? p.dstates : p.states);
  const float factor = Cfg::BACKWARD && !w.value ? p.scale : 1.0f;

#pragma unroll 1
  for (i64 step = 0; step < w.segments; ++step) {
    const i64 segment = w.segment_at(step);
    const int count = w.count(segment);
    u16* stage = w.stage_at(step);
    copy_async_wait<Cfg::STAGES - 2>();
    __syncthreads();
    w.load(step + Cfg::STAGES - 1);
    // Weights of the chunks' tokens, in place.
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      u16* tiles = w.weight_tiles(stage, i);
      if constexpr (!Cfg::BACKWARD) {
        share_of_slots<Cfg>(tiles, w.rows(segment, i), w.slots, w.row(step, kAnchor));
      } else if (i > 0) {
#pragma unroll
        for (int n = 0; n < Slots<Cfg>::N; ++n) {
          const float2 by = w.slots.pair(w.row(step, kChunkDecay + i - 1), n);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            u32& pair = Slots<Cfg>::pair_in(tiles, own_row(half), n);
            const float low = w.slots.exists(Slots<Cfg>::own(n)) ? low_value<Cfg::DTYPE>(pair) * by.x : 0.0f;
            const float high = w.slots.exists(Slots<Cfg>::own(n) + 1) ? high_value<Cfg::DTYPE>(pair) * by.y : 0.0f;
            pair = round_pair<Cfg::DTYPE>(low, high);
          }
        }
      }
    }
    const auto next = w.edges(step + 1);
    __syncthreads();

    float sums[Traits::kSlotTiles][4][4] = {};
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int t = 0; t < Traits::kSlotTiles; ++t) {
        u32 a[4][4];
        const u32 address = columns_address(w.weight_tiles(stage, i) + t * kTileElements);
#pragma unroll
        for (int k = 0; k < 4; ++k) load_columns(a[k], address, k);
        multiply_by_columns<Cfg::DTYPE, 4>(sums[t], a, w.token_tile(stage, i));
      }
    }
#pragma unroll
    for (int t = 0; t < Traits::kSlotTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = t * kTile + own_row(half);
        if (m >= p.M) continue;
        const float by = w.slots.at(w.row(step, kDecay), m);
        const float share_of = Cfg::BACKWARD ? 1.0f : w.slots.at(w.row(step, kShare), m);
        u16* out = states + ((w.head * w.segments + segment) * p.M + m) * w.columns + w.column0;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          float* own = h[t][n] + 2 * half;
          if (own_column(n) < w.left) *reinterpret_cast<u32*>(out + own_column(n)) = round_pair<Cfg::DTYPE>(own[0], own[1]);
          own[0] = fmaf(own[0], by, sums[t][n][2 * half] * factor * share_of);
          own[1] = fmaf(own[1], by, sums[t][n][2 * half + 1] * factor * share_of);
        }
      }
    }
    w.put(step + 1, next);
  }

#pragma unroll
  for (int t = 0; t < Traits::kSlotTiles; ++t) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int m = t * kTile + own_row(e / 2), own = own_column(n) + e % 2;
        float* at = Cfg::BACKWARD ? w.place(p.dhk0, p.dhv0, m, own) : w.place(p.hkt, p.hvt, m, own);
        if (at) *at = h[t][n][e];
        if (!Cfg::BACKWARD && m < p.M && own < w.left) p.finals[(w.head * p.M + m) * w.columns + w.column0 + own] = h[t][n][e];
      }
    }
  }
}

}  // namespace scanjit::dev
