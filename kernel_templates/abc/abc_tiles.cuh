// Tiles of 64 x 64 16-bit elements in shared memory, the tensor-core products on them, and the stream
// that brings them in.
#pragma once
#include "abc/abc_params.h"
#include "common/ptx.cuh"

namespace scanjit::dev {

inline constexpr int kTile = abc::kTile;
inline constexpr int kTileElements = kTile * kTile;

// Cfg: DTYPE; SLOT_STEPS groups of 16 slots hold the M slots, EXACT if they are full; SEGMENT_CHUNKS; STAGES
// slabs in the ring; ALIGNED: every row of a tensor is whole 16-byte vectors.
template <class Cfg>
struct AbcTraits {
  static constexpr int kThreads = abc::kThreads;
  static constexpr int kSlotTiles = abc::slot_tiles(Cfg::SLOT_STEPS);
  static constexpr int kSlots = kSlotTiles * kTile;
  static_assert(Cfg::SLOT_STEPS == 2 || Cfg::SLOT_STEPS == 4 || Cfg::SLOT_STEPS == 6 || Cfg::SLOT_STEPS == 8,
                "SLOT_STEPS must be 2, 4, 6 or 8: M is 1 to 128, and two halves of warps share it");
  static_assert(Cfg::STAGES >= 2 && Cfg::STAGES <= 8, "STAGES must be 2 to 8");
  static_assert(Cfg::SEGMENT_CHUNKS >= 1 && Cfg::SEGMENT_CHUNKS <= 8, "SEGMENT_CHUNKS must be 1 to 8");
};
template <class Cfg, bool OWN_S>
inline constexpr int kChunkSmemBytes = abc::chunk_smem_bytes(Cfg::SLOT_STEPS, Cfg::SEGMENT_CHUNKS, Cfg::STAGES, OWN_S);

// --- tiles: the 16-byte pieces of a row are permuted by the row, so that eight rows of a matrix lie in
// eight different groups of banks -----------------------------------------------------------------

__device__ __forceinline__ int tile_at(int row, int column) {
  return row * kTile + (((column >> 3) ^ (row & 7)) << 3) + (column & 7);
}
// The pair at an even column.
__device__ __forceinline__ u32& tile_pair(u16* tile, int row, int column) {
  return *reinterpret_cast<u32*>(tile + tile_at(row, column));
}

// A matrix in global memory, rows of `stride` elements.
struct Matrix {
  const u16* data;
  i64 stride;
};

// Copies rows x columns of `from` to a tile and clears the rest. VECTOR: rows begin at 16 bytes and hold
// whole vectors. By all threads.
template <bool VECTOR>
__device__ __forceinline__ void load_tile(u16* tile, const Matrix& from, int rows, int columns) {
  constexpr int kStep = abc::kThreads / 8;  // rows that all threads copy at once, a multiple of 8
  const int row = threadIdx.x / 8, column = threadIdx.x % 8 * 8;
  const u16* source = from.data + row * from.stride + column;
  u16* to = tile + tile_at(row, column);
#pragma unroll
  for (int i = 0; i < kTile / kStep; ++i, source += kStep * from.stride, to += kStep * kTile) {
    if constexpr (VECTOR) {
      const bool exists = row + i * kStep < rows && column < columns;
      copy_async_16(to, exists ? source : from.data, exists ? 16 : 0);
    } else {
      u32 words[4];
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const bool exists = row + i * kStep < rows;
        const u32 low = exists && column + e < columns ? source[e] : 0;
        const u32 high = exists && column + e + 1 < columns ? source[e + 1] : 0;
        words[e / 2] = low | high << 16;
      }
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// --- places: of 8 warps, warp w owns rows 16(w%4)..+15 of a product and half w/4 of its columns; its
// thread holds, of every eight columns, elements [lane/4 (+8)][2*(lane%4) (+1)] ---------------------

__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }
__device__ __forceinline__ int row_group() { return threadIdx.x / 32 % 4; }
__device__ __forceinline__ int half_id() { return threadIdx.x / 128; }
__device__ __forceinline__ int warp_row() { return row_group() * 16; }
// Row of accumulator pair `half`; first of two columns of group n, of 64 columns.
__device__ __forceinline__ int own_row(int half) { return warp_row() + lane_id() / 4 + 8 * half; }
__device__ __forceinline__ int own_column(int n) { return half_id() * 32 + n * 8 + lane_id() % 4 * 2; }

// Matrices by 32-bit addresses: of a tile at a multiple of 128 bytes, `row` of this lane and, of 16 bytes,
// the piece with the lowest bit `piece`; 16 columns further is one exclusive or.
__device__ __forceinline__ u32 lane_address(const u16* tile, int row, int piece) {
  return shared_address(tile) + row * (kTile * 2) + ((piece ^ (row & 7)) << 4);
}
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
inline constexpr int kRowBytes = kTile * 2;

// Operand A: this warp's 16 rows of a tile, 16 columns a step.
__device__ __forceinline__ u32 rows_address(const u16* tile) { return lane_address(tile, warp_row() + lane_id() % 16, lane_id() / 16); }
__device__ __forceinline__ void load_rows(u32 (&a)[4], u32 address, int step) { load_matrices<false>(a, address ^ (step << 5)); }
// Operand A: 16 columns of a tile, those of this warp, as rows; 16 rows a step.
__device__ __forceinline__ u32 columns_address(const u16* tile) {
  return lane_address(tile, lane_id() / 16 * 8 + lane_id() % 8, lane_id() / 8 % 2) ^ (warp_row() << 1);
}
__device__ __forceinline__ void load_columns(u32 (&a)[4], u32 address, int step) { load_matrices<true>(a, address + step * 16 * kRowBytes); }
// Operand B: 16 rows [8n..] of a tile are the product's columns, 16 columns a step its sum.
__device__ __forceinline__ u32 by_rows_address(const u16* tile) { return lane_address(tile, lane_id() / 16 * 8 + lane_id() % 8, lane_id() / 8 % 2); }
__device__ __forceinline__ void load_by_rows(u32 (&b)[4], u32 address, int n, int step) {
  load_matrices<false>(b, (address ^ (step << 5)) + n * 8 * kRowBytes);
}
// Operand B: 16 rows a step of a tile are the product's sum, 16 columns [8n..] its columns.
__device__ __forceinline__ u32 by_columns_address(const u16* tile) { return lane_address(tile, lane_id() / 8 % 2 * 8 + lane_id() % 8, lane_id() / 16); }
__device__ __forceinline__ void load_by_columns(u32 (&b)[4], u32 address, int n, int step) {
  load_matrices<true>(b, (address ^ (n << 4)) + step * 16 * kRowBytes);
}

// A tile's 16 rows of this warp as operand A.
__device__ __forceinline__ void load_operand(u32 (&a)[4][4], const u16* tile) {
  const u32 address = rows_address(tile);
#pragma unroll
  for (int step = 0; step < 4; ++step) load_rows(a[step], address, step);
}
// sums[16][32] += a[16][16*STEPS] . y^T, of y this half's 32 rows.
template <int DTYPE, int STEPS>
__device__ __forceinline__ void multiply_by_rows(float (&sums)[4][4], const u32 (*a)[4], const u16* y) {
  const u32 address = by_rows_address(y) + half_id() * 32 * kRowBytes;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      u32 b[4];
      load_by_rows(b, address, n, step);
      mma_16x8x16<DTYPE>(sums[n], a[step], b[0], b[1]);
      mma_16x8x16<DTYPE>(sums[n + 1], a[step], b[2], b[3]);
    }
  }
}
// sums[16][32] += a[16][16*STEPS] . y, of y this half's 32 columns.
template <int DTYPE, int STEPS>
__device__ __forceinline__ void multiply_by_columns(float (&sums)[4][4], const u32 (*a)[4], const u16* y) {
  const u32 address = by_columns_address(y) ^ (half_id() << 6);
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      u32 b[4];
      load_by_columns(b, address, n, step);
      mma_16x8x16<DTYPE>(sums[n], a[step], b[0], b[1]);
      mma_16x8x16<DTYPE>(sums[n + 1], a[step], b[2], b[3]);
    }
  }
}

