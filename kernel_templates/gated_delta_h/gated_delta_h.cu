// Gated-delta state scan. Per sequence and value head, S in f32, chunks of BT tokens in order:
//
//     h = round(S);  v' = u - w.h;  v_new = round(v');  v'' = v' * 2^(g_last - g)
//     S = S * 2^(g_last) * 2^(gk_last);  S = S + k^T.round(v'')
//
// Source: the chunkwise form of "Gated Delta Networks" (2024); include/scanjit/gated_delta_h.hpp.
//
// tensors   k [B,T,H,K]  w [B,T,HV,K]  u,v_new [B,T,HV,V]  g [B,T,HV]  gk [B,T,HV,K]   global memory
//           h0,ht [N,HV,K,V] f32 and h [chunks,HV,K,V], or [..,V,K] with LAYOUT_VK
// grid      x = (n * HV + hv) * ceil(V/BV) + value tile: blocks of one key head run together
// block     WARPS warps = BV/16 groups of kSplit. A group owns 16 value columns of S, held transposed
//           (S^T: value rows x key columns) in f32 accumulators. The warps of a group split the tokens
//           of v' and the key columns of S between them; with kSplit 1 nothing is exchanged and S
//           feeds the tensor cores from registers.
// pipeline  w and k stream through rings of STAGES slabs of BK key columns; a chunk's u and gates
//           travel with its last slab of w. A chunk is slab_count steps over w, then as many over k;
//           each step waits for its slab, meets at one barrier, and refills the slab of the step
//           before. One copy group is committed per step, so the waits are compile-time counts.
// barriers  __syncthreads once a step. Before step w0: the state tile is written. Before step k0:
//           v'' and v_new tiles are written and the chunk's u and gates are no longer read.
// numerics  accumulators f32; key and token order of every dot is ascending in groups of 16 and no sum
//           is split, so all configs give the same bits.
// arch      sm_80 and later.
#pragma once
#include "common/ptx.cuh"
#include "common/sequences.cuh"
#include "gated_delta_h/gated_delta_h_params.h"

namespace scanjit::dev {

template <class Cfg>
struct GatedDeltaHTraits {
  static constexpr int K = Cfg::K, V = Cfg::V, BT = Cfg::BT, BV = Cfg::BV, BK = Cfg::BK;
  static constexpr int STAGES = Cfg::STAGES, WARPS = Cfg::WARPS;
  static constexpr gated_delta_h::ScanShape kShape = {K, BT, BV, BK, STAGES, WARPS, Cfg::HAS_G, Cfg::HAS_GK, Cfg::HAS_H, Cfg::HAS_V_NEW};

  static constexpr int kGroups = BV / 16;                 // of 16 value columns
  static constexpr int kSplit = WARPS / (kGroups > 0 ? kGroups : 1);  // warps in a group
  static_assert(K >= 1 && K <= 256, "K must be 1 to 256");
  static_assert(BT == 16 || BT == 32 || BT == 64, "BT must be 16, 32 or 64");
  static_assert(BV >= 16 && BV % 16 == 0, "BV must be a multiple of 16");
  static_assert(kSplit >= 1 && WARPS == kSplit * kGroups, "WARPS must be a multiple of BV/16");
  static_assert(BK % 16 == 0 && (BK / 8) % (2 * kSplit) == 0, "BK must give each warp of a group pairs of 8 key columns");
  static_assert((BT / 8) % kSplit == 0, "BT must give each warp of a group 8 tokens");
  static_assert(STAGES >= 2, "STAGES must be at least 2: one slab in use, one on its way");

  static constexpr int kPaddedK = gated_delta_h::padded_k(K);
  static constexpr int kSlabs = gated_delta_h::slab_count(kShape);
  static constexpr int kUSlots = gated_delta_h::u_slots(kShape);
  static constexpr int kKeySteps = kPaddedK / 16;         // of w.S over key columns
  static constexpr int kTokenSteps = BT / 16;             // of k^T.v'' over tokens
  static constexpr int kTokenTiles = BT / 8 / kSplit;     // 8-token tiles of v' per warp
  static constexpr int kKeyTiles = BK / 8 / kSplit;       // 8-column tiles of S per warp and slab
  static constexpr bool kExchange = kSplit > 1;           // S and v'' go through shared memory
  static constexpr bool kStateTile = Cfg::HAS_H || kExchange;
  static constexpr int kThreads = WARPS * 32;

