#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "gated_delta_h/gated_delta_h_params.h"
#include "ops_samples.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::test;

TEST_CASE("an H200 has at least 16 legal configs at K = V = 128, and at most 32 are timed",
          "[ops]") {
  for (const auto& problem :
       {layer(1, 16), layer(16, 1024), layer(64, 61440), packed_layer(32, 8192)}) {
    const auto list = ops::candidates(*made(problem), h200());
    REQUIRE(list.ok());
    CHECK(list->size() >= 16);
    CHECK(list->size() <= tuning::kMaxCandidates);
    CHECK(std::set<Config>(list->begin(), list->end()).size() == list->size());
    for (const Config& config : *list) CHECK(made(problem)->legal(config, h200()).ok());
    // Every parameter varies.
    std::set<int> bv, bk, stages, warps;
    for (const Config& config : *list)
      bv.insert(config.bv), bk.insert(config.bk), stages.insert(config.stages),
          warps.insert(config.warps);
    CHECK(std::min({bv.size(), bk.size(), stages.size(), warps.size()}) >= 2);
  }
}

TEST_CASE("a legal config keeps within the device and the template's rules", "[ops]") {
  namespace params = scanjit::gated_delta_h;
  tuning::GpuFacts small = h200_facts();
  small.compute_major = 12;
  small.smem_optin_bytes = 101376;
  for (const ops::DeviceLimits& limits : {h200(), ops::limits_of(small)}) {
    for (const std::int64_t K : {1, 16, 40, 64, 96, 128, 200, 256}) {
      for (const std::int64_t V : {1, 16, 24, 64, 128, 200, 512}) {
        for (const std::int64_t BT : {16, 32, 64}) {
          GatedDeltaHProblem problem = layer(4, 1024);
          problem.K = K;
          problem.V = V;
          problem.BT = BT;
          problem.has_gk = K % 3 == 0;
          const auto op = made(problem);
          REQUIRE(op != nullptr);
          int legal = 0;
          for (const Config& config : op->space().all()) {
            const Status status = op->legal(config, limits);
            if (!status.ok()) {
              CHECK(status.code() == ErrorCode::kUnsupported);
              CHECK(status.message().find(to_string(config)) != std::string::npos);
              continue;
            }
            ++legal;
            const ops::Stage scan = op->stages(config, limits).back();
            const int groups = config.bv / 16, split = config.warps / groups;
            if (scan.source.entry == "warpgroup_scan") {
              CHECK(limits.compute_major == 9);
              CHECK(config.warps == groups + 4);
              CHECK(config.stages * config.bk >= 2 * K);
              CHECK(BT == 64);
            } else {
              CHECK(config.warps == split * groups);
              CHECK(config.bk / 8 % (2 * split) == 0);
              CHECK(BT / 8 % split == 0);
            }
            CHECK(scan.source.smem_bytes <= limits.smem_optin_bytes);
            CHECK(scan.source.threads == config.warps * 32);
            const double score = op->score(config, limits);
            CHECK((score > 0 && score < 1e9));
          }
          INFO("K " << K << " V " << V << " BT " << BT);
          CHECK(legal > 0);
          const auto heuristic = op->heuristic(limits);
          REQUIRE(heuristic.ok());
          CHECK(op->legal(*heuristic, limits).ok());
        }
      }
    }
  }
}

TEST_CASE("configs that were seen to spill are illegal, and every kind of problem keeps some",
          "[ops]") {
  GatedDeltaHProblem p = layer(1, 1024);
  const auto is_legal = [&](const Config& config) { return made(p)->legal(config, h200()).ok(); };
  // 512 threads, where a block has 128 registers a thread.
  p.V = 200;
  p.BT = 32;
  p.has_gk = true;
  CHECK_FALSE(is_legal({128, 32, 6, 16}));
  p.K = 200;
  CHECK_FALSE(is_legal({64, 64, 2, 16}));
  p.V = 64;
  p.BT = 64;
  p.has_gk = false;
  CHECK_FALSE(is_legal({64, 64, 2, 16}));
  // Rows of any alignment and a state of 64 registers a thread.
  p.aligned16 = false;
  p.K = 256;
  CHECK_FALSE(is_legal({16, 64, 6, 2}));
  p.K = 128;
  CHECK_FALSE(is_legal({16, 64, 4, 1}));

  for (const std::int64_t K : {16, 40, 64, 96, 128, 200, 256}) {
    for (const std::int64_t BT : {16, 32, 64}) {
      for (const bool aligned : {true, false}) {
        p.K = K;
        p.BT = BT;
        p.aligned16 = aligned;
        p.has_gk = true;
        INFO("K " << K << " BT " << BT << " aligned " << aligned);
        CHECK(made(p)->heuristic(h200()).ok());
      }
    }
  }
}

