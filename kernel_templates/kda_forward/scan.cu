// The state scan of KDA, fused with the output; and, with PRESCAN, what a whole segment does to the state.
// Per segment of a sequence and value head, S in f32, chunks in order:
//
//     v'  = round(u - w . round(S))
//     o   = round(qg . round(S) + scores . v')              not of the pre-scan
//     S   = 2^(G_last) S;  S = S + kg^T . v'
//
// The pre-scan runs the same chunks from S = 0 with u (its b) and, as further value columns, from S = I
// without u (its M): M and b of the segment, S_out = M S_in + b. M is f32 in accumulators throughout.
//
// tensors   records [chunks,HV] of `prepare`; o [B,T,HV,V] bf16; h0, ht, checkpoints [..,HV,K,V] or [..,V,K];
//           states [segments,HV,V,K] f32; summaries [segments,HV,V+K,K] f32               global memory
// grid      x = (segment * HV + hv) * tiles + tile; tiles of BV value columns of V (pre-scan: of V + K)
// block     BV/16 warps. A warp owns 16 value columns of S, transposed (value rows x key columns) in f32
//           accumulators; accumulators of one product are the A operand of the next, nothing of the chain
//           passes through shared memory.
// pipeline  STAGES chunks of the block's part of a record, one bulk copy each of the common part and of u
//           (sm_90 and later: one thread issues them, an mbarrier a stage counts bytes; before: cp.async).
// products  sm_90a, BV a multiple of 64, K at most 128, STAGES at least 2: by warpgroups, 64 value rows at a time, B
//           from shared memory; else by warps. Same bits.
// barriers  __syncthreads when a chunk's products are finished: its stage is free.
// numerics  accumulators f32; key and token order of every dot is ascending in groups of 16, no sum is
//           split: all configs give the same bits.
// arch      sm_80 and later.
#pragma once
#include "common/bulk.cuh"
#include "common/panel.cuh"
#include "kda_forward/locate.cuh"

namespace scanjit::dev {

template <class Cfg>
struct KdaScanTraits {
  static constexpr int K = Cfg::K, V = Cfg::V, BV = Cfg::BV, STAGES = Cfg::STAGES;
  static_assert(K == 64 || K == 128 || K == 256, "K must be 64, 128 or 256");
  static_assert(V == 64 || V == 128 || V == 256, "V must be 64, 128 or 256");
  static_assert(BV == 16 || BV == 32 || BV == 64 || BV == 128, "BV must be 16, 32, 64 or 128");
  static_assert(V % BV == 0 && (!Cfg::PRESCAN || K % BV == 0), "BV must divide V, and K in a pre-scan");
  static_assert(STAGES >= 1, "STAGES must be at least 1");
  static constexpr int kWarps = BV / 16, kThreads = BV * 2;
  static constexpr int kTiles = (Cfg::PRESCAN ? V + K : V) / BV;
  static constexpr int kUPanels = (BV + 63) / 64;
  static constexpr int kCommonBytes = Cfg::PRESCAN ? kda_forward::qg_at(K) : kda_forward::u_at(K);
  static constexpr int kStageBytes = kda_forward::scan_stage_bytes(K, BV, Cfg::PRESCAN);
  static constexpr int kKeyTiles = K / 8, kKeySteps = K / 16;
  static constexpr int kTokenTiles = kPanelRows / 8, kTokenSteps = kPanelRows / 16;
  // Products of 64 value rows at a time, by the tensor instructions of sm_90a that read B from shared memory.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static constexpr bool kWarpgroups = BV % 64 == 0 && K <= 128 && STAGES >= 2 && !Cfg::WARP_PRODUCTS;
#else
  static constexpr bool kWarpgroups = false;
#endif

