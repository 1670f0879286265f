// The gated-delta state scan of gated_delta_h.cu, bit for bit, by warpgroups of Hopper.
//
// tensors   as gated_delta_h.cu; w, k, u, h and v_new through tensor maps
// grid      x = any number of blocks; each takes every gridDim.x-th item, the items being gated_delta_h.cu's blocks
// block     BV/64 computing warpgroups, each with 64 value columns of S, held transposed (S^T: value rows x key
//           columns) in f32 accumulators for a whole item; and a warpgroup of helpers: one warp asks for w, k and
//           u, one turns gates into factors, one stores h, one v_new.
// pipeline  Rings of kAhead chunks: STAGES slabs of BK key columns of w and of k, and as many chunks of u and of factors.
//           v'^T = S^T.w^T of a chunk begins before the last slab of k^T.v'' of the chunk before has ended: the
//           first slab of S is rounded while the tensor cores work on the next. The rings run on from one item to the
//           next, so that the next item's first chunks and state are on their way while the last ones are in work.
// barriers  Every tile has a barrier "full" (written; for copies: its bytes have landed) and one "empty" (read). No two
//           computing warps wait for each other but through the tensor cores.
//             tile          written by         read by               empty when
//             w, k slabs    copy engine        tensor cores          each computing warp has waited for its product
//             u             copy engine        computing warps       each has read u and the factors
//             factors       the gate warp      computing warps       with u
//             h, v_new      computing warps    copy engine           the store has read it
// numerics  The order of every sum is that of gated_delta_h.cu, and so are the bits.
// arch      sm_90a.
#pragma once
#include "common/hopper.cuh"
#include "gated_delta_h/place.cuh"

namespace scanjit::dev {

template <class Cfg>
struct WarpgroupScanTraits {
  static constexpr int K = Cfg::K, V = Cfg::V, BT = Cfg::BT, BV = Cfg::BV, BK = Cfg::BK;
  static constexpr int STAGES = Cfg::STAGES, WARPS = Cfg::WARPS;
  static constexpr gated_delta_h::ScanShape kShape = {K, BT, BV, BK, STAGES, WARPS, Cfg::HAS_G, Cfg::HAS_GK, Cfg::HAS_H, Cfg::HAS_V_NEW};
  static_assert(BT == 64, "BT must be 64");
  static_assert(K == 64 || K == 128, "K must be 64 or 128");
  static_assert(BV == 64 || BV == 128, "BV must be 64 or 128");
  static_assert((BK == 64 || BK == 128) && K % BK == 0, "BK must be 64 or 128 and divide K");

  static constexpr int kGroups = BV / 64;  // computing warpgroups
  static_assert(WARPS == 4 * kGroups + 4, "WARPS must be BV/16 and the four helpers");
  static constexpr int kThreads = WARPS * 32;
  // Of a thread: all together are what the launch bounds leave, 128 for two blocks a multiprocessor or 168 for one.
  static constexpr int kComputeRegisters = (kGroups == 1 ? 160 : 192) + (K == 64 ? 0 : kGroups == 1 ? 32 : 24);
  static constexpr int kHelperRegisters = kGroups == 1 ? 256 - kComputeRegisters : 504 - 2 * kComputeRegisters;
  static constexpr int kSlabs = K / BK;
  static constexpr int kAhead = STAGES / kSlabs;  // chunks in the rings
  static_assert(STAGES % kSlabs == 0 && kAhead >= 2, "STAGES must hold two whole chunks at least");
  static constexpr int kTileBytes = 64 * 128;  // 64 rows of 64 16-bit columns
  static constexpr int kSlabBytes = BK / 64 * kTileBytes;
  static constexpr bool kGates = Cfg::HAS_G || Cfg::HAS_GK;
  static constexpr int kArrivals = Cfg::PERTURB ? 32 : 1;  // of a warp at a barrier: see arrive_for_warp

  template <int TAG, int COUNT, class T>
  struct Optional { T value[COUNT]; __device__ T* get() { return value; } };
  template <int TAG, class T>
  struct Optional<TAG, 0, T> { __device__ T* get() { return nullptr; } };

