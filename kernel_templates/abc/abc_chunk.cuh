// What the kernels that own one chunk of one head share: where it lies, its shared memory, and the two
// products over a state and the chunks beside it,
//
//     X[t,m] = sum over columns of x_t H_t[m]         H_t: state after token t, [M][columns]
//     y[t]   = sum over slots of w[t,m] H_t[m]
//
// with H_t = decay . (state at the segment's edge) + sum over chunks of y_i 2^(s_i - z_t).
#pragma once
#include "abc/abc_slots.cuh"

namespace scanjit::dev {

// A chunk in which s is steep, see below.
template <class Cfg>
struct SteepChunk {
  u16* tiles;      // [64][M]: s, or the weights of the later tokens
  u16* pair_tile;  // scratch
  const float* z;  // [64][M] in global memory
  int rows;
  Slots<Cfg> slots;

  __device__ __forceinline__ float at(int row, int slot) const {
    return low_value<Cfg::DTYPE>(tiles[slot / kTile * kTileElements + tile_at(row, slot % kTile)]);
  }
};

template <class Cfg>
struct Chunk {
  using Traits = AbcTraits<Cfg>;
  const abc::AbcParams& p;
  i64 head;      // b * H + h
  i64 row0;      // row of the sequence's first token in [B,T,H,..]
  i64 chunks, segments;
  i64 chunk;
  int rows;          // tokens of this chunk
  u16* slot_tiles;   // by distance from this chunk in the segment
  u16* ring;
  u16* pair_tile;    // 64 x 64 products of tokens
  u16* weight_tiles; // behind it: weights of this chunk, 64 x M
  u16* own_s_tiles;  // s of this chunk, where a kernel keeps it
  Slots<Cfg> slots;
  Run* runs;

  __device__ __forceinline__ Chunk(const abc::AbcParams& params, unsigned char* shared, bool own_s) : p(params) {
    chunks = (p.T + kTile - 1) / kTile;
    segments = (chunks + Cfg::SEGMENT_CHUNKS - 1) / Cfg::SEGMENT_CHUNKS;
    head = blockIdx.x / chunks;
    chunk = blockIdx.x % chunks;
    row0 = head / p.H * p.T * p.H + head % p.H;
    rows = static_cast<int>(p.T - chunk * kTile < kTile ? p.T - chunk * kTile : kTile);
    slot_tiles = reinterpret_cast<u16*>(shared);
    ring = slot_tiles + Cfg::SEGMENT_CHUNKS * Traits::kSlotTiles * kTileElements;
    pair_tile = ring + Cfg::STAGES * TileStream<Cfg>::kTiles * kTileElements;
    weight_tiles = pair_tile + kTileElements;
    own_s_tiles = weight_tiles + Traits::kSlotTiles * kTileElements;
    slots.rows = reinterpret_cast<float*>(own_s_tiles + (own_s ? Traits::kSlotTiles * kTileElements : 0));
    slots.M = p.M;
    runs = reinterpret_cast<Run*>(slots.rows + abc::kSlotRows * Traits::kSlots);
  }

