// Shared by host and device: what ABC's kernels are given, how their scratch is laid out, and how much
// shared memory they take. Compiled by g++, clang and NVRTC; includes nothing.
//
// A tile is 64 tokens (one chunk) by 64 columns. A segment is SEGMENT_CHUNKS chunks; the states exist
// at segment boundaries only. Logarithms are in base 2 (s * log2 e). Scratch keeps both states side by
// side as [M][D]: columns 0..K of Hk^T, then from column kp(K) on the V columns of Hv.
#ifndef SCANJIT_ABC_PARAMS_H
#define SCANJIT_ABC_PARAMS_H

namespace scanjit::abc {

// Raise by hand when code, speed or bits of the templates change.
inline constexpr int kKernelRevision = 1;

inline constexpr int kTile = 64;
inline constexpr int kThreads = 256;
inline constexpr int kTileBytes = kTile * kTile * 2;

// Absent tensors are null. Shapes of the tensors as in the definition; of scratch beside it.
struct AbcParams {
  const void *q, *k, *v, *s, *dout;
  const float *hk0, *hv0, *z0, *dhkt, *dhvt;
  void* o;
  float *hkt, *hvt, *zt;
  void *dq, *dk, *dv, *ds;
  float *dhk0, *dhv0, *dz0;
  float* chunk_lse;     // [BH][NT][M]     logsumexp of one chunk's s
  float* segment_lse;   // [BH][NS][M]     the same of a segment
  float* summaries;     // [BH][NS][M][D]  a segment's contribution to a state
  float* z_starts;      // [BH][NT+1][M]   z before each chunk, and after the last
  void* states;         // [BH][NS][M][D]  16-bit: Hk, Hv before each segment
  float* finals;        // [BH][M][D]      Hk, Hv after the last token
  void* weights_a;      // [BH][T][M8]     16-bit: a 2^(z after the chunk - z_t); a itself where s is steep
  void* weights_d;      // [BH][T][M8]     16-bit: likewise the derivative by the scores
  void* decayed_a;      // [BH][T][M8]     16-bit: both times 2^(z before the chunk - z_t)
  void* decayed_d;
  float* steep_z;       // [BH][T][M]      z_t of chunks in which s is steep
  float* dz;            // [BH][T][M]      likewise the direct derivative by z_t
  float* chunk_dz;      // [BH][NT][M]     a chunk's sum of dz_t 2^(z before it - z_t)
  float* dz_ends;       // [BH][NT][M]     sum over later tokens of dz_t 2^(z after the chunk - z_t)
  void* dstates;        // [BH][NS][M][D]  16-bit: derivatives by Hk, Hv after each segment
  float* first_dz;      // [BH][M]         derivative by z_0 through the initial states, without z0
  long long B, T, H;
  int K, M, V;
  float scale;          // K^-1/2
};

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int tiles(int width) { return ceil_div(width, kTile); }
constexpr int padded8(int width) { return ceil_div(width, 8) * 8; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

// Rows of one f32 value a slot.
inline constexpr int kSlotRows = 12;
// Room for what a TileStream is told.
inline constexpr int kRunBytes = 256;

constexpr int slot_tiles(int SLOT_STEPS) { return ceil_div(SLOT_STEPS, 4); }
// Tiles of one stage of the ring: a row operand, the states' slots, the segment's chunks; or these alone.
constexpr int stage_tiles(int SLOT_STEPS, int SEGMENT_CHUNKS, bool states) {
  return SEGMENT_CHUNKS + (states ? 1 + slot_tiles(SLOT_STEPS) : 0);
}
// Tiles, and rows and runs behind them.
constexpr int smem_bytes(int SLOT_STEPS, int tiles) { return tiles * kTileBytes + slot_tiles(SLOT_STEPS) * kTile * 4 * kSlotRows + kRunBytes; }
// s (then weights) of the segment's chunks, the ring.
constexpr int summary_smem_bytes(int SLOT_STEPS, int SEGMENT_CHUNKS, int STAGES) {
  return smem_bytes(SLOT_STEPS, SEGMENT_CHUNKS * slot_tiles(SLOT_STEPS) + STAGES * stage_tiles(SLOT_STEPS, SEGMENT_CHUNKS, false));
}
// Besides, the weights of the chunk as an operand, products of pairs, and s of the chunk where it is kept.
constexpr int chunk_smem_bytes(int SLOT_STEPS, int SEGMENT_CHUNKS, int STAGES, bool own_s) {
  return smem_bytes(SLOT_STEPS, (SEGMENT_CHUNKS + 1 + (own_s ? 1 : 0)) * slot_tiles(SLOT_STEPS) + 1 +
                                    STAGES * stage_tiles(SLOT_STEPS, SEGMENT_CHUNKS, true));
}
// Weights and tokens of a segment's chunks, STAGES segments.
constexpr int walk_stage_tiles(int SLOT_STEPS, int SEGMENT_CHUNKS) { return SEGMENT_CHUNKS * (slot_tiles(SLOT_STEPS) + 1); }
constexpr int walk_smem_bytes(int SLOT_STEPS, int SEGMENT_CHUNKS, int STAGES) {
  return smem_bytes(SLOT_STEPS, STAGES * walk_stage_tiles(SLOT_STEPS, SEGMENT_CHUNKS));
}
inline constexpr int kScanThreads = 256;

}  // namespace scanjit::abc

#endif
