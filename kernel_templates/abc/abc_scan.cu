// ABC: the ordered scans over the segments of one slot of one head, and over the chunks' normalisers.
//
//     forward   z before each chunk, from the chunks' logsumexps; then for each column of Hk^T and Hv
//                   state[g] = H;  H = H 2^(z before g - z after g) + C[g] 2^(lse[g] - z after g)
//     backward  G after each chunk, G before = sum_t dz_t 2^(z before - z_t) + G 2^(z before - z after);
//               then dstate[g] = dH;  dH = dH 2^(z before g - z after g) + C[g]
//
// Without STATES (the serial form) abc_walk has the states, and only normalisers are scanned.
//
// grid      x = (b * H + h) * M + m
// block     256 threads: 256 chunks or segments at a time for the normalisers, four of the at most 1024
//           columns of K + V each for states
// numerics  f32, one fused multiply-add a step
// arch      any
#pragma once
#include "abc/abc_slots.cuh"

namespace scanjit::dev {

template <class Cfg>
struct AbcScanTraits {
  static constexpr int kThreads = abc::kScanThreads;
  static constexpr int kSmemBytes = 0;
};

template <class Cfg>
struct ScanSlot {
  const abc::AbcParams& p;
  i64 head, m, chunks, segments;
  int keys, columns;

  __device__ __forceinline__ explicit ScanSlot(const abc::AbcParams& params) : p(params) {
    head = blockIdx.x / p.M;
    m = blockIdx.x % p.M;
    keys = abc::padded8(p.K);
    columns = keys + abc::padded8(p.V);
    chunks = (p.T + kTile - 1) / kTile;
    segments = (chunks + Cfg::SEGMENT_CHUNKS - 1) / Cfg::SEGMENT_CHUNKS;
  }
  // Column `column` of the slot's two states in tensors [K,M] and [M,V]; null if absent or padding.
  template <class Float>
  __device__ __forceinline__ Float* place(Float* hk, Float* hv, int column) const {
    if (column < keys) return hk && column < p.K ? hk + (head * p.K + column) * p.M + m : nullptr;
    column -= keys;
    return hv && column < p.V ? hv + (head * p.M + m) * p.V + column : nullptr;
  }
  template <class Float>
  __device__ __forceinline__ float4 load(Float* hk, Float* hv, int column) const {
    float value[4];
    for (int e = 0; e < 4; ++e) {
      const float* at = place(hk, hv, column + e);
      value[e] = at ? *at : 0.0f;
    }
    return make_float4(value[0], value[1], value[2], value[3]);
  }
  __device__ __forceinline__ void store(float* hk, float* hv, int column, float4 v) const {
    const float value[4] = {v.x, v.y, v.z, v.w};
    for (int e = 0; e < 4; ++e)
      if (float* at = place(hk, hv, column + e)) *at = value[e];
  }
  __device__ __forceinline__ i64 per_chunk(i64 chunk) const { return (head * chunks + chunk) * p.M + m; }
  __device__ __forceinline__ float& z_start(i64 chunk) const { return p.z_starts[(head * (chunks + 1) + chunk) * p.M + m]; }
  __device__ __forceinline__ i64 state(i64 segment) const { return ((head * segments + segment) * p.M + m) * columns; }
  __device__ __forceinline__ float first_s() const {
    if (p.T == 0) return never();
    return low_value<Cfg::DTYPE>(static_cast<const u16*>(p.s)[(head / p.H * p.T * p.H + head % p.H) * p.M + m]) * kLog2E;
  }
  // z that the state before a segment belongs to, and z after the segment.
  __device__ __forceinline__ float z_state(i64 segment) const {
    return segment == 0 && p.z0 == nullptr ? first_s() : z_start(segment * Cfg::SEGMENT_CHUNKS);
  }
  __device__ __forceinline__ float z_end(i64 segment) const {
    const i64 end = (segment + 1) * Cfg::SEGMENT_CHUNKS;
    return z_start(end < chunks ? end : chunks);
  }
};

// Sum over the block, to every thread, in a fixed order.
__device__ __forceinline__ float block_sum(float value, float* shared) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < abc::kScanThreads / 32; ++w) sum += shared[w];
  return sum;
}

__device__ __forceinline__ float4 fused(float4 h, float r, float4 c, float factor) {
  return make_float4(fmaf(h.x, r, c.x * factor), fmaf(h.y, r, c.y * factor), fmaf(h.z, r, c.z * factor), fmaf(h.w, r, c.w * factor));
}

template <int DTYPE>
__device__ __forceinline__ uint2 rounded(float4 h) {
  return make_uint2(round_pair<DTYPE>(h.x, h.y), round_pair<DTYPE>(h.z, h.w));
}