  __device__ __forceinline__ i64 segment() const { return chunk / Cfg::SEGMENT_CHUNKS; }
  __device__ __forceinline__ u16* slot_tile(int place) const { return slot_tiles + place * Traits::kSlotTiles * kTileElements; }
  // A token tensor from chunk c on.
  __device__ __forceinline__ Matrix tokens(const void* tensor, i64 c, int width) const {
    return {static_cast<const u16*>(tensor) + (row0 + c * kTile * p.H) * width, p.H * width};
  }
  // Scratch [BH][T][M8] from chunk c on.
  __device__ __forceinline__ Matrix weights(const void* scratch, i64 c) const {
    return {static_cast<const u16*>(scratch) + (head * p.T + c * kTile) * abc::padded8(p.M), abc::padded8(p.M)};
  }
  __device__ __forceinline__ int key_columns() const { return abc::padded8(p.K); }
  __device__ __forceinline__ int value_columns() const { return abc::padded8(p.V); }
  __device__ __forceinline__ i64 state_columns() const { return key_columns() + value_columns(); }
  __device__ __forceinline__ i64 state_at(i64 segment) const { return (head * segments + segment) * p.M * state_columns(); }
  __device__ __forceinline__ float z_start(i64 c, int m) const { return p.z_starts[(head * (chunks + 1) + c) * p.M + m]; }
  // z to which the state before a segment belongs: without z0, the first one decays from z_0 = s_0 on.
  __device__ __forceinline__ float z_state(i64 segment, int m) const {
    if (segment == 0 && p.z0 == nullptr)
      return low_value<Cfg::DTYPE>(static_cast<const u16*>(p.s)[row0 * p.M + m]) * kLog2E;
    return z_start(segment * Cfg::SEGMENT_CHUNKS, m);
  }
  // [64][M] scratch for z of this chunk where s is steep.
  __device__ __forceinline__ float* steep_z() const { return p.steep_z + (head * p.T + chunk * kTile) * p.M; }
  // Keys or values of chunks from this one on with state columns beside them, and a row operand or none.
  __device__ __forceinline__ Run run(bool values, const void* x, const void* states, i64 segment, const void* tensor) const {
    const int width = values ? p.V : p.K;
    const Matrix from = tokens(tensor, chunk, width);
    return {x ? tokens(x, chunk, width).data : nullptr, static_cast<const u16*>(states) + state_at(segment) + (values ? key_columns() : 0),
            from.data, from.stride, values ? value_columns() : key_columns(), width, abc::tiles(width)};
  }
  // s of chunk c.
  __device__ __forceinline__ void load_slots(u16* tiles, i64 c, int tokens_left) const {
    for (int t = 0; t < Traits::kSlotTiles; ++t) {
      Matrix from = tokens(p.s, c, p.M);
      from.data += t * kTile;
      load_tile<Cfg::ALIGNED>(tiles + t * kTileElements, from, tokens_left, p.M - t * kTile);
    }
  }
  __device__ __forceinline__ SteepChunk<Cfg> steep() const { return {slot_tiles, pair_tile, steep_z(), rows, slots}; }
  // Rounds this warp's 16 rows of 32 columns and writes those that exist, through the place of pairs.
  __device__ __forceinline__ void store_rows(void* tensor, int width, int slab, const float (&sums)[4][4], float factor) const {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        tile_pair(pair_tile, own_row(half), own_column(n)) =
            round_pair<Cfg::DTYPE>(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
    }
    __syncwarp();
    const Matrix to = tokens(tensor, chunk, width);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row() + i * 8 + lane_id() / 4, column = half_id() * 32 + lane_id() % 4 * 8;
      const u16* from = pair_tile + tile_at(row, column);
      u16* out = const_cast<u16*>(to.data) + row * to.stride + slab * kTile + column;
      if (row >= rows) continue;
      if constexpr (Cfg::ALIGNED) {
        if (slab * kTile + column < width) *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int e = 0; e < 8; ++e)
          if (slab * kTile + column + e < width) out[e] = from[e];
      }
    }
  }
};

// Steps of 16 slots in tile t of slots.
template <class Cfg>
__device__ constexpr int slot_steps(int t) {
  return Cfg::SLOT_STEPS - 4 * t < 4 ? Cfg::SLOT_STEPS - 4 * t : 4;
}

template <int N>
__device__ __forceinline__ void clear(float (&sums)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[n][e] = 0;
}
// Runs body(n, e, value of the slot row) over this thread's places of slots.
template <class Cfg, class Body>
__device__ __forceinline__ void for_slots(const Slots<Cfg>& slots, int row, Body body) {
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
    const float2 at = slots.pair(row, n);
#pragma unroll
    for (int e = 0; e < 4; ++e) body(n, e, e % 2 == 0 ? at.x : at.y);
  }
}