  // Output of a warp: [64 tokens][16 columns], the two 16-byte units of a row exchanged in every other four rows.
  template <bool EXISTS, class T> struct Staging { T o[kWarps][2048]; };
  template <class T> struct Staging<false, T> {};
  struct alignas(1024) Shared {
    unsigned char stage[STAGES][kStageBytes];
    [[no_unique_address]] Staging<!Cfg::PRESCAN, unsigned char> staging;
    u64 full[16];
  };
  static_assert(STAGES <= 16, "STAGES must be at most 16");
  static constexpr int kSmemBytes = sizeof(Shared);
};

template <class Cfg>
struct KdaScanBlock {
  using Traits = KdaScanTraits<Cfg>;
  const kda_forward::ScanParams& p;
  typename Traits::Shared& shared;
  Place place;
  int hv;
  int value0;              // first value column of the block; of the pre-scan's M: V + first column
  bool identity;           // the block's columns are of M
  int first, chunks;       // chunks of this segment
  const unsigned char* record;  // of the first chunk; the next is record_stride on
  i64 record_stride;
  int lane, warp;
};

// S^T of a warp: tiles of 16 value rows x 8 key columns, four accumulators each.
template <class Cfg>
using KdaState = float[KdaScanTraits<Cfg>::kKeyTiles * 4];
// v' and o, transposed: tiles of 16 value rows x 8 tokens.
using KdaValues = float[kPanelRows / 8 * 4];

// Calls f(element of S, key, value column of the tile) for what this lane holds.
template <class Cfg, class F>
__device__ __forceinline__ void for_each_element(const KdaScanBlock<Cfg>& block, KdaState<Cfg>& S, F f) {
  const int value = block.warp * 16 + block.lane / 4, key = block.lane % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < KdaScanTraits<Cfg>::kKeyTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) f(S[tile * 4 + e], tile * 8 + key + e % 2, value + e / 2 * 8);
  }
}

// Asks for chunk `chunk` of the segment, if there is one.
template <class Cfg>
__device__ __forceinline__ void begin_stage(const KdaScanBlock<Cfg>& block, int chunk, int stage) {
  using Traits = KdaScanTraits<Cfg>;
  const unsigned char* record = block.record + chunk * block.record_stride;
  const unsigned char* u = record + kda_forward::u_at(Cfg::K) + block.value0 / 64 * kPanelBytes;
  unsigned char* to = block.shared.stage[stage];
  constexpr int kUBytes = Traits::kUPanels * kPanelBytes;
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0 && chunk < block.chunks) {
    u64* full = &block.shared.full[stage];
    barrier_arrive_expect(full, Traits::kCommonBytes + (block.identity ? 0 : kUBytes));
    bulk_load(to, record, Traits::kCommonBytes, full);
    if (!block.identity) bulk_load(to + Traits::kCommonBytes, u, kUBytes, full);
  }
#else
  if (chunk < block.chunks) {
    for (int i = static_cast<int>(threadIdx.x) * 16; i < Traits::kCommonBytes; i += Traits::kThreads * 16) copy_async_16(to + i, record + i);
    if (!block.identity) {
      for (int i = static_cast<int>(threadIdx.x) * 16; i < kUBytes; i += Traits::kThreads * 16)
        copy_async_16(to + Traits::kCommonBytes + i, u + i);
    }
  }
  copy_async_commit();
#endif
}