  static constexpr int kStateRows = Cfg::LAYOUT_VK ? BV : kPaddedK, kStateColumns = Cfg::LAYOUT_VK ? kPaddedK : BV;
  static constexpr int kPad = gated_delta_h::kRowPad;
  // The larger of the two layouts, in elements.
  static constexpr int kStateElements =
      kPaddedK * (BV + kPad) > BV * (kPaddedK + kPad) ? kPaddedK * (BV + kPad) : BV * (kPaddedK + kPad);

  template <int COUNT, class T>
  struct Optional { T value[COUNT]; __device__ T* get() { return value; } };
  template <class T>
  struct Optional<0, T> { __device__ T* get() { return nullptr; } };

  struct alignas(16) SharedStorage {
    u16 w[STAGES][BT][BK + kPad];
    u16 k[STAGES][BT][BK + kPad];
    u16 u[kUSlots][BT][BV + kPad];
    [[no_unique_address]] Optional<kStateTile ? kStateElements : 0, u16> state;   // round(S), as h is laid out
    [[no_unique_address]] Optional<Cfg::HAS_V_NEW ? BT*(BV + kPad) : 0, u16> v_new;  // [BT][BV + kPad]
    [[no_unique_address]] Optional<kExchange ? BV*(BT + kPad) : 0, u16> v_scaled;    // v''^T [BV][BT + kPad]
    [[no_unique_address]] Optional<Cfg::HAS_G ? kUSlots * BT : 0, float> g;
    [[no_unique_address]] Optional<Cfg::HAS_GK ? kUSlots * kPaddedK : 0, float> gk;
  };
  static constexpr int kSmemBytes = sizeof(SharedStorage);
};

// What a block works on, and its threads' places.
template <class Cfg>
struct ScanBlock {
  using Traits = GatedDeltaHTraits<Cfg>;
  using Shared = typename Traits::SharedStorage;
  static constexpr int BT = Cfg::BT, BV = Cfg::BV, BK = Cfg::BK, K = Cfg::K, V = Cfg::V;

  const gated_delta_h::ScanParams& p;
  Shared& shared;
  i64 n;            // sequence
  int hv, hk;       // value head, its key head
  int v0;           // first value column
  i64 row0;         // first token row of the sequence
  i64 tokens;
  int chunks;
  i64 chunk0;       // first chunk in h

  int lane, group, member;  // member: which of the group's warps

  __device__ __forceinline__ int valid_tokens(int chunk) const {
    const i64 left = tokens - static_cast<i64>(chunk) * BT;
    return left < BT ? static_cast<int>(left) : BT;
  }
  __device__ __forceinline__ const u16* token_row(const void* base, i64 stride, i64 row, i64 column) const {
    return static_cast<const u16*>(base) + row * stride + column;
  }
};

// tile[ROWS][COLUMNS] <- ROWS token rows of `columns` elements; rows from `valid` on and columns past
// the end become zero.
template <class Cfg, int ROWS, int COLUMNS, int PITCH>
__device__ __forceinline__ void load_rows(u16* tile, const u16* global, i64 stride, int valid, int columns) {
  constexpr int kThreads = GatedDeltaHTraits<Cfg>::kThreads;
  if constexpr (Cfg::ALIGNED) {
    constexpr int kVectors = COLUMNS / 8, kCount = ROWS * kVectors;
#pragma unroll
    for (int first = 0; first < kCount; first += kThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      if (kCount % kThreads == 0 || i < kCount) {
        const int row = i / kVectors, column = i % kVectors * 8;
        const bool inside = row < valid && column < columns;
        // An address inside the tensor even where nothing is read.
        const u16* from = inside ? global + row * stride + column : global;
        copy_async_16(tile + row * PITCH + column, from, inside ? 16 : 0);
      }
    }
  } else {
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * COLUMNS; i += kThreads) {
      const int row = i / COLUMNS, column = i % COLUMNS;
      tile[row * PITCH + column] = row < valid && column < columns ? global[row * stride + column] : static_cast<u16>(0);
    }
  }
}