// sums[16][this half's slots] += a[16][64 columns] . state^T, the tile of slots 64t...
template <class Cfg>
__device__ __forceinline__ void multiply_state(float (&sums)[Slots<Cfg>::N][4], const u32 (&a)[4][4], const u16* tile, int t) {
  const u32 address = by_rows_address(tile);
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; n += 2) {
    const int group = half_id() * Slots<Cfg>::N + n;
    if (AbcTraits<Cfg>::kSlotTiles > 1 && group / 8 != t) continue;
    const u32 rows = address + group % 8 * 8 * kRowBytes;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      u32 b[4];
      load_by_rows(b, rows, 0, step);
      mma_16x8x16<Cfg::DTYPE>(sums[n], a[step], b[0], b[1]);
      mma_16x8x16<Cfg::DTYPE>(sums[n + 1], a[step], b[2], b[3]);
    }
  }
}
// sums[16][this half's slots] += a[16][64 tokens] . slots, tiles of [token][slot].
template <class Cfg>
__device__ __forceinline__ void multiply_slots(float (&sums)[Slots<Cfg>::N][4], const u32 (&a)[4][4], const u16* tiles) {
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; n += 2) {
    const int group = half_id() * Slots<Cfg>::N + n;
    const u32 address = by_columns_address(tiles + group / 8 * kTileElements) ^ (group % 8 << 4);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      u32 b[4];
      load_by_columns(b, address, 0, step);
      mma_16x8x16<Cfg::DTYPE>(sums[n], a[step], b[0], b[1]);
      mma_16x8x16<Cfg::DTYPE>(sums[n + 1], a[step], b[2], b[3]);
    }
  }
}
// sums[16][this half's 32 tokens] += a[16][M] . slots^T.
template <class Cfg>
__device__ __forceinline__ void multiply_by_slots(float (&sums)[4][4], const u32 (&a)[Cfg::SLOT_STEPS][4], const u16* tiles) {
  multiply_by_rows<Cfg::DTYPE, slot_steps<Cfg>(0)>(sums, a, tiles);
  if constexpr (AbcTraits<Cfg>::kSlotTiles > 1) multiply_by_rows<Cfg::DTYPE, slot_steps<Cfg>(1)>(sums, a + 4, tiles + kTileElements);
}

// Products of pairs to the place of pairs, element [row][column] kept where keep(row, column), and back from
// both halves as operand A.
template <class Cfg, class Keep>
__device__ __forceinline__ void write_pairs(u16* tile, const float (&pairs)[4][4], float factor, Keep keep) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half), column = own_column(n);
      tile_pair(tile, row, column) = round_pair<Cfg::DTYPE>(keep(row, column) ? pairs[n][2 * half] * factor : 0.0f,
                                                            keep(row, column + 1) ? pairs[n][2 * half + 1] * factor : 0.0f);
    }
  }
}
template <class Cfg, class Keep>
__device__ __forceinline__ void exchange_pairs(const Chunk<Cfg>& c, u32 (&a)[4][4], const float (&pairs)[4][4], float factor, Keep keep) {
  __syncthreads();
  write_pairs<Cfg>(c.pair_tile, pairs, factor, keep);
  __syncthreads();
  load_operand(a, c.pair_tile);
}
__device__ __forceinline__ bool keep_all(int, int) { return true; }

// Weights of this thread's places of slots to the place of weights, and back from both halves as operand A.
template <class Cfg>
__device__ __forceinline__ void exchange_weights(const Chunk<Cfg>& c, u32 (&a)[Cfg::SLOT_STEPS][4], const float (&w)[Slots<Cfg>::N][4]) {
  __syncthreads();
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      Slots<Cfg>::pair_in(c.weight_tiles, own_row(half), n) = round_pair<Cfg::DTYPE>(w[n][2 * half], w[n][2 * half + 1]);
  }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < Cfg::SLOT_STEPS; ++step)
    load_rows(a[step], rows_address(c.weight_tiles + step / 4 * kTileElements), step % 4);
}

