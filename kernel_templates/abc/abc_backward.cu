// ABC backward, one chunk of one head, in two kernels.
//
//     rows   score, a, da = do_t Hv_t;  d = a (da - a.da);  dz_t = -(d score + a da);  dq_t = scale Hk_t d
//     keys   dk_i = sum over slots and t >= i of 2^(s_i - z_t) scale q_t d_t, likewise dv_i from do_t a_t;
//            ds_i = sum over t >= i of 2^(s_i - z_t) (scale q_t.k_i d_t + do_t.v_i a_t + dz_t)
//
// Tokens after the segment come in through the derivatives by the states after it and through G, the sum
// of dz over later tokens.
//
// grid      x = (b * H + h) * NT + chunk
// block     8 warps: four groups of 16 tokens, two halves of the columns
// stream    slab by slab of 64 columns. rows: q, Hk, k; do, Hv, v; Hk, k. keys: k, dHk, q; dHk, q; v, dHv, do;
//           dHv, do; of this chunk and those before (rows) or after it (keys) in the segment
// numerics  as abc_forward; dz_t from the rounded d and a that the products use, so that what cancels
//           in the definition cancels here
// arch      sm_80 and later
#pragma once
#include "abc/abc_chunk.cuh"

namespace scanjit::dev {

template <class Cfg>
struct AbcBackwardRowsTraits : AbcTraits<Cfg> {
  static constexpr int kSmemBytes = kChunkSmemBytes<Cfg, false>;
};
template <class Cfg>
struct AbcBackwardKeysTraits : AbcTraits<Cfg> {
  static constexpr int kSmemBytes = kChunkSmemBytes<Cfg, true>;
};

// Writes pairs of this thread's places of the chunk to scratch [BH][T][M8].
template <class Cfg>
__device__ __forceinline__ void store_weights(const Chunk<Cfg>& c, void* scratch, const float (&value)[Slots<Cfg>::N][4]) {
  const Matrix to = c.weights(scratch, c.chunk);
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (own_row(half) < c.rows && (Cfg::EXACT || Slots<Cfg>::own(n) < to.stride))
        *reinterpret_cast<u32*>(const_cast<u16*>(to.data) + own_row(half) * to.stride + Slots<Cfg>::own(n)) =
            round_pair<Cfg::DTYPE>(value[n][2 * half], value[n][2 * half + 1]);
    }
  }
}
// Writes this thread's places to f32 scratch [BH][T][M].
template <class Cfg>
__device__ __forceinline__ void store_floats(const Chunk<Cfg>& c, float* scratch, const float (&value)[Slots<Cfg>::N][4]) {
  float* to = scratch + (c.head * c.p.T + c.chunk * kTile) * c.p.M;
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (own_row(e / 2) < c.rows && c.slots.exists(Slots<Cfg>::own(n) + e % 2))
        to[own_row(e / 2) * c.p.M + Slots<Cfg>::own(n) + e % 2] = value[n][e];
}

