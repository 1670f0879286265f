// ABC: scores, softmax over slots and read-out of one chunk of one head, from the states before its
// segment.
//
//     scores = scale q_t Hk_t;  a = softmax(scores);  o_t = sum over slots of a Hv_t
//
// grid      x = (b * H + h) * NT + chunk
// block     8 warps: four groups of 16 tokens, two halves of the columns
// stream    slab by slab of 64 columns: q, Hk, and k of this chunk and those before it in the segment; then Hv, v
// barriers  __syncthreads once a slab, and around every exchange between the two halves
// numerics  f32 accumulators; operands 16-bit: q, k, v, states, q.k, shares of s, weights
// arch      sm_80 and later
#pragma once
#include "abc/abc_chunk.cuh"

namespace scanjit::dev {

template <class Cfg>
struct AbcForwardTraits : AbcTraits<Cfg> {
  static constexpr int kSmemBytes = kChunkSmemBytes<Cfg, false>;
};

template <class Cfg>
__device__ __forceinline__ void abc_forward(const abc::AbcParams& p) {
  constexpr int N = Slots<Cfg>::N;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const Chunk<Cfg> c(p, shared_bytes, false);
  const int others = static_cast<int>(c.chunk % Cfg::SEGMENT_CHUNKS);  // chunks of the segment before this one
  if (threadIdx.x == 0) {
    c.runs[0] = c.run(false, p.q, p.states, c.segment(), p.k);
    c.runs[1] = c.run(true, nullptr, p.states, c.segment(), p.v);
  }
  TileStream<Cfg> stream{c.runs, c.ring, 2, others, -1, c.rows, p.M, c.state_columns()};
  float z[N][4], score[N][4], a[N][4];
  const bool steep = begin_rows(c, stream, others, z);
  read_states<Cfg>(c, stream, abc::tiles(p.K), others, steep, p.scale, z, score);
  softmax<Cfg>(c.slots, score, a);
  u32 state[Cfg::SLOT_STEPS][4];
  weigh_tokens<Cfg>(c, others, steep, z, a, score, state);
  write_rows<Cfg>(c, stream, others, state, p.o, p.V, 1.0f);
}

}  // namespace scanjit::dev