// f32 at [row][column] of 64 x 64 in the places of pairs and weights.
__device__ __forceinline__ float& scratch(u16* pair_tile, int row, int column) {
  float* tile = reinterpret_cast<float*>(pair_tile + column / 32 * kTileElements);
  return tile[row * 32 + ((column % 32) ^ (row % 8 * 4))];
}
// f32 products of pairs to and from scratch, for all warps.
template <class Cfg>
__device__ __forceinline__ void write_scratch(const Chunk<Cfg>& c, const float (&pairs)[4][4], float factor) {
  __syncthreads();
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) scratch(c.pair_tile, own_row(e / 2), own_column(n) + e % 2) = pairs[n][e] * factor;
  __syncthreads();
}
template <class Cfg>
__device__ __forceinline__ void read_scratch(const Chunk<Cfg>& c, float (&pairs)[4][4]) {
  __syncthreads();
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) pairs[n][e] = scratch(c.pair_tile, own_row(e / 2), own_column(n) + e % 2);
}
// Sums over a row's lanes.
__device__ __forceinline__ float quad_sum(float x) {
  const u32 quad = 0xfu << (lane_id() / 4 * 4);
  x += __shfl_xor_sync(quad, x, 1);
  return x + __shfl_xor_sync(quad, x, 2);
}

// --- where s is steep: pairs of one chunk, summed directly. Rare, so kept apart from the code and the
// registers of everything else; places in local memory ----------------------------------------------

// value[16][..] += sum over i <= t of pairs[t][i] 2^(s_i - z_t), from f32 pairs in scratch.
template <class Cfg>
__device__ __noinline__ void add_steep_products(const SteepChunk<Cfg> c, float (*value)[4]) {
#pragma unroll 1
  for (int place = 0; place < Slots<Cfg>::N * 4; ++place) {
    const int m = Slots<Cfg>::own(place / 4) + place % 2, t = own_row(place % 4 / 2);
    if (m >= c.slots.M || t >= c.rows) continue;
    const float z = c.z[t * c.slots.M + m];
    float sum = value[place / 4][place % 4];
#pragma unroll 1
    for (int i = 0; i <= t; ++i) sum += scratch(c.pair_tile, t, i) * share(c.at(i, m) * kLog2E, z);
    value[place / 4][place % 4] = sum;
  }
}
// scratch[t][i] = sum over slots of w[t] 2^(s_i - z_t), i <= t; of all slots, one half after the other.
template <class Cfg>
__device__ __noinline__ void sum_steep_weights(const SteepChunk<Cfg> c, const float (*w)[4]) {
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < 2 * kTile && turn == half_id(); ++i) {
      const int t = own_row(i / kTile), from = i % kTile;
      float sum = 0;
#pragma unroll 1
      for (int place = 0; place < Slots<Cfg>::N * 2; ++place) {
        const int m = Slots<Cfg>::own(place / 2) + place % 2;
        if (m < c.slots.M && from <= t && t < c.rows)
          sum += w[place / 2][i / kTile * 2 + place % 2] * share(c.at(from, m) * kLog2E, c.z[t * c.slots.M + m]);
      }
      sum = quad_sum(sum);
      if (lane_id() % 4 == 0) scratch(c.pair_tile, t, from) = turn == 0 ? sum : scratch(c.pair_tile, t, from) + sum;
    }
  }
}
// ds of a slot of this chunk by the normalisers, from the last row up: dz[t] becomes 2^(s_t - z_t) R_t with
// R_t = sum over t' >= t of dz_t' 2^(z_t - z_t'), `later` the sum after the chunk. One thread a slot.
template <class Cfg>
__device__ __noinline__ void sum_steep_later(const SteepChunk<Cfg> c, const u16* s_tiles, float* dz, const float* later) {
  for (int m = threadIdx.x; m < c.slots.M; m += abc::kThreads) {
    float sum = later[m], at = c.slots.at(kAfter, m);
#pragma unroll 1
    for (int t = c.rows - 1; t >= 0; --t) {
      const float z = c.z[t * c.slots.M + m];
      const float s = low_value<Cfg::DTYPE>(s_tiles[m / kTile * kTileElements + tile_at(t, m % kTile)]) * kLog2E;
      sum = dz[t * c.slots.M + m] + sum * decay(z, at);
      at = z;
      dz[t * c.slots.M + m] = sum * share(s, z);
    }
  }
  __syncthreads();
}
// dz[i] += sum over t >= i of pairs[i][t] weights_t 2^(s_i - z_t), from f32 pairs in scratch; then
// scratch[i][t] = sum over slots of weights_t 2^(s_i - z_t).
template <class Cfg>
__device__ __noinline__ void add_steep_keys(const SteepChunk<Cfg> c, const u16* s_tiles, float* dz) {
  const auto s_at = [&](int i, int m) {
    return low_value<Cfg::DTYPE>(s_tiles[m / kTile * kTileElements + tile_at(i, m % kTile)]) * kLog2E;
  };
#pragma unroll 1
  for (int place = 0; place < Slots<Cfg>::N * 4; ++place) {
    const int m = Slots<Cfg>::own(place / 4) + place % 2, i = own_row(place % 4 / 2);
    if (m >= c.slots.M || i >= c.rows) continue;
    const float s = s_at(i, m);
    float sum = dz[i * c.slots.M + m];
#pragma unroll 1
    for (int t = i; t < c.rows; ++t) sum += scratch(c.pair_tile, i, t) * c.at(t, m) * share(s, c.z[t * c.slots.M + m]);
    dz[i * c.slots.M + m] = sum;
  }
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < 2 * kTile && turn == half_id(); ++j) {
      const int i = own_row(j / kTile), t = j % kTile;
      float sum = 0;
#pragma unroll 1
      for (int place = 0; place < Slots<Cfg>::N * 2; ++place) {
        const int m = Slots<Cfg>::own(place / 2) + place % 2;
        if (m < c.slots.M && t >= i && t < c.rows) sum += c.at(t, m) * share(s_at(i, m), c.z[t * c.slots.M + m]);
      }
      sum = quad_sum(sum);
      if (lane_id() % 4 == 0) scratch(c.pair_tile, i, t) = turn == 0 ? sum : scratch(c.pair_tile, i, t) + sum;
    }
  }
}
// A copy in local memory, for the functions above.
template <int N>
struct Places {
  float value[N][4];
  __device__ __forceinline__ explicit Places(const float (&from)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) value[n][e] = from[n][e];
  }
  __device__ __forceinline__ void back(float (&to)[N][4]) const {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) to[n][e] = value[n][e];
  }
};