TEST_CASE("configs outside the space are illegal, whatever their values", "[ops]") {
  const auto op = made(layer(4, 1024));
  for (const Config& config :
       {Config{0, 0, 0, 0}, Config{48, 64, 2, 3}, Config{64, 16, 2, 4}, Config{64, 64, 5, 4},
        Config{-64, 64, 2, 4}, Config{64, 64, 2, 32}}) {
    CHECK_FALSE(op->legal(config, h200()).ok());
  }
}

TEST_CASE("a device without room has no config", "[ops]") {
  ops::DeviceLimits tiny = h200();
  tiny.smem_optin_bytes = 1024;
  const auto op = made(layer(4, 1024));
  CHECK(op->heuristic(tiny).status().code() == ErrorCode::kUnsupported);
  CHECK(ops::candidates(*op, tiny).status().code() == ErrorCode::kUnsupported);
}

TEST_CASE("the heuristic is narrow where blocks are few and wider where they are many", "[ops]") {
  ops::DeviceLimits older = h200();
  older.compute_major = 8;
  for (const std::int64_t HV : {2, 4, 8, 16, 32, 48}) {
    for (const std::int64_t N : {1, 2, 4, 8, 16, 32}) {
      GatedDeltaHProblem problem = layer(N, 4096);
      problem.H = 2;
      problem.HV = HV;
      const auto config = made(problem)->heuristic(older);
      REQUIRE(config.ok());
      INFO("N " << N << " HV " << HV << ": " << to_string(*config));
      if (N * HV * 128 / 32 <= 132)
        CHECK(config->bv <= 32);
      else
        CHECK(config->bv >= 64);
      // By warpgroups 64 columns take no longer than 16.
      const auto hopper = made(problem)->heuristic(h200());
      REQUIRE(hopper.ok());
      INFO("Hopper: " << to_string(*hopper));
      CHECK(hopper->bv == (N * HV <= 132 ? 64 : 128));
    }
  }
}

TEST_CASE("tensor maps cover the tensors that the copies read and write", "[ops]") {
  GatedDeltaHProblem problem = layer(4, 1000);
  problem.V = 200;
  problem.layout = StateLayout::kVK;
  problem.w_stride = 32 * 128 + 64;
  const auto op = made(problem);
  const Config config{64, 64, 4, 8};
  REQUIRE(op->legal(config, h200()).ok());
  const ops::Stage scan = op->stages(config, h200()).back();
  REQUIRE(scan.maps.size() == 5);
  const auto map_of = [&](std::size_t tensor) {
    for (const ops::TensorMap& map : scan.maps) {
      if (map.tensor == tensor) return map;
    }
    return ops::TensorMap{};
  };
  using Op = ops::GatedDeltaH;
  const std::uint64_t rows = 4 * 1000;
  const ops::TensorMap w = map_of(Op::kW), u = map_of(Op::kU), h = map_of(Op::kH);
  CHECK(w.extents == std::array<std::uint64_t, 5>{64, rows, 2, 32});
  CHECK(w.strides == std::array<std::uint64_t, 4>{(32 * 128 + 64) * 2, 128, 256});
  CHECK(w.box == std::array<std::uint32_t, 5>{64, 64, 1, 1});
  CHECK(u.extents == std::array<std::uint64_t, 5>{200, rows, 32});
  CHECK(h.extents == std::array<std::uint64_t, 5>{128, 200, 32, 4 * 16});
  CHECK(h.strides == std::array<std::uint64_t, 4>{256, 200 * 256, 32 * 200 * 256});
  // Strides that no map can hold are left to the general form.
  GatedDeltaHProblem far = layer(1, 64);
  far.k_stride = std::int64_t{1} << 39;
  CHECK(made(far)->stages(config, h200()).back().maps.empty());
  CHECK(made(far)->stages(*made(far)->heuristic(h200()), h200()).back().maps.empty());
  // Every map lies in the parameters, 64-byte aligned, and none on another.
  std::set<std::size_t> places;
  for (const ops::TensorMap& map : scan.maps) {
    CHECK(map.offset % 64 == 0);
    CHECK(map.offset + 128 <= sizeof(ops::StageParams));
    CHECK(places.insert(map.offset).second);
  }
}