template <class Cfg>
__device__ __forceinline__ void abc_backward_rows(const abc::AbcParams& p) {
  constexpr int N = Slots<Cfg>::N;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const Chunk<Cfg> c(p, shared_bytes, false);
  const int others = static_cast<int>(c.chunk % Cfg::SEGMENT_CHUNKS);  // chunks of the segment before this one
  if (threadIdx.x == 0) {
    c.runs[0] = c.run(false, p.q, p.states, c.segment(), p.k);
    c.runs[1] = c.run(true, p.dout, p.states, c.segment(), p.v);
    c.runs[2] = c.run(false, nullptr, p.states, c.segment(), p.k);
  }
  TileStream<Cfg> stream{c.runs, c.ring, 3, others, -1, c.rows, p.M, c.state_columns()};
  float z[N][4], score[N][4], a[N][4], da[N][4];
  const bool steep = begin_rows(c, stream, others, z);
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {
    if (side == 1) {
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) score[n][e] = da[n][e];
    }
    read_states<Cfg>(c, stream, abc::tiles(side == 0 ? p.K : p.V), others, steep, side == 0 ? p.scale : 1.0f, z, da);
  }
  softmax<Cfg>(c.slots, score, a);

  // Through the softmax; score becomes dz, da becomes d.
  float mean[2] = {};
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) mean[e / 2] += a[n][e] * da[n][e];
  mean[0] = quad_sum(mean[0]);
  mean[1] = quad_sum(mean[1]);
  combine_halves<Cfg>(c.slots, mean, [](float x, float y) { return x + y; });
  // Weights and dz go out times 2^(z after the chunk - z_t), and where s is steep as they are.
  float out_a[N][4], out_d[N][4];
  for_slots<Cfg>(c.slots, kAfter, [&](int n, int e, float after) {
    const float d = a[n][e] * (da[n][e] - mean[e / 2]), factor = steep ? 1.0f : share(after, z[n][e]);
    out_a[n][e] = a[n][e] * factor;
    out_d[n][e] = d * factor;
    const u32 pair = round_pair<Cfg::DTYPE>(out_a[n][e], out_d[n][e]);
    const float dz = -(high_value<Cfg::DTYPE>(pair) * score[n][e] + low_value<Cfg::DTYPE>(pair) * da[n][e]);
    score[n][e] = z[n][e] == never() || own_row(e / 2) >= c.rows ? 0.0f : dz;
    da[n][e] = d;
  });
  store_floats(c, p.dz, score);
  store_weights(c, p.weights_a, out_a);
  store_weights(c, p.weights_d, out_d);

  // The chunk's sum of dz, decayed from z before it.
  for_slots<Cfg>(c.slots, kBefore, [&](int n, int e, float at) {
    score[n][e] *= decay(at, steep ? z[n][e] : c.slots.at(kAfter, Slots<Cfg>::own(n) + e % 2));
  });
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = score[n][e] + score[n][2 + e];
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane_id() < 4) c.slots.at(kTotals + row_group(), Slots<Cfg>::own(n) + e) = sum;
    }
  }
  __syncthreads();
  for (int m = threadIdx.x; m < p.M; m += abc::kThreads)
    p.chunk_dz[(c.head * c.chunks + c.chunk) * p.M + m] = c.slots.at(kTotals, m) + c.slots.at(kTotals + 1, m) +
                                                         c.slots.at(kTotals + 2, m) + c.slots.at(kTotals + 3, m);

  for_slots<Cfg>(c.slots, kEdge, [&](int n, int e, float at) { a[n][e] *= decay(at, z[n][e]); });
  store_weights(c, p.decayed_a, a);
  u32 state[Cfg::SLOT_STEPS][4];
  weigh_tokens<Cfg>(c, others, steep, z, da, a, state);
  store_weights(c, p.decayed_d, a);
  write_rows<Cfg>(c, stream, others, state, p.dq, p.K, p.scale);
}

// Multiplies weights of a chunk in place by factor(n, e).
template <class Cfg, class Factor>
__device__ __forceinline__ void scale_weights(u16* tiles, Factor factor) {
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      u32& pair = Slots<Cfg>::pair_in(tiles, own_row(half), n);
      pair = round_pair<Cfg::DTYPE>(low_value<Cfg::DTYPE>(pair) * factor(n, 2 * half), high_value<Cfg::DTYPE>(pair) * factor(n, 2 * half + 1));
    }
  }
}

// Sums over this thread's places of the chunk and the rows below them.
template <class Cfg>
__device__ __forceinline__ void sum_rows_below(const Slots<Cfg>& slots, float (&value)[Slots<Cfg>::N][4]) {
  constexpr u32 kAll = 0xffffffffu;
  const int lane = lane_id();
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        const float below = __shfl_down_sync(kAll, value[n][e], step);
        if (lane + step < 32) value[n][e] += below;
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      value[n][e] += __shfl_sync(kAll, value[n][2 + e], lane % 4);
      if (lane < 4) slots.at(kTotals + row_group(), Slots<Cfg>::own(n) + e) = value[n][e];
    }
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < Slots<Cfg>::N; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float after = 0;
#pragma unroll 1
      for (int below = 3; below > row_group(); --below) after += slots.at(kTotals + below, Slots<Cfg>::own(n) + e);
      value[n][e] += after;
      value[n][2 + e] += after;
    }
  }
}

