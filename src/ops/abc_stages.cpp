#include "ops/abc_stages.hpp"

#include <algorithm>
#include <cmath>

#include "ops/constants.hpp"
#include "ops/problem_checks.hpp"

namespace scanjit::ops {
namespace {

namespace params = scanjit::abc;

constexpr std::int64_t kAlignment = 256;
// Two blocks of a chunk's kernel share the registers of a multiprocessor as long as a thread's share
// of the slots is small, and if sm_90's shared memory holds both. Else one block has them all.
constexpr int kStepsForTwoBlocks = 4;
constexpr int kSmemForTwoBlocks = (228 << 10) / 2 - 1024;
// Segments in the ring of the serial form.
constexpr int kWalkStages = 3;

// Groups of 16 slots, even: two halves of a block's warps share them.
int slot_steps(int M) { return 2 * params::ceil_div(M, 32); }

}  // namespace

AbcStages::AbcStages(const AbcDims& dims, const AbcForm& form)
    : dims_(dims),
      form_(form),
      heads_(dims.B * dims.H),
      chunks_(ceil_divide(dims.T, params::kTile)),
      segments_(ceil_divide(chunks_, form.segment_chunks)) {
  const std::int64_t M = dims.M, columns = params::padded8(dims.K) + params::padded8(dims.V);
  const std::int64_t per_chunk = heads_ * chunks_ * M * 4, per_segment = heads_ * segments_ * M;
  const std::int64_t weights = heads_ * dims.T * params::padded8(dims.M) * 2;
  const std::int64_t floats = heads_ * dims.T * M * 4;
  const auto place = [&](Region region, std::int64_t bytes, std::int64_t& end) {
    offset_[region] = end;
    end += ceil_divide(bytes, kAlignment) * kAlignment;
  };
  place(kZStarts, heads_ * (chunks_ + 1) * M * 4, saved_bytes_);
  place(kStates, per_segment * columns * 2, saved_bytes_);
  place(kFinals, heads_ * M * columns * 4, saved_bytes_);
  place(kChunkLse, per_chunk, forward_bytes_);
  place(kSegmentLse, per_segment * 4, forward_bytes_);
  place(kSummaries, form.serial ? 0 : per_segment * columns * 4, forward_bytes_);
  place(kSteepZ, floats, forward_bytes_);
  backward_bytes_ = forward_bytes_;
  for (const Region region : {kWeightsA, kWeightsD, kDecayedA, kDecayedD})
    place(region, weights, backward_bytes_);
  place(kDz, floats, backward_bytes_);
  place(kChunkDz, per_chunk, backward_bytes_);
  place(kDzEnds, per_chunk, backward_bytes_);
  place(kDStates, per_segment * columns * 2, backward_bytes_);
  place(kFirstDz, heads_ * M * 4, backward_bytes_);
}

jit::KernelSource AbcStages::kernel(const char* file, const char* entry, const char* traits,
                                    int stages) const {
  const int steps = slot_steps(dims_.M);
  jit::KernelSource source;
  source.template_file = file;
  source.entry = entry;
  source.traits = traits;
  source.params_type = "scanjit::abc::AbcParams";
  source.constants = {integer("DTYPE", static_cast<int>(dims_.dtype)),
                      integer("SLOT_STEPS", steps),
                      boolean("EXACT", dims_.M == 16 * steps),
                      integer("SEGMENT_CHUNKS", form_.segment_chunks),
                      integer("STAGES", stages),
                      boolean("ALIGNED", dims_.aligned)};
  source.threads = params::kThreads;
  return source;
}

jit::KernelSource AbcStages::chunk_kernel(const char* file, const char* entry, const char* traits,
                                          bool own_s) const {
  jit::KernelSource source = kernel(file, entry, traits, form_.stages);
  source.smem_bytes =
      params::chunk_smem_bytes(slot_steps(dims_.M), form_.segment_chunks, form_.stages, own_s);
  source.min_blocks = two_blocks(source.smem_bytes) ? 2 : 1;
  return source;
}

int AbcStages::smem_bytes(bool backward) const noexcept {
  const int steps = slot_steps(dims_.M), length = form_.segment_chunks;
  return std::max({params::chunk_smem_bytes(steps, length, form_.stages, backward),
                   params::summary_smem_bytes(steps, length, summary_stages()),
                   form_.serial ? params::walk_smem_bytes(steps, length, kWalkStages) : 0});
}

bool AbcStages::two_blocks(int smem_bytes) const noexcept {
  return slot_steps(dims_.M) <= kStepsForTwoBlocks && smem_bytes <= kSmemForTwoBlocks;
}

// Of the ring of the summaries, whose slabs are small: the deeper one is never slower (H200), as
// long as two blocks fit.
int AbcStages::summary_stages() const noexcept { return form_.segment_chunks > 2 ? 2 : 3; }

Stage AbcStages::summary(bool backward, int slabs) const {
  Stage stage;
  stage.source = kernel("abc/abc_summary.cu", "abc_summary", "AbcSummaryTraits", summary_stages());
  stage.source.constants.push_back(boolean("BACKWARD", backward));
  stage.source.constants.push_back(integer("SLABS", slabs));
  stage.source.smem_bytes =
      params::summary_smem_bytes(slot_steps(dims_.M), form_.segment_chunks, summary_stages());
  stage.source.min_blocks = two_blocks(stage.source.smem_bytes) ? 2 : 1;
  const int all = params::tiles(dims_.K) + params::tiles(dims_.V);
  stage.grid = heads_ * segments_ * (slabs == 0 ? 1 : params::ceil_div(all, slabs));
  return stage;
}

Stage AbcStages::scan(bool backward, bool states) const {
  Stage stage;
  stage.source =
      kernel("abc/abc_scan.cu", backward ? "abc_scan_back" : "abc_scan", "AbcScanTraits", 0);
  stage.source.constants = {integer("DTYPE", static_cast<int>(dims_.dtype)),
                            integer("SEGMENT_CHUNKS", form_.segment_chunks),
                            boolean("STATES", states)};
  stage.source.threads = params::kScanThreads;
  stage.grid = heads_ * dims_.M;
  return stage;
}

Stage AbcStages::walk(bool backward) const {
  Stage stage;
  stage.source = kernel("abc/abc_walk.cu", "abc_walk", "AbcWalkTraits", kWalkStages);
  stage.source.constants.push_back(boolean("BACKWARD", backward));
  stage.source.smem_bytes =
      params::walk_smem_bytes(slot_steps(dims_.M), form_.segment_chunks, kWalkStages);
  stage.grid = heads_ * (params::tiles(dims_.K) + params::tiles(dims_.V));
  return stage;
}

void AbcStages::add_states(bool backward, std::vector<Stage>& list) const {
  if (chunks_ == 0) {
    list.push_back(scan(backward, true));
  } else if (!form_.serial) {
    list.push_back(summary(backward, form_.slabs));
    list.push_back(scan(backward, true));
  } else if (!backward) {
    list.push_back(summary(false, 0));
    list.push_back(scan(false, false));
    list.push_back(walk(false));
  } else {
    list.push_back(walk(true));
    list.push_back(scan(true, false));
  }
}

std::vector<Stage> AbcStages::states() const {
  std::vector<Stage> list;
  if (heads_ > 0) add_states(false, list);
  return list;
}

std::vector<Stage> AbcStages::forward() const {
  if (heads_ * chunks_ == 0) return {};
  Stage stage;
  stage.source = chunk_kernel("abc/abc_forward.cu", "abc_forward", "AbcForwardTraits", false);
  stage.grid = heads_ * chunks_;
  return {stage};
}

std::vector<Stage> AbcStages::backward() const {
  std::vector<Stage> list;
  if (heads_ == 0) return list;
  const auto chunk_stage = [&](const char* entry, const char* traits, bool own_s) {
    Stage stage;
    stage.source = chunk_kernel("abc/abc_backward.cu", entry, traits, own_s);
    stage.grid = heads_ * chunks_;
    return stage;
  };
  if (chunks_ > 0) list.push_back(chunk_stage("abc_backward_rows", "AbcBackwardRowsTraits", false));
  add_states(true, list);
  if (chunks_ > 0) list.push_back(chunk_stage("abc_backward_keys", "AbcBackwardKeysTraits", true));
  return list;
}

params::AbcParams AbcStages::params(void* saved, void* workspace) const noexcept {
  params::AbcParams p{};
  const auto at = [&](Region region) {
    auto* base = static_cast<unsigned char*>(region < kChunkLse ? saved : workspace);
    return base == nullptr ? nullptr : base + offset_[region];
  };
  const auto floats = [&](Region region) { return reinterpret_cast<float*>(at(region)); };
  p.z_starts = floats(kZStarts);
  p.states = at(kStates);
  p.finals = floats(kFinals);
  p.chunk_lse = floats(kChunkLse);
  p.segment_lse = floats(kSegmentLse);
  p.summaries = floats(kSummaries);
  p.steep_z = floats(kSteepZ);
  p.weights_a = at(kWeightsA);
  p.weights_d = at(kWeightsD);
  p.decayed_a = at(kDecayedA);
  p.decayed_d = at(kDecayedD);
  p.dz = floats(kDz);
  p.chunk_dz = floats(kChunkDz);
  p.dz_ends = floats(kDzEnds);
  p.dstates = at(kDStates);
  p.first_dz = floats(kFirstDz);
  p.B = dims_.B;
  p.T = dims_.T;
  p.H = dims_.H;
  p.K = dims_.K;
  p.M = dims_.M;
  p.V = dims_.V;
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dims_.K)));
  return p;
}

}  // namespace scanjit::ops
