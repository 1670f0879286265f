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
//           v'' and v_new tiles are written, h has left the state tile, the chunk's u and gates are read.
// numerics  accumulators f32; key and token order of every dot is ascending in groups of 16 and no sum
//           is split, so all configs give the same bits.
// arch      sm_80 and later.
#pragma once
#include "common/ptx.cuh"
#include "gated_delta_h/place.cuh"

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
  // Columns of the state tile as threads share them out: [value][key] rows rounded up to a power of two.
  static constexpr int kStoreColumns = Cfg::LAYOUT_VK ? gated_delta_h::power_of_two(kPaddedK) : BV;
  static constexpr int kStoreKeys = Cfg::LAYOUT_VK ? kStoreColumns : kPaddedK;
  // The larger of the two layouts, in elements.
  static constexpr int kStateElements =
      kPaddedK * (BV + kPad) > BV * (kPaddedK + kPad) ? kPaddedK * (BV + kPad) : BV * (kPaddedK + kPad);

  // A tile that may be absent; TAG keeps absent ones apart, so that none of them takes room.
  template <int TAG, int COUNT, class T>
  struct Optional { T value[COUNT]; __device__ T* get() { return value; } };
  template <int TAG, class T>
  struct Optional<TAG, 0, T> { __device__ T* get() { return nullptr; } };

  struct alignas(16) SharedStorage {
    u16 w[STAGES][BT][BK + kPad];
    u16 k[STAGES][BT][BK + kPad];
    u16 u[kUSlots][BT][BV + kPad];
    [[no_unique_address]] Optional<0, kStateTile ? kStateElements : 0, u16> state;   // round(S), as h is laid out
    [[no_unique_address]] Optional<1, Cfg::HAS_V_NEW ? BT*(BV + kPad) : 0, u16> v_new;  // [BT][BV + kPad]
    [[no_unique_address]] Optional<2, kExchange ? BV*(BT + kPad) : 0, u16> v_scaled;    // v''^T [BV][BT + kPad]
    [[no_unique_address]] Optional<3, Cfg::HAS_G ? kUSlots * BT : 0, float> g;
    [[no_unique_address]] Optional<4, Cfg::HAS_GK ? kUSlots * kPaddedK : 0, float> gk;
  };
  static constexpr int kSmemBytes = sizeof(SharedStorage);
};

// A thread's share of a tile of ROWS x COLUMNS 16-bit elements: one vector of 8 columns in every kStep-th
// row, kPasses times.
template <class Cfg, int ROWS, int COLUMNS>
struct TileShare {
  static constexpr int kThreads = GatedDeltaHTraits<Cfg>::kThreads, kVectors = COLUMNS / 8;
  static_assert(kVectors <= 32 && kThreads % kVectors == 0, "a row of a tile must be 1, 2, 4, 8, 16 or 32 vectors");
  static constexpr int kStep = kThreads / kVectors, kPasses = (ROWS + kStep - 1) / kStep;
  static constexpr bool kEven = ROWS % kStep == 0;  // every thread has a row in every pass
  __device__ static __forceinline__ int row() { return static_cast<int>(threadIdx.x) / kVectors; }
  __device__ static __forceinline__ int column() { return static_cast<int>(threadIdx.x) % kVectors * 8; }
};

// A token tensor read chunk by chunk: this thread's place in the next tile.
struct TokenStream {
  const u16* from;  // unaligned tensors: the tile's first element
  i64 stride;       // between tokens
};

// What a block works on, its threads' places, and how far the rings are filled.
template <class Cfg>
struct ScanBlock {
  using Traits = GatedDeltaHTraits<Cfg>;
  using Shared = typename Traits::SharedStorage;
  static constexpr int BT = Cfg::BT, BV = Cfg::BV, BK = Cfg::BK;