// --- the stream of operand tiles -----------------------------------------------------------------

// A run over slabs of 64 columns. Of each slab: the tile of a row operand x, those of a state, and those of
// chunks of a token tensor, the block's own chunk first.
struct Run {
  const u16* x;       // at the own chunk's first row, strides as `tokens`; or null
  const u16* state;   // [M][D] at the run's first column
  const u16* tokens;  // at the own chunk's first row
  i64 stride;
  int state_columns;  // from the first one on
  int columns;
  int slabs;
};

// Brings the slabs of up to 4 runs through a ring of stages, in order. A stage has places for the tile of x, the
// tiles of the state (both only with STATES) and those of the segment's chunks. One copy group a slab.
template <class Cfg, bool STATES = true>
struct TileStream {
  static constexpr int kFirst = STATES ? 1 + AbcTraits<Cfg>::kSlotTiles : 0;  // place of the first chunk
  static constexpr int kTiles = abc::stage_tiles(Cfg::SLOT_STEPS, Cfg::SEGMENT_CHUNKS, STATES);
  const Run* runs;   // in shared memory
  u16* ring;
  int run_count;
  int others;        // chunks beside the own one
  int step;          // -1: those before it, 1: those after it
  int rows;          // tokens from the own chunk on
  int slots;         // M
  i64 state_stride;  // D
  int run = 0, slab = 0, stage = 0;  // what is issued next
  int use = 0;                       // stage in use

  __device__ __forceinline__ void issue() {
    if (run < run_count) {
      const Run& r = runs[run];
      u16* tiles = ring + stage * (kTiles * kTileElements);
      const int columns = r.columns - slab * kTile;
      if constexpr (STATES) {
        if (r.x != nullptr) load_tile<Cfg::ALIGNED>(tiles, {r.x + slab * kTile, r.stride}, rows, columns);
#pragma unroll 1
        for (int t = 0; t < AbcTraits<Cfg>::kSlotTiles; ++t)
          load_tile<true>(tiles + (1 + t) * kTileElements, {r.state + t * kTile * state_stride + slab * kTile, state_stride},
                          slots - t * kTile, r.state_columns - slab * kTile);
      }
#pragma unroll 1
      for (int i = 0; i <= others; ++i)
        load_tile<Cfg::ALIGNED>(tiles + (kFirst + i) * kTileElements, {r.tokens + i * kTile * step * r.stride + slab * kTile, r.stride},
                                rows - i * kTile * step, columns);
      if (++slab == r.slabs) slab = 0, ++run;
      if (++stage == Cfg::STAGES) stage = 0;
    }
    copy_async_commit();
  }
  __device__ __forceinline__ void start() {
#pragma unroll 1
    for (int i = 0; i < Cfg::STAGES - 1; ++i) issue();
  }
  // The next slab's stage; the one before it is given back.
  __device__ __forceinline__ const u16* next() {
    copy_async_wait<Cfg::STAGES - 2>();
    __syncthreads();
    issue();
    const u16* tiles = ring + use * (kTiles * kTileElements);
    if (++use == Cfg::STAGES) use = 0;
    return tiles;
  }
};

}  // namespace scanjit::dev
