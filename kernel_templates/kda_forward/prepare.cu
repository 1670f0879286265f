// What a chunk of 64 tokens and a value head hand on to the scan, independent of the state. With a_r the
// log decay of token r in log2 units and G_r its sum over the chunk's tokens up to r, per key column:
//
//     A_ij  = beta_i sum_c k_ic k_jc 2^(G_ic - G_jc)   j < i;      T = (I + A)^-1
//     u     = T (beta v);   w = T (beta k 2^G);   kg = k 2^(G_last - G);   qg = scale q 2^G
//     scores_ij = scale sum_c q_ic k_jc 2^(G_ic - G_jc)   j <= i
//
// Source: the chunkwise form of "Kimi Linear" (2025); kda_forward_params.h says how a record is laid out.
//
// tensors   q,k [B,T,H,K] bf16  v [B,T,HV,V] bf16  g [B,T,HV,K]  beta [B,T,HV]  bf16 or f32   global memory
// grid      x = chunk * HV + hv: the heads of a chunk run together
// block     2K threads. Elementwise, a thread owns two key columns of 16 tokens (a token block); a warp
//           owns 64 columns of one. Products are spread over the warps in 16 x 16 tiles.
// exponents Two copies of k, one of q, in bf16: k_low, q_low = x 2^(G - a_I), k_high = k 2^(b_J - G), with
//           whole numbers a_I, b_J for each token block and column. A tile of scores (I, J) is
//           2^(a_I - b_J) q_low k_high, and qg = 2^a_I q_low: such a factor changes no bit of a mantissa.
//           RANGE_ANY 0 (16 tokens decay by less than 2^126): a_I = b_I = the middle of the block, all tiles
//           alike. RANGE_ANY 1: a_I, b_I round G before and after the block, so that both factors are
//           at most sqrt(2); the diagonal tiles are recurrences over the decays of single tokens.
//           A scalar gate leaves q_low and k_high unscaled, scales the tiles by 2^(G_i - G_j), and k_low = k 2^G.
// inverse   16 x 16 blocks by substitution in f32, then block by block with tensor products of bf16 pairs
//           (value + remainder): as good as f32. T beta is such a pair too.
// prefetch  PREFETCH > 0: the rows of a chunk that starts about so many blocks later are asked into the L2 cache.
// barriers  __syncthreads between the numbered phases; what lies in one place in turn is named in Shared.
// arch      sm_80 and later.
#pragma once
#include "common/bulk.cuh"
#include "common/panel.cuh"
#include "kda_forward/locate.cuh"

namespace scanjit::dev {

template <class Cfg>
struct KdaPrepareTraits {
  static constexpr int K = Cfg::K, V = Cfg::V;
  static_assert(K == 64 || K == 128 || K == 256, "K must be 64, 128 or 256");
  static_assert(V == 64 || V == 128 || V == 256, "V must be 64, 128 or 256");
  static constexpr int kThreads = kda_forward::prepare_threads(K), kWarps = kThreads / 32;
  static constexpr int kBlocks = kda_forward::kTokenBlocks;  // of 16 tokens
  static constexpr int kParts = K / 64;                      // warps of a token block

  static constexpr bool kScalar = Cfg::GATE == kda_forward::kGateScalar;
  static_assert(!kScalar || !Cfg::RANGE_ANY, "RANGE_ANY says nothing of a scalar gate");
  static constexpr int kTiles = Cfg::RANGE_ANY ? 6 : 10;     // of the scores, by tensor products
  static constexpr int kWarpTiles = (kTiles + kWarps - 1) / kWarps;

  struct alignas(16) Shared {
    // k as it lies, then k_low; from phase 7 on w.
    unsigned char k_low[kParts * kPanelBytes];
    // q as it lies, then q_low; from phase 5 on T beta and its remainder.
    union {
      unsigned char q_low[kParts * kPanelBytes];
      unsigned char inverse[2 * kPanelBytes];
    };
    // k_high; from the end of phase 4 on the lower blocks of A, the diagonal ones replaced by their inverses.
    union {
      unsigned char k_high[kParts * kPanelBytes];
      float blocks[10][16][kda_forward::kBlockPitch];
    };
    // v, then u; RANGE_ANY: products of the diagonal blocks, in phases 3 and 4.
    union {
      unsigned char v[V / 64 * kPanelBytes];
      float direct[Cfg::RANGE_ANY ? kParts : 1][kBlocks][Cfg::RANGE_ANY ? 256 : 1];
    };
    float total[kBlocks][K], middle[kBlocks][K]; // G of a token block alone: all of it, up to its token 7
    u16 power[10][K];                            // 2^(a_I - b_J) at pair_of(I, J), 2^a_I at 6 + I
    float factor[kPanelRows][2];                 // of the rows of q and k
    float beta[kPanelRows];
    float gate[kPanelRows];                      // G of a scalar gate
  };
  static constexpr int kSmemBytes = sizeof(Shared);
};

__device__ __forceinline__ int pair_of(int I, int J) { return I * (I - 1) / 2 + J; }   // I > J: 0 to 5
__device__ __forceinline__ int block_of(int I, int J) { return I * (I + 1) / 2 + J; }  // I >= J: 0 to 9

// 2^e as bf16; e is a whole number, at most 127. Too small becomes zero.
__device__ __forceinline__ u16 power_of_two(float e) { return e < -126.f ? 0 : static_cast<u16>((static_cast<int>(e) + 127) << 7); }

// Products of bf16 pairs; exact where b is a power of two.
__device__ __forceinline__ u32 multiply_pairs(u32 a, u32 b) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}