  const gated_delta_h::ScanParams& p;
  Shared& shared;
  int hv, hk;       // value head, its key head
  int v0;           // first value column
  i64 row0;         // first token row of the sequence
  i64 tokens;
  int chunks;
  i64 chunk0;       // first chunk in h

  int lane, group, member;  // member: which of the group's warps

  TokenStream w, k, u;
  u16 *h, *v_new;                      // this thread's place in the next tiles to store
  int w_next = 0, k_next = 0;          // next slab of each ring to ask for
  int w_slot = 0, k_slot = 0, u_slot = 0;  // and the slots for them and for u

  __device__ __forceinline__ int valid_tokens(int chunk) const {
    const i64 left = tokens - static_cast<i64>(chunk) * BT;
    return left < BT ? static_cast<int>(left) : BT;
  }
};

// One tile on its way from global to shared memory, issued in pieces between tensor instructions.
template <class Cfg, int ROWS, int COLUMNS>
struct TileCopy {
  using Share = TileShare<Cfg, ROWS, COLUMNS>;
  static constexpr int kPitch = COLUMNS + GatedDeltaHTraits<Cfg>::kPad;
  bool whole = false;  // aligned, and every row and column exists
  u16* to = nullptr;
  const u16* from = nullptr;
  i64 pass_stride = 0;

  // Rows from `valid` on and columns from `columns` on become zero.
  __device__ __forceinline__ void start(u16* tile, const TokenStream& stream, int valid, int columns) {
    if (Cfg::ALIGNED && valid == ROWS && columns >= COLUMNS) {
      whole = true;
      to = tile + Share::row() * kPitch + Share::column();
      from = stream.from;
      pass_stride = stream.stride * Share::kStep;
      return;
    }
    if constexpr (Cfg::ALIGNED) {
      const u16* first = stream.from - Share::row() * stream.stride - Share::column();
#pragma unroll 2
      for (int row = Share::row(); row < ROWS; row += Share::kStep) {
        const bool inside = row < valid && Share::column() < columns;
        // An address inside the tensor even where nothing is read.
        copy_async_16(tile + row * kPitch + Share::column(), inside ? first + row * stream.stride + Share::column() : first, inside ? 16 : 0);
      }
    } else {
#pragma unroll 8
      for (int i = static_cast<int>(threadIdx.x); i < ROWS * COLUMNS; i += Share::kThreads) {
        const int row = i / COLUMNS, column = i % COLUMNS;
        tile[row * kPitch + column] = row < valid && column < columns ? stream.from[row * stream.stride + column] : static_cast<u16>(0);
      }
    }
  }

  // Piece `part` of `parts`, in order.
  __device__ __forceinline__ void issue(int part, int parts) {
    if constexpr (Cfg::ALIGNED) {
#pragma unroll
      for (int pass = 0; pass < Share::kPasses; ++pass) {
        if (pass < part * Share::kPasses / parts || pass >= (part + 1) * Share::kPasses / parts) continue;
        if (whole && (Share::kEven || Share::row() + pass * Share::kStep < ROWS)) copy_async_16(to + pass * Share::kStep * kPitch, from);
        from += pass_stride;
      }
    }
  }
};

// What is refilled during one step: the next slab of w (with u and the gates, if it is a chunk's last) or
// of k.
template <class Cfg>
struct Refill {
  TileCopy<Cfg, Cfg::BT, Cfg::BK> slab;
  TileCopy<Cfg, Cfg::BT, Cfg::BV> u;
  __device__ __forceinline__ void issue(int part, int parts) {
    slab.issue(part, parts);
    u.issue(part, parts);
  }
};