template <class Cfg>
__device__ __forceinline__ void wait_stage(const KdaScanBlock<Cfg>& block, int stage, u32 parity) {
#if __CUDA_ARCH__ >= 900
  barrier_wait(&block.shared.full[stage], parity);
#else
  copy_async_wait<Cfg::STAGES - 1>();
  __syncthreads();
#endif
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

// Four accumulators of a run of them.
__device__ __forceinline__ void multiply_tile(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  float x[4] = {d[0], d[1], d[2], d[3]};
  mma_16x8x16<kBf16>(x, a, b0, b1);
  d[0] = x[0], d[1] = x[1], d[2] = x[2], d[3] = x[3];
}

// round(S) as A operands, a key step each.
template <class Cfg>
__device__ __forceinline__ void round_state(const KdaState<Cfg>& S, u32 (&a)[KdaScanTraits<Cfg>::kKeySteps][4]) {
#pragma unroll
  for (int step = 0; step < KdaScanTraits<Cfg>::kKeySteps; ++step) {
#pragma unroll
    for (int x = 0; x < 4; ++x) a[step][x] = round_pair<kBf16>(S[step * 8 + 2 * x], S[step * 8 + 2 * x + 1]);
  }
}

// v' = round(u - v) as A operands, a token step each.
template <class Cfg>
__device__ __forceinline__ void new_values(const KdaScanBlock<Cfg>& block, const unsigned char* stage, const KdaValues& v,
                                           u32 (&values)[KdaScanTraits<Cfg>::kTokenSteps][4]) {
  using Traits = KdaScanTraits<Cfg>;
  const int lane = block.lane, own = block.value0 % 64 + block.warp * 16;  // this warp's columns in the panels of u
#pragma unroll
  for (int step = 0; step < Traits::kTokenSteps; ++step) {
    u32 u[4] = {0, 0, 0, 0};  // transposed: value rows 0 and 8, then the next 8 tokens
    if (!block.identity)
      load_matrix_x4<true>(u, stage + Traits::kCommonBytes + panel_unit(step * 16 + lane / 16 * 8 + lane % 8, own + lane / 8 % 2 * 8));
#pragma unroll
    for (int x = 0; x < 4; ++x)
      values[step][x] = round_pair<kBf16>(low_value<kBf16>(u[x]) - v[step * 8 + 2 * x], high_value<kBf16>(u[x]) - v[step * 8 + 2 * x + 1]);
  }
}

// S = 2^(G_last) S
template <class Cfg>
__device__ __forceinline__ void decay_state(const KdaScanBlock<Cfg>& block, const unsigned char* stage, KdaState<Cfg>& S) {
  const float* decay = reinterpret_cast<const float*>(stage + kda_forward::decay_at(Cfg::K)) + block.lane % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < KdaScanTraits<Cfg>::kKeyTiles; ++tile) {
    const float2 f = *reinterpret_cast<const float2*>(decay + tile * 8);
    S[tile * 4] *= f.x, S[tile * 4 + 1] *= f.y, S[tile * 4 + 2] *= f.x, S[tile * 4 + 3] *= f.y;
  }
}

// One chunk by the instructions of a warp: S, and the sums of o^T (not of a pre-scan).
template <class Cfg>
__device__ __forceinline__ void advance(const KdaScanBlock<Cfg>& block, const unsigned char* stage, KdaState<Cfg>& S, KdaValues& o) {
  using Traits = KdaScanTraits<Cfg>;
  const int lane = block.lane;
  // v = w . round(S);  o = qg . round(S)
  const auto multiply = [&](const unsigned char* panels, int step, const u32(&a)[4], KdaValues& sum) {
#pragma unroll
    for (int n = 0; n < kPanelRows; n += 16) {
      u32 b[4];
      load_b(b, panels, n, step * 16, lane);
      multiply_tile(sum + n / 2, a, b[0], b[1]);
      multiply_tile(sum + n / 2 + 4, a, b[2], b[3]);
    }
  };
  KdaValues v = {};
#pragma unroll
  for (int step = 0; step < Traits::kKeySteps; ++step) {
    u32 a[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) a[x] = round_pair<kBf16>(S[step * 8 + 2 * x], S[step * 8 + 2 * x + 1]);
    multiply(stage + kda_forward::w_at(Cfg::K), step, a, v);
    if constexpr (!Cfg::PRESCAN) multiply(stage + kda_forward::qg_at(Cfg::K), step, a, o);
  }
  u32 values[Traits::kTokenSteps][4];
  new_values(block, stage, v, values);
  // o = o + scores . v'
  if constexpr (!Cfg::PRESCAN) {
#pragma unroll
    for (int n = 0; n < kPanelRows; n += 16) {
#pragma unroll
      for (int step = 0; step < Traits::kTokenSteps; ++step) {
        if (step > n / 16) continue;  // above the diagonal
        u32 b[4];
        load_b(b, stage + kda_forward::scores_at(Cfg::K), n, step * 16, lane);
        multiply_tile(o + n / 2, values[step], b[0], b[1]);
        multiply_tile(o + n / 2 + 4, values[step], b[2], b[3]);
      }
    }
  }
  // S = 2^(G_last) S + kg^T . v'
  decay_state(block, stage, S);
#pragma unroll
  for (int key = 0; key < Cfg::K; key += 16) {
#pragma unroll
    for (int step = 0; step < Traits::kTokenSteps; ++step) {
      u32 b[4];
      load_b_transposed(b, stage + kda_forward::kg_at(Cfg::K), step * 16, key, lane);
      multiply_tile(S + key / 2, values[step], b[0], b[1]);
      multiply_tile(S + key / 2 + 4, values[step], b[2], b[3]);
    }
  }
}