// Slab number `slab` of the sequence's w (with u and the gates if it is a chunk's last) into its slot.
template <class Cfg>
__device__ __forceinline__ void load_w(const ScanBlock<Cfg>& block, int slab, int slot) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kSlabs = Traits::kSlabs, BT = Cfg::BT;
  const int chunk = slab / kSlabs, part = slab % kSlabs;
  if (chunk >= block.chunks) return;
  const auto& p = block.p;
  const int valid = block.valid_tokens(chunk);
  const i64 row = block.row0 + static_cast<i64>(chunk) * BT;
  load_rows<Cfg, BT, Cfg::BK, Cfg::BK + Traits::kPad>(
      &block.shared.w[slot][0][0], block.token_row(p.w, p.w_stride, row, static_cast<i64>(block.hv) * Cfg::K + part * Cfg::BK),
      p.w_stride, valid, Cfg::K - part * Cfg::BK);
  if (part != kSlabs - 1) return;

  const int u_slot = chunk % Traits::kUSlots;
  load_rows<Cfg, BT, Cfg::BV, Cfg::BV + Traits::kPad>(
      &block.shared.u[u_slot][0][0], block.token_row(p.u, p.u_stride, row, static_cast<i64>(block.hv) * Cfg::V + block.v0),
      p.u_stride, valid, Cfg::V - block.v0);
  if constexpr (Cfg::HAS_G) {
    for (int i = static_cast<int>(threadIdx.x); i < BT; i += Traits::kThreads)
      copy_async_4(block.shared.g.get() + u_slot * BT + i, p.g + (row + (i < valid ? i : 0)) * p.g_stride + block.hv, i < valid ? 4 : 0);
  }
  if constexpr (Cfg::HAS_GK) {
    const float* last = p.gk + (row + valid - 1) * p.gk_stride + static_cast<i64>(block.hv) * Cfg::K;
    for (int i = static_cast<int>(threadIdx.x); i < Traits::kPaddedK; i += Traits::kThreads)
      copy_async_4(block.shared.gk.get() + u_slot * Traits::kPaddedK + i, last + (i < Cfg::K ? i : 0), i < Cfg::K ? 4 : 0);
  }
}

template <class Cfg>
__device__ __forceinline__ void load_k(const ScanBlock<Cfg>& block, int slab, int slot) {
  using Traits = GatedDeltaHTraits<Cfg>;
  const int chunk = slab / Traits::kSlabs, part = slab % Traits::kSlabs;
  if (chunk >= block.chunks) return;
  const auto& p = block.p;
  const i64 row = block.row0 + static_cast<i64>(chunk) * Cfg::BT;
  load_rows<Cfg, Cfg::BT, Cfg::BK, Cfg::BK + Traits::kPad>(
      &block.shared.k[slot][0][0], block.token_row(p.k, p.k_stride, row, static_cast<i64>(block.hk) * Cfg::K + part * Cfg::BK),
      p.k_stride, block.valid_tokens(chunk), Cfg::K - part * Cfg::BK);
}

// S^T of one warp: [slab][tile of 8 key columns][accumulators of 16 value rows x 8].
template <class Cfg>
using StateRegisters = float[GatedDeltaHTraits<Cfg>::kSlabs][GatedDeltaHTraits<Cfg>::kKeyTiles][4];

template <class Cfg>
__device__ __forceinline__ int key_of_tile(const ScanBlock<Cfg>& block, int slab, int tile) {
  return slab * Cfg::BK + (block.member * GatedDeltaHTraits<Cfg>::kKeyTiles + tile) * 8;
}

// Calls f(element of S, key, value column) for every element that this lane holds and that exists.
template <class Cfg, class F>
__device__ __forceinline__ void for_each_state(const ScanBlock<Cfg>& block, StateRegisters<Cfg>& S, F f) {
  using Traits = GatedDeltaHTraits<Cfg>;
#pragma unroll
  for (int slab = 0; slab < Traits::kSlabs; ++slab)
#pragma unroll
    for (int tile = 0; tile < Traits::kKeyTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = key_of_tile(block, slab, tile) + block.lane % 4 * 2 + e % 2;
        const int v = block.v0 + block.group * 16 + block.lane / 4 + e / 2 * 8;
        if (key < Cfg::K && v < Cfg::V) f(S[slab][tile][e], key, v);
      }
}