  struct alignas(1024) SharedStorage {
    unsigned char w[kAhead][kSlabs][kSlabBytes];
    unsigned char k[kAhead][kSlabs][kSlabBytes];
    unsigned char u[kAhead][kGroups][kTileBytes];
    [[no_unique_address]] Optional<0, Cfg::HAS_H ? kGroups * K * 128 : 0, unsigned char> h;
    [[no_unique_address]] Optional<1, Cfg::HAS_V_NEW ? kGroups * kTileBytes : 0, unsigned char> v_new;
    [[no_unique_address]] Optional<2, Cfg::HAS_G ? kAhead * BT : 0, float> g;
    [[no_unique_address]] Optional<3, Cfg::HAS_G ? kAhead * BT : 0, float> scale;      // 2^(g_last - g)
    [[no_unique_address]] Optional<4, Cfg::HAS_G ? kAhead * 4 : 0, float> decay;       // 2^(g_last)
    [[no_unique_address]] Optional<5, Cfg::HAS_GK ? kAhead * K : 0, float> gk;
    [[no_unique_address]] Optional<6, Cfg::HAS_GK ? kAhead * K : 0, float> key_decay;  // 2^(gk_last)
    u64 w_full[kAhead], w_empty[kAhead], k_full[kAhead], k_empty[kAhead], u_full[kAhead], u_empty[kAhead], factors_full[kAhead];
    u64 h_full[kGroups], h_empty[kGroups], v_new_full[kGroups], v_new_empty[kGroups];
  };
  static constexpr int kSmemBytes = sizeof(SharedStorage);
};

// A chunk's slot in the rings, and the parity of its barriers' phase.
template <int SLOTS>
struct RingPlace {
  int slot = 0;
  u32 parity = 0;
  __device__ __forceinline__ RingPlace next() const {
    return slot + 1 == SLOTS ? RingPlace{0, parity ^ 1} : RingPlace{slot + 1, parity};
  }
};

// Random waits before every meeting point, for the tests that look for races.
template <class Cfg>
__device__ __forceinline__ void wait_for(u64& barrier, u32 parity) {
  if constexpr (Cfg::PERTURB) {
    u32 x = (static_cast<u32>(clock64()) + threadIdx.x / 32 * 40503u) * 2654435761u;
    x ^= x >> 15;
    if (x % 4 == 0) __nanosleep(x / 64 % 4096);
  }
  barrier_wait(&barrier, parity);
}

// This warp is done with a tile: one lane says so for all. In the build for tests every lane does, since a race
// checker does not see that the others' accesses come before.
template <class Cfg>
__device__ __forceinline__ void arrive_for_warp(u64& barrier, int lane) {
  __syncwarp();
  if (Cfg::PERTURB || lane == 0) barrier_arrive(&barrier);
}

template <class Cfg>
__device__ __forceinline__ int valid_tokens(const ScanPlace& place, int chunk) {
  const i64 left = place.tokens - static_cast<i64>(chunk) * Cfg::BT;
  return left < Cfg::BT ? static_cast<int>(left) : Cfg::BT;
}

// Calls f(place) for each of this block's items that is good.
template <class Cfg, class F>
__device__ __forceinline__ void for_each_item(const gated_delta_h::ScanParams& p, bool tell, F f) {
  if constexpr (Cfg::PACKED) {
    // One item a block: lengths differ, and the scheduler sees to an even load.
    const ScanPlace place = locate<Cfg>(p, blockIdx.x, tell);
    if (!place.bad) f(place);
  } else {
    const i64 items = p.N * p.HV * kValueTiles<Cfg>;
#pragma unroll 1
    for (i64 item = blockIdx.x; item < items; item += gridDim.x) f(locate<Cfg>(p, item, tell));
  }
}

// --- the helpers: one warp each ----------------------------------------------------------------------
// An "empty" barrier is waited for with the opposite parity: the phase before the first counts as ended.

// Asks for w, u and k in the order of use.
template <class Cfg>
__device__ __forceinline__ void feed(const gated_delta_h::WarpgroupScanParams& p, typename WarpgroupScanTraits<Cfg>::SharedStorage& shared) {
  using Traits = WarpgroupScanTraits<Cfg>;
  const bool first = threadIdx.x % 32 == 0;
  RingPlace<Traits::kAhead> at;
  const auto request = [&](const void* map, int head, unsigned char (&slabs)[Traits::kSlabs][Traits::kSlabBytes], u64& full, u64& empty, int row) {
    wait_for<Cfg>(empty, at.parity ^ 1);
    barrier_arrive_expect(&full, Traits::kSlabs * Traits::kSlabBytes);
#pragma unroll
    for (int slab = 0; slab < Traits::kSlabs; ++slab) copy_box(slabs[slab], map, &full, 0, row, slab * (Cfg::BK / 64), head);
  };
  for_each_item<Cfg>(p.scan, false, [&](const ScanPlace& place) {
    if constexpr (Cfg::HAS_H0 && !Cfg::LAYOUT_VK && Cfg::V == Cfg::BV) {
      const float* h0 = p.scan.h0 + place.h0_slot * p.scan.h0_slot_stride + static_cast<i64>(place.hv) * Cfg::K * Cfg::V;
      // States need not lie at multiples of 16 bytes; these prefetches must.
      if (first && place.h0_slot >= 0 && reinterpret_cast<u64>(h0) % 16 == 0) prefetch_l2(h0, Cfg::K * Cfg::V * 4);
    }
#pragma unroll 1
    for (int chunk = 0; chunk < place.chunks; ++chunk, at = at.next()) {
      if (first) {
        const int row = static_cast<int>(place.row0) + chunk * Cfg::BT;
        request(&p.w, place.hv, shared.w[at.slot], shared.w_full[at.slot], shared.w_empty[at.slot], row);
        u64& full = shared.u_full[at.slot];
        wait_for<Cfg>(shared.u_empty[at.slot], at.parity ^ 1);
        barrier_arrive_expect(&full, Traits::kGroups * Traits::kTileBytes);
#pragma unroll
        for (int group = 0; group < Traits::kGroups; ++group) copy_box(shared.u[at.slot][group], &p.u, &full, place.v0 + group * 64, row, place.hv);
        request(&p.k, place.hk, shared.k[at.slot], shared.k_full[at.slot], shared.k_empty[at.slot], row);
      }
    }
  });
}

// Turns the gates of each chunk into factors: of its tokens, of the state, of each key column. Its copies of raw gates run
// kAhead chunks ahead within an item.
template <class Cfg>
__device__ __forceinline__ void make_factors(const gated_delta_h::ScanParams& p, typename WarpgroupScanTraits<Cfg>::SharedStorage& shared) {
  using Traits = WarpgroupScanTraits<Cfg>;
  constexpr int kAhead = Traits::kAhead;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto request = [&](const ScanPlace& place, int chunk, int slot) {
    if (chunk < place.chunks) {
      const i64 row = place.row0 + static_cast<i64>(chunk) * Cfg::BT;
      const int valid = valid_tokens<Cfg>(place, chunk);
      if constexpr (Cfg::HAS_G) {
#pragma unroll
        for (int i = lane; i < Cfg::BT; i += 32)
          copy_async_4(shared.g.get() + slot * Cfg::BT + i, p.g + (row + (i < valid ? i : 0)) * p.g_stride + place.hv, i < valid ? 4 : 0);
      }
      if constexpr (Cfg::HAS_GK) {
        const float* last = p.gk + (row + valid - 1) * p.gk_stride + static_cast<i64>(place.hv) * Cfg::K;
#pragma unroll
        for (int i = lane; i < Cfg::K; i += 32) copy_async_4(shared.gk.get() + slot * Cfg::K + i, last + i, 4);
      }
    }
    copy_async_commit();
  };
  RingPlace<kAhead> at;
  for_each_item<Cfg>(p, false, [&](const ScanPlace& place) {
    int slot = at.slot;
#pragma unroll 1
    for (int chunk = 0; chunk < kAhead; ++chunk) {
      request(place, chunk, slot);
      if (++slot == kAhead) slot = 0;
    }
#pragma unroll 1
    for (int chunk = 0; chunk < place.chunks; ++chunk, at = at.next()) {
      copy_async_wait<kAhead - 1>();
      __syncwarp();
      wait_for<Cfg>(shared.u_empty[at.slot], at.parity ^ 1);
      if constexpr (Cfg::HAS_G) {
        const float* g = shared.g.get() + at.slot * Cfg::BT;
        const float g_last = g[valid_tokens<Cfg>(place, chunk) - 1];
#pragma unroll
        for (int i = lane; i < Cfg::BT; i += 32) shared.scale.get()[at.slot * Cfg::BT + i] = exp_gate<Cfg::BASE_E>(g_last - g[i]);
        if (lane == 0) shared.decay.get()[at.slot * 4] = exp_gate<Cfg::BASE_E>(g_last);
      }
      if constexpr (Cfg::HAS_GK) {
#pragma unroll
        for (int i = lane; i < Cfg::K; i += 32) shared.key_decay.get()[at.slot * Cfg::K + i] = exp_gate<Cfg::BASE_E>(shared.gk.get()[at.slot * Cfg::K + i]);
      }
      barrier_arrive(&shared.factors_full[at.slot]);
      __syncwarp();
      request(place, chunk + kAhead, at.slot);
    }
    // What an item shorter than the ring asked for in vain.
    copy_async_wait<0>();
    __syncwarp();
  });
}

// Stores the tiles of h: one thread, which makes the computing warps' writes visible to the copy engine.
template <class Cfg>
__device__ __forceinline__ void store_h(const gated_delta_h::WarpgroupScanParams& p, typename WarpgroupScanTraits<Cfg>::SharedStorage& shared) {
  using Traits = WarpgroupScanTraits<Cfg>;
  const bool first = threadIdx.x % 32 == 0;
  u32 parity = 0;
  for_each_item<Cfg>(p.scan, false, [&](const ScanPlace& place) {
    if (!first) return;
#pragma unroll 1
    for (int chunk = 0; chunk < place.chunks; ++chunk, parity ^= 1) {
#pragma unroll
      for (int group = 0; group < Traits::kGroups; ++group) {
        wait_for<Cfg>(shared.h_full[group], parity);
        fence_async_proxy();
        const unsigned char* tile = shared.h.get() + group * (Cfg::K * 128);
        const int v0 = place.v0 + group * 64, place_in_h = static_cast<int>(place.chunk0) + chunk;
        if (v0 < Cfg::V) {
          if constexpr (Cfg::LAYOUT_VK) {
#pragma unroll
            for (int half = 0; half < Cfg::K / 64; ++half) store_box(&p.h, tile + half * Traits::kTileBytes, half * 64, v0, place.hv, place_in_h);
          } else {
            store_box(&p.h, tile, v0, 0, place.hv, place_in_h);
          }
        }
        store_box_commit();
      }
      if constexpr (Traits::kGroups == 2) {
        store_box_wait_read<1>();
        barrier_arrive(&shared.h_empty[0]);
      }
      store_box_wait_read<0>();
      barrier_arrive(&shared.h_empty[Traits::kGroups - 1]);
    }
  });
}

// Stores the tiles of v_new. The rows behind a sequence's last token are another sequence's.
template <class Cfg>
__device__ __forceinline__ void store_v_new(const gated_delta_h::WarpgroupScanParams& p, typename WarpgroupScanTraits<Cfg>::SharedStorage& shared) {
  using Traits = WarpgroupScanTraits<Cfg>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  u32 parity = 0;
  for_each_item<Cfg>(p.scan, false, [&](const ScanPlace& place) {
#pragma unroll 1
    for (int chunk = 0; chunk < place.chunks; ++chunk, parity ^= 1) {
      const i64 row = place.row0 + static_cast<i64>(chunk) * Cfg::BT;
      const int valid = valid_tokens<Cfg>(place, chunk);
#pragma unroll
      for (int group = 0; group < Traits::kGroups; ++group) {
        wait_for<Cfg>(shared.v_new_full[group], parity);
        const unsigned char* tile = shared.v_new.get() + group * Traits::kTileBytes;
        const int v0 = place.v0 + group * 64;
        if (valid == Cfg::BT) {
          fence_async_proxy();
          if (lane == 0 && v0 < Cfg::V) store_box(&p.v_new, tile, v0, static_cast<int>(row), place.hv);
        } else if (v0 + lane % 8 * 8 < Cfg::V) {
          const i64 stride = p.scan.v_new_stride;
          u16* to = static_cast<u16*>(p.scan.v_new) + row * stride + static_cast<i64>(place.hv) * Cfg::V + v0 + lane % 8 * 8;
          for (int i = lane / 8; i < valid; i += 4)
            *reinterpret_cast<uint4*>(to + i * stride) = *reinterpret_cast<const uint4*>(tile + swizzled(i, lane % 8));
        }
        store_box_commit();
      }
      if constexpr (Traits::kGroups == 2) {
        store_box_wait_read<1>();
        arrive_for_warp<Cfg>(shared.v_new_empty[0], lane);
      }
      store_box_wait_read<0>();
      arrive_for_warp<Cfg>(shared.v_new_empty[Traits::kGroups - 1], lane);
    }
  });
}

// --- one computing warpgroup -------------------------------------------------------------------------

template <class Cfg>
struct WarpgroupScan {
  using Traits = WarpgroupScanTraits<Cfg>;
  static constexpr int kAhead = Traits::kAhead, kSlabs = Traits::kSlabs, kSlabSteps = Cfg::BK / 16, kTokenSteps = Cfg::BT / 16;