template <class Cfg>
struct PrepareBlock {
  using Traits = KdaPrepareTraits<Cfg>;
  const kda_forward::PrepareParams& p;
  typename Traits::Shared& shared;
  int hv, hk;
  i64 row0;               // first token row of the chunk
  int valid;              // its tokens
  unsigned char* record;
  int lane, warp;
  int block, column;      // this thread's token block and first key column
};

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ln(1 + e^x). For small e^x by the series of 2 artanh(y / (2 + y)), which keeps its leading digits.
__device__ __forceinline__ float softplus(float x) {
  if (x > 20.f) return x;
  const float y = exp_gate<true>(x);
  if (y > 0.25f) return log2_approx(1.f + y) * 0.6931471805599453f;
  const float s = y * reciprocal(2.f + y), s2 = s * s;
  return 2.f * s * __fmaf_rn(s2, __fmaf_rn(s2, __fmaf_rn(s2, 1.f / 7, 1.f / 5), 1.f / 3), 1.f);
}

// The log decay of one token in log2 units. rate: exp(A_log); bias: dt_bias of the column.
template <class Cfg>
__device__ __forceinline__ float log2_decay(float g, float rate, float bias, float lower_bound) {
  float a = g;
  if constexpr (Cfg::GATE == kda_forward::kGateBounded) a = lower_bound * reciprocal(1.f + exp_gate<true>(-(rate * (g + bias))));
  if constexpr (Cfg::GATE == kda_forward::kGateSoftplus) a = -(rate * softplus(g + bias));
  return fmaxf(a, -60.f) * kLog2E;
}

// Two neighbouring 16-bit elements.
template <class Cfg>
__device__ __forceinline__ u32 load_pair(const u16* from) {
  if constexpr (Cfg::ALIGNED) return __ldg(reinterpret_cast<const u32*>(from));
  else return __ldg(from) | static_cast<u32>(__ldg(from + 1)) << 16;
}

// The gates of this thread's tokens, summed up inside the token block, log2 units; `decay`: one by one.
template <class Cfg>
__device__ __forceinline__ void load_gates(const PrepareBlock<Cfg>& block, float (&sum)[16][2]) {
  const auto& p = block.p;
  float rate = 1.f, bias[2] = {0.f, 0.f};
  if constexpr (Cfg::HAS_A_LOG) rate = exp_gate<true>(p.A_log[block.hv]);
  if constexpr (Cfg::HAS_DT_BIAS) {
    const float* from = p.dt_bias + static_cast<i64>(block.hv) * Cfg::K + block.column;
    bias[0] = from[0], bias[1] = from[1];
  }
  float raw[16][2];
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    raw[r][0] = raw[r][1] = 0.f;
    if (block.block * 16 + r >= block.valid) continue;
    const i64 token = block.row0 + block.block * 16 + r;
    if constexpr (Cfg::GATE == kda_forward::kGateScalar) {
      raw[r][0] = raw[r][1] = __ldg(static_cast<const float*>(p.g) + token * p.g_stride + block.hv);
    } else {
      const i64 at = token * p.g_stride + static_cast<i64>(block.hv) * Cfg::K + block.column;
      if constexpr (Cfg::GATE_F32) {
        const float* from = static_cast<const float*>(p.g) + at;
        if constexpr (Cfg::ALIGNED) {
          const float2 both = __ldg(reinterpret_cast<const float2*>(from));
          raw[r][0] = both.x, raw[r][1] = both.y;
        } else {
          raw[r][0] = __ldg(from), raw[r][1] = __ldg(from + 1);
        }
      } else {
        const u32 both = load_pair<Cfg>(static_cast<const u16*>(p.g) + at);
        raw[r][0] = low_value<kBf16>(both), raw[r][1] = high_value<kBf16>(both);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 16; ++r) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float a = block.block * 16 + r < block.valid ? log2_decay<Cfg>(raw[r][i], rate, bias[i], p.lower_bound) : 0.f;
      sum[r][i] = r == 0 ? a : sum[r - 1][i] + a;
    }
  }
}

// COLUMNS columns of the chunk's rows into panels, zero past the sequence's end.
template <class Cfg, int COLUMNS>
__device__ __forceinline__ void copy_rows(const PrepareBlock<Cfg>& block, unsigned char* panels, const void* tensor, i64 stride, int head) {
  constexpr int kUnits = COLUMNS / 8, kThreads = KdaPrepareTraits<Cfg>::kThreads;
  static_assert(kThreads % kUnits == 0, "a thread must keep its unit of the rows");
  const int unit = static_cast<int>(threadIdx.x) % kUnits;
  const u16* from = static_cast<const u16*>(tensor) + block.row0 * stride + static_cast<i64>(head) * COLUMNS + unit * 8;
#pragma unroll
  for (int first = 0; first < kPanelRows; first += kThreads / kUnits) {
    const int row = first + static_cast<int>(threadIdx.x) / kUnits;
    unsigned char* to = panels + panel_unit(row, unit * 8);
    const bool inside = row < block.valid;
    const u16* at = from + (inside ? row * stride : 0);
    if constexpr (Cfg::ALIGNED) {
      copy_async_16(to, at, inside ? 16 : 0);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) reinterpret_cast<u16*>(to)[e] = inside ? at[e] : static_cast<u16>(0);
    }
  }
}

