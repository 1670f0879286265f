// ABC's kernels as stages: which run, how many blocks, how much scratch.
#include "ops/abc_stages.hpp"

#include <set>

#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::ops;

namespace {

// The default layer at 8192 tokens.
AbcDims layer() { return {DType::kBf16, 1, 8192, 4, 256, 64, 512, true}; }

std::vector<std::string> entries(const std::vector<Stage>& stages) {
  std::vector<std::string> out;
  for (const Stage& stage : stages) out.push_back(stage.source.entry);
  return out;
}

std::int64_t constant(const Stage& stage, const std::string& name) {
  for (const jit::Constant& constant : stage.source.constants)
    if (constant.name == name) return constant.value;
  FAIL("there is no constant " << name);
  return 0;
}

}  // namespace

TEST_CASE("ABC's stages come in the order of their data, with a block for each piece", "[ops]") {
  const AbcStages stages(layer(), {2, 2, 4});
  const auto states = stages.states(), forward = stages.forward(), backward = stages.backward();
  CHECK(entries(states) == std::vector<std::string>{"abc_summary", "abc_scan"});
  CHECK(entries(forward) == std::vector<std::string>{"abc_forward"});
  CHECK(entries(backward) == std::vector<std::string>{"abc_backward_rows", "abc_summary",
                                                      "abc_scan_back", "abc_backward_keys"});
  CHECK(states[0].grid == 4 * 64 * 3);  // heads, segments, groups of 4 of the 12 slabs
  CHECK(states[1].grid == 4 * 64);      // heads, slots
  CHECK(forward[0].grid == 4 * 128);    // heads, chunks
  CHECK(backward[3].grid == 4 * 128);
  CHECK(constant(states[0], "BACKWARD") == 0);
  CHECK(constant(backward[1], "BACKWARD") == 1);
}

TEST_CASE("ABC's serial form has a block for every slab, and no summaries", "[ops]") {
  const AbcStages stages(layer(), {2, 2, 1, true}), parallel(layer(), {2, 2, 4});
  const auto states = stages.states(), backward = stages.backward();
  CHECK(entries(states) == std::vector<std::string>{"abc_summary", "abc_scan", "abc_walk"});
  CHECK(entries(backward) == std::vector<std::string>{"abc_backward_rows", "abc_walk",
                                                      "abc_scan_back", "abc_backward_keys"});
  CHECK(constant(states[0], "SLABS") == 0);
  CHECK(states[0].grid == 4 * 64);
  CHECK(constant(states[1], "STATES") == 0);
  CHECK(constant(parallel.states()[1], "STATES") == 1);
  CHECK(states[2].grid == 4 * 12);
  CHECK(constant(states[2], "BACKWARD") == 0);
  CHECK(constant(backward[1], "BACKWARD") == 1);
  CHECK(backward.back().source == parallel.backward().back().source);
  // One f32 summary of both states less.
  CHECK(stages.forward_bytes() == parallel.forward_bytes() - std::int64_t{4} * 64 * 64 * 768 * 4);
  CHECK(stages.saved_bytes() == parallel.saved_bytes());
}

TEST_CASE("ABC of no tokens only passes states on, of no heads does nothing", "[ops]") {
  AbcDims dims = layer();
  dims.T = 0;
  const AbcStages empty(dims, {2, 2, 4});
  CHECK(entries(empty.states()) == std::vector<std::string>{"abc_scan"});
  CHECK(empty.forward().empty());
  CHECK(entries(empty.backward()) == std::vector<std::string>{"abc_scan_back"});
  CHECK(AbcStages(dims, {2, 2, 1, true}).states() == empty.states());
  dims.B = 0;
  const AbcStages none(dims, {2, 2, 4});
  CHECK(none.states().empty());
  CHECK(none.backward().empty());
  CHECK(none.backward_bytes() == 0);
}

TEST_CASE("ABC's kernels are made for the slots that there are", "[ops]") {
  for (const auto& [M, steps, exact] : {std::tuple{1, 2, 0},
                                        {32, 2, 1},
                                        {33, 4, 0},
                                        {64, 4, 1},
                                        {96, 6, 1},
                                        {100, 8, 0},
                                        {128, 8, 1}}) {
    AbcDims dims = layer();
    dims.M = M;
    const Stage stage = AbcStages(dims, {1, 2, 4}).forward()[0];
    INFO("M " << M);
    CHECK(constant(stage, "SLOT_STEPS") == steps);
    CHECK(constant(stage, "EXACT") == exact);
  }
}

TEST_CASE("ABC's scratch holds every region once, aligned", "[ops]") {
  const AbcStages stages(layer(), {2, 2, 4});
  unsigned char* saved = nullptr;
  saved += std::int64_t{1} << 40;
  unsigned char* workspace = saved + stages.saved_bytes();
  const abc::AbcParams p = stages.params(saved, workspace);
  const std::int64_t rows = 4 * 8192, states = 4 * 64 * 64 * 768;
  std::set<std::pair<const unsigned char*, std::int64_t>> regions;
  const auto add = [&](const void* at, std::int64_t bytes) {
    regions.insert({static_cast<const unsigned char*>(at), bytes});
    CHECK(reinterpret_cast<std::uintptr_t>(at) % 256 == 0);
  };
  add(p.z_starts, 4 * 129 * 64 * 4);
  add(p.states, states * 2);
  add(p.finals, 4 * 64 * 768 * 4);
  add(p.chunk_lse, 4 * 128 * 64 * 4);
  add(p.segment_lse, 4 * 64 * 64 * 4);
  add(p.summaries, states * 4);
  add(p.steep_z, rows * 64 * 4);
  for (const void* weights : {p.weights_a, p.weights_d, p.decayed_a, p.decayed_d})
    add(weights, rows * 64 * 2);
  add(p.dz, rows * 64 * 4);
  add(p.chunk_dz, 4 * 128 * 64 * 4);
  add(p.dz_ends, 4 * 128 * 64 * 4);
  add(p.dstates, states * 2);
  add(p.first_dz, 4 * 64 * 4);
  CHECK(regions.size() == 16);
  const unsigned char* end = saved;
  for (const auto& [at, bytes] : regions) {
    CHECK(at >= end);
    end = at + bytes;
  }
  CHECK(end <= workspace + stages.backward_bytes());
  // One f32 summary of both states dominates: 50 MB with two chunks a segment.
  CHECK(stages.forward_bytes() > states * 4);
  CHECK(stages.forward_bytes() < states * 4 + rows * 64 * 4 + (1 << 20));
}