// o as pairs of bf16: of each tile the upper value rows, then the lower.
__device__ __forceinline__ void round_values(const KdaValues& o, u32 (&rounded)[kPanelRows / 4]) {
#pragma unroll
  for (int i = 0; i < kPanelRows / 4; ++i) rounded[i] = round_pair<kBf16>(o[2 * i], o[2 * i + 1]);
}

// The warp's part of o, through its own piece of shared memory.
template <class Cfg>
__device__ __forceinline__ void store_o(const KdaScanBlock<Cfg>& block, int chunk, const u32 (&o)[kPanelRows / 4]) {
  unsigned char* staging = block.shared.staging.o[block.warp];
  const int lane = block.lane;
  const auto at = [&](int token, int unit) { return staging + token * 32 + ((unit ^ token / 4) & 1) * 16; };
#pragma unroll
  for (int tile = 0; tile < KdaScanTraits<Cfg>::kTokenTiles; tile += 2) {
    store_matrix_x4<true>(at(tile * 8 + lane / 16 * 8 + lane % 8, lane / 8 % 2), o[tile * 2], o[tile * 2 + 1], o[tile * 2 + 2], o[tile * 2 + 3]);
  }
  __syncwarp();
  const i64 first = static_cast<i64>(chunk) * kPanelRows, left = block.place.tokens - first;
  u16* out = static_cast<u16*>(block.p.o) + (block.place.row0 + first) * block.p.o_stride + static_cast<i64>(block.hv) * Cfg::V +
             block.value0 + block.warp * 16 + lane % 2 * 8;
#pragma unroll
  for (int pass = 0; pass < 4; ++pass) {
    const int token = pass * 16 + lane / 2;
    if (token >= left) continue;
    const uint4 unit = *reinterpret_cast<const uint4*>(at(token, lane % 2));
    u16* to = out + token * block.p.o_stride;
    if constexpr (Cfg::ALIGNED) {
      *reinterpret_cast<uint4*>(to) = unit;
    } else {
      const u32 words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) to[e] = static_cast<u16>(words[e / 2] >> e % 2 * 16);
    }
  }
  __syncwarp();
}

// The checkpoints that are due after `tokens` tokens.
template <class Cfg>
__device__ __forceinline__ void store_checkpoints(const KdaScanBlock<Cfg>& block, i64 tokens, KdaState<Cfg>& S) {
  const auto& p = block.p;
  const int* offsets = p.checkpoint_offsets + block.place.n * p.Q;
  for (int first = 0; first < p.Q; first += 32) {
    const int mine = first + block.lane;
    unsigned due = __ballot_sync(0xffffffffu, mine < p.Q && offsets[mine < p.Q ? mine : 0] == tokens);
    for (; due != 0; due &= due - 1) {
      const i64 slot = (block.place.n * p.Q + first + __ffs(static_cast<int>(due)) - 1) * p.HV + block.hv;
      const i64 base = slot * (static_cast<i64>(Cfg::K) * Cfg::V);
      for_each_element(block, S, [&](float& s, int key, int value) {
        store_state<Cfg>(p.checkpoints, base + state_element<Cfg>(key, block.value0 + value), s);
      });
    }
  }
}