// Phase 2: 1 / |row| of q (times scale) and k. Eight lanes read one unit of eight rows; lanes 8, 16 apart
// have the other panels.
template <class Cfg>
__device__ __forceinline__ void scale_factors(const PrepareBlock<Cfg>& block) {
  constexpr int kParts = KdaPrepareTraits<Cfg>::kParts;
  auto& shared = block.shared;
  const int part = block.lane / 8 % kParts, octet = block.warp * (4 / kParts) + block.lane / 8 / kParts;
  const int is_k = octet % 2, row = octet / 2 * 8 + block.lane % 8;
  float factor = 1.f;
  if constexpr (Cfg::NORMALIZE) {
    const unsigned char* panel = (is_k ? shared.k_low : shared.q_low) + part * kPanelBytes;
    float even = 0.f, odd = 0.f;
#pragma unroll
    for (int unit = 0; unit < 8; ++unit) {
      const uint4 eight = *reinterpret_cast<const uint4*>(panel + panel_unit(row, unit * 8));
      const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        even = __fmaf_rn(low_value<kBf16>(pairs[e]), low_value<kBf16>(pairs[e]), even);
        odd = __fmaf_rn(high_value<kBf16>(pairs[e]), high_value<kBf16>(pairs[e]), odd);
      }
    }
    float squares = even + odd;
#pragma unroll
    for (int other = 1; other < kParts; other *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, other * 8);
    factor = reciprocal_root(squares + 1e-6f);
  }
  if (part == 0) shared.factor[row][is_k] = is_k ? factor : factor * block.p.scale;
}

// Adds each of 16 values over the lanes; lanes i and i + 16 get the sum of value i.
template <int HALF>
__device__ __forceinline__ void fold_step(float (&x)[16], int lane) {
  const bool upper = lane & HALF;
#pragma unroll
  for (int i = 0; i < HALF; ++i) {
    const float keep = upper ? x[i + HALF] : x[i], give = upper ? x[i] : x[i + HALF];
    x[i] = keep + __shfl_xor_sync(0xffffffffu, give, HALF);
  }
}
__device__ __forceinline__ float fold_lanes(float (&x)[16], int lane) {
  fold_step<8>(x, lane);
  fold_step<4>(x, lane);
  fold_step<2>(x, lane);
  fold_step<1>(x, lane);
  return x[0] + __shfl_xor_sync(0xffffffffu, x[0], 16);
}

// The exponents a and b of token block `block`; before: G at its start.
template <class Cfg>
__device__ __forceinline__ float low_exponent(float before, float middle) {
  return rintf(Cfg::RANGE_ANY ? before : before + middle);
}
template <class Cfg>
__device__ __forceinline__ float high_exponent(float before, float middle, float total) {
  return rintf(Cfg::RANGE_ANY ? before + total : before + middle);
}

// Phase 2: what the token blocks are to each other. before, last: G at this block's start and the chunk's end.
template <class Cfg>
__device__ __forceinline__ void relate_blocks(const PrepareBlock<Cfg>& block, float (&before)[2], float (&last)[2],
                                              float (&low)[2], float (&high)[2]) {
  constexpr int kBlocks = KdaPrepareTraits<Cfg>::kBlocks;
  auto& shared = block.shared;
  const auto pair = [&](const float (&row)[Cfg::K]) { return *reinterpret_cast<const float2*>(row + block.column); };
  const auto store_power = [&](int place, float e0, float e1) {
    *reinterpret_cast<u32*>(shared.power[place] + block.column) = power_of_two(e0) | static_cast<u32>(power_of_two(e1)) << 16;
  };
  float2 start = make_float2(0.f, 0.f);
  before[0] = before[1] = 0.f;
#pragma unroll
  for (int J = 0; J < kBlocks; ++J) {
    if (J == block.block) before[0] = start.x, before[1] = start.y;
    const float2 total = pair(shared.total[J]);
    start.x += total.x, start.y += total.y;
  }
  last[0] = start.x, last[1] = start.y;
  const float2 own_middle = pair(shared.middle[block.block]), own_total = pair(shared.total[block.block]);
  low[0] = low_exponent<Cfg>(before[0], own_middle.x), low[1] = low_exponent<Cfg>(before[1], own_middle.y);
  high[0] = high_exponent<Cfg>(before[0], own_middle.x, own_total.x), high[1] = high_exponent<Cfg>(before[1], own_middle.y, own_total.y);
  store_power(6 + block.block, low[0], low[1]);
  start = make_float2(0.f, 0.f);
#pragma unroll
  for (int J = 0; J < kBlocks - 1; ++J) {
    if (J >= block.block) continue;
    const float2 total = pair(shared.total[J]), middle = pair(shared.middle[J]);
    store_power(pair_of(block.block, J), low[0] - high_exponent<Cfg>(start.x, middle.x, total.x), low[1] - high_exponent<Cfg>(start.y, middle.y, total.y));
    start.x += total.x, start.y += total.y;
  }
  if (block.block == kBlocks - 1) {
    float* decay = reinterpret_cast<float*>(block.record + kda_forward::decay_at(Cfg::K)) + block.column;
    *reinterpret_cast<float2*>(decay) = make_float2(exp_gate<false>(last[0]), exp_gate<false>(last[1]));
  }
}