// One side of the keys' kernel: x is k or v, the stream's next two runs are with dH and q (or do). Adds to ds,
// but for the factor 2^(s - z after), and writes dk or dv. The slot places hold the weights of this chunk and
// of the `later` ones in the segment. Where s is steep, this chunk's own part goes to `dz`.
template <class Cfg, bool STEEP>
__device__ __forceinline__ void keys_side(const Chunk<Cfg>& c, TileStream<Cfg>& stream, int later, float scale,
                                          void* out, int width, float* dz, float (&ds)[Slots<Cfg>::N][4]) {
  constexpr int N = Slots<Cfg>::N;
  // ds = 2^(s - z after) (x dH 2^(z after - z at the segment's end) + sum over chunks of (x q) weights)
  float sums[N][4], pairs[Cfg::SEGMENT_CHUNKS][4][4];
  multiply_run<Cfg>(stream, abc::tiles(width), later, sums, pairs);
  for_slots<Cfg>(c.slots, kAfter, [&](int n, int e, float after) {
    sums[n][e] *= decay(after, c.slots.at(kState, Slots<Cfg>::own(n) + e % 2));
  });
  u32 a[4][4];
#pragma unroll
  for (int i = 0; i < Cfg::SEGMENT_CHUNKS; ++i) {
    if (i <= later && (i > 0 || !STEEP)) {
      exchange_pairs<Cfg>(c, a, pairs[i], scale, [&](int row, int column) { return i > 0 || column >= row; });
      multiply_slots<Cfg>(sums, a, c.slot_tile(i));
    }
  }
  float s[N][4];
  read_slots<Cfg>(c.own_s_tiles, c.rows, c.slots, s);
  for_slots<Cfg>(c.slots, kAfter, [&](int n, int e, float after) {
    ds[n][e] += sums[n][e];
    sums[n][e] = share(s[n][e], after);
  });

  // Weights of pairs for dk: sum over slots of 2^(s_i - z after) weights_t, in the place of the weights.
  u32 shares[Cfg::SLOT_STEPS][4];
  if constexpr (!STEEP) {
    exchange_weights<Cfg>(c, shares, sums);
    clear(pairs[0]);
    multiply_by_slots<Cfg>(pairs[0], shares, c.slot_tile(0));
  } else {
    write_scratch<Cfg>(c, pairs[0], scale);
    add_steep_keys<Cfg>(c.steep(), c.own_s_tiles, dz);
    read_scratch<Cfg>(c, pairs[0]);
    if (later > 0) exchange_weights<Cfg>(c, shares, sums);
  }
  __syncthreads();
  write_pairs<Cfg>(c.slot_tile(0), pairs[0], scale, [](int row, int column) { return column >= row; });
#pragma unroll 1
  for (int i = 1; i <= later; ++i) {
    clear(pairs[0]);
    multiply_by_slots<Cfg>(pairs[0], shares, c.slot_tile(i));
    __syncthreads();
    write_pairs<Cfg>(c.slot_tile(i), pairs[0], scale, keep_all);
  }
  for_slots<Cfg>(c.slots, kState, [&](int n, int e, float end) { sums[n][e] = share(s[n][e], end); });
  exchange_weights<Cfg>(c, shares, sums);
  write_rows<Cfg>(c, stream, later, shares, out, width, 1.0f);
}

