// Shared by host and device: what the gated-delta state scan is given, and how much shared memory a
// configuration takes. Compiled by g++, clang and NVRTC; includes nothing.
#ifndef SCANJIT_GATED_DELTA_H_PARAMS_H
#define SCANJIT_GATED_DELTA_H_PARAMS_H

namespace scanjit::gated_delta_h {

// Raise by hand when code, speed or bits of the template change.
inline constexpr int kKernelRevision = 2;

// Sequences up to which every block adds up the chunk offsets itself; beyond, the prefix stage
// does.
inline constexpr long long kInlineOffsetSequences = 64;

inline constexpr unsigned kStatusLengths = 1, kStatusH0Indices = 2, kStatusHtIndices = 4;

// All sizes and strides in elements. Absent tensors are null.
struct ScanParams {
  const void* k;              // [B,T,H,K]
  const void* w;              // [B,T,HV,K]
  const void* u;              // [B,T,HV,V]
  const float* g;             // [B,T,HV]
  const float* gk;            // [B,T,HV,K]
  const float* h0;            // [h0_slots,HV,K,V] or [..,V,K]
  const void* h0_indices;     // [N]
  const void* cu_seqlens;     // [N+1]
  const void* chunk_offsets;  // [N]: first chunk of each sequence, the type of cu_seqlens; or null
  const void* ht_indices;     // [N]
  void* h;                    // [chunk_capacity,HV,K,V] or [..,V,K]
  void* v_new;                // [B,T,HV,V]
  float* ht;                  // [ht_slots,HV,K,V] or [..,V,K]
  unsigned* status;
  long long N, T;  // sequences; tokens of a batch row (packed: of all sequences)
  long long chunk_capacity;
  long long k_stride, w_stride, u_stride, g_stride, gk_stride, v_new_stride;  // between tokens
  long long h0_slot_stride, ht_slot_stride, h0_slots, ht_slots;
  int H, HV;
};

// A tensor map as cuTensorMapEncodeTiled makes it.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

// What the warpgroup form of the scan takes: boxes of 64 columns and, of token tensors, 64 rows.
struct WarpgroupScanParams {
  ScanParams scan;
  TensorMap w, k;      // [HV or H][K/64][row][64]
  TensorMap u, v_new;  // [HV][row][V]
  TensorMap h;         // [chunk][HV][K][V] or [..][V][K]
};

// The prefix stage: chunk_offsets[n] = chunks of the sequences before n.
struct OffsetsParams {
  const void* cu_seqlens;  // [N+1]
  void* chunk_offsets;     // [N], the type of cu_seqlens
  long long N, T;
};
inline constexpr int kOffsetsThreads = 1024;

// What shared memory depends on.
struct ScanShape {
  int K, BT, BV, BK, STAGES, WARPS;
  bool has_g, has_gk, has_h, has_v_new;
};

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int power_of_two(int value) {
  int p = 1;
  while (p < value) p *= 2;
  return p;
}
constexpr int padded_k(int K) { return round_up(K, 16); }
// Slabs of BK key columns in K.
constexpr int slab_count(ScanShape s) { return (padded_k(s.K) + s.BK - 1) / s.BK; }
// Warps that share 16 value columns: they split the tokens of v' and the key columns of S.
constexpr int warps_per_v16(ScanShape s) { return s.WARPS / (s.BV / 16); }
// Chunks of u (and gates) that are in flight: a chunk's u travels with its last slab of w.
constexpr int u_slots(ScanShape s) {
  return s.STAGES % slab_count(s) == 0 ? s.STAGES / slab_count(s) : s.STAGES / slab_count(s) + 1;
}
// Rows are padded by 16 bytes, so that eight rows of a matrix lie in eight different bank groups.
inline constexpr int kRowPad = 8;

constexpr int scan_smem_bytes(ScanShape s) {
  const int slab = s.BT * (s.BK + kRowPad) * 2;
  const int u = s.BT * (s.BV + kRowPad) * 2;
  // Either layout of the state tile, whichever is larger, so that the size does not depend on it.
  const int kv = padded_k(s.K) * (s.BV + kRowPad) * 2, vk = s.BV * (padded_k(s.K) + kRowPad) * 2;
  int bytes = 2 * s.STAGES * slab + u_slots(s) * u;
  if (s.has_h || warps_per_v16(s) > 1) bytes += kv > vk ? kv : vk;
  if (s.has_v_new) bytes += u;
  if (warps_per_v16(s) > 1) bytes += s.BV * (s.BT + kRowPad) * 2;
  if (s.has_g) bytes += u_slots(s) * s.BT * 4;
  if (s.has_gk) bytes += u_slots(s) * padded_k(s.K) * 4;
  return bytes;
}

// The warpgroup form: BT = 64, K = 64 or 128, BV/64 warpgroups of 64 value columns and one of helpers.
constexpr int warpgroup_scan_smem_bytes(ScanShape s) {
  const int groups = s.BV / 64, ahead = s.STAGES / slab_count(s);
  int bytes = ahead * (2 * s.BT * s.K * 2 + groups * s.BT * 128);
  if (s.has_h) bytes += groups * s.K * 128;
  if (s.has_v_new) bytes += groups * s.BT * 128;
  if (s.has_g) bytes += ahead * (2 * s.BT + 4) * 4;
  if (s.has_gk) bytes += ahead * 2 * s.K * 4;
  return round_up(bytes + (7 * ahead + 4 * groups) * 8, 1024);
}

}  // namespace scanjit::gated_delta_h

#endif
