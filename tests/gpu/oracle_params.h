// Shared by host and device: what the GPU oracle of the gated-delta state scan is given and gives.
//
// The oracle runs the scan twice side by side, in f64 and with the definition's roundings, and
// compares a kernel's outputs with both as it goes: nothing of the size of `h` is stored. The
// rounding half has the bits of the CPU oracle's `kRounding`.
//
// Launch `oracle_gated_delta_h(OracleParams)`, compiled from oracle_gated_delta_h.cu as it is (no
// --use_fast_math), with
//   grid   (oracle_blocks(N, HV, V), 1, 1)
//   block  (kOracleThreads, 1, 1)
//   dynamic shared memory  oracle_smem_bytes(K, BT), more than 48 KiB: raise the function's limit
// Every block writes its own row of `sums`; the host adds the rows (oracle_blocks of them).
#ifndef SCANJIT_TESTS_GPU_ORACLE_PARAMS_H
#define SCANJIT_TESTS_GPU_ORACLE_PARAMS_H

#ifdef __CUDACC__
#define SCANJIT_ORACLE_BOTH __host__ __device__
#else
#define SCANJIT_ORACLE_BOTH
#endif

namespace scanjit::test {

inline constexpr int kOracleThreads = 256;
inline constexpr int kOracleColumns = 16;  // columns of V that a block owns
inline constexpr int kOracleSlab = 32;     // key columns of k or w in shared memory at a time

// Sums over the elements of one output. "finite" ones only, in the squares.
struct OracleSums {
  double elements;
  double pure_difference;      // sum of (result - f64 scan)^2
  double rounding_difference;  // sum of (result - rounding scan)^2
  double own_difference;       // sum of (rounding scan - f64 scan)^2
  double pure_square;          // sum of (f64 scan)^2
  double rounding_square;      // sum of (rounding scan)^2
  double non_finite;  // elements that are finite in the result or in the f64 scan, not in both
  double zeros;       // of the f64 scan
};
struct OracleRow {
  OracleSums h, v_new, ht;
};

// Contiguous tensors, as in scanjit/gated_delta_h.hpp. Those that do not exist are null.
struct OracleParams {
  const void* k;      // [tokens,H,K]
  const void* w;      // [tokens,HV,K]
  const void* u;      // [tokens,HV,V]
  const float* g;     // [tokens,HV]
  const float* gk;    // [tokens,HV,K]
  const float* h0;    // [N,HV,K,V] or [N,HV,V,K]
  const void* h;      // the results to compare with the scan: [chunks,HV,K,V] or [..,V,K]
  const void* v_new;  // [tokens,HV,V]
  const float* ht;    // [N,HV,K,V] or [N,HV,V,K]
  // Of sequence n: first token, tokens and first chunk. All three null: dense, N sequences of T
  // tokens.
  const long long* begin;
  const long long* length;
  const long long* first_chunk;
  OracleRow* sums;  // [oracle_blocks]
  long long N, T;
  int H, HV, K, V, BT;  // K at most 256, BT at most 64
  int is_f16;           // 0: bf16
  int base_e;           // 0: gates in log2 units
  int state_vk;         // 0: states are [K,V]
};

SCANJIT_ORACLE_BOTH constexpr long long oracle_slices(int V) {
  return (V + kOracleColumns - 1) / kOracleColumns;
}
SCANJIT_ORACLE_BOTH constexpr long long oracle_blocks(long long N, int HV, int V) {
  return N * HV * oracle_slices(V);
}
SCANJIT_ORACLE_BOTH constexpr int oracle_smem_bytes(int K, int BT) {
  // Three states [K][columns] (f64, rounded as f64, f32), two v'' [BT][columns], a slab
  // [BT][slab+1].
  return K * kOracleColumns * (8 + 8 + 4) + 2 * BT * kOracleColumns * 8 +
         BT * (kOracleSlab + 1) * 8;
}

}  // namespace scanjit::test

#undef SCANJIT_ORACLE_BOTH

#endif
