// Shared by host and device: what the stages of the KDA forward pass are given, how the records that they
// hand on are laid out, and how much shared memory they take. Compiled by g++, clang and NVRTC; includes
// nothing.
#ifndef SCANJIT_KDA_FORWARD_PARAMS_H
#define SCANJIT_KDA_FORWARD_PARAMS_H

namespace scanjit::kda_forward {

// Raise by hand when code, speed or bits of a template change.
inline constexpr int kKernelRevision = 1;

inline constexpr int kChunkTokens = 64;

// Cfg::GATE: how the log decay a of a token and key column comes from g. Natural logarithm.
inline constexpr int kGateBounded = 1;      // lower_bound * sigmoid(exp(A_log) * (g + dt_bias))
inline constexpr int kGateSoftplus = 2;     // -exp(A_log) * softplus(g + dt_bias)
inline constexpr int kGatePrecomputed = 3;  // g
inline constexpr int kGateScalar = 4;       // g, one a token and value head

inline constexpr unsigned kStatusLengths = 1, kStatusH0Indices = 2, kStatusHtIndices = 4;

// A record: what `prepare` hands on of one (chunk, value head). Panels of 64 x 64 bf16 (common/panel.cuh),
// rows are tokens: w [K], kg [K]; then 2^gate of the chunk's last row, f32 [K]; then qg [K], the scores
// q.k [64], u [V].
inline constexpr int kPanel = 8192;
inline constexpr int kDecayBytes = 1024;
constexpr int w_at(int) { return 0; }
constexpr int kg_at(int K) { return K / 64 * kPanel; }
constexpr int decay_at(int K) { return 2 * (K / 64) * kPanel; }
constexpr int qg_at(int K) { return decay_at(K) + kDecayBytes; }
constexpr int scores_at(int K) { return qg_at(K) + K / 64 * kPanel; }
constexpr int u_at(int K) { return scores_at(K) + kPanel; }
constexpr long long record_bytes(int K, int V) { return u_at(K) + V / 64 * kPanel; }

// Packed sequences: where each one's chunks and segments begin, [N+1] each.
struct OffsetsParams {
  const void* cu_seqlens;      // [N+1]
  long long* chunk_offsets;    // [N+1]
  long long* segment_offsets;  // [N+1]
  long long N, T;
  long long segment_chunks;
};
inline constexpr int kOffsetsThreads = 1024;

// Where the sequences lie. Strides in elements.
struct SequenceParams {
  const void* cu_seqlens;             // [N+1] when packed
  const long long* chunk_offsets;     // [N+1] when packed
  const long long* segment_offsets;   // [N+1] when packed and split
  long long N, T;                     // sequences; tokens of a batch row (packed: of all sequences)
  long long segment_chunks;           // chunks of a segment; serial: more than any sequence has
  long long chunk_capacity, segment_capacity;  // that the workspace has room for when packed
  // Serial, where records of all chunks are too many: this launch does chunks [slice_begin, slice_begin +
  // slice_chunks) of every sequence, whose records lie at [N, slice_chunks]. 0 chunks: all at once.
  long long slice_begin, slice_chunks;
};

struct PrepareParams {
  SequenceParams sequences;
  const void* q;        // [B,T,H,K]
  const void* k;        // [B,T,H,K]
  const void* v;        // [B,T,HV,V]
  const void* g;        // [B,T,HV,K]; scalar: [B,T,HV] f32
  const void* beta;     // [B,T,HV]
  const float* A_log;   // [HV] or null: 0
  const float* dt_bias; // [HV,K] or null: 0
  unsigned char* records;  // [chunks,HV]
  long long q_stride, k_stride, v_stride, g_stride, beta_stride;  // between tokens
  float scale, lower_bound;
  int H, HV;
};

struct ScanParams {
  SequenceParams sequences;
  const unsigned char* records;
  const void* h0;             // [h0_slots,HV,K,V] or [..,V,K]
  const void* h0_indices;     // [N]
  float* states;              // split: [segments,HV,V,K], where each segment starts; in slices: [N,HV,V,K], handed on
  float* summaries;           // [segments,HV,V+K,K]: b then M, transposed; of the pre-scan
  void* o;                    // [B,T,HV,V]
  void* ht;                   // [ht_slots,HV,K,V] or [..,V,K]
  const void* ht_indices;     // [N]
  const int* checkpoint_offsets;  // [N,Q]
  void* checkpoints;          // [N,Q,HV,K,V] or [..,V,K]
  unsigned* status;
  long long o_stride;
  long long h0_slot_stride, ht_slot_stride, h0_slots, ht_slots;
  int HV, Q;
};

struct MergeParams {
  SequenceParams sequences;
  const void* h0;
  const void* h0_indices;
  const float* summaries;     // [segments,HV,V+K,K]
  float* states;              // [segments,HV,V,K]
  long long h0_slot_stride, h0_slots;
  int HV;
};

// --- shared memory -------------------------------------------------------------------------------

// Two threads a key column pair and 16-token block: K*2.
constexpr int prepare_threads(int K) { return 2 * K; }
inline constexpr int kTokenBlocks = kChunkTokens / 16;
inline constexpr int kBlockPitch = 20;  // of a 16 x 16 block of f32
constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int prepare_smem_bytes(int K, int V, bool any_range) {
  const int parts = K / 64, direct = any_range ? parts * kTokenBlocks * 256 * 4 : 0;
  int bytes = parts * kPanel;                                   // k
  bytes += larger(parts, 2) * kPanel;                           // q, or the inverse and its remainder
  bytes += larger(parts * kPanel, 10 * 16 * kBlockPitch * 4);   // k the other way, or the blocks of A
  bytes += larger(V / 64 * kPanel, direct);                     // v
  bytes += 2 * kTokenBlocks * K * 4 + 10 * K * 2;               // gates of the token blocks
  return bytes + kChunkTokens * 4 * 4;                          // factors, beta, a scalar gate
}

// Bytes of a record that a block of the scan (or pre-scan) copies for one chunk.
constexpr int scan_stage_bytes(int K, int BV, bool prescan) {
  return (prescan ? qg_at(K) : u_at(K)) + (BV + 63) / 64 * kPanel;
}
constexpr int scan_smem_bytes(int K, int BV, int STAGES, bool prescan) {
  const int bytes = STAGES * scan_stage_bytes(K, BV, prescan) + (prescan ? 0 : BV / 16 * 2048) + 128;
  return (bytes + 1023) / 1024 * 1024;  // swizzled panels begin at multiples of 1024
}

// The merge streams M through slabs of kMergeRows rows.
inline constexpr int kMergeRows = 32, kMergeSlabs = 4, kMergeColumns = 4;
constexpr int merge_smem_bytes(int K) {
  return kMergeSlabs * kMergeRows * K * 4 + K * kMergeColumns * 4 * 2 + 128;
}

}  // namespace scanjit::kda_forward

#endif