template <class Cfg>
__device__ __forceinline__ void begin_w(ScanBlock<Cfg>& block, Refill<Cfg>& refill) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kSlabs = Traits::kSlabs, BT = Cfg::BT;
  const int chunk = block.w_next / kSlabs, part = block.w_next % kSlabs;
  if (chunk >= block.chunks) return;
  const int valid = block.valid_tokens(chunk);
  refill.slab.start(&block.shared.w[block.w_slot][0][0], block.w, valid, Cfg::K - part * Cfg::BK);
  ++block.w_next;
  if (++block.w_slot == Cfg::STAGES) block.w_slot = 0;
  if (part != kSlabs - 1) {
    block.w.from += Cfg::BK;
    return;
  }
  block.w.from += BT * block.w.stride - (kSlabs - 1) * Cfg::BK;
  refill.u.start(&block.shared.u[block.u_slot][0][0], block.u, valid, Cfg::V - block.v0);
  block.u.from += BT * block.u.stride;
  const auto& p = block.p;
  const i64 row = block.row0 + static_cast<i64>(chunk) * BT;
  if constexpr (Cfg::HAS_G) {
    for (int i = static_cast<int>(threadIdx.x); i < BT; i += Traits::kThreads)
      copy_async_4(block.shared.g.get() + block.u_slot * BT + i, p.g + (row + (i < valid ? i : 0)) * p.g_stride + block.hv, i < valid ? 4 : 0);
  }
  if constexpr (Cfg::HAS_GK) {
    const float* last = p.gk + (row + valid - 1) * p.gk_stride + static_cast<i64>(block.hv) * Cfg::K;
    for (int i = static_cast<int>(threadIdx.x); i < Traits::kPaddedK; i += Traits::kThreads)
      copy_async_4(block.shared.gk.get() + block.u_slot * Traits::kPaddedK + i, last + (i < Cfg::K ? i : 0), i < Cfg::K ? 4 : 0);
  }
  if (++block.u_slot == Traits::kUSlots) block.u_slot = 0;
}

template <class Cfg>
__device__ __forceinline__ void begin_k(ScanBlock<Cfg>& block, Refill<Cfg>& refill) {
  using Traits = GatedDeltaHTraits<Cfg>;
  const int chunk = block.k_next / Traits::kSlabs, part = block.k_next % Traits::kSlabs;
  if (chunk >= block.chunks) return;
  refill.slab.start(&block.shared.k[block.k_slot][0][0], block.k, block.valid_tokens(chunk), Cfg::K - part * Cfg::BK);
  ++block.k_next;
  if (++block.k_slot == Cfg::STAGES) block.k_slot = 0;
  block.k.from += part == Traits::kSlabs - 1 ? Cfg::BT * block.k.stride - (Traits::kSlabs - 1) * Cfg::BK : Cfg::BK;
}

// Refills the slab that step `step` of a chunk has used: 0..kSlabs-1 are of w, the rest of k.
template <class Cfg>
__device__ __forceinline__ void begin_refill(ScanBlock<Cfg>& block, int step, Refill<Cfg>& refill) {
  if (step < GatedDeltaHTraits<Cfg>::kSlabs) begin_w(block, refill);
  else begin_k(block, refill);
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

// A padded shared tile to global memory, `to` being this thread's place; with WHOLE every row and column
// exists, else only the first `rows`, `columns`.
template <class Cfg, int ROWS, int COLUMNS, int PITCH, bool WHOLE>
__device__ __forceinline__ void store_tile(const u16* tile, u16* to, i64 stride, int rows, int columns) {
  using Share = TileShare<Cfg, ROWS, COLUMNS>;
  if constexpr (Cfg::ALIGNED) {
#pragma unroll
    for (int pass = 0; pass < Share::kPasses; ++pass) {
      const int row = Share::row() + pass * Share::kStep;
      if ((Share::kEven || row < ROWS) && (WHOLE || (row < rows && Share::column() < columns)))
        *reinterpret_cast<uint4*>(to + pass * Share::kStep * stride) = *reinterpret_cast<const uint4*>(tile + row * PITCH + Share::column());
    }
  } else {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * COLUMNS; i += Share::kThreads) {
      const int row = i / COLUMNS, column = i % COLUMNS;
      if (row < rows && column < columns) to[row * stride + column] = tile[row * PITCH + column];
    }
  }
}