// The next run of the stream: X[16][this half's slots] = x . state^T, pairs[i][16][this half's tokens] =
// x . y^T for this chunk (0) and `others` more of its segment.
template <class Cfg>
__device__ __forceinline__ void multiply_run(TileStream<Cfg>& stream, int slabs, int others, float (&X)[Slots<Cfg>::N][4],
                                             float (&pairs)[Cfg::SEGMENT_CHUNKS][4][4]) {
  clear(X);
#pragma unroll
  for (int i = 0; i < Cfg::SEGMENT_CHUNKS; ++i) clear(pairs[i]);
#pragma unroll 1
  for (int slab = 0; slab < slabs; ++slab) {
    const u16* tiles = stream.next();
    u32 a[4][4];
    load_operand(a, tiles);
    multiply_state<Cfg>(X, a, tiles + kTileElements, 0);
    if constexpr (AbcTraits<Cfg>::kSlotTiles > 1) multiply_state<Cfg>(X, a, tiles + 2 * kTileElements, 1);
#pragma unroll
    for (int i = 0; i < Cfg::SEGMENT_CHUNKS; ++i)
      if (i <= others) multiply_by_rows<Cfg::DTYPE, 4>(pairs[i], a, tiles + (TileStream<Cfg>::kFirst + i) * kTileElements);
  }
}