template <class Cfg>
__device__ __forceinline__ i64 state_offset(int key, int v) {
  return Cfg::LAYOUT_VK ? static_cast<i64>(v) * Cfg::K + key : static_cast<i64>(key) * Cfg::V + v;
}

// The bf16 pairs of tile `tile`: value rows 0-7 and 8-15.
template <class Cfg>
__device__ __forceinline__ void round_tile(const float (&acc)[4], u32& upper, u32& lower) {
  upper = round_pair<Cfg::DTYPE>(acc[0], acc[1]);
  lower = round_pair<Cfg::DTYPE>(acc[2], acc[3]);
}

// Shared state tile <- round(S): [key][value] or, with LAYOUT_VK, [value][key].
template <class Cfg>
__device__ __forceinline__ void write_state_tile(const ScanBlock<Cfg>& block, const StateRegisters<Cfg>& S) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kPitch = Traits::kStateColumns + Traits::kPad;
  const int matrix = block.lane / 8, r = block.lane % 8;
  u16* tile_base = block.shared.state.get();
#pragma unroll
  for (int slab = 0; slab < Traits::kSlabs; ++slab)
#pragma unroll
    for (int tile = 0; tile < Traits::kKeyTiles; tile += 2) {
      if (slab == Traits::kSlabs - 1 && key_of_tile(block, slab, tile) >= Traits::kPaddedK) continue;
      u32 r0, r1, r2, r3;
      round_tile<Cfg>(S[slab][tile], r0, r1);
      round_tile<Cfg>(S[slab][tile + 1], r2, r3);
      const int key = key_of_tile(block, slab, tile + matrix / 2), v = block.group * 16 + matrix % 2 * 8;
      if constexpr (Cfg::LAYOUT_VK) store_matrix_x4<false>(tile_base + (v + r) * kPitch + key, r0, r1, r2, r3);
      else store_matrix_x4<true>(tile_base + (key + r) * kPitch + v, r0, r1, r2, r3);
    }
}

// One k16 slice of round(S)^T as the tensor cores' A operand, from the shared state tile.
template <class Cfg>
__device__ __forceinline__ void read_state_operand(const ScanBlock<Cfg>& block, int key0, u32 (&a)[4]) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kPitch = Traits::kStateColumns + Traits::kPad;
  const int matrix = block.lane / 8, r = block.lane % 8;
  const int v = block.group * 16 + matrix % 2 * 8, key = key0 + matrix / 2 * 8;
  const u16* tile = block.shared.state.get();
  if constexpr (Cfg::LAYOUT_VK) load_matrix_x4<false>(a, tile + (v + r) * kPitch + key);
  else load_matrix_x4<true>(a, tile + (key + r) * kPitch + v);
}

// rows x columns of a padded shared tile to global memory; only the first `rows`, `columns` exist.
template <class Cfg, int ROWS, int COLUMNS, int PITCH>
__device__ __forceinline__ void store_rows(const u16* tile, u16* global, i64 stride, int rows, int columns) {
  constexpr int kThreads = GatedDeltaHTraits<Cfg>::kThreads;
  if constexpr (Cfg::ALIGNED) {
    constexpr int kVectors = COLUMNS / 8, kCount = ROWS * kVectors;
#pragma unroll
    for (int first = 0; first < kCount; first += kThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      const int row = i / kVectors, column = i % kVectors * 8;
      if ((kCount % kThreads == 0 || i < kCount) && row < rows && column < columns)
        *reinterpret_cast<uint4*>(global + row * stride + column) = *reinterpret_cast<const uint4*>(tile + row * PITCH + column);
    }
  } else {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * COLUMNS; i += kThreads) {
      const int row = i / COLUMNS, column = i % COLUMNS;
      if (row < rows && column < columns) global[row * stride + column] = tile[row * PITCH + column];
    }
  }
}