// Those before a chunk. Where segments meet, the earlier one stores: its end has the bits of a call that ends there.
template <class Cfg>
__device__ __forceinline__ void store_checkpoints_before(const KdaScanBlock<Cfg>& block, int chunk, KdaState<Cfg>& S) {
  if (Cfg::SPLIT && chunk == 0 && block.first > 0) return;
  store_checkpoints(block, static_cast<i64>(block.first + chunk) * kPanelRows, S);
}

// The chunks of the segment in order, by the instructions of a warp.
template <class Cfg>
__device__ __forceinline__ void scan_by_warps(const KdaScanBlock<Cfg>& block, KdaState<Cfg>& S) {
  int stage = 0;
  u32 parity = 0;
  for (int chunk = 0; chunk < block.chunks; ++chunk) {
    if constexpr (!Cfg::PRESCAN && Cfg::HAS_CHECKPOINTS) store_checkpoints_before(block, chunk, S);
    perturb<Cfg>();
    wait_stage(block, stage, parity);
    KdaValues o = {};
    advance(block, block.shared.stage[stage], S, o);
    perturb<Cfg>();
    __syncthreads();
    begin_stage(block, chunk + Cfg::STAGES, stage);
    if constexpr (!Cfg::PRESCAN) {
      u32 rounded[kPanelRows / 4];
      round_values(o, rounded);
      store_o(block, block.first + chunk, rounded);
    }
    if (++stage == Cfg::STAGES) stage = 0, parity ^= 1;
  }
}

// Keeps operands in their registers up to here: products under way still read them.
template <int COUNT>
__device__ __forceinline__ void hold_operands(u32 (&a)[COUNT][4]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
#pragma unroll
    for (int x = 0; x < 4; ++x) asm volatile("" : "+r"(a[i][x])::"memory");
  }
}