  typename Traits::SharedStorage& shared;
  int group;         // which warpgroup
  int warp, lane;    // within it
  ScanPlace place;       // of the item in hand
  RingPlace<kAhead> at;  // of the chunk in hand
  u32 stored;            // parity of the chunks before it: the phase of the tiles of h and v_new

  float S[kSlabs][Cfg::BK / 2];     // S^T: [slab][8-column tile * 4 + element]
  u32 h[kSlabs][kSlabSteps][4];     // round(S^T), as operand A
  float v[Cfg::BT / 2];             // S^T.w^T, then v'^T
  float u[Cfg::BT / 2];             // u^T, as v
  u32 v_scaled[kTokenSteps][4];     // v''^T, as operand A

  // Calls f(element of S, its place in a state of this layout) for every element that exists.
  template <class F>
  __device__ __forceinline__ void for_each_state(F f) {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab)
#pragma unroll
      for (int i = 0; i < Cfg::BK / 2; ++i) {
        const int key = slab * Cfg::BK + i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int value = place.v0 + group * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
        if (Cfg::V % Cfg::BV == 0 || value < Cfg::V)
          f(S[slab][i], Cfg::LAYOUT_VK ? static_cast<i64>(value) * Cfg::K + key : static_cast<i64>(key) * Cfg::V + value);
      }
  }