// Place of the products of tokens i >= j of a diagonal block among 256: k.k (i > j) follows q.k.
__device__ __forceinline__ int direct_place(int i, int j) { return 32 * j - j * j + (i > j ? 2 * (i - j) - 1 : 0); }

// The diagonal block's products over this warp's columns, of q and k as they lie: k_j decays token by token.
template <class Cfg>
__device__ __forceinline__ void direct_products(const PrepareBlock<Cfg>& block, const float (&sum)[16][2]) {
  auto& shared = block.shared;
  u32 q[16], k[16];
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    const int at = panel_offset(block.block * 16 + r, block.column);
    q[r] = *reinterpret_cast<const u32*>(shared.q_low + at), k[r] = *reinterpret_cast<const u32*>(shared.k_low + at);
  }
  float* out = shared.direct[block.warp % KdaPrepareTraits<Cfg>::kParts][block.block];
  float batch[16];
  int count = 0;
  const auto add = [&](float value) {
    batch[count % 16] = value;
    if (++count % 16 == 0) {
      const float total = fold_lanes(batch, block.lane);
      if (block.lane < 16) out[count - 16 + block.lane] = total;
    }
  };
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    float y0 = low_value<kBf16>(k[j]), y1 = high_value<kBf16>(k[j]);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i < j) continue;
      if (i > j) {
        y0 *= exp_gate<false>(sum[i][0] - sum[i - 1][0]);
        y1 *= exp_gate<false>(sum[i][1] - sum[i - 1][1]);
      }
      add(__fmaf_rn(low_value<kBf16>(q[i]), y0, high_value<kBf16>(q[i]) * y1));
      if (i > j) add(__fmaf_rn(low_value<kBf16>(k[i]), y0, high_value<kBf16>(k[i]) * y1));
    }
  }
}

// Phase 3: the scaled copies of q and k in shared memory, qg and kg in the record.
template <class Cfg>
__device__ __forceinline__ void scale_rows(const PrepareBlock<Cfg>& block, const float (&sum)[16][2],
                                           const float (&before)[2], const float (&last)[2], const float (&low)[2], const float (&high)[2]) {
  constexpr bool kScalar = KdaPrepareTraits<Cfg>::kScalar;
  auto& shared = block.shared;
  const u32 to_qg = power_of_two(low[0]) | static_cast<u32>(power_of_two(low[1])) << 16;
  const float to_kg[2] = {exp_gate<false>(last[0] - high[0]), exp_gate<false>(last[1] - high[1])};
  const float low_shift[2] = {before[0] - low[0], before[1] - low[1]}, high_shift[2] = {high[0] - before[0], high[1] - before[1]};
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    const int row = block.block * 16 + r, at = panel_offset(row, block.column);
    const float2 f = *reinterpret_cast<const float2*>(shared.factor[row]);
    const u32 q = *reinterpret_cast<const u32*>(shared.q_low + at), k = *reinterpret_cast<const u32*>(shared.k_low + at);
    const float q0 = low_value<kBf16>(q) * f.x, q1 = high_value<kBf16>(q) * f.x;
    const float k0 = low_value<kBf16>(k) * f.y, k1 = high_value<kBf16>(k) * f.y;
    u32 q_low, k_low, k_high, qg, kg;
    if constexpr (kScalar) {
      const float G = before[0] + sum[r][0], P = exp_gate<false>(G), E = exp_gate<false>(last[0] - G);
      q_low = round_pair<kBf16>(q0, q1), qg = round_pair<kBf16>(q0 * P, q1 * P);
      k_low = round_pair<kBf16>(k0 * P, k1 * P), k_high = round_pair<kBf16>(k0, k1), kg = round_pair<kBf16>(k0 * E, k1 * E);
      if (block.column == 0) shared.gate[row] = G;
    } else {
      const float P[2] = {exp_gate<false>(sum[r][0] + low_shift[0]), exp_gate<false>(sum[r][1] + low_shift[1])};
      const float E[2] = {exp_gate<false>(high_shift[0] - sum[r][0]), exp_gate<false>(high_shift[1] - sum[r][1])};
      const float h0 = k0 * E[0], h1 = k1 * E[1];
      q_low = round_pair<kBf16>(q0 * P[0], q1 * P[1]), qg = multiply_pairs(q_low, to_qg);
      k_low = round_pair<kBf16>(k0 * P[0], k1 * P[1]), k_high = round_pair<kBf16>(h0, h1), kg = round_pair<kBf16>(h0 * to_kg[0], h1 * to_kg[1]);
    }
    *reinterpret_cast<u32*>(shared.q_low + at) = q_low;
    *reinterpret_cast<u32*>(shared.k_low + at) = k_low;
    *reinterpret_cast<u32*>(shared.k_high + at) = k_high;
    *reinterpret_cast<u32*>(block.record + kda_forward::qg_at(Cfg::K) + at) = qg;
    *reinterpret_cast<u32*>(block.record + kda_forward::kg_at(Cfg::K) + at) = kg;
  }
}