// The keys' kernel after its operands are on the way; twice in the kernel, so that the steep form's calls cost
// the other no registers.
template <class Cfg, bool STEEP, class LoadWeights>
__device__ __forceinline__ void write_keys(const Chunk<Cfg>& c, TileStream<Cfg>& stream, int later, LoadWeights load_weights) {
  constexpr int N = Slots<Cfg>::N;
  const abc::AbcParams& p = c.p;
  float* dz = p.dz + (c.head * p.T + c.chunk * kTile) * p.M;
  const float* dz_end = p.dz_ends + (c.head * c.chunks + c.chunk) * p.M;
  float ds[N][4];
  if constexpr (STEEP) {
    sum_steep_later<Cfg>(c.steep(), c.own_s_tiles, dz, dz_end);
    clear(ds);
  } else {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = own_row(e / 2), m = Slots<Cfg>::own(n) + e % 2;
        ds[n][e] = row < c.rows && c.slots.exists(m) ? dz[row * p.M + m] : 0.0f;
      }
    }
    sum_rows_below<Cfg>(c.slots, ds);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (c.slots.exists(Slots<Cfg>::own(n) + e % 2)) ds[n][e] += dz_end[Slots<Cfg>::own(n) + e % 2];
  }
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {
    if (side == 1) {
      __syncthreads();
      load_weights(p.weights_a, p.decayed_a);
      copy_async_wait<0>();
      __syncthreads();
    }
    // Later weights decay from the end of this chunk, those of the next one already do.
    if constexpr (Cfg::SEGMENT_CHUNKS > 2) {
#pragma unroll 1
      for (int i = 2; i <= later; ++i) {
        scale_weights<Cfg>(c.slot_tile(i), [&](int n, int e) {
          const int m = Slots<Cfg>::own(n) + e % 2;
          return c.slots.exists(m) ? decay(c.slots.at(kAfter, m), c.z_start(c.chunk + i, m)) : 0.0f;
        });
      }
    }
    keys_side<Cfg, STEEP>(c, stream, later, side == 0 ? p.scale : 1.0f, side == 0 ? p.dk : p.dv, side == 0 ? p.K : p.V, dz, ds);
  }

  float s[N][4];
  read_slots<Cfg>(c.own_s_tiles, c.rows, c.slots, s);
  for_slots<Cfg>(c.slots, kAfter, [&](int n, int e, float after) {
    const int row = own_row(e / 2), m = Slots<Cfg>::own(n) + e % 2;
    ds[n][e] *= share(s[n][e], after);
    if (row < c.rows && c.slots.exists(m)) {
      if (STEEP) ds[n][e] += dz[row * p.M + m];
      if (c.chunk == 0 && row == 0 && p.z0 == nullptr) ds[n][e] += p.first_dz[c.head * p.M + m];
    }
  });
  const Matrix to = c.tokens(p.ds, c.chunk, p.M);
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half), m = Slots<Cfg>::own(n);
      if (row >= c.rows) continue;
      u16* out = const_cast<u16*>(to.data) + row * to.stride + m;
      const u32 pair = round_pair<Cfg::DTYPE>(ds[n][2 * half], ds[n][2 * half + 1]);
      if constexpr (Cfg::ALIGNED) {
        if (c.slots.exists(m)) *reinterpret_cast<u32*>(out) = pair;
      } else {
        if (c.slots.exists(m)) out[0] = static_cast<u16>(pair);
        if (c.slots.exists(m + 1)) out[1] = static_cast<u16>(pair >> 16);
      }
    }
  }
}

template <class Cfg>
__device__ __forceinline__ void abc_backward_keys(const abc::AbcParams& p) {
  using Traits = AbcTraits<Cfg>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const Chunk<Cfg> c(p, shared_bytes, true);
  const i64 end = min((c.segment() + 1) * Cfg::SEGMENT_CHUNKS, c.chunks);
  const int later = static_cast<int>(end - 1 - c.chunk);  // chunks of the segment after this one
  const int rows = static_cast<int>(min(p.T - c.chunk * kTile, static_cast<i64>(later + 1) * kTile));
  if (threadIdx.x == 0) {
    c.runs[0] = c.run(false, p.k, p.dstates, c.segment(), p.q);
    c.runs[1] = c.run(false, nullptr, p.dstates, c.segment(), p.q);
    c.runs[2] = c.run(true, p.v, p.dstates, c.segment(), p.dout);
    c.runs[3] = c.run(true, nullptr, p.dstates, c.segment(), p.dout);
  }
  const auto load_weights = [&](const void* own, const void* decayed) {
    for (int i = 0; i <= later; ++i) {
      for (int t = 0; t < Traits::kSlotTiles; ++t) {
        Matrix from = c.weights(i == 0 ? own : decayed, c.chunk + i);
        from.data += t * kTile;
        load_tile<true>(c.slot_tile(i) + t * kTileElements, from, rows - i * kTile, p.M - t * kTile);
      }
    }
    copy_async_commit();
  };
  c.load_slots(c.own_s_tiles, c.chunk, c.rows);
  load_weights(p.weights_d, p.decayed_d);
  c.slots.fill(kBefore, [&](int m) { return c.z_start(c.chunk, m); });
  c.slots.fill(kAfter, [&](int m) { return c.z_start(c.chunk + 1, m); });
  c.slots.fill(kState, [&](int m) { return c.z_start(end, m); });
  __syncthreads();
  TileStream<Cfg> stream{c.runs, c.ring, 4, later, 1, rows, p.M, c.state_columns()};
  stream.start();
  copy_async_wait<Cfg::STAGES - 1>();
  __syncthreads();
  if (is_steep<Cfg>(c.own_s_tiles, c.slots)) write_keys<Cfg, true>(c, stream, later, load_weights);
  else write_keys<Cfg, false>(c, stream, later, load_weights);
}

}  // namespace scanjit::dev