TEST_CASE("dense sequences of one chunk share out among the blocks that run at once", "[ops]") {
  const Config narrow{64, 64, 4, 8}, wide{128, 128, 2, 12}, deep{64, 64, 6, 8},
      general{64, 64, 2, 4};
  const auto grid = [](const GatedDeltaHProblem& problem, const Config& config) {
    const auto op = made(problem);
    REQUIRE(op->legal(config, h200()).ok());
    return op->stages(config, h200()).back().grid;
  };
  CHECK(grid(layer(1, 64), narrow) == 64);
  CHECK(grid(layer(16, 64), narrow) == 2 * 132);
  CHECK(grid(layer(16, 64), deep) == 132);
  CHECK(grid(layer(16, 64), wide) == 132);
  CHECK(grid(layer(16, 65), wide) == 16 * 32);
  CHECK(grid(layer(16, 64), general) == 16 * 32 * 2);
  CHECK(grid(packed_layer(16, 16), wide) == 16 * 32);
}

TEST_CASE("the prefix stage runs for many packed sequences with h and no offsets given", "[ops]") {
  const Config config{64, 64, 2, 4};
  CHECK(made(packed_layer(64, 8192))->stages(config, h200()).size() == 1);
  const auto many = made(packed_layer(65, 8192));
  const auto stages = many->stages(config, h200());
  REQUIRE(stages.size() == 2);
  CHECK(stages[0].source.entry == "chunk_offsets");
  CHECK(stages[0].grid == 1);
  CHECK(stages[0].source.threads == 1024);
  CHECK(stages[1].grid == 65 * 32 * 2);
  CHECK(many->kernels(config, h200()).size() == 2);
  CHECK(made(packed_layer(64, 8192))->kernels(config, h200()) == many->kernels(config, h200()));
  GatedDeltaHProblem problem = packed_layer(65, 8192);
  problem.has_chunk_offsets = true;
  CHECK(made(problem)->stages(config, h200()).size() == 1);
  CHECK(made(packed_layer(100'000, 1 << 20))->stages(config, h200()).back().grid ==
        100'000 * 32 * 2);
}

TEST_CASE("parameters are what the kernel reads", "[ops]") {
  namespace params = scanjit::gated_delta_h;
  GatedDeltaHProblem problem = packed_layer(65, 8192);
  problem.k_stride = 5000;
  problem.has_h0_indices = true;
  problem.h0_slots = 7;
  const auto op = made(problem);
  const GatedDeltaHArgs args = far_apart(problem);
  const Workspace workspace = workspace_of(1024);
  const ops::Addresses addresses = ops::GatedDeltaH::addresses(args, workspace);
  ops::StageParams bytes;
  const std::vector<ops::Stage> stages = op->stages({32, 64, 2, 4}, h200());
  REQUIRE(stages.size() == 2);
  op->fill_params(stages[0].note, addresses, bytes);
  params::OffsetsParams offsets;
  std::memcpy(&offsets, bytes.bytes.data(), sizeof(offsets));
  CHECK(offsets.cu_seqlens == args.cu_seqlens);
  CHECK(offsets.chunk_offsets == workspace.data);
  CHECK(offsets.N == 65);
  CHECK(offsets.T == 8192);
  op->fill_params(stages[1].note, addresses, bytes);
  params::ScanParams scan;
  std::memcpy(&scan, bytes.bytes.data(), sizeof(scan));
  CHECK(scan.k == args.k);
  CHECK(scan.w == args.w);
  CHECK(scan.u == args.u);
  CHECK(scan.g == args.g);
  CHECK(scan.gk == nullptr);
  CHECK(scan.h0 == args.h0);
  CHECK(scan.h0_indices == args.h0_indices);
  CHECK(scan.cu_seqlens == args.cu_seqlens);
  CHECK(scan.chunk_offsets == workspace.data);
  CHECK(scan.h == args.h);
  CHECK(scan.v_new == args.v_new);
  CHECK(scan.ht == args.ht);
  CHECK(scan.status == nullptr);
  CHECK(scan.N == 65);
  CHECK(scan.T == 8192);
  CHECK(scan.chunk_capacity == (8192 + 65 * 63) / 64);
  CHECK(scan.k_stride == 5000);
  CHECK(scan.w_stride == 4096);
  CHECK(scan.g_stride == 32);
  CHECK(scan.h0_slots == 7);
  CHECK(scan.ht_slots == 65);
  CHECK(scan.h0_slot_stride == 32 * 128 * 128);
  CHECK(scan.H == 16);
  CHECK(scan.HV == 32);
}