template <class Cfg>
__device__ __forceinline__ void abc_scan(const abc::AbcParams& p) {
  constexpr int kThreads = abc::kScanThreads, kAhead = 8;
  __shared__ float window[2][kThreads];
  const ScanSlot<Cfg> slot(p);
  const int thread = threadIdx.x;

  float carry = p.z0 ? p.z0[slot.head * p.M + slot.m] * kLog2E : never();
  if (thread == 0) slot.z_start(0) = carry;
  for (i64 base = 0; base < slot.chunks; base += kThreads) {
    const i64 chunk = base + thread;
    float z = chunk < slot.chunks ? p.chunk_lse[slot.per_chunk(chunk)] : never();
    for (int step = 1; step < kThreads; step *= 2) {
      window[0][thread] = z;
      __syncthreads();
      if (thread >= step) z = log_add(window[0][thread - step], z);
      __syncthreads();
    }
    z = log_add(carry, z);
    if (chunk < slot.chunks) slot.z_start(chunk + 1) = z;
    window[0][thread] = z;
    __syncthreads();
    carry = window[0][kThreads - 1];
    __syncthreads();
  }

  if (p.zt && thread == 0) p.zt[slot.head * p.M + slot.m] = carry * 0.6931471805599453f;
  if constexpr (!Cfg::STATES) return;
  const int column = thread * 4;
  const bool owns = column < slot.columns;
  float4 h = owns ? slot.load(p.hk0, p.hv0, column) : make_float4(0, 0, 0, 0);
  for (i64 base = 0; base < slot.segments; base += kThreads) {
    __syncthreads();
    const i64 mine = base + thread;
    if (mine < slot.segments) {
      const float end = slot.z_end(mine);
      window[0][thread] = decay(slot.z_state(mine), end);
      window[1][thread] = share(p.segment_lse[(slot.head * slot.segments + mine) * p.M + slot.m], end);
    }
    __syncthreads();
    const int count = static_cast<int>(slot.segments - base < kThreads ? slot.segments - base : kThreads);
    if (!owns) continue;
    for (int g = 0; g < count; g += kAhead) {
      float4 c[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (g + i < count) c[i] = *reinterpret_cast<const float4*>(p.summaries + slot.state(base + g + i) + column);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (g + i < count) {
          *reinterpret_cast<uint2*>(static_cast<u16*>(p.states) + slot.state(base + g + i) + column) = rounded<Cfg::DTYPE>(h);
          h = fused(h, window[0][g + i], c[i], window[1][g + i]);
        }
      }
    }
  }
  if (owns) {
    slot.store(p.hkt, p.hvt, column, h);
    *reinterpret_cast<float4*>(p.finals + (slot.head * p.M + slot.m) * slot.columns + column) = h;
  }
}

template <class Cfg>
__device__ __forceinline__ void abc_scan_back(const abc::AbcParams& p) {
  constexpr int kThreads = abc::kScanThreads, kAhead = 8;
  __shared__ float window[2][kThreads];
  __shared__ float sums[kThreads / 32];
  const ScanSlot<Cfg> slot(p);
  const int thread = threadIdx.x, column = thread * 4;
  const bool owns = column < slot.columns;
  float4 dh = owns ? slot.load(p.dhkt, p.dhvt, column) : make_float4(0, 0, 0, 0);

  // The final states move with the last z as -H.
  float part = 0;
  if (owns) {
    const float4 h = *reinterpret_cast<const float4*>(p.finals + (slot.head * p.M + slot.m) * slot.columns + column);
    part = dh.x * h.x + dh.y * h.y + dh.z * h.z + dh.w * h.w;
  }
  const float by_finals = block_sum(part, sums);
  float carry = slot.z_start(slot.chunks) == never() ? 0.0f : -by_finals;
  for (i64 base = 0; base < slot.chunks; base += kThreads) {
    // Thread i holds chunk chunks-1-base-i as the affine map G -> g + r G, and scans their compositions.
    const i64 chunk = slot.chunks - 1 - base - thread;
    float g = 0, r = 1;
    if (chunk >= 0) g = p.chunk_dz[slot.per_chunk(chunk)], r = decay(slot.z_start(chunk), slot.z_start(chunk + 1));
    for (int step = 1; step < kThreads; step *= 2) {
      window[0][thread] = g;
      window[1][thread] = r;
      __syncthreads();
      if (thread >= step) {
        g = fmaf(r, window[0][thread - step], g);
        r *= window[1][thread - step];
      }
      __syncthreads();
    }
    const float before = fmaf(r, carry, g);  // G before this chunk
    window[0][thread] = before;
    __syncthreads();
    if (chunk >= 0) p.dz_ends[slot.per_chunk(chunk)] = thread == 0 ? carry : window[0][thread - 1];
    carry = window[0][kThreads - 1];
    __syncthreads();
  }

  for (i64 base = 0; Cfg::STATES && base < slot.segments; base += kThreads) {
    __syncthreads();
    const i64 mine = slot.segments - 1 - base - thread;
    if (mine >= 0) window[0][thread] = decay(slot.z_state(mine), slot.z_end(mine));
    __syncthreads();
    const int count = static_cast<int>(slot.segments - base < kThreads ? slot.segments - base : kThreads);
    if (!owns) continue;
    for (int g = 0; g < count; g += kAhead) {
      float4 c[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (g + i < count) c[i] = *reinterpret_cast<const float4*>(p.summaries + slot.state(slot.segments - 1 - base - g - i) + column);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (g + i < count) {
          *reinterpret_cast<uint2*>(static_cast<u16*>(p.dstates) + slot.state(slot.segments - 1 - base - g - i) + column) = rounded<Cfg::DTYPE>(dh);
          dh = fused(dh, window[0][g + i], c[i], 1.0f);
        }
      }
    }
  }
  part = 0;
  if (owns) {
    if constexpr (Cfg::STATES) slot.store(p.dhk0, p.dhv0, column, dh);
    else dh = slot.load(p.dhk0, p.dhv0, column);
    const float4 h = slot.load(p.hk0, p.hv0, column);
    part = dh.x * h.x + dh.y * h.y + dh.z * h.z + dh.w * h.w;
  }
  const float by_initials = block_sum(part, sums);
  if (thread == 0) {
    const i64 at = slot.head * p.M + slot.m;
    if (p.dz0) p.dz0[at] = p.z0[at] == never() ? 0.0f : carry + by_initials;
    if (p.first_dz) p.first_dz[at] = p.z0 == nullptr && slot.first_s() != never() ? by_initials : 0.0f;
  }
}

}  // namespace scanjit::dev