// X[t,m] = scale * x_t H_t[m]: the next run of the stream. The slot places hold this chunk's shares of kAfter
// (0; s itself where it is steep) and those of the `others` before it in its segment as shares of kEdge.
template <class Cfg>
__device__ __forceinline__ void read_states(const Chunk<Cfg>& c, TileStream<Cfg>& stream, int slabs, int others, bool steep,
                                            float scale, const float (&z)[Slots<Cfg>::N][4], float (&X)[Slots<Cfg>::N][4]) {
  constexpr int N = Slots<Cfg>::N;
  float pairs[Cfg::SEGMENT_CHUNKS][4][4];
  multiply_run<Cfg>(stream, slabs, others, X, pairs);
  for_slots<Cfg>(c.slots, kState, [&](int n, int e, float state) {
    X[n][e] *= scale * decay(state, c.slots.at(kEdge, Slots<Cfg>::own(n) + e % 2));
  });
  u32 a[4][4];
#pragma unroll
  for (int i = 1; i < Cfg::SEGMENT_CHUNKS; ++i) {
    if (i <= others) {
      exchange_pairs<Cfg>(c, a, pairs[i], scale, keep_all);
      multiply_slots<Cfg>(X, a, c.slot_tile(i));
    }
  }
  for_slots<Cfg>(c.slots, kEdge, [&](int n, int e, float edge) { X[n][e] *= decay(edge, z[n][e]); });
  if (!steep) {
    float own[N][4] = {};
    exchange_pairs<Cfg>(c, a, pairs[0], scale, [](int row, int column) { return column <= row; });
    multiply_slots<Cfg>(own, a, c.slot_tile(0));
    for_slots<Cfg>(c.slots, kAfter, [&](int n, int e, float after) { X[n][e] += own[n][e] * share(after, z[n][e]); });
    return;
  }
  write_scratch<Cfg>(c, pairs[0], scale);
  Places<N> places(X);
  add_steep_products<Cfg>(c.steep(), places.value);
  places.back(X);
}

// From weights w[t,m]: `state` becomes the operand A for the state's tiles, and each slot place the weights of
// its tokens, 64 x 64. `edge` receives w decayed from kEdge.
template <class Cfg>
__device__ __forceinline__ void weigh_tokens(const Chunk<Cfg>& c, int others, bool steep, const float (&z)[Slots<Cfg>::N][4],
                                             const float (&w)[Slots<Cfg>::N][4], float (&edge)[Slots<Cfg>::N][4],
                                             u32 (&state)[Cfg::SLOT_STEPS][4]) {
  constexpr int N = Slots<Cfg>::N;
  float pairs[4][4] = {};
  if (!steep) {
    for_slots<Cfg>(c.slots, kAfter, [&](int n, int e, float after) { edge[n][e] = w[n][e] * share(after, z[n][e]); });
    exchange_weights<Cfg>(c, state, edge);
    multiply_by_slots<Cfg>(pairs, state, c.slot_tile(0));
  } else {
    const Places<N> places(w);
    sum_steep_weights<Cfg>(c.steep(), places.value);
    read_scratch<Cfg>(c, pairs);
  }
  __syncthreads();
  write_pairs<Cfg>(c.slot_tile(0), pairs, 1.0f, [](int row, int column) { return column <= row; });
  for_slots<Cfg>(c.slots, kEdge, [&](int n, int e, float at) { edge[n][e] = w[n][e] * decay(at, z[n][e]); });
  if (Cfg::SEGMENT_CHUNKS > 1 && others > 0) {
    exchange_weights<Cfg>(c, state, edge);
#pragma unroll 1
    for (int i = 1; i <= others; ++i) {
      clear(pairs);
      multiply_by_slots<Cfg>(pairs, state, c.slot_tile(i));
      __syncthreads();
      write_pairs<Cfg>(c.slot_tile(i), pairs, 1.0f, keep_all);
    }
  }
  float at_state[N][4];
  for_slots<Cfg>(c.slots, kState, [&](int n, int e, float at) {
    at_state[n][e] = edge[n][e] * decay(at, c.slots.at(kEdge, Slots<Cfg>::own(n) + e % 2));
  });
  exchange_weights<Cfg>(c, state, at_state);
}