template <class Cfg>
__device__ __forceinline__ void store_h(const ScanBlock<Cfg>& block, int chunk) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kPitch = Traits::kStateColumns + Traits::kPad;
  u16* h = static_cast<u16*>(block.p.h) + ((block.chunk0 + chunk) * block.p.HV + block.hv) * (static_cast<i64>(Cfg::K) * Cfg::V);
  if constexpr (Cfg::LAYOUT_VK)
    store_rows<Cfg, Cfg::BV, Traits::kPaddedK, kPitch>(block.shared.state.get(), h + static_cast<i64>(block.v0) * Cfg::K, Cfg::K, Cfg::V - block.v0, Cfg::K);
  else
    store_rows<Cfg, Traits::kPaddedK, Cfg::BV, kPitch>(block.shared.state.get(), h + block.v0, Cfg::V, Cfg::K, Cfg::V - block.v0);
}

template <class Cfg>
__device__ __forceinline__ void store_v_new(const ScanBlock<Cfg>& block, int chunk) {
  const i64 row = block.row0 + static_cast<i64>(chunk) * Cfg::BT;
  u16* v_new = static_cast<u16*>(block.p.v_new) + row * block.p.v_new_stride + static_cast<i64>(block.hv) * Cfg::V + block.v0;
  store_rows<Cfg, Cfg::BT, Cfg::BV, Cfg::BV + GatedDeltaHTraits<Cfg>::kPad>(block.shared.v_new.get(), v_new, block.p.v_new_stride,
                                                                          block.valid_tokens(chunk), Cfg::V - block.v0);
}

// acc += one slab's part of S^T.w^T: this warp's token tiles, key columns ascending.
template <class Cfg>
__device__ __forceinline__ void dot_w(const ScanBlock<Cfg>& block, const StateRegisters<Cfg>& S, int slab, int slot,
                                      float (&acc)[GatedDeltaHTraits<Cfg>::kTokenTiles][4]) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kTiles = Traits::kTokenTiles;
  const int matrix = block.lane / 8, r = block.lane % 8;
#pragma unroll
  for (int step = 0; step < Cfg::BK / 16; ++step) {
    if (slab * (Cfg::BK / 16) + step >= Traits::kKeySteps) break;
    u32 a[4];
    if constexpr (Traits::kExchange) {
      read_state_operand(block, slab * Cfg::BK + step * 16, a);
    } else {
      round_tile<Cfg>(S[slab][2 * step], a[0], a[1]);
      round_tile<Cfg>(S[slab][2 * step + 1], a[2], a[3]);
    }
    if constexpr (kTiles == 1) {
      u32 b[2];
      load_matrix_x2<false>(b, &block.shared.w[slot][block.member * 8 + r][step * 16 + matrix % 2 * 8]);
      mma_16x8x16<Cfg::DTYPE>(acc[0], a, b[0], b[1]);
    } else {
#pragma unroll
      for (int tile = 0; tile < kTiles; tile += 2) {
        u32 b[4];
        load_matrix_x4<false>(b, &block.shared.w[slot][(block.member * kTiles + tile + matrix / 2) * 8 + r][step * 16 + matrix % 2 * 8]);
        mma_16x8x16<Cfg::DTYPE>(acc[tile], a, b[0], b[1]);
        mma_16x8x16<Cfg::DTYPE>(acc[tile + 1], a, b[2], b[3]);
      }
    }
  }
}

// S^T += v''^T.k for one slab's key columns of this warp, tokens ascending.
template <class Cfg>
__device__ __forceinline__ void add_k(const ScanBlock<Cfg>& block, StateRegisters<Cfg>& S, int slab, int slot,
                                      const u32 (&v_scaled)[GatedDeltaHTraits<Cfg>::kTokenSteps][4]) {
  using Traits = GatedDeltaHTraits<Cfg>;
  const int matrix = block.lane / 8, r = block.lane % 8;
#pragma unroll
  for (int step = 0; step < Traits::kTokenSteps; ++step)
#pragma unroll
    for (int tile = 0; tile < Traits::kKeyTiles; tile += 2) {
      if (slab == Traits::kSlabs - 1 && key_of_tile(block, slab, tile) >= Traits::kPaddedK) continue;
      u32 b[4];
      load_matrix_x4<true>(b, &block.shared.k[slot][step * 16 + matrix % 2 * 8 + r][(block.member * Traits::kKeyTiles + tile + matrix / 2) * 8]);
      mma_16x8x16<Cfg::DTYPE>(S[slab][tile], v_scaled[step], b[0], b[1]);
      mma_16x8x16<Cfg::DTYPE>(S[slab][tile + 1], v_scaled[step], b[2], b[3]);
    }
}