  __device__ __forceinline__ void round_state(int slab) {
#pragma unroll
    for (int step = 0; step < kSlabSteps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        h[slab][step][i] = round_pair<Cfg::DTYPE>(S[slab][step * 8 + i * 2], S[slab][step * 8 + i * 2 + 1]);
  }

  // Begins v^T = S^T.w^T of one slab, key columns ascending. A warp waits at each product with operands in registers
  // until the one before is nearly done, so what else is to be done lies between them.
  template <bool DECAY>
  __device__ __forceinline__ void begin_dot(int slab, float decay) {
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < kSlabSteps; ++step) {
      const u64 w = rows_as_columns(shared.w[at.slot][slab]) + (step / 4 * Traits::kTileBytes + step % 4 * 32) / 16;
      if (slab == 0 && step == 0) warpgroup_mma<Cfg::DTYPE, false, false>(v, h[slab][step], w);
      else warpgroup_mma<Cfg::DTYPE, true, false>(v, h[slab][step], w);
      write_h(slab, step);
      if constexpr (DECAY) decay_state(slab, step, decay);
      const int last = step - (kSlabSteps - kTokenSteps);
      if (slab == kSlabs - 1 && last >= 0) read_u(last);
    }
    warpgroup_commit();
  }

  // Begins S^T += v''^T.k of one slab, tokens ascending; between them v_new.
  __device__ __forceinline__ void begin_update(int slab) {
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step) {
      warpgroup_mma<Cfg::DTYPE, true, true>(S[slab], v_scaled[step], rows_as_terms(shared.k[at.slot][slab], Traits::kTileBytes) + step * 16 * 128 / 16);
      if (slab == 0) write_v_new(step);
    }
    warpgroup_commit();
  }

  __device__ __forceinline__ void arrive(u64& barrier) { arrive_for_warp<Cfg>(barrier, lane); }

  // 16 key columns of the tile of h, laid out as h is: [key][64 values], or with LAYOUT_VK [K/64][value][64 keys].
  __device__ __forceinline__ void write_h(int slab, int step) {
    if constexpr (Cfg::HAS_H) {
      unsigned char* tile = shared.h.get() + group * (Cfg::K * 128);
      const int matrix = lane / 8, r = lane % 8;
      const auto& a = h[slab][step];
      const int key = slab * Cfg::BK + step * 16 + matrix / 2 * 8, value = warp * 16 + matrix % 2 * 8;
      if constexpr (Cfg::LAYOUT_VK)
        store_matrix_x4<false>(tile + key / 64 * Traits::kTileBytes + swizzled(value + r, key % 64 / 8), a[0], a[1], a[2], a[3]);
      else
        store_matrix_x4<true>(tile + swizzled(key + r, value / 8), a[0], a[1], a[2], a[3]);
    }
  }

  // 16 tokens of the tile of v_new.
  __device__ __forceinline__ void write_v_new(int step) {
    if constexpr (Cfg::HAS_V_NEW) {
      const int matrix = lane / 8, r = lane % 8;
      const float* x = v + step * 8;
      store_matrix_x4<true>(shared.v_new.get() + group * Traits::kTileBytes + swizzled(step * 16 + matrix / 2 * 8 + r, warp * 2 + matrix % 2),
                            round_pair<Cfg::DTYPE>(x[0], x[1]), round_pair<Cfg::DTYPE>(x[2], x[3]), round_pair<Cfg::DTYPE>(x[4], x[5]),
                            round_pair<Cfg::DTYPE>(x[6], x[7]));
    }
  }

  // S = S * 2^(g_last), then S[i,:] = S[i,:] * 2^(gk_last[i]), of 16 key columns.
  __device__ __forceinline__ void decay_state(int slab, int step, float decay) {
    if constexpr (Traits::kGates) {
#pragma unroll
      for (int tile = 2 * step; tile < 2 * step + 2; ++tile) {
        float* s = S[slab] + tile * 4;
        if constexpr (Cfg::HAS_G) s[0] *= decay, s[1] *= decay, s[2] *= decay, s[3] *= decay;
        if constexpr (Cfg::HAS_GK) {
          const float2 f = *reinterpret_cast<const float2*>(shared.key_decay.get() + at.slot * Cfg::K + slab * Cfg::BK + tile * 8 + lane % 4 * 2);
          s[0] *= f.x, s[1] *= f.y, s[2] *= f.x, s[3] *= f.y;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) hold(s[i]);
      }
    }
  }

  // u of 16 tokens.
  __device__ __forceinline__ void read_u(int step) {
    const int matrix = lane / 8, r = lane % 8;
    u32 pairs[4];
    load_matrix_x4<true>(pairs, shared.u[at.slot][group] + swizzled(step * 16 + matrix / 2 * 8 + r, warp * 2 + matrix % 2));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u[step * 8 + i * 2] = low_value<Cfg::DTYPE>(pairs[i]);
      u[step * 8 + i * 2 + 1] = high_value<Cfg::DTYPE>(pairs[i]);
    }
  }

  // v' = u - v, and v'' from it.
  template <bool LAST>
  __device__ __forceinline__ void new_values(int valid) {
#pragma unroll
    for (int tile = 0; tile < Cfg::BT / 8; ++tile) {
      float y[4];
      float2 scale{1, 1};
      if constexpr (Cfg::HAS_G) scale = *reinterpret_cast<const float2*>(shared.scale.get() + at.slot * Cfg::BT + tile * 8 + lane % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = v[tile * 4 + i];
        x = u[tile * 4 + i] - x;
        y[i] = x;
        if constexpr (Cfg::HAS_G) y[i] *= i % 2 == 0 ? scale.x : scale.y;
        if constexpr (LAST) {
          if (tile * 8 + lane % 4 * 2 + i % 2 >= valid) y[i] = 0;
        }
      }
      v_scaled[tile / 2][tile % 2 * 2] = round_pair<Cfg::DTYPE>(y[0], y[1]);
      v_scaled[tile / 2][tile % 2 * 2 + 1] = round_pair<Cfg::DTYPE>(y[2], y[3]);
    }
  }

  // The rows of k behind the last token are another sequence's: zero. Every warpgroup does it for itself.
  __device__ __forceinline__ void clear_k(int valid) {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab)
      for (int i = valid * 8 + warp * 32 + lane; i < Cfg::BT * 8; i += 128)