// The same by the instructions of a warpgroup. A chunk's o is finished, rounded and stored while the tensor
// cores work on the chunk after it; its stage is free then.
template <class Cfg>
__device__ __forceinline__ void scan_by_warpgroups(const KdaScanBlock<Cfg>& block, KdaState<Cfg>& S) {
  using Traits = KdaScanTraits<Cfg>;
  const auto columns = [](const unsigned char* panels, int step) { return rows_as_columns(panels + step / 4 * kPanelBytes) + step % 4 * 2; };
  KdaValues o = {};
  u32 rounded[kPanelRows / 4];
  u32 values[Traits::kTokenSteps][4] = {};
  int stage = 0, before = Cfg::STAGES - 1;  // of this chunk, of the one before
  u32 parity = 0;
  for (int chunk = 0; chunk < block.chunks; ++chunk) {
    if constexpr (!Cfg::PRESCAN && Cfg::HAS_CHECKPOINTS) store_checkpoints_before(block, chunk, S);
    perturb<Cfg>();
    wait_stage(block, stage, parity);
    const unsigned char* record = block.shared.stage[stage];
    // v = w . round(S)
    u32 a[Traits::kKeySteps][4];
    round_state<Cfg>(S, a);
    KdaValues v;
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < Traits::kKeySteps; ++step) {
      const u64 w = columns(record + kda_forward::w_at(Cfg::K), step);
      if (step == 0) warpgroup_mma<kBf16, false, false>(v, a[step], w);
      else warpgroup_mma<kBf16, true, false>(v, a[step], w);
    }
    warpgroup_commit();
    // The chunk before is finished.
    warpgroup_wait<1>();
    hold_operands(values);
    if constexpr (!Cfg::PRESCAN) {
      hold(o);
      round_values(o, rounded);
    }
    perturb<Cfg>();
    __syncthreads();
    if (chunk > 0) begin_stage(block, chunk - 1 + Cfg::STAGES, before);
    // o = qg . round(S)
    if constexpr (!Cfg::PRESCAN) {
      warpgroup_fence();
#pragma unroll
      for (int step = 0; step < Traits::kKeySteps; ++step) {
        const u64 qg = columns(record + kda_forward::qg_at(Cfg::K), step);
        if (step == 0) warpgroup_mma<kBf16, false, false>(o, a[step], qg);
        else warpgroup_mma<kBf16, true, false>(o, a[step], qg);
      }
      warpgroup_commit();
      if (chunk > 0) store_o(block, block.first + chunk - 1, rounded);
    }
    decay_state(block, record, S);
    warpgroup_wait<Cfg::PRESCAN ? 0 : 1>();
    hold(v);
    new_values(block, record, v, values);
    // S = S + kg^T . v';  o = o + scores . v'
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < Traits::kTokenSteps; ++step)
      warpgroup_mma<kBf16, true, true>(S, values[step], rows_as_terms(record + kda_forward::kg_at(Cfg::K), kPanelBytes) + step * 128);
    warpgroup_commit();
    if constexpr (!Cfg::PRESCAN) {
#pragma unroll
      for (int step = 0; step < Traits::kTokenSteps; ++step)
        warpgroup_mma<kBf16, true, false>(o, values[step], columns(record + kda_forward::scores_at(Cfg::K), step));
      warpgroup_commit();
    }
    warpgroup_wait<Cfg::PRESCAN ? 0 : 1>();
    hold(S);
    hold_operands(a);
    before = stage;
    if (++stage == Cfg::STAGES) stage = 0, parity ^= 1;
  }
  if constexpr (!Cfg::PRESCAN) {
    if (block.chunks == 0) return;
    warpgroup_wait<0>();
    hold_operands(values);
    hold(o);
    round_values(o, rounded);
    store_o(block, block.first + block.chunks - 1, rounded);
  }
}

template <class Cfg>
__device__ __forceinline__ void kda_scan(const kda_forward::ScanParams& p) {
  using Traits = KdaScanTraits<Cfg>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];

  // Phase 0: which segment, head and value columns; a bad sequence ends here.
  const i64 head = blockIdx.x / Traits::kTiles;
  const Place place = place_of_segment<Cfg>(p.sequences, head / p.HV);
  if (!place.exists) return;
  const int hv = static_cast<int>(head % p.HV), value0 = static_cast<int>(blockIdx.x % Traits::kTiles) * Cfg::BV;
  const i64 slice = p.sequences.slice_chunks, most = slice > 0 ? slice : p.sequences.segment_chunks;
  const i64 first = slice > 0 ? p.sequences.slice_begin : place.index * most, left = place.chunks - first;
  if (first > 0 && left <= 0) return;  // ended in a slice before
  const bool last = left <= most;
  if constexpr (Cfg::PRESCAN) {
    if (last) return;
  }
  const i64 record = slice > 0 ? place.n * slice : place.chunk0 + first;
  KdaScanBlock<Cfg> block{p, *reinterpret_cast<typename Traits::Shared*>(shared_bytes), place, hv, value0, Cfg::PRESCAN && value0 >= Cfg::V,
                          static_cast<int>(first), static_cast<int>(last ? left : most),
                          p.records + (record * p.HV + hv) * kda_forward::record_bytes(Cfg::K, Cfg::V),
                          p.HV * kda_forward::record_bytes(Cfg::K, Cfg::V),
                          static_cast<int>(threadIdx.x % 32), static_cast<int>(threadIdx.x / 32)};
  unsigned status = 0;
  i64 h0_slot = -1, ht_slot = -1;
  if constexpr (!Cfg::PRESCAN) {
    if (place.bad) status = kda_forward::kStatusLengths;
    if (status == 0) h0_slot = h0_slot_of<Cfg>(p.h0_indices, place.n, p.h0_slots, status);
    if (Cfg::HAS_HT && (status & kda_forward::kStatusLengths) == 0) {
      ht_slot = place.n;
      if constexpr (Cfg::HAS_HT_INDICES) {
        ht_slot = load_index<Cfg::POOL_INDEX64>(p.ht_indices, place.n);
        if (ht_slot < -1 || ht_slot >= p.ht_slots) status |= kda_forward::kStatusHtIndices, ht_slot = -1;
      }
    }
    if (status != 0 && p.status != nullptr && threadIdx.x == 0) atomicOr(p.status, status);
    if (status & kda_forward::kStatusLengths) return;
  }

  float* handed_on = nullptr;  // this block's part of the state that segments or slices begin with
  if (Cfg::SPLIT || slice > 0) handed_on = p.states + (head * Cfg::V + value0) * static_cast<i64>(Cfg::K);

  // Phase 1: fill the pipeline; the state that the segment starts from.
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Cfg::STAGES; ++stage) barrier_init(&block.shared.full[stage], 1);
    barrier_init_fence();
  }
  __syncthreads();
