// The running normaliser of a chunk and what is weighed by it. Logarithms are in base 2.
//
// A product over tokens i <= t of 2^(s_i - z_t) is cut in two factors around an anchor: for tokens of
// earlier chunks the z before t's chunk, which lies between s_i and z_t, so that both factors are at most
// 1. Inside one chunk the anchor is the z after it: 2^(s_i - anchor) <= 1 and 2^(anchor - z_t) at most
// 2^kSteep. Where z rises by more than that inside a chunk, s is steep: the chunk's own products are
// summed directly, with 2^(s_i - z_t) of every pair.
#pragma once
#include "abc/abc_tiles.cuh"

namespace scanjit::dev {

// Rise of z inside a chunk, in powers of two, up to which both factors keep their relative precision in
// the 16-bit type.
template <int DTYPE>
inline constexpr float kSteep = DTYPE == kBf16 ? 60.0f : 12.0f;

__device__ __forceinline__ float never() { return __uint_as_float(0xff800000u); }  // -inf

__device__ __forceinline__ float exp2_of(float x) { return exp_gate<false>(x); }
__device__ __forceinline__ float log2_of(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Differences of two -inf are NaN, which min and max turn into their other operand: no branches.
inline constexpr float kVanishing = -200.0f;  // 2^x is 0 from here on
// log2(2^a + 2^b).
__device__ __forceinline__ float log_add(float a, float b) {
  const float high = fmaxf(a, b);
  return high + log2_of(1.0f + exp2_of(fmaxf(fminf(a, b) - high, kVanishing)));
}
// 2^(from - to) for from <= to, and 1 for a slot that has met nothing yet.
__device__ __forceinline__ float decay(float from, float to) { return exp2_of(fminf(from - to, 0.0f)); }
// 2^(s - to), and 0 for s = -inf.
__device__ __forceinline__ float share(float s, float to) { return exp2_of(fmaxf(s - to, kVanishing)); }

// Rows of one value a slot in shared memory.
enum SlotRow : int { kBefore, kState, kAfter, kEdge, kTotals, kTotals2 = kTotals + 4 };

template <class Cfg>
struct Slots {
  using Traits = AbcTraits<Cfg>;
  static constexpr int N = Cfg::SLOT_STEPS;   // groups of eight slots of one half of the warps
  float* rows;                                // [kSlotRows][kSlots]
  int M;

  // First of this thread's two slots of group n, and where the group lies in the tiles of slots.
  static __device__ __forceinline__ int own(int n) { return (half_id() * N + n) * 8 + lane_id() % 4 * 2; }
  static __device__ __forceinline__ u32& pair_in(u16* tiles, int row, int n) {
    return tile_pair(tiles + own(n) / kTile * kTileElements, row, own(n) % kTile);
  }
  __device__ __forceinline__ bool exists(int slot) const { return Cfg::EXACT || slot < M; }

  __device__ __forceinline__ float& at(int row, int slot) const { return rows[row * Traits::kSlots + slot]; }
  __device__ __forceinline__ float2 pair(int row, int n) const {
    return *reinterpret_cast<const float2*>(rows + row * Traits::kSlots + own(n));
  }
  // Fills a row by value(slot) for existing slots, -inf for the others.
  template <class Value>
  __device__ __forceinline__ void fill(int row, Value value) const {
    for (int m = threadIdx.x; m < Traits::kSlots; m += abc::kThreads) at(row, m) = m < M ? value(m) : never();
  }
};

// s of this thread's places in base 2; -inf outside the tensor. `tiles`: the chunk's kSlotTiles tiles.
template <class Cfg>
__device__ __forceinline__ void read_slots(u16* tiles, int rows, const Slots<Cfg>& slots, float (&s)[Slots<Cfg>::N][4]) {
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 bits = Slots<Cfg>::pair_in(tiles, own_row(half), n);
      const bool row = own_row(half) < rows;
      s[n][2 * half] = row && slots.exists(Slots<Cfg>::own(n)) ? low_value<Cfg::DTYPE>(bits) * kLog2E : never();
      s[n][2 * half + 1] = row && slots.exists(Slots<Cfg>::own(n) + 1) ? high_value<Cfg::DTYPE>(bits) * kLog2E : never();
    }
  }
}
// Turns s of an earlier chunk into 2^(s - anchor), in place. `row`: where the anchor lies.
template <class Cfg>
__device__ __forceinline__ void share_of_slots(u16* tiles, int rows, const Slots<Cfg>& slots, int row) {
  float s[Slots<Cfg>::N][4];
  read_slots<Cfg>(tiles, rows, slots, s);
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
    const float2 anchor = slots.pair(row, n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Slots<Cfg>::pair_in(tiles, own_row(half), n) =
          round_pair<Cfg::DTYPE>(share(s[n][2 * half], anchor.x), share(s[n][2 * half + 1], anchor.y));
    }
  }
}