// v' = u - acc; v_new and v'' from it. v'' comes back as pairs, [tile][value rows 0-7, 8-15].
template <class Cfg>
__device__ __forceinline__ void new_values(const ScanBlock<Cfg>& block, int chunk,
                                           const float (&acc)[GatedDeltaHTraits<Cfg>::kTokenTiles][4],
                                           u32 (&pairs)[GatedDeltaHTraits<Cfg>::kTokenTiles][2]) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kTiles = Traits::kTokenTiles, kPitch = Cfg::BV + Traits::kPad;
  const int u_slot = chunk % Traits::kUSlots, valid = block.valid_tokens(chunk);
  const int half = block.lane / 8 % 2, r = block.lane % 8;
  const float* g = block.shared.g.get() + u_slot * Cfg::BT;
  float g_last = 0;
  if constexpr (Cfg::HAS_G) g_last = g[valid - 1];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int token0 = (block.member * kTiles + tile) * 8;
    u32 u[2];
    load_matrix_x2<true>(u, &block.shared.u[u_slot][token0 + r][block.group * 16 + half * 8]);
    float v[4] = {low_value<Cfg::DTYPE>(u[0]) - acc[tile][0], high_value<Cfg::DTYPE>(u[0]) - acc[tile][1],
                  low_value<Cfg::DTYPE>(u[1]) - acc[tile][2], high_value<Cfg::DTYPE>(u[1]) - acc[tile][3]};
    if constexpr (Cfg::HAS_V_NEW)
      store_matrix_x2<true>(block.shared.v_new.get() + (token0 + r) * kPitch + block.group * 16 + half * 8,
                            round_pair<Cfg::DTYPE>(v[0], v[1]), round_pair<Cfg::DTYPE>(v[2], v[3]));
    const int token = token0 + block.lane % 4 * 2;
    if constexpr (Cfg::HAS_G) {
      const float2 gate = *reinterpret_cast<const float2*>(g + token);
      const float f0 = exp_gate<Cfg::BASE_E>(g_last - gate.x), f1 = exp_gate<Cfg::BASE_E>(g_last - gate.y);
      v[0] *= f0, v[1] *= f1, v[2] *= f0, v[3] *= f1;
    }
    if (valid < Cfg::BT) {
      if (token >= valid) v[0] = v[2] = 0;
      if (token + 1 >= valid) v[1] = v[3] = 0;
    }
    pairs[tile][0] = round_pair<Cfg::DTYPE>(v[0], v[1]);
    pairs[tile][1] = round_pair<Cfg::DTYPE>(v[2], v[3]);
    if constexpr (Traits::kExchange)
      store_matrix_x2<false>(block.shared.v_scaled.get() + (block.group * 16 + half * 8 + r) * (Cfg::BT + Traits::kPad) + token0,
                             pairs[tile][0], pairs[tile][1]);
  }
}

// S = S * 2^(g_last), then S[i,:] = S[i,:] * 2^(gk_last[i]).
template <class Cfg>
__device__ __forceinline__ void decay_state(const ScanBlock<Cfg>& block, int chunk, StateRegisters<Cfg>& S) {
  using Traits = GatedDeltaHTraits<Cfg>;
  const int u_slot = chunk % Traits::kUSlots;
  float f = 1;
  if constexpr (Cfg::HAS_G) f = exp_gate<Cfg::BASE_E>(block.shared.g.get()[u_slot * Cfg::BT + block.valid_tokens(chunk) - 1]);
  if constexpr (Cfg::HAS_G || Cfg::HAS_GK) {
#pragma unroll
    for (int slab = 0; slab < Traits::kSlabs; ++slab)
#pragma unroll
      for (int tile = 0; tile < Traits::kKeyTiles; ++tile) {
        auto& s = S[slab][tile];
        if constexpr (Cfg::HAS_G) s[0] *= f, s[1] *= f, s[2] *= f, s[3] *= f;
        if constexpr (Cfg::HAS_GK) {
          const int key = key_of_tile(block, slab, tile);
          if (key >= Traits::kPaddedK) continue;
          const float2 gate = *reinterpret_cast<const float2*>(block.shared.gk.get() + u_slot * Traits::kPaddedK + key + block.lane % 4 * 2);
          const float f0 = exp_gate<Cfg::BASE_E>(gate.x), f1 = exp_gate<Cfg::BASE_E>(gate.y);
          s[0] *= f0, s[1] *= f1, s[2] *= f0, s[3] *= f1;
        }
      }
  }
}