// Blocks of the scores above the diagonal.
template <class Cfg>
__device__ __forceinline__ void clear_upper_scores(const PrepareBlock<Cfg>& block) {
  for (int i = static_cast<int>(threadIdx.x); i < 6 * 32; i += KdaPrepareTraits<Cfg>::kThreads) {
    const int pair = i / 32, high = pair >= 3 ? 3 : pair >= 1 ? 2 : 1, low = pair - high * (high - 1) / 2;
    const int at = panel_unit(low * 16 + i % 16, high * 16 + i / 16 % 2 * 8);
    *reinterpret_cast<uint4*>(block.record + kda_forward::scores_at(Cfg::K) + at) = make_uint4(0, 0, 0, 0);
  }
}

// Tile `tile` of the scores: block row I and column J; the six below the diagonal first.
__device__ __forceinline__ void tile_place(int tile, int& I, int& J) {
  I = tile >= 6 ? tile - 6 : tile >= 3 ? 3 : tile >= 1 ? 2 : 1;
  J = tile >= 6 ? I : tile - I * (I - 1) / 2;
}

// Phase 4: the tiles of both score matrices: q.k to the record, k.k in registers until k_high is free.
template <class Cfg>
__device__ __forceinline__ void multiply_scores(const PrepareBlock<Cfg>& block) {
  using Traits = KdaPrepareTraits<Cfg>;
  auto& shared = block.shared;
  unsigned char* out = block.record + kda_forward::scores_at(Cfg::K);
  const int lane = block.lane, g = lane / 4, t = lane % 4 * 2;
  float kk[Traits::kWarpTiles][2][4] = {};
#pragma unroll
  for (int x = 0; x < Traits::kWarpTiles; ++x) {
    const int tile = block.warp + x * Traits::kWarps;
    if (tile >= Traits::kTiles) continue;
    int I, J;
    tile_place(tile, I, J);
    float qk[2][4] = {};
#pragma unroll
    for (int c = 0; c < Cfg::K; c += 16) {
      u32 b[4], a_k[4], a_q[4];
      load_b(b, shared.k_high, J * 16, c, lane);
      load_a(a_k, Traits::kScalar ? shared.k_high : shared.k_low, I * 16, c, lane);
      load_a(a_q, shared.q_low, I * 16, c, lane);
      if (!Traits::kScalar && I != J) {
        const u16* power = shared.power[pair_of(I, J)] + c + t;
        const u32 f0 = *reinterpret_cast<const u32*>(power), f1 = *reinterpret_cast<const u32*>(power + 8);
        a_k[0] = multiply_pairs(a_k[0], f0), a_k[1] = multiply_pairs(a_k[1], f0);
        a_k[2] = multiply_pairs(a_k[2], f1), a_k[3] = multiply_pairs(a_k[3], f1);
        a_q[0] = multiply_pairs(a_q[0], f0), a_q[1] = multiply_pairs(a_q[1], f0);
        a_q[2] = multiply_pairs(a_q[2], f1), a_q[3] = multiply_pairs(a_q[3], f1);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        mma_16x8x16<kBf16>(kk[x][n], a_k, b[2 * n], b[2 * n + 1]);
        mma_16x8x16<kBf16>(qk[n], a_q, b[2 * n], b[2 * n + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = I * 16 + g + half * 8, j = J * 16 + n * 8 + t;
        if constexpr (Traits::kScalar) {
          const float f0 = exp_gate<false>(shared.gate[i] - shared.gate[j]), f1 = exp_gate<false>(shared.gate[i] - shared.gate[j + 1]);
          kk[x][n][2 * half] *= f0, kk[x][n][2 * half + 1] *= f1, qk[n][2 * half] *= f0, qk[n][2 * half + 1] *= f1;
        }
        *reinterpret_cast<u32*>(out + panel_offset(i, j)) =
            round_pair<kBf16>(j <= i ? qk[n][2 * half] : 0.f, j + 1 <= i ? qk[n][2 * half + 1] : 0.f);
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int x = 0; x < Traits::kWarpTiles; ++x) {
    const int tile = block.warp + x * Traits::kWarps;
    if (tile >= Traits::kTiles) continue;
    int I, J;
    tile_place(tile, I, J);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = g + half * 8;
        const float beta = shared.beta[I * 16 + i];
        *reinterpret_cast<float2*>(&shared.blocks[block_of(I, J)][i][n * 8 + t]) = make_float2(beta * kk[x][n][2 * half], beta * kk[x][n][2 * half + 1]);
      }
    }
  }
  if constexpr (Cfg::RANGE_ANY) {
    for (int x = static_cast<int>(threadIdx.x); x < Traits::kBlocks * 256; x += Traits::kThreads) {
      const int I = x / 256, i = x / 16 % 16, j = x % 16;
      float qk = 0.f, kk = 0.f;
#pragma unroll
      for (int part = 0; part < Traits::kParts; ++part) {
        if (j <= i) qk += shared.direct[part][I][direct_place(i, j)];
        if (j < i) kk += shared.direct[part][I][direct_place(i, j) + 1];
      }
      const float* own = shared.factor[I * 16 + i];
      const float other = shared.factor[I * 16 + j][1];
      shared.blocks[block_of(I, I)][i][j] = shared.beta[I * 16 + i] * (kk * (own[1] * other));
      *reinterpret_cast<u16*>(out + panel_offset(I * 16 + i, I * 16 + j)) = static_cast<u16>(round_pair<kBf16>(qk * (own[0] * other), 0.f));
    }
  }
}

// A pair of f32 as bf16 and what is left of them.
struct SplitPair {
  u32 value, rest;
  __device__ __forceinline__ void set(float low, float high) {
    value = round_pair<kBf16>(low, high);
    rest = round_pair<kBf16>(low - low_value<kBf16>(value), high - high_value<kBf16>(value));
  }
};

// Phase 5: the diagonal blocks of T, a column a lane: x_i = e_i - sum over j < i of A_ij x_j.
template <class Cfg>
__device__ __forceinline__ void invert_diagonal(const PrepareBlock<Cfg>& block) {
  const int I = block.warp, c = block.lane % 16;
  auto& own = block.shared.blocks[block_of(I, I)];
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float even = i == c ? 1.f : 0.f, odd = 0.f;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      if (j < i) even = __fmaf_rn(-own[i][j], x[j], even);
      if (j + 1 < i) odd = __fmaf_rn(-own[i][j + 1], x[j + 1], odd);
    }
    x[i] = even + odd;  // exactly zero above the diagonal
  }
  __syncwarp();
  // The half warps have the same columns and store a half each.
  const bool lower = block.lane >= 16;
  const float beta = block.shared.beta[I * 16 + c];
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const float value = lower ? x[r + 8] : x[r];
    const int i = lower ? r + 8 : r;
    own[i][c] = value;
    SplitPair pair;
    pair.set(value * beta, 0.f);
    unsigned char* to = block.shared.inverse + panel_offset(I * 16 + i, I * 16 + c);
    *reinterpret_cast<u16*>(to) = static_cast<u16>(pair.value);
    *reinterpret_cast<u16*>(to + kPanelBytes) = static_cast<u16>(pair.rest);
  }
}