#pragma unroll
        for (int half = 0; half < Cfg::BK / 64; ++half)
          *reinterpret_cast<uint4*>(shared.k[at.slot][slab] + half * Traits::kTileBytes + i * 16) = uint4{0, 0, 0, 0};
    fence_async_proxy();
    named_barrier(2 + group, 128);
  }

  // All that dot() needs of a chunk. The compiler allows no branch between products that are under way together, so this
  // comes before them.
  __device__ __forceinline__ float wait_before_dot() {
    wait_for<Cfg>(shared.w_full[at.slot], at.parity);
    wait_for<Cfg>(shared.u_full[at.slot], at.parity);
    if constexpr (Traits::kGates) wait_for<Cfg>(shared.factors_full[at.slot], at.parity);
    if constexpr (Cfg::HAS_H) wait_for<Cfg>(shared.h_empty[group], stored ^ 1);
    float decay = 1;
    if constexpr (Cfg::HAS_G) decay = shared.decay.get()[at.slot * 4];
    return decay;
  }

  // v^T of a chunk, its h, u and decay. Slabs of S are rounded as the products that finish them end: with AFTER_UPDATE
  // kSlabs of these are under way.
  template <bool AFTER_UPDATE>
  __device__ __forceinline__ void dot(float decay) {
    if constexpr (!AFTER_UPDATE) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        round_state(slab);
        // Here and now: later the compiler would wait for each product before it touched S.
#pragma unroll
        for (int step = 0; step < kSlabSteps; ++step) decay_state(slab, step, decay);
      }
    }
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      if constexpr (AFTER_UPDATE) {
        warpgroup_wait<kSlabs - 1>();
        hold(S[slab]);
        round_state(slab);
      }
      begin_dot<AFTER_UPDATE>(slab, decay);
    }
    if constexpr (AFTER_UPDATE) arrive(shared.k_empty[at.slot == 0 ? kAhead - 1 : at.slot - 1]);
    if constexpr (Cfg::HAS_H) arrive(shared.h_full[group]);
    hold(u);
    warpgroup_wait<0>();
    hold(v);
    arrive(shared.w_empty[at.slot]);
  }

  // v'' and, while S^T += v''^T.k is under way, v_new. Only the last chunk may have fewer tokens.
  template <bool LAST>
  __device__ __forceinline__ void update(int valid) {
    new_values<LAST>(valid);
    wait_for<Cfg>(shared.k_full[at.slot], at.parity);
    if constexpr (Cfg::HAS_V_NEW) wait_for<Cfg>(shared.v_new_empty[group], stored ^ 1);
    if (LAST && valid < Cfg::BT) clear_k(valid);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) begin_update(slab);
    if constexpr (Cfg::HAS_V_NEW) arrive(shared.v_new_full[group]);
    arrive(shared.u_empty[at.slot]);
    at = at.next();
    stored ^= 1;
  }

  __device__ __forceinline__ void run() {
    dot<false>(wait_before_dot());
#pragma unroll 1
    for (int chunk = 1; chunk < place.chunks; ++chunk) {
      update<false>(Cfg::BT);
      dot<true>(wait_before_dot());
    }
    update<true>(valid_tokens<Cfg>(place, place.chunks - 1));
    warpgroup_wait<0>();
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) hold(S[slab]);
    arrive(shared.k_empty[at.slot == 0 ? kAhead - 1 : at.slot - 1]);
  }
};