// v'' of the whole chunk as the A operand: from the warp's own pairs, or from the group's exchange.
template <class Cfg>
__device__ __forceinline__ void read_v_scaled(const ScanBlock<Cfg>& block, const u32 (&pairs)[GatedDeltaHTraits<Cfg>::kTokenTiles][2],
                                              u32 (&a)[GatedDeltaHTraits<Cfg>::kTokenSteps][4]) {
  using Traits = GatedDeltaHTraits<Cfg>;
  const int matrix = block.lane / 8, r = block.lane % 8;
#pragma unroll
  for (int step = 0; step < Traits::kTokenSteps; ++step) {
    if constexpr (Traits::kExchange) {
      load_matrix_x4<false>(a[step], block.shared.v_scaled.get() + (block.group * 16 + matrix % 2 * 8 + r) * (Cfg::BT + Traits::kPad) + step * 16 + matrix / 2 * 8);
    } else {
      a[step][0] = pairs[2 * step][0], a[step][1] = pairs[2 * step][1];
      a[step][2] = pairs[2 * step + 1][0], a[step][3] = pairs[2 * step + 1][1];
    }
  }
}

// Waits for the slab at place `part` of a chunk's w (or k). Its group was committed in the step after
// slab-STAGES was used, and every step since has committed one.
template <class Cfg>
__device__ __forceinline__ void wait_for_slab(int part) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kWhole = Cfg::STAGES / Traits::kSlabs, kRest = Cfg::STAGES % Traits::kSlabs;
  constexpr int kSame = 2 * Traits::kSlabs * kWhole + kRest - 2;
  if (part >= kRest) copy_async_wait<kSame>();
  else copy_async_wait<kSame + Traits::kSlabs>();
}

// Step number -> the slab that it uses, refilled with the one STAGES further on.
template <class Cfg>
__device__ __forceinline__ void refill_after(const ScanBlock<Cfg>& block, int chunk, int step) {
  using Traits = GatedDeltaHTraits<Cfg>;
  const bool is_w = step < Traits::kSlabs;
  const int slab = chunk * Traits::kSlabs + (is_w ? step : step - Traits::kSlabs) + Traits::STAGES;
  if (slab >= 0) {
    const int slot = slab % Traits::STAGES;
    if (is_w) load_w(block, slab, slot);
    else load_k(block, slab, slot);
  }
  copy_async_commit();
}

template <class Cfg>
__device__ __forceinline__ void begin_step(const ScanBlock<Cfg>& block, int chunk, int step) {
  // Refills the slab of the step before.
  if (step == 0) refill_after(block, chunk - 1, 2 * GatedDeltaHTraits<Cfg>::kSlabs - 1);
  else refill_after(block, chunk, step - 1);
}