// x[16][16] += a * B, with B[k][n] = rows[n][k] in f32; the small terms apart.
__device__ __forceinline__ void multiply_split(float (&x)[2][4], float (&small)[2][4], const SplitPair (&a)[4], const float* rows, int lane) {
  const int g = lane / 4, t = lane % 4 * 2;
  const u32 value[4] = {a[0].value, a[1].value, a[2].value, a[3].value}, rest[4] = {a[0].rest, a[1].rest, a[2].rest, a[3].rest};
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float* row = rows + (n * 8 + g) * kda_forward::kBlockPitch + t;
    const float2 first = *reinterpret_cast<const float2*>(row), second = *reinterpret_cast<const float2*>(row + 8);
    SplitPair b[2];
    b[0].set(first.x, first.y), b[1].set(second.x, second.y);
    mma_16x8x16<kBf16>(x[n], value, b[0].value, b[1].value);
    mma_16x8x16<kBf16>(small[n], value, b[0].rest, b[1].rest);
    mma_16x8x16<kBf16>(small[n], rest, b[0].value, b[1].value);
  }
}
// sign * (x + small) as the A operand of the next product, and x itself.
__device__ __forceinline__ void split_tile(SplitPair (&a)[4], float (&x)[2][4], const float (&small)[2][4], float sign) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[n][e] = sign * (x[n][e] + small[n][e]);
  }
  a[0].set(x[0][0], x[0][1]), a[1].set(x[0][2], x[0][3]);
  a[2].set(x[1][0], x[1][1]), a[3].set(x[1][2], x[1][3]);
}

// Phase 6: block column J of T from the top: T_IJ = -T_II (sum over J <= M < I of A_IM T_MJ), held transposed.
template <class Cfg, int J>
__device__ __forceinline__ void merge_inverse(const PrepareBlock<Cfg>& block) {
  constexpr int kBlocks = KdaPrepareTraits<Cfg>::kBlocks;
  auto& shared = block.shared;
  const int lane = block.lane, g = lane / 4, t = lane % 4 * 2;
  SplitPair column[kBlocks][4];  // T_MJ transposed
  const auto diagonal = [&](int c, int m) { return shared.blocks[block_of(J, J)][m][c]; };
  column[J][0].set(diagonal(g, t), diagonal(g, t + 1)), column[J][1].set(diagonal(g + 8, t), diagonal(g + 8, t + 1));
  column[J][2].set(diagonal(g, t + 8), diagonal(g, t + 9)), column[J][3].set(diagonal(g + 8, t + 8), diagonal(g + 8, t + 9));
  const float beta[2] = {shared.beta[J * 16 + g], shared.beta[J * 16 + g + 8]};
#pragma unroll
  for (int I = 1; I < kBlocks; ++I) {
    if (I <= J) continue;
    float x[2][4] = {}, small[2][4] = {};
#pragma unroll
    for (int M = 0; M < kBlocks - 1; ++M) {
      if (M >= J && M < I) multiply_split(x, small, column[M], &shared.blocks[block_of(I, M)][0][0], lane);
    }
    SplitPair a[4];
    split_tile(a, x, small, 1.f);
    float y[2][4] = {}, small_y[2][4] = {};
    multiply_split(y, small_y, a, &shared.blocks[block_of(I, I)][0][0], lane);
    split_tile(column[I], y, small_y, -1.f);
    // T beta and its remainder: tokens j are rows here and columns there.
    SplitPair out[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) out[n][half].set(y[n][2 * half] * beta[half], y[n][2 * half + 1] * beta[half]);
    }
    unsigned char* to = shared.inverse + panel_unit(I * 16 + lane / 16 * 8 + lane % 8, J * 16 + lane / 8 % 2 * 8);
    store_matrix_x4<true>(to, out[0][0].value, out[0][1].value, out[1][0].value, out[1][1].value);
    store_matrix_x4<true>(to + kPanelBytes, out[0][0].rest, out[0][1].rest, out[1][0].rest, out[1][1].rest);
  }
}

