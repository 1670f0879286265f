// The gated-delta state scan in f64 and with the definition's roundings, compared with a kernel's
// outputs. Contract and launch geometry: oracle_params.h. Plain code: no tensor cores, no
// asynchronous copies, nothing shared with the kernels that it judges.
//
// One block owns (sequence, value head, kOracleColumns columns of V) and keeps both states in
// shared memory. Per chunk, as in scanjit/gated_delta_h.hpp:
//   1. round S, compare h      2. v' = u - w . S, compare v_new      3. decay S, add k^T v''
// Sums run in the order of the CPU oracle (keys, then tokens, ascending); products of two 16-bit
// numbers are exact in f64, so the rounding scan agrees with the CPU's bit for bit.

#include "oracle_params.h"

using namespace scanjit::test;

namespace {

__device__ float decode(unsigned short bits, bool is_f16) {
  if (!is_f16) return __uint_as_float(static_cast<unsigned>(bits) << 16);
  const unsigned sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u,
                 mantissa = bits & 1023u;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
  return __uint_as_float(sign | __float_as_uint(static_cast<float>(mantissa) * 0x1p-24f));
}

// The nearest number of the 16-bit type, ties to even.
__device__ float round_half(float x, bool is_f16) {
  const unsigned bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu,
                 sign = bits & 0x80000000u;
  if (magnitude >= 0x7f800000u) return x;
  if (!is_f16) return __uint_as_float((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  if (magnitude <
      0x38800000u) {  // below 2^-14: multiples of 2^-24, the last place of numbers in [0.5, 1)
    return __uint_as_float(sign | __float_as_uint((__uint_as_float(magnitude) + 0.5f) - 0.5f));
  }
  const unsigned rounded = (magnitude + 0xfffu + ((magnitude >> 13) & 1u)) & 0xffffe000u;
  return __uint_as_float(sign |
                         (rounded >= 0x47800000u ? 0x7f800000u : rounded));  // from 2^16: infinity
}

__device__ double pure_factor(double x, bool base_e) { return base_e ? exp(x) : exp2(x); }
__device__ float rounding_factor(float x, bool base_e) {
  const float log2_factor = base_e ? __fmul_rn(x, 1.44269504088896340736f) : x;
  const float factor = static_cast<float>(exp2(static_cast<double>(log2_factor)));
  return factor < 0x1p-126f ? 0.0f : factor;
}

__device__ bool is_finite(double x) { return fabs(x) <= 1.7976931348623157e308; }

__device__ void add(OracleSums& sums, double got, double pure, double rounding) {
  sums.elements += 1;
  if (pure == 0) sums.zeros += 1;
  if (is_finite(got) != is_finite(pure)) sums.non_finite += 1;
  if (!is_finite(pure) || !is_finite(rounding)) return;
  sums.pure_square += pure * pure;
  sums.rounding_square += rounding * rounding;
  sums.own_difference += (rounding - pure) * (rounding - pure);
  if (!is_finite(got)) return;
  sums.pure_difference += (got - pure) * (got - pure);
  sums.rounding_difference += (got - rounding) * (got - rounding);
}

// Where a block works, and its shared memory.
struct Block {
  long long sequence, head, first_column;
  long long begin, length, first_chunk;
  int columns;            // of V, at most kOracleColumns
  double* pure;           // [K][kOracleColumns]: S in f64
  double* rounded;        // [K][kOracleColumns]: round(S) of the rounding scan
  float* rounding;        // [K][kOracleColumns]: S of the rounding scan
  double* pure_value;     // [BT][kOracleColumns]: v''
  double* rounded_value;  // [BT][kOracleColumns]: round(v'')
  double* slab;           // [BT][kOracleSlab+1]: some columns of w or k
};

__device__ Block find_block(const OracleParams& p, unsigned char* memory) {
  Block b;
  const long long slices = oracle_slices(p.V);
  b.first_column = blockIdx.x % slices * kOracleColumns;
  b.head = blockIdx.x / slices % p.HV;
  b.sequence = blockIdx.x / slices / p.HV;
  const bool dense = p.begin == nullptr;
  b.begin = dense ? b.sequence * p.T : p.begin[b.sequence];
  b.length = dense ? p.T : p.length[b.sequence];
  b.first_chunk = dense ? b.sequence * ((p.T + p.BT - 1) / p.BT) : p.first_chunk[b.sequence];
  b.columns = p.V - b.first_column < kOracleColumns ? static_cast<int>(p.V - b.first_column)
                                                    : kOracleColumns;
  b.pure = reinterpret_cast<double*>(memory);
  b.rounded = b.pure + p.K * kOracleColumns;
  b.pure_value = b.rounded + p.K * kOracleColumns;
  b.rounded_value = b.pure_value + p.BT * kOracleColumns;
  b.slab = b.rounded_value + p.BT * kOracleColumns;
  b.rounding = reinterpret_cast<float*>(b.slab + p.BT * (kOracleSlab + 1));
  return b;
}

// The place of S[i][column] of this block in a stored state tensor, whose first index is `row`.
__device__ long long state_place(const OracleParams& p, const Block& b, long long row, int i,
                                 int column) {
  const long long j = b.first_column + column, state = static_cast<long long>(p.K) * p.V;
  return (row * p.HV + b.head) * state +
         (p.state_vk ? j * p.K + i : static_cast<long long>(i) * p.V + j);
}

// Columns [first, first+count) of `rows` rows of k or w, which begin at element `start`, to the
// slab.
__device__ void load_slab(const OracleParams& p, const Block& b, const void* tensor,
                          long long start, long long stride, int rows, int first, int count) {
  const auto* elements = static_cast<const unsigned short*>(tensor);
  __syncthreads();  // the slab before this one has been used
  for (int x = threadIdx.x; x < rows * kOracleSlab; x += kOracleThreads) {
    const int r = x / kOracleSlab, i = x % kOracleSlab;
    if (i < count) {
      b.slab[r * (kOracleSlab + 1) + i] =
          decode(elements[start + r * stride + first + i], p.is_f16 != 0);
    }
  }
  __syncthreads();
}

__device__ void load_state(const OracleParams& p, const Block& b) {
  for (int x = threadIdx.x; x < p.K * kOracleColumns; x += kOracleThreads) {
    const int i = x / kOracleColumns, c = x % kOracleColumns;
    const bool given = p.h0 != nullptr && c < b.columns;
    b.rounding[x] = given ? p.h0[state_place(p, b, b.sequence, i, c)] : 0.0f;
    b.pure[x] = b.rounding[x];
  }
}

// Step 1.
__device__ void round_state(const OracleParams& p, const Block& b, long long chunk, OracleSums& h) {
  const auto* got = static_cast<const unsigned short*>(p.h);
  for (int x = threadIdx.x; x < p.K * kOracleColumns; x += kOracleThreads) {
    const int i = x / kOracleColumns, c = x % kOracleColumns;
    b.rounded[x] = round_half(b.rounding[x], p.is_f16 != 0);
    if (got != nullptr && c < b.columns) {
      add(h, decode(got[state_place(p, b, chunk, i, c)], p.is_f16 != 0), b.pure[x], b.rounded[x]);
    }
  }
}

// Step 2. A thread owns kPerThread columns of one row. Leaves v'' in shared memory.
__device__ void new_values(const OracleParams& p, const Block& b, long long token, int rows,
                           OracleSums& v_new) {
  constexpr int kPerThread = 4, kThreadsPerRow = kOracleColumns / kPerThread;
  static_assert(kOracleThreads / kThreadsPerRow >= 64,
                "every row of a chunk of 64 needs its threads");
  const int r = threadIdx.x / kThreadsPerRow, c0 = threadIdx.x % kThreadsPerRow * kPerThread;
  double pure_dot[kPerThread] = {}, rounding_dot[kPerThread] = {};
  for (int first = 0; first < p.K; first += kOracleSlab) {
    const int count = min(kOracleSlab, p.K - first);
    load_slab(p, b, p.w, (token * p.HV + b.head) * p.K, static_cast<long long>(p.HV) * p.K, rows,
              first, count);
    for (int i = 0; i < count && r < rows; ++i) {
      const double key = b.slab[r * (kOracleSlab + 1) + i];
      for (int c = 0; c < kPerThread; ++c) {
        pure_dot[c] += key * b.pure[(first + i) * kOracleColumns + c0 + c];
        rounding_dot[c] += key * b.rounded[(first + i) * kOracleColumns + c0 + c];
      }
    }
  }
  if (r >= rows) return;
  double pure_gate = 1;
  float rounding_gate = 1;
  if (p.g != nullptr) {
    const float last = p.g[(token + rows - 1) * p.HV + b.head],
                own = p.g[(token + r) * p.HV + b.head];
    pure_gate = pure_factor(static_cast<double>(last) - own, p.base_e != 0);
    rounding_gate = rounding_factor(__fsub_rn(last, own), p.base_e != 0);
  }
  for (int c = 0; c < kPerThread; ++c) {
    const int x = r * kOracleColumns + c0 + c;
    double pure_value = 0;
    float rounding_value = 0;
    if (c0 + c < b.columns) {
      const long long place = ((token + r) * p.HV + b.head) * p.V + b.first_column + c0 + c;
      const float u = decode(static_cast<const unsigned short*>(p.u)[place], p.is_f16 != 0);
      pure_value = u - pure_dot[c];
      rounding_value = __fsub_rn(u, static_cast<float>(rounding_dot[c]));
      if (p.v_new != nullptr) {
        const float got = decode(static_cast<const unsigned short*>(p.v_new)[place], p.is_f16 != 0);
        add(v_new, got, pure_value, round_half(rounding_value, p.is_f16 != 0));
      }
    }
    b.pure_value[x] = pure_value * pure_gate;
    b.rounded_value[x] = round_half(__fmul_rn(rounding_value, rounding_gate), p.is_f16 != 0);
  }
}

// Step 3. A thread owns kPerThread columns of one key of the slab.
__device__ void update_state(const OracleParams& p, const Block& b, long long token, int rows) {
  constexpr int kPerThread = kOracleSlab * kOracleColumns / kOracleThreads;
  constexpr int kThreadsPerKey = kOracleColumns / kPerThread;
  const int key = threadIdx.x / kThreadsPerKey, c0 = threadIdx.x % kThreadsPerKey * kPerThread;
  const long long key_head = b.head / (p.HV / p.H), last = token + rows - 1;
  double pure_decay = 1;
  float rounding_decay = 1;
  if (p.g != nullptr) {
    const float gate = p.g[last * p.HV + b.head];
    pure_decay = pure_factor(gate, p.base_e != 0);
    rounding_decay = rounding_factor(gate, p.base_e != 0);
  }
  for (int first = 0; first < p.K; first += kOracleSlab) {
    const int count = min(kOracleSlab, p.K - first);
    load_slab(p, b, p.k, (token * p.H + key_head) * p.K, static_cast<long long>(p.H) * p.K, rows,
              first, count);
    if (key >= count) continue;
    const int i = first + key;
    double pure_row = 1;
    float rounding_row = 1;
    if (p.gk != nullptr) {
      const float gate = p.gk[(last * p.HV + b.head) * p.K + i];
      pure_row = pure_factor(gate, p.base_e != 0);
      rounding_row = rounding_factor(gate, p.base_e != 0);
    }
    for (int c = c0; c < c0 + kPerThread; ++c) {
      double& pure = b.pure[i * kOracleColumns + c];
      float& rounding = b.rounding[i * kOracleColumns + c];
      double pure_sum = pure * pure_decay * pure_row;
      double rounding_sum = __fmul_rn(__fmul_rn(rounding, rounding_decay), rounding_row);
      for (int r = 0; r < rows; ++r) {
        const double k = b.slab[r * (kOracleSlab + 1) + key];
        pure_sum += k * b.pure_value[r * kOracleColumns + c];
        rounding_sum += k * b.rounded_value[r * kOracleColumns + c];
      }
      pure = pure_sum;
      rounding = static_cast<float>(rounding_sum);
    }
  }
}

__device__ void compare_final_state(const OracleParams& p, const Block& b, OracleSums& ht) {
  if (p.ht == nullptr) return;
  for (int x = threadIdx.x; x < p.K * kOracleColumns; x += kOracleThreads) {
    const int i = x / kOracleColumns, c = x % kOracleColumns;
    if (c < b.columns) add(ht, p.ht[state_place(p, b, b.sequence, i, c)], b.pure[x], b.rounding[x]);
  }
}

// Adds the threads' sums in a fixed order, so that a run repeats bit for bit. `scratch` is the
// slab, which nobody reads any more and which holds kOracleThreads doubles from BT 8 on.
__device__ void store_sums(const OracleRow& mine, double* scratch, OracleRow* row) {
  constexpr int kValues = sizeof(OracleRow) / sizeof(double);
  const auto* values = reinterpret_cast<const double*>(&mine);
  for (int v = 0; v < kValues; ++v) {
    __syncthreads();
    scratch[threadIdx.x] = values[v];
    __syncthreads();
    for (int half = kOracleThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) reinterpret_cast<double*>(row)[v] = scratch[0];
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kOracleThreads) oracle_gated_delta_h(OracleParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Block b = find_block(p, memory);
  OracleRow sums = {};
  load_state(p, b);
  for (long long start = 0; start < b.length; start += p.BT) {
    const int rows = b.length - start < p.BT ? static_cast<int>(b.length - start) : p.BT;
    round_state(p, b, b.first_chunk + start / p.BT, sums.h);
    new_values(p, b, b.begin + start, rows, sums.v_new);
    update_state(p, b, b.begin + start, rows);
    __syncthreads();
  }
  compare_final_state(p, b, sums.ht);
  store_sums(sums, b.slab, p.sums + blockIdx.x);
}