template <class Cfg>
__device__ __forceinline__ void warpgroup_scan(const gated_delta_h::WarpgroupScanParams& p) {
  using Traits = WarpgroupScanTraits<Cfg>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Traits::SharedStorage*>(shared_bytes);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  constexpr int kComputeWarps = 4 * Traits::kGroups, kStart = 1;

  if (warp >= kComputeWarps) {
    const int helper = warp - kComputeWarps;
    if (helper == 0) {
      if (lane == 0) {
        for (int i = 0; i < Traits::kAhead; ++i) {
          for (u64* full : {&shared.w_full[i], &shared.k_full[i], &shared.u_full[i]}) barrier_init(full, 1);
          for (u64* empty : {&shared.w_empty[i], &shared.k_empty[i], &shared.u_empty[i]}) barrier_init(empty, kComputeWarps * Traits::kArrivals);
          barrier_init(&shared.factors_full[i], 32);
        }
        for (int i = 0; i < Traits::kGroups; ++i) {
          for (u64* full : {&shared.h_full[i], &shared.v_new_full[i]}) barrier_init(full, 4 * Traits::kArrivals);
          barrier_init(&shared.h_empty[i], 1);
          barrier_init(&shared.v_new_empty[i], Traits::kArrivals);
        }
        barrier_init_fence();
        fence_async_proxy();
      }
      __syncwarp();
      named_barrier_arrive(kStart, Traits::kThreads);
    } else {
      named_barrier(kStart, Traits::kThreads);
    }
    give_registers<Traits::kHelperRegisters>();
    if (helper == 0) feed<Cfg>(p, shared);
    if (helper == 1 && Traits::kGates) make_factors<Cfg>(p.scan, shared);
    if (helper == 2 && Cfg::HAS_H) store_h<Cfg>(p, shared);
    if (helper == 3 && Cfg::HAS_V_NEW) store_v_new<Cfg>(p, shared);
    return;
  }
  named_barrier(kStart, Traits::kThreads);
  take_registers<Traits::kComputeRegisters>();

  const auto& scan = p.scan;
  WarpgroupScan<Cfg> mine{shared, warp / 4, warp % 4, lane};
  for_each_item<Cfg>(scan, threadIdx.x == 0, [&](const ScanPlace& place) {
    mine.place = place;
    mine.for_each_state([&](float& s, i64) { s = 0; });
    if constexpr (Cfg::HAS_H0) {
      if (place.h0_slot >= 0) {
        const float* h0 = scan.h0 + place.h0_slot * scan.h0_slot_stride + static_cast<i64>(place.hv) * Cfg::K * Cfg::V;
        mine.for_each_state([&](float& s, i64 offset) { s = h0[offset]; });
      }
    }
    if (place.chunks > 0) mine.run();
    if constexpr (Cfg::HAS_HT) {
      if (place.ht_slot >= 0) {
        float* ht = scan.ht + place.ht_slot * scan.ht_slot_stride + static_cast<i64>(place.hv) * Cfg::K * Cfg::V;
        mine.for_each_state([&](float& s, i64 offset) { ht[offset] = s; });
      }
    }
  });
}

}  // namespace scanjit::dev