// Sums over the rows of the chunk up to each of this thread's places, and `start(n, e)` before them.
template <class Cfg, class Start>
__device__ __forceinline__ void sum_rows(const Slots<Cfg>& slots, float (&value)[Slots<Cfg>::N][4], Start start) {
  constexpr u32 kAll = 0xffffffffu;
  const int lane = lane_id(), warp = row_group();
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        const float above = __shfl_up_sync(kAll, value[n][e], step);
        if (lane >= step) value[n][e] += above;
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      value[n][2 + e] += __shfl_sync(kAll, value[n][e], 28 + lane % 4);
      if (lane >= 28) slots.at(kTotals + warp, Slots<Cfg>::own(n) + e) = value[n][2 + e];
    }
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float before = start(n, e);
#pragma unroll 1
      for (int above = 0; above < warp; ++above) before += slots.at(kTotals + above, Slots<Cfg>::own(n) + e);
      value[n][e] += before;
      value[n][2 + e] += before;
    }
  }
}

// z of a steep chunk to `steep_z` [64][M], one thread a slot, row after row.
template <class Cfg>
__device__ __forceinline__ void steep_slots(const u16* tiles, int rows, const Slots<Cfg>& slots, float* steep_z) {
  for (int m = threadIdx.x; m < slots.M; m += abc::kThreads) {
    float z = slots.at(kBefore, m);
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      z = log_add(z, low_value<Cfg::DTYPE>(tiles[m / kTile * kTileElements + tile_at(row, m % kTile)]) * kLog2E);
      steep_z[row * slots.M + m] = z;
    }
  }
  __syncthreads();
}

// Whether z rises too much in the chunk for one anchor. By all threads; s and the rows of `slots` are in place.
template <class Cfg>
__device__ __forceinline__ bool is_steep(const u16* tiles, const Slots<Cfg>& slots) {
  bool rises = false;
  for (int m = threadIdx.x; m < slots.M; m += abc::kThreads) {
    const float first = low_value<Cfg::DTYPE>(tiles[m / kTile * kTileElements + tile_at(0, m % kTile)]) * kLog2E;
    const float after = slots.at(kAfter, m);
    rises |= after != never() && !(after - log_add(slots.at(kBefore, m), first) <= kSteep<Cfg::DTYPE>);
  }
  return __syncthreads_or(rises);
}

// z of this thread's places in its own chunk, from s there and z before (kBefore) and after (kAfter) it. Where
// s is steep it is also written to `steep_z`; otherwise the chunk's tiles become 2^(s - z after).
template <class Cfg>
__device__ __forceinline__ void own_slots(u16* tiles, int rows, bool steep, const Slots<Cfg>& slots, float* steep_z,
                                          float (&z)[Slots<Cfg>::N][4]) {
  using S = Slots<Cfg>;
  if (steep) {
    steep_slots<Cfg>(tiles, rows, slots, steep_z);
#pragma unroll
    for (int n = 0; n < S::N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = own_row(e / 2), m = Slots<Cfg>::own(n) + e % 2;
        z[n][e] = slots.exists(m) ? (row < rows ? steep_z[row * slots.M + m] : slots.at(kAfter, m)) : never();
      }
    }
    return;
  }
  read_slots<Cfg>(tiles, rows, slots, z);
#pragma unroll
  for (int n = 0; n < S::N; ++n) {
    const float2 after = slots.pair(kAfter, n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      z[n][2 * half] = share(z[n][2 * half], after.x);
      z[n][2 * half + 1] = share(z[n][2 * half + 1], after.y);
      Slots<Cfg>::pair_in(tiles, own_row(half), n) =
          round_pair<Cfg::DTYPE>(z[n][2 * half], z[n][2 * half + 1]);
    }
  }
  sum_rows<Cfg>(slots, z, [&](int n, int e) {
    return share(slots.at(kBefore, Slots<Cfg>::own(n) + e), slots.at(kAfter, Slots<Cfg>::own(n) + e));
  });
#pragma unroll
  for (int n = 0; n < S::N; ++n) {
    const float2 after = slots.pair(kAfter, n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      z[n][2 * half] = after.x + log2_of(z[n][2 * half]);
      z[n][2 * half + 1] = after.y + log2_of(z[n][2 * half + 1]);
    }
  }
}

}  // namespace scanjit::dev