// Writes factor * (state . H + sum over the slot places' weights . tokens): the next run of the stream.
template <class Cfg>
__device__ __forceinline__ void write_rows(const Chunk<Cfg>& c, TileStream<Cfg>& stream, int others,
                                           const u32 (&state)[Cfg::SLOT_STEPS][4], void* tensor, int width, float factor) {
  // The nearest chunk's weights stay in registers, the others' are read again for every slab.
  u32 own[4][4];
  load_operand(own, c.slot_tile(0));
#pragma unroll 1
  for (int slab = 0; slab < abc::tiles(width); ++slab) {
    const u16* tiles = stream.next();
    float sums[4][4] = {};
    multiply_by_columns<Cfg::DTYPE, slot_steps<Cfg>(0)>(sums, state, tiles + kTileElements);
    if constexpr (AbcTraits<Cfg>::kSlotTiles > 1)
      multiply_by_columns<Cfg::DTYPE, slot_steps<Cfg>(1)>(sums, state + 4, tiles + 2 * kTileElements);
    multiply_by_columns<Cfg::DTYPE, 4>(sums, own, tiles + TileStream<Cfg>::kFirst * kTileElements);
#pragma unroll 1
    for (int i = 1; i <= others && Cfg::SEGMENT_CHUNKS > 1; ++i) {
      u32 weights[4][4];
      load_operand(weights, c.slot_tile(i));
      multiply_by_columns<Cfg::DTYPE, 4>(sums, weights, tiles + (TileStream<Cfg>::kFirst + i) * kTileElements);
    }
    c.store_rows(tensor, width, slab, sums, factor);
  }
}

// Combines a value of each row over both halves: lanes of a quad hold the same value.
template <class Cfg, class Combine>
__device__ __forceinline__ void combine_halves(const Slots<Cfg>& slots, float (&value)[2], Combine combine) {
  float* exchange = &slots.at(kTotals2, 0);  // [2 halves][64 rows]
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (lane_id() % 4 == 0) exchange[half_id() * kTile + own_row(half)] = value[half];
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) value[half] = combine(exchange[own_row(half)], exchange[kTile + own_row(half)]);
}

// Softmax over existing slots of each row.
template <class Cfg>
__device__ __forceinline__ void softmax(const Slots<Cfg>& slots, const float (&score)[Slots<Cfg>::N][4], float (&a)[Slots<Cfg>::N][4]) {
  float most[2], sum[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    most[half] = never();
#pragma unroll
    for (int n = 0; n < Slots<Cfg>::N; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (slots.exists(Slots<Cfg>::own(n) + e)) most[half] = fmaxf(most[half], score[n][2 * half + e]);
    for (int step = 1; step < 4; step *= 2) most[half] = fmaxf(most[half], __shfl_xor_sync(0xffffffffu, most[half], step));
  }
  combine_halves<Cfg>(slots, most, [](float x, float y) { return fmaxf(x, y); });
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      a[n][e] = slots.exists(Slots<Cfg>::own(n) + e % 2) ? exp2_of((score[n][e] - most[e / 2]) * kLog2E) : 0.0f;
      sum[e / 2] += a[n][e];
    }
  }
  sum[0] = quad_sum(sum[0]);
  sum[1] = quad_sum(sum[1]);
  combine_halves<Cfg>(slots, sum, [](float x, float y) { return x + y; });
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) a[n][e] *= 1.0f / sum[e / 2];
}

// What a kernel that reads the states before its segment starts with: runs, s of this chunk and of those before
// it in the segment, z. Returns whether s is steep.
template <class Cfg>
__device__ __forceinline__ bool begin_rows(const Chunk<Cfg>& c, TileStream<Cfg>& stream, int others, float (&z)[Slots<Cfg>::N][4]) {
  for (int i = 0; i <= others; ++i) c.load_slots(c.slot_tile(i), c.chunk - i, i == 0 ? c.rows : kTile);
  copy_async_commit();
  c.slots.fill(kBefore, [&](int m) { return c.z_start(c.chunk, m); });
  c.slots.fill(kAfter, [&](int m) { return c.z_start(c.chunk + 1, m); });
  c.slots.fill(kState, [&](int m) { return c.z_state(c.segment(), m); });
  c.slots.fill(kEdge, [&](int m) { return c.chunk == 0 ? c.z_state(0, m) : c.z_start(c.chunk, m); });
  __syncthreads();
  stream.start();
  copy_async_wait<Cfg::STAGES - 1>();
  __syncthreads();
#pragma unroll 1
  for (int i = 1; i <= others; ++i) share_of_slots<Cfg>(c.slot_tile(i), kTile, c.slots, kEdge);
  const bool steep = is_steep<Cfg>(c.slot_tile(0), c.slots);
  own_slots<Cfg>(c.slot_tile(0), c.rows, steep, c.slots, c.steep_z(), z);
  return steep;
}

}  // namespace scanjit::dev