template <class Cfg>
__device__ __forceinline__ void gated_delta_h(const gated_delta_h::ScanParams& p) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kSlabs = Traits::kSlabs, kValueTiles = (Cfg::V + Cfg::BV - 1) / Cfg::BV;
  extern __shared__ __align__(16) unsigned char shared_bytes[];

  // Phase 0: which sequence, head and value columns; a bad sequence ends here.
  const i64 head = blockIdx.x / kValueTiles;
  const i64 n = head / p.HV;
  const int hv = static_cast<int>(head % p.HV);
  ScanBlock<Cfg> block{p, *reinterpret_cast<typename Traits::SharedStorage*>(shared_bytes), n, hv, hv / (p.HV / p.H),
                       static_cast<int>(blockIdx.x % kValueTiles) * Cfg::BV, n * p.T, p.T, 0, 0,
                       static_cast<int>(threadIdx.x % 32), static_cast<int>(threadIdx.x / 32) / Traits::kSplit,
                       static_cast<int>(threadIdx.x / 32) % Traits::kSplit};
  unsigned status = 0;
  if constexpr (Cfg::PACKED) {
    const Sequence sequence = load_sequence<Cfg::INDEX64>(p.cu_seqlens, n, p.T);
    if (sequence.bad) status |= gated_delta_h::kStatusLengths;
    block.row0 = sequence.begin;
    block.tokens = sequence.tokens;
    if constexpr (Cfg::HAS_H)
      block.chunk0 = p.chunk_offsets ? load_index<Cfg::INDEX64>(p.chunk_offsets, n) : chunks_before<Cfg::INDEX64, Cfg::BT>(p.cu_seqlens, n, p.T);
  } else {
    block.chunk0 = n * ((p.T + Cfg::BT - 1) / Cfg::BT);
  }
  block.chunks = static_cast<int>((block.tokens + Cfg::BT - 1) / Cfg::BT);
  if constexpr (Cfg::PACKED && Cfg::HAS_H)
    if (block.chunk0 < 0 || block.chunk0 > p.chunk_capacity - block.chunks) status |= gated_delta_h::kStatusLengths;
  i64 h0_slot = n, ht_slot = n;
  if constexpr (Cfg::HAS_H0_INDICES) {
    h0_slot = load_index<Cfg::POOL_INDEX64>(p.h0_indices, n);
    if (h0_slot < -1 || h0_slot >= p.h0_slots) status |= gated_delta_h::kStatusH0Indices, h0_slot = -1;
  }
  if constexpr (Cfg::HAS_HT_INDICES) {
    ht_slot = load_index<Cfg::POOL_INDEX64>(p.ht_indices, n);
    if (ht_slot < -1 || ht_slot >= p.ht_slots) status |= gated_delta_h::kStatusHtIndices, ht_slot = -1;
  }
  if (status != 0 && p.status != nullptr && threadIdx.x == 0) atomicOr(p.status, status);
  if (status & gated_delta_h::kStatusLengths) return;

  // Phase 1: fill the pipeline, read the initial state.
  constexpr int kAhead = (Cfg::STAGES + kSlabs - 1) / kSlabs;
#pragma unroll
  for (int step = -2 * kSlabs * kAhead; step < -1; ++step)
    refill_after(block, (step + 2 * kSlabs * kAhead) / (2 * kSlabs) - kAhead, (step + 2 * kSlabs * kAhead) % (2 * kSlabs));
  StateRegisters<Cfg> S = {};
  if constexpr (Cfg::HAS_H0) {
    if (h0_slot >= 0) {
      const float* h0 = p.h0 + h0_slot * p.h0_slot_stride + static_cast<i64>(hv) * Cfg::K * Cfg::V;
      for_each_state(block, S, [&](float& s, int key, int v) { s = h0[state_offset<Cfg>(key, v)]; });
    }
  }

  // Phase 2: the chunks in order.
  for (int chunk = 0; chunk < block.chunks; ++chunk) {
    // h = round(S)
    if constexpr (Traits::kStateTile) write_state_tile(block, S);

    // v' = u - w.h
    float acc[Traits::kTokenTiles][4] = {};
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      wait_for_slab<Cfg>(slab);
      __syncthreads();
      begin_step(block, chunk, slab);
      dot_w(block, S, slab, (chunk * kSlabs + slab) % Cfg::STAGES, acc);
      if constexpr (Cfg::HAS_H) if (slab == 0) store_h(block, chunk);
    }
    u32 pairs[Traits::kTokenTiles][2];
    new_values(block, chunk, acc, pairs);

    // S = decay * S + k^T.v''
    decay_state(block, chunk, S);
    u32 v_scaled[Traits::kTokenSteps][4];
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      wait_for_slab<Cfg>(slab);
      __syncthreads();
      begin_step(block, chunk, kSlabs + slab);
      if (slab == 0) read_v_scaled(block, pairs, v_scaled);
      add_k(block, S, slab, (chunk * kSlabs + slab) % Cfg::STAGES, v_scaled);
      if constexpr (Cfg::HAS_V_NEW) if (slab == 0) store_v_new(block, chunk);
    }
  }

  // Phase 3: the final state.
  if constexpr (Cfg::HAS_HT) {
    if (ht_slot >= 0) {
      float* ht = p.ht + ht_slot * p.ht_slot_stride + static_cast<i64>(hv) * Cfg::K * Cfg::V;
      for_each_state(block, S, [&](float& s, int key, int v) { ht[state_offset<Cfg>(key, v)] = s; });
    }
  }
}

}  // namespace scanjit::dev