// Phase 7: u = (T beta) v and w = (T beta) (k 2^G), 32 columns at a time, in the place of v and k_low.
template <class Cfg>
__device__ __forceinline__ void multiply_inverse(const PrepareBlock<Cfg>& block) {
  using Traits = KdaPrepareTraits<Cfg>;
  constexpr int kBlocks = Traits::kBlocks;
  auto& shared = block.shared;
  const int lane = block.lane, g = lane / 4, t = lane % 4 * 2;
  for (int task = block.warp; task < (Cfg::K + Cfg::V) / 32; task += Traits::kWarps) {
    const bool is_w = task < Cfg::K / 32;
    const int column = (is_w ? task : task - Cfg::K / 32) * 32;
    unsigned char* panels = is_w ? shared.k_low : shared.v;
    u32 b[kBlocks][2][4];
#pragma unroll
    for (int J = 0; J < kBlocks; ++J) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        load_b_transposed(b[J][n], panels, J * 16, column + n * 16, lane);
        if (is_w && !Traits::kScalar) {
          const u16* power = shared.power[6 + J] + column + n * 16 + g;
          const u32 f0 = power[0] * 0x10001u, f1 = power[8] * 0x10001u;
          b[J][n][0] = multiply_pairs(b[J][n][0], f0), b[J][n][1] = multiply_pairs(b[J][n][1], f0);
          b[J][n][2] = multiply_pairs(b[J][n][2], f1), b[J][n][3] = multiply_pairs(b[J][n][3], f1);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int I = 0; I < kBlocks; ++I) {
      float x[4][4] = {};
#pragma unroll
      for (int J = 0; J < kBlocks; ++J) {
        if (J > I) continue;
        u32 a[4], rest[4];
        load_a(a, shared.inverse, I * 16, J * 16, lane);
        load_a(rest, shared.inverse + kPanelBytes, I * 16, J * 16, lane);
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_16x8x16<kBf16>(x[n], rest, b[J][n / 2][n % 2 * 2], b[J][n / 2][n % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_16x8x16<kBf16>(x[n], a, b[J][n / 2][n % 2 * 2], b[J][n / 2][n % 2 * 2 + 1]);
      }
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        store_matrix_x4<false>(panels + panel_unit(I * 16 + lane / 8 % 2 * 8 + lane % 8, column + n * 8 + lane / 16 * 8),
                               round_pair<kBf16>(x[n][0], x[n][1]), round_pair<kBf16>(x[n][2], x[n][3]),
                               round_pair<kBf16>(x[n + 1][0], x[n + 1][1]), round_pair<kBf16>(x[n + 1][2], x[n + 1][3]));
      }
    }
  }
}

// Phase 8: w and u to the record.
template <class Cfg>
__device__ __forceinline__ void store_record(const PrepareBlock<Cfg>& block) {
  constexpr int kW = Cfg::K / 64 * kPanelBytes, kU = Cfg::V / 64 * kPanelBytes;
  unsigned char* w = block.record + kda_forward::w_at(Cfg::K);
  unsigned char* u = block.record + kda_forward::u_at(Cfg::K);
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    bulk_store(w, block.shared.k_low, kW);
    bulk_store(u, block.shared.v, kU);
    store_box_commit();
    store_box_wait_read<0>();
  }
#else
  for (int i = static_cast<int>(threadIdx.x) * 16; i < kW; i += KdaPrepareTraits<Cfg>::kThreads * 16)
    *reinterpret_cast<uint4*>(w + i) = *reinterpret_cast<const uint4*>(block.shared.k_low + i);
  for (int i = static_cast<int>(threadIdx.x) * 16; i < kU; i += KdaPrepareTraits<Cfg>::kThreads * 16)
    *reinterpret_cast<uint4*>(u + i) = *reinterpret_cast<const uint4*>(block.shared.v + i);
#endif
}

