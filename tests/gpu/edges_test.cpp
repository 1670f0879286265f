// The edges: lengths and indices that lie, many and empty sequences, captured launches, bad
// arguments.

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gpu/case.hpp"
#include "gpu/run.hpp"

namespace scanjit::test {
namespace {

GatedDeltaHProblem packed_problem(std::int64_t sequences, std::int64_t tokens) {
  GatedDeltaHProblem p;
  p.packed = true;
  p.sequences = sequences;
  p.T = tokens;
  p.H = 1;
  p.HV = 2;
  p.K = 64;
  p.V = 64;
  p.has_g = p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
  return p;
}

reference::GatedDeltaHInputs inputs_of(const GatedDeltaHProblem& p,
                                       const std::vector<std::int64_t>& lengths,
                                       std::uint64_t seed = 31) {
  reference::GeneratorOptions generator;
  generator.lengths = lengths;
  generator.seed = seed;
  return must(reference::generate(p, generator));
}

/// Runs with guard bytes and with unmapped pages on both sides; all must agree with the oracle,
/// whose status word must be `status`.
void check_run(Gpu& gpu, const std::string& what, const reference::GatedDeltaHInputs& inputs,
               std::uint32_t status, const RunOptions& base = {}) {
  const Oracles oracles = must(oracles_of(inputs, 0));
  INFO(what);
  CHECK(oracles.pure.status == status);
  for (const Guard guard : {Guard::kBytes, Guard::kPageBehind, Guard::kPageBefore}) {
    RunOptions options = base;
    options.inputs = options.outputs = guard;
    const RunResult result = must(run(gpu, inputs, options));
    const std::string wrong_with = wrong(inputs, reference::GateSet::kStrong, result, oracles);
    INFO("guard " << static_cast<int>(guard) << ": " << wrong_with);
    CHECK(wrong_with.empty());
  }
}

}  // namespace

TEST_CASE("Lengths and indices that lie on the device stay inside the tensors",
          "[gpu][device_lengths]") {
  SCANJIT_TEST_GPU(gpu);
  constexpr std::int64_t kMost32 = std::numeric_limits<std::int32_t>::max(),
                         kMost64 = std::numeric_limits<std::int64_t>::max() / 2;
  SECTION("lengths") {
    // Few sequences add their chunks up in the kernel, many in a stage of their own.
    for (const std::int64_t count : {5, 100}) {
      std::vector<std::int64_t> lengths;
      std::int64_t tokens = 0;
      for (std::int64_t n = 0; n < count; ++n) {
        lengths.push_back(count == 5 ? 70 + n : n % 4 == 3 ? 65 : n % 3);
        tokens += lengths.back();
      }
      for (const IndexType type : {IndexType::kInt32, IndexType::kInt64}) {
        GatedDeltaHProblem p = packed_problem(count, tokens);
        p.cu_seqlens_type = type;
        const std::int64_t most = type == IndexType::kInt32 ? kMost32 : kMost64;
        const reference::GatedDeltaHInputs good = inputs_of(p, lengths);
        check_run(gpu, "good lengths", good, 0);
        // One wrong entry makes the sequences on both sides of it bad.
        for (const std::int64_t entry : {std::int64_t{0}, std::int64_t{2}, count / 2 + 1, count}) {
          for (const std::int64_t value : {std::int64_t{-1}, -most, tokens + 1, most}) {
            reference::GatedDeltaHInputs bad = good;
            bad.cu_seqlens[static_cast<std::size_t>(entry)] = value;
            check_run(gpu,
                      "entry " + std::to_string(entry) + " of " + std::to_string(count) + " is " +
                          std::to_string(value),
                      bad, 1);
          }
        }
        // Every length wrong: nothing is written at all.
        reference::GatedDeltaHInputs all_bad = good;
        for (std::size_t n = 0; n < all_bad.cu_seqlens.size(); ++n)
          all_bad.cu_seqlens[n] = n % 2 == 0 ? most : -most;
        check_run(gpu, "all lengths wrong", all_bad, 1);
      }
    }
  }

  SECTION("slots") {
    const std::vector<std::int64_t> lengths = {65, 64, 3, 130};
    for (const IndexType type : {IndexType::kInt32, IndexType::kInt64}) {
      GatedDeltaHProblem p = packed_problem(4, 262);
      p.has_h0_indices = p.has_ht_indices = true;
      p.h0_slots = 3;
      p.ht_slots = 5;
      p.index_type = type;
      const std::int64_t most = type == IndexType::kInt32 ? kMost32 : kMost64;
      reference::GatedDeltaHInputs inputs = inputs_of(p, lengths);
      const auto check = [&](const std::vector<std::int64_t>& h0,
                             const std::vector<std::int64_t>& ht, std::uint32_t status) {
        inputs.h0_indices = h0;
        inputs.ht_indices = ht;
        check_run(gpu, "slots", inputs, status);
      };
      check({0, 1, 2, -1}, {0, 1, -1, 4}, 0);
      check({0, 3, -2, 2}, {0, 1, 2, 3}, 2);
      check({0, 0, 0, 0}, {0, 5, -2, 3}, 4);
      check({most, -most, 1, 2}, {-most, 2, most, 0}, 6);
    }
  }

  SECTION("chunks that do not fit") {
    // The host's lengths need 3 chunks, the device's 5; and offsets that lie.
    GatedDeltaHProblem p = packed_problem(3, 64 + 64 + 130);
    p.chunk_capacity = 3;
    const reference::GatedDeltaHInputs inputs = inputs_of(p, {64, 64, 130});
    RunOptions options;
    options.host_cu_seqlens = {0, 64, 128, 129};
    check_run(gpu, "the device's lengths are longer than the host's", inputs, 1, options);

    p.chunk_capacity = 0;
    p.has_chunk_offsets = true;
    reference::GatedDeltaHInputs offsets = inputs_of(p, {64, 64, 130});
    check_run(gpu, "good offsets", offsets, 0);
    for (const std::int64_t value : {std::int64_t{-1}, std::int64_t{6}, kMost64, -kMost64}) {
      offsets.chunk_offsets[1] = value;
      check_run(gpu, "chunk offset " + std::to_string(value), offsets, 1);
    }
  }
}

TEST_CASE("A hundred thousand sequences launch", "[gpu][many_sequences]") {
  SCANJIT_TEST_GPU(gpu);
  constexpr std::int64_t kMany = 100'000;
  std::vector<std::int64_t> lengths;
  std::int64_t tokens = 0;
  for (std::int64_t n = 0; n < kMany; ++n) {
    lengths.push_back(n % 4);
    tokens += lengths.back();
  }
  GatedDeltaHProblem p = packed_problem(kMany, tokens);
  p.HV = 1;
  p.K = p.V = p.BT = 16;
  const reference::GatedDeltaHInputs packed = inputs_of(p, lengths);
  const RunResult result = must(run(gpu, packed, {}));
  const std::string what =
      wrong(packed, reference::GateSet::kStrong, result, must(oracles_of(packed, 0)));
  INFO(what);
  CHECK(what.empty());

  GatedDeltaHProblem dense = p;
  dense.packed = false;
  dense.sequences = 0;
  dense.B = kMany;
  dense.T = 1;
  const reference::GatedDeltaHInputs rows = inputs_of(dense, {});
  const std::string dense_what =
      wrong(rows, reference::GateSet::kStrong, must(run(gpu, rows, {})), must(oracles_of(rows, 0)));
  INFO(dense_what);
  CHECK(dense_what.empty());
}

TEST_CASE("Empty sequences copy their state, and nothing is nothing", "[gpu][empty]") {
  SCANJIT_TEST_GPU(gpu);
  SECTION("some empty") {
    check_run(gpu, "some empty", inputs_of(packed_problem(5, 66), {0, 65, 0, 0, 1}), 0);
  }
  SECTION("all empty") {
    check_run(gpu, "all empty", inputs_of(packed_problem(3, 0), {0, 0, 0}), 0);
  }
  SECTION("all empty, without h0") {
    GatedDeltaHProblem p = packed_problem(3, 0);
    p.has_h0 = false;
    check_run(gpu, "all empty, without h0", inputs_of(p, {0, 0, 0}), 0);
  }
  SECTION("dense, T = 0") {
    GatedDeltaHProblem p = packed_problem(0, 0);
    p.packed = false;
    p.B = 3;
    check_run(gpu, "dense, T = 0", inputs_of(p, {}), 0);
  }
  SECTION("N = 0") {
    check_run(gpu, "packed", inputs_of(packed_problem(0, 0), {}), 0);
    GatedDeltaHProblem p = packed_problem(0, 0);
    p.packed = false;
    p.B = 0;
    p.T = 100;
    check_run(gpu, "dense", inputs_of(p, {}), 0);
  }
}

TEST_CASE("A captured launch follows the lengths and slots on the device", "[gpu][captured]") {
  SCANJIT_TEST_GPU(gpu);
  for (const std::int64_t count :
       {std::int64_t{3}, std::int64_t{70}}) {  // without and with the offsets stage
    std::vector<std::int64_t> first(static_cast<std::size_t>(count), 1), second = first;
    first[0] = second[1] = 200;
    const std::int64_t tokens = count - 1 + 200;
    GatedDeltaHProblem p = packed_problem(count, tokens);
    p.has_h0_indices = true;
    p.h0_slots = 4;
    const reference::GatedDeltaHInputs a = inputs_of(p, first, 31);
    const reference::GatedDeltaHInputs b = inputs_of(p, second, 32);
    REQUIRE(a.h0_indices != b.h0_indices);
    const RunOptions options;
    DeviceTensors tensors = must(DeviceTensors::make(gpu, a, options));
    const Plan plan = must(plan_for(gpu, p, std::nullopt));
    GuardedBuffer memory =
        must(GuardedBuffer::make(gpu, plan.workspace_bytes() + 512, Guard::kBytes));
    Workspace workspace;
    if (plan.workspace_bytes() > 0) {
      workspace.data = reinterpret_cast<void*>(
          (static_cast<std::uintptr_t>(memory.address()) + 255) / 256 * 256);
      workspace.bytes = plan.workspace_bytes();
    }
    const cuda::DriverApi& api = gpu.api();
    cuda::CUgraph graph = nullptr;
    cuda::CUgraphExec exec = nullptr;
    must(cuda::check(api,
                     api.cuStreamBeginCapture(gpu.stream(), cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
                     "cuStreamBeginCapture"));
    const Status launched = plan.launch(tensors.args(), workspace, gpu.stream());
    must(cuda::check(api, api.cuStreamEndCapture(gpu.stream(), &graph), "cuStreamEndCapture"));
    must(launched);
    must(cuda::check(api, api.cuGraphInstantiateWithFlags(&exec, graph, 0),
                     "cuGraphInstantiateWithFlags"));
    for (const reference::GatedDeltaHInputs* inputs : {&a, &b, &a}) {
      must(tensors.k.upload(inputs->k));
      must(tensors.w.upload(inputs->w));
      must(tensors.u.upload(inputs->u));
      must(tensors.g.upload(inputs->g));
      must(tensors.h0.upload(inputs->h0));
      must(tensors.cu_seqlens.upload(inputs->cu_seqlens));
      must(tensors.h0_indices.upload(inputs->h0_indices));
      must(tensors.poison_outputs());
      RunResult result;
      result.h_before = must(tensors.h.download_as<std::uint16_t>());
      result.v_new_before = must(tensors.v_new.download_as<std::uint16_t>());
      result.ht_before = must(tensors.ht.download_as<float>());
      must(memory.fill(0xFF));
      must(cuda::check(api, api.cuGraphLaunch(exec, gpu.stream()), "cuGraphLaunch"));
      must(gpu.synchronize());
      result.h = must(tensors.h.download_as<std::uint16_t>());
      result.v_new = must(tensors.v_new.download_as<std::uint16_t>());
      result.ht = must(tensors.ht.download_as<float>());
      must(tensors.status.download(&result.status, 4));
      const std::string what =
          wrong(*inputs, reference::GateSet::kStrong, result, must(oracles_of(*inputs, 0)));
      INFO("replay with " << (inputs == &b ? "the second" : "the first") << " lengths of " << count
                          << " sequences: " << what);
      CHECK(what.empty());
    }
    api.cuGraphExecDestroy(exec);
    api.cuGraphDestroy(graph);
  }
}

TEST_CASE("Bad arguments are refused before anything is launched", "[gpu][bad_arguments]") {
  SCANJIT_TEST_GPU(gpu);
  Engine& engine = *must(gpu.engine());
  SECTION("problems") {
    const auto refused = [&](const char* what, const auto& change) {
      GatedDeltaHProblem p = packed_problem(2, 100);
      change(p);
      const Result<Plan> plan = engine.plan(p);
      INFO(what);
      REQUIRE_FALSE(plan.ok());
      const ErrorCode code = plan.status().code();
      INFO(plan.status().to_string());
      CHECK((code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported));
      CHECK_FALSE(plan.status().message().empty());
    };
    refused("K = 0", [](GatedDeltaHProblem& p) { p.K = 0; });
    refused("K = 257", [](GatedDeltaHProblem& p) { p.K = 257; });
    refused("HV = 3, H = 2", [](GatedDeltaHProblem& p) { p.H = 2, p.HV = 3; });
    refused("BT = 48", [](GatedDeltaHProblem& p) { p.BT = 48; });
    refused("B = 2 when packed", [](GatedDeltaHProblem& p) { p.B = 2; });
    refused("f32", [](GatedDeltaHProblem& p) { p.dtype = DType::kF32; });
    refused("an unknown type", [](GatedDeltaHProblem& p) { p.dtype = static_cast<DType>(77); });
    refused("sizes that overflow", [](GatedDeltaHProblem& p) { p.T = std::int64_t{1} << 61; });
  }
  SECTION("addresses") {
    const GatedDeltaHProblem p = packed_problem(2, 100);
    const reference::GatedDeltaHInputs inputs = inputs_of(p, {60, 40});
    const RunOptions options;
    DeviceTensors tensors = must(DeviceTensors::make(gpu, inputs, options));
    const Plan plan = must(engine.plan(p));
    GuardedBuffer memory =
        must(GuardedBuffer::make(gpu, plan.workspace_bytes() + 512, Guard::kBytes));
    Workspace workspace;
    if (plan.workspace_bytes() > 0) {
      workspace.data = reinterpret_cast<void*>(
          (static_cast<std::uintptr_t>(memory.address()) + 255) / 256 * 256);
      workspace.bytes = plan.workspace_bytes();
    }
    const auto refused = [&](const char* what, const auto& change) {
      GatedDeltaHArgs args = tensors.args();
      change(args);
      const Status status = plan.launch(args, workspace, gpu.stream());
      INFO(what << ": " << status.to_string());
      CHECK(status.code() == ErrorCode::kInvalidArgument);
      CHECK_FALSE(status.message().empty());
    };
    const std::int64_t negative[] = {0, -1, 100}, decreasing[] = {0, 60, 50}, past[] = {0, 60, 101};
    refused("no k", [](GatedDeltaHArgs& a) { a.k = nullptr; });
    refused("no cu_seqlens", [](GatedDeltaHArgs& a) { a.cu_seqlens = nullptr; });
    refused("no ht", [](GatedDeltaHArgs& a) { a.ht = nullptr; });
    refused("gk that the problem has not", [](GatedDeltaHArgs& a) { a.gk = a.g; });
    refused("odd k", [](GatedDeltaHArgs& a) { a.k = static_cast<const char*>(a.k) + 1; });
    refused("odd ht", [](GatedDeltaHArgs& a) {
      a.ht = reinterpret_cast<float*>(reinterpret_cast<char*>(a.ht) + 2);
    });
    refused("k on an element, where 16 bytes were promised",
            [](GatedDeltaHArgs& a) { a.k = static_cast<const char*>(a.k) + 2; });
    refused("h over v_new", [](GatedDeltaHArgs& a) { a.h = a.v_new; });
    refused("ht a little past h0", [](GatedDeltaHArgs& a) { a.ht = const_cast<float*>(a.h0) + 4; });
    refused("v_new over k", [](GatedDeltaHArgs& a) { a.v_new = const_cast<void*>(a.k); });
    refused("negative host lengths", [&](GatedDeltaHArgs& a) { a.host_cu_seqlens = negative; });
    refused("decreasing host lengths", [&](GatedDeltaHArgs& a) { a.host_cu_seqlens = decreasing; });
    refused("host lengths past the end", [&](GatedDeltaHArgs& a) { a.host_cu_seqlens = past; });
    must(gpu.synchronize());
    const std::vector<std::uint16_t> h = must(tensors.h.download_as<std::uint16_t>());
    const std::vector<std::uint16_t> v_new = must(tensors.v_new.download_as<std::uint16_t>());
    CHECK(std::all_of(h.begin(), h.end(), [](std::uint16_t bits) { return bits == 0xFFFF; }));
    CHECK(
        std::all_of(v_new.begin(), v_new.end(), [](std::uint16_t bits) { return bits == 0xFFFF; }));
    CHECK(tensors.damage().ok());
  }
}

}  // namespace scanjit::test