template <class Cfg>
using StateShare = TileShare<Cfg, GatedDeltaHTraits<Cfg>::kStateRows, GatedDeltaHTraits<Cfg>::kStoreColumns>;

template <class Cfg>
__device__ __forceinline__ void store_h(ScanBlock<Cfg>& block) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kPitch = Traits::kStateColumns + Traits::kPad;
  constexpr bool kWhole = Cfg::K == Traits::kStoreKeys && Cfg::V % Cfg::BV == 0;
  constexpr int kRowStride = Cfg::LAYOUT_VK ? Cfg::K : Cfg::V;
  const int keys = Cfg::K, values = Cfg::V - block.v0;
  store_tile<Cfg, Traits::kStateRows, Traits::kStoreColumns, kPitch, kWhole>(block.shared.state.get(), block.h, kRowStride,
                                                                            Cfg::LAYOUT_VK ? values : keys, Cfg::LAYOUT_VK ? keys : values);
  block.h += static_cast<i64>(block.p.HV) * Cfg::K * Cfg::V;
}

template <class Cfg>
__device__ __forceinline__ void store_v_new(ScanBlock<Cfg>& block, int valid) {
  constexpr int kPitch = Cfg::BV + GatedDeltaHTraits<Cfg>::kPad;
  const u16* tile = block.shared.v_new.get();
  const i64 stride = block.p.v_new_stride;
  if (Cfg::V % Cfg::BV == 0 && valid == Cfg::BT) store_tile<Cfg, Cfg::BT, Cfg::BV, kPitch, true>(tile, block.v_new, stride, valid, Cfg::BV);
  else store_tile<Cfg, Cfg::BT, Cfg::BV, kPitch, false>(tile, block.v_new, stride, valid, Cfg::V - block.v0);
  block.v_new += Cfg::BT * stride;
}

// acc += one slab's part of S^T.w^T: this warp's token tiles, key columns ascending.
template <class Cfg>
__device__ __forceinline__ void dot_w(const ScanBlock<Cfg>& block, const StateRegisters<Cfg>& S, int slab, int slot,
                                      float (&acc)[GatedDeltaHTraits<Cfg>::kTokenTiles][4], Refill<Cfg>& refill) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kTiles = Traits::kTokenTiles;
  const int matrix = block.lane / 8, r = block.lane % 8;
#pragma unroll
  for (int step = 0; step < Cfg::BK / 16; ++step) {
    refill.issue(step, Cfg::BK / 16);
    if (slab * (Cfg::BK / 16) + step >= Traits::kKeySteps) continue;
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
                                      const u32 (&v_scaled)[GatedDeltaHTraits<Cfg>::kTokenSteps][4], Refill<Cfg>& refill) {
  using Traits = GatedDeltaHTraits<Cfg>;
  const int matrix = block.lane / 8, r = block.lane % 8;
#pragma unroll
  for (int step = 0; step < Traits::kTokenSteps; ++step) {
    refill.issue(step, Traits::kTokenSteps);
#pragma unroll
    for (int tile = 0; tile < Traits::kKeyTiles; tile += 2) {
      if (slab == Traits::kSlabs - 1 && key_of_tile(block, slab, tile) >= Traits::kPaddedK) continue;
      u32 b[4];
      load_matrix_x4<true>(b, &block.shared.k[slot][step * 16 + matrix % 2 * 8 + r][(block.member * Traits::kKeyTiles + tile + matrix / 2) * 8]);
      mma_16x8x16<Cfg::DTYPE>(S[slab][tile], v_scaled[step], b[0], b[1]);
      mma_16x8x16<Cfg::DTYPE>(S[slab][tile + 1], v_scaled[step], b[2], b[3]);
    }
  }
}