// Brings what a block started a little later will read into the L2 cache: its loads are half of its time.
template <class Cfg>
__device__ __forceinline__ void prefetch_chunk(const PrepareBlock<Cfg>& block, i64 chunk) {
  constexpr int kLine = 128, kGate = Cfg::GATE_F32 ? 4 : 2;
  const auto& p = block.p;
  const Place place = place_of_chunk<Cfg>(p.sequences, chunk);
  if (!place.exists) return;
  const i64 first = place.index * kPanelRows, left = place.tokens - first;
  const auto prefetch = [&](const void* tensor, i64 stride, int head, int bytes, int size) {
    for (int i = static_cast<int>(threadIdx.x); i < kPanelRows * (bytes / kLine); i += KdaPrepareTraits<Cfg>::kThreads) {
      const int row = i / (bytes / kLine);
      if (row >= left) break;
      const char* line = static_cast<const char*>(tensor) + (place.row0 + first + row) * stride * size + static_cast<i64>(head) * bytes + i % (bytes / kLine) * kLine;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
    }
  };
  prefetch(p.k, p.k_stride, block.hk, Cfg::K * 2, 2);
  prefetch(p.q, p.q_stride, block.hk, Cfg::K * 2, 2);
  prefetch(p.v, p.v_stride, block.hv, Cfg::V * 2, 2);
  if constexpr (!KdaPrepareTraits<Cfg>::kScalar) prefetch(p.g, p.g_stride, block.hv, Cfg::K * kGate, kGate);
}

template <class Cfg>
__device__ __forceinline__ void kda_prepare(const kda_forward::PrepareParams& p) {
  using Traits = KdaPrepareTraits<Cfg>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(shared_bytes);

  // Phase 0: which chunk and head.
  const i64 chunk = blockIdx.x / p.HV;
  const Place place = place_of_chunk<Cfg>(p.sequences, chunk);
  if (!place.exists) return;
  const int hv = static_cast<int>(blockIdx.x % p.HV), tid = static_cast<int>(threadIdx.x);
  const i64 first = place.index * kPanelRows, left = place.tokens - first;
  const int warp = tid / 32;
  const PrepareBlock<Cfg> block{p, shared, hv, hv / (p.HV / p.H), place.row0 + first, left < kPanelRows ? static_cast<int>(left) : kPanelRows,
                                p.records + (chunk * p.HV + hv) * kda_forward::record_bytes(Cfg::K, Cfg::V), tid % 32, warp,
                                warp / Traits::kParts, warp % Traits::kParts * 64 + tid % 32 * 2};

  // Phase 1: copies under way; gates summed up inside the token blocks.
  copy_rows<Cfg, Cfg::K>(block, shared.k_low, p.k, p.k_stride, block.hk);
  copy_rows<Cfg, Cfg::K>(block, shared.q_low, p.q, p.q_stride, block.hk);
  copy_async_commit();
  if constexpr (!Cfg::RANGE_ANY) copy_rows<Cfg, Cfg::V>(block, shared.v, p.v, p.v_stride, hv);
  copy_async_commit();
  float sum[16][2];
  load_gates(block, sum);
  if (tid < kPanelRows) {
    float beta = 0.f;
    if (tid < block.valid) {
      const i64 at = (block.row0 + tid) * p.beta_stride + hv;
      beta = Cfg::BETA_F32 ? static_cast<const float*>(p.beta)[at] : low_value<kBf16>(static_cast<const u16*>(p.beta)[at]);
      if constexpr (Cfg::BETA_SIGMOID) beta = reciprocal(1.f + exp_gate<true>(-beta));
    }
    shared.beta[tid] = beta;
  }
  *reinterpret_cast<float2*>(&shared.total[block.block][block.column]) = make_float2(sum[15][0], sum[15][1]);
  *reinterpret_cast<float2*>(&shared.middle[block.block][block.column]) = make_float2(sum[7][0], sum[7][1]);
  clear_upper_scores(block);
  if constexpr (Cfg::PREFETCH > 0) prefetch_chunk(block, chunk + (Cfg::PREFETCH + p.HV - 1) / p.HV);
  copy_async_wait<1>();
  __syncthreads();

  // Phase 2: factors of the rows, exponents of the blocks.
  scale_factors(block);
  float before[2], last[2], low[2], high[2];
  relate_blocks(block, before, last, low, high);
  __syncthreads();

  // Phase 3: scaled copies.
  if constexpr (Cfg::RANGE_ANY) direct_products(block, sum);
  scale_rows(block, sum, before, last, low, high);
  __syncthreads();

  // Phase 4: scores.
  multiply_scores(block);
  __syncthreads();
  if constexpr (Cfg::RANGE_ANY) {
    copy_rows<Cfg, Cfg::V>(block, shared.v, p.v, p.v_stride, hv);
    copy_async_commit();
  }

  // Phases 5 and 6: the inverse.
  if (warp < Traits::kBlocks) invert_diagonal(block);
  __syncthreads();
  if (warp == 0) merge_inverse<Cfg, 0>(block);
  if (warp == 1) merge_inverse<Cfg, 1>(block);
  if (warp == 2) merge_inverse<Cfg, 2>(block);
  copy_async_wait<0>();
  __syncthreads();

  // Phases 7 and 8: w and u.
  multiply_inverse(block);
#if __CUDA_ARCH__ >= 900
  fence_async_proxy();
#endif
  __syncthreads();
  store_record(block);
}

}  // namespace scanjit::dev