#endif
  for (int stage = 0; stage < Cfg::STAGES; ++stage) begin_stage(block, stage, stage);
  KdaState<Cfg> S = {};
  if constexpr (Cfg::PRESCAN) {
    if (block.identity) for_each_element(block, S, [&](float& s, int key, int value) { s = key == value0 - Cfg::V + value ? 1.f : 0.f; });
  } else if (Cfg::SPLIT || (slice > 0 && first > 0)) {
    const float* from = handed_on;
    for_each_element(block, S, [&](float& s, int key, int value) { s = from[static_cast<i64>(value) * Cfg::K + key]; });
  } else if constexpr (Cfg::HAS_H0) {
    if (h0_slot >= 0) {
      const i64 base = h0_slot * p.h0_slot_stride + static_cast<i64>(hv) * Cfg::K * Cfg::V;
      for_each_element(block, S, [&](float& s, int key, int value) { s = load_state<Cfg>(p.h0, base + state_element<Cfg>(key, value0 + value)); });
    }
  }

  // Phase 2: the chunks in order.
  if constexpr (Traits::kWarpgroups) scan_by_warpgroups(block, S);
  else scan_by_warps(block, S);

  // Phase 3: the final state.
  if constexpr (Cfg::PRESCAN) {
    float* to = p.summaries + (head * (Cfg::V + Cfg::K) + value0) * static_cast<i64>(Cfg::K);
    for_each_element(block, S, [&](float& s, int key, int value) { to[static_cast<i64>(value) * Cfg::K + key] = s; });
  } else if (!last) {
    if constexpr (Cfg::SPLIT && Cfg::HAS_CHECKPOINTS) store_checkpoints(block, static_cast<i64>(block.first + block.chunks) * kPanelRows, S);
    if (slice > 0) for_each_element(block, S, [&](float& s, int key, int value) { handed_on[static_cast<i64>(value) * Cfg::K + key] = s; });
  } else {
    if constexpr (Cfg::HAS_CHECKPOINTS) {
      if (place.tokens % kPanelRows == 0) store_checkpoints(block, place.tokens, S);
    }
    if constexpr (Cfg::HAS_HT) {
      if (ht_slot >= 0) {
        const i64 base = ht_slot * p.ht_slot_stride + static_cast<i64>(hv) * Cfg::K * Cfg::V;
        for_each_element(block, S, [&](float& s, int key, int value) { store_state<Cfg>(p.ht, base + state_element<Cfg>(key, value0 + value), s); });
      }
    }
  }
}

}  // namespace scanjit::dev