// v' = u - acc; v_new and v'' from it. v'' comes back as pairs, [tile][value rows 0-7, 8-15].
template <class Cfg>
__device__ __forceinline__ void new_values(const ScanBlock<Cfg>& block, int valid, int u_slot,
                                           const float (&acc)[GatedDeltaHTraits<Cfg>::kTokenTiles][4],
                                           u32 (&pairs)[GatedDeltaHTraits<Cfg>::kTokenTiles][2]) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kTiles = Traits::kTokenTiles, kPitch = Cfg::BV + Traits::kPad;
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
__device__ __forceinline__ void decay_state(const ScanBlock<Cfg>& block, int valid, int u_slot, StateRegisters<Cfg>& S) {
  using Traits = GatedDeltaHTraits<Cfg>;
  float f = 1;
  if constexpr (Cfg::HAS_G) f = exp_gate<Cfg::BASE_E>(block.shared.g.get()[u_slot * Cfg::BT + valid - 1]);
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

// Random waits before every meeting point, for the tests that look for races.
template <class Cfg>
__device__ __forceinline__ void perturb() {
  if constexpr (Cfg::PERTURB) {
    u32 x = (static_cast<u32>(clock64()) + threadIdx.x / 32 * 40503u) * 2654435761u;
    x ^= x >> 15;
    if (x % 4 == 0) __nanosleep(x / 64 % 4096);
  }
}

// The chunks in order.
template <class Cfg>
__device__ __forceinline__ void scan_chunks(ScanBlock<Cfg>& block, StateRegisters<Cfg>& S) {
  using Traits = GatedDeltaHTraits<Cfg>;
  constexpr int kSlabs = Traits::kSlabs;
  int slot = 0, u_slot = 0;  // of the slabs and the u in use
  for (int chunk = 0; chunk < block.chunks; ++chunk) {
    const int valid = block.valid_tokens(chunk);
    // h = round(S)
    if constexpr (Traits::kStateTile) write_state_tile(block, S);

    // v' = u - w.h
    float acc[Traits::kTokenTiles][4] = {};
    int w_slot = slot;
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      wait_for_slab<Cfg>(slab);
      perturb<Cfg>();
      __syncthreads();
      Refill<Cfg> refill;
      begin_refill(block, slab == 0 ? 2 * kSlabs - 1 : slab - 1, refill);
      dot_w(block, S, slab, w_slot, acc, refill);
      copy_async_commit();
      if (++w_slot == Cfg::STAGES) w_slot = 0;
    }
    u32 pairs[Traits::kTokenTiles][2];
    new_values(block, valid, u_slot, acc, pairs);

    // S = decay * S + k^T.v''; the tiles of h and v_new go out while the tensor cores work.
    decay_state(block, valid, u_slot, S);
    if constexpr (Cfg::HAS_H) store_h(block);
    u32 v_scaled[Traits::kTokenSteps][4];
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      wait_for_slab<Cfg>(slab);
      perturb<Cfg>();
      __syncthreads();
      Refill<Cfg> refill;
      begin_refill(block, kSlabs + slab - 1, refill);
      if (slab == 0) read_v_scaled(block, pairs, v_scaled);
      add_k(block, S, slab, slot, v_scaled, refill);
      copy_async_commit();
      if (++slot == Cfg::STAGES) slot = 0;
    }
    if constexpr (Cfg::HAS_V_NEW) store_v_new(block, valid);
    if (++u_slot == Traits::kUSlots) u_slot = 0;
  }
}

template <class Cfg>
__device__ __forceinline__ void gated_delta_h(const gated_delta_h::ScanParams& p) {
  using Traits = GatedDeltaHTraits<Cfg>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];

  // Phase 0: which sequence, head and value columns; a bad sequence ends here.
  const ScanPlace place = locate<Cfg>(p, blockIdx.x, threadIdx.x == 0);
  if (place.bad) return;
  ScanBlock<Cfg> block{p, *reinterpret_cast<typename Traits::SharedStorage*>(shared_bytes), place.hv, place.hk,
                       place.v0, place.row0, place.tokens, place.chunks, place.chunk0,
                       static_cast<int>(threadIdx.x % 32), static_cast<int>(threadIdx.x / 32) / Traits::kSplit,
                       static_cast<int>(threadIdx.x / 32) % Traits::kSplit};

  // Phase 1: the threads' places; fill the pipeline as if the steps before the first had been used; read
  // the initial state.
  using SlabShare = TileShare<Cfg, Cfg::BT, Cfg::BK>;
  using ValueShare = TileShare<Cfg, Cfg::BT, Cfg::BV>;
  const auto stream = [&](const void* tensor, i64 stride, i64 column, int row, int vector_column) {
    const i64 offset = Cfg::ALIGNED ? row * stride + vector_column : 0;
    return TokenStream{static_cast<const u16*>(tensor) + block.row0 * stride + column + offset, stride};
  };
  block.w = stream(p.w, p.w_stride, static_cast<i64>(block.hv) * Cfg::K, SlabShare::row(), SlabShare::column());
  block.k = stream(p.k, p.k_stride, static_cast<i64>(block.hk) * Cfg::K, SlabShare::row(), SlabShare::column());
  block.u = stream(p.u, p.u_stride, static_cast<i64>(block.hv) * Cfg::V + block.v0, ValueShare::row(), ValueShare::column());
  if constexpr (Cfg::HAS_H) {
    block.h = static_cast<u16*>(p.h) + (block.chunk0 * p.HV + block.hv) * (static_cast<i64>(Cfg::K) * Cfg::V) + state_offset<Cfg>(0, block.v0);
    if constexpr (Cfg::ALIGNED) block.h += StateShare<Cfg>::row() * (Cfg::LAYOUT_VK ? Cfg::K : Cfg::V) + StateShare<Cfg>::column();
  }
  if constexpr (Cfg::HAS_V_NEW) {
    block.v_new = static_cast<u16*>(p.v_new) + block.row0 * p.v_new_stride + static_cast<i64>(block.hv) * Cfg::V + block.v0;
    if constexpr (Cfg::ALIGNED) block.v_new += ValueShare::row() * p.v_new_stride + ValueShare::column();
  }
  // The first STAGES slabs of w and of k, in the order of use; the last of k is left to the first step.
  // A loop, not unrolled: short sequences spend much of their time fetching code.
  constexpr int kSlabs = Traits::kSlabs;
  constexpr int kAhead = (Cfg::STAGES + kSlabs - 1) / kSlabs, kMissing = kAhead * kSlabs - Cfg::STAGES;
#pragma unroll 1
  for (int step = 0; step < 2 * kSlabs * kAhead - 1; ++step) {
    const int within = step % (2 * kSlabs);
    if (step / (2 * kSlabs) * kSlabs + within % kSlabs >= kMissing) {
      Refill<Cfg> refill;
      begin_refill(block, within, refill);
      refill.issue(0, 1);
    }
    copy_async_commit();
  }
  StateRegisters<Cfg> S = {};
  if constexpr (Cfg::HAS_H0) {
    if (place.h0_slot >= 0) {
      const float* h0 = p.h0 + place.h0_slot * p.h0_slot_stride + static_cast<i64>(block.hv) * Cfg::K * Cfg::V;
      for_each_state(block, S, [&](float& s, int key, int v) { s = h0[state_offset<Cfg>(key, v)]; });
    }
  }

  // Phase 2: the chunks in order.
  scan_chunks(block, S);

  // Phase 3: the final state.
  if constexpr (Cfg::HAS_HT) {
    if (place.ht_slot >= 0) {
      float* ht = p.ht + place.ht_slot * p.ht_slot_stride + static_cast<i64>(block.hv) * Cfg::K * Cfg::V;
      for_each_state(block, S, [&](float& s, int key, int v) { ht[state_offset<Cfg>(key, v)] = s; });
    }
  }
}

}  // namespace scanjit::dev
