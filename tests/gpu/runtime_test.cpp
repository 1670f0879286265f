// The engine as a server meets it, on a real GPU: first use beside live tensors, captures beside
// cold keys, many threads, and contexts that come and go.

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <string_view>
#include <thread>

#include "engine/internals.hpp"
#include "gpu/kernels/test_params.h"
#include "gpu/runtime.hpp"

namespace scanjit::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A stream of the current context.
CUstream make_stream(const cuda::DriverApi& api, unsigned flags = cuda::CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  must(cuda::check(api, api.cuStreamCreateWithPriority(&stream, flags, 0),
                   "cuStreamCreateWithPriority"));
  return stream;
}

/// Ends a capture, which must be whole, and replays it once.
void replay(const cuda::DriverApi& api, CUstream stream) {
  cuda::CUgraph graph = nullptr;
  must(cuda::check(api, api.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture"));
  REQUIRE(graph != nullptr);
  cuda::CUgraphExec exec = nullptr;
  must(cuda::check(api, api.cuGraphInstantiateWithFlags(&exec, graph, 0),
                   "cuGraphInstantiateWithFlags"));
  must(cuda::check(api, api.cuGraphLaunch(exec, stream), "cuGraphLaunch"));
  must(cuda::check(api, api.cuStreamSynchronize(stream), "cuStreamSynchronize"));
  api.cuGraphExecDestroy(exec);
  api.cuGraphDestroy(graph);
}

/// Somebody else's work, of a higher priority: the whole GPU for a part of a millisecond to a few, then
/// nothing as long, each time another number, until it ends.
class Neighbour {
 public:
  explicit Neighbour(Gpu& gpu) {
    memory_ = must(cuda::DeviceBuffer::allocate(gpu.api(), std::int64_t{1} << 30));
    int least = 0, greatest = 0;
    must(cuda::check(gpu.api(), gpu.api().cuCtxGetStreamPriorityRange(&least, &greatest),
                     "cuCtxGetStreamPriorityRange"));
    must(cuda::check(
        gpu.api(),
        gpu.api().cuStreamCreateWithPriority(&stream_, cuda::CU_STREAM_NON_BLOCKING, greatest),
        "cuStreamCreateWithPriority"));
    thread_ = std::thread([this, &gpu] {
      static_cast<void>(gpu.make_current());
      std::mt19937 random(11);
      while (!stop_) {
        const auto bytes = static_cast<std::size_t>(memory_.bytes());
        for (auto i = 1 + random() % 12; i > 0; --i)  // a quarter of a millisecond each
          gpu.api().cuMemsetD8Async(memory_.address(), 1, bytes, stream_);
        gpu.api().cuStreamSynchronize(stream_);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      }
    });
  }
  ~Neighbour() {
    stop_ = true;
    thread_.join();
  }

 private:
  cuda::DeviceBuffer memory_;
  CUstream stream_ = nullptr;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("First use touches nothing of the caller's and gives its scratch back",
          "[gpu][runtime_first_use]") {
  SCANJIT_TEST_GPU(gpu);
  const GatedDeltaHProblem problem = small_scan(8, 500);
  const reference::GatedDeltaHInputs inputs = inputs_for(problem);
  RunOptions in_place;
  in_place.ht_in_place = in_place.v_new_in_place = true;
  const RunResult wanted = must(run(gpu, inputs, in_place));
  const DeviceTensors tensors = must(DeviceTensors::make(gpu, inputs, in_place));
  const auto contents = [&] {
    RunResult now;
    now.h = must(tensors.h.download_as<std::uint16_t>());
    now.v_new = must(tensors.u.download_as<std::uint16_t>());
    now.ht = must(tensors.h0.download_as<float>());
    const auto k = must(tensors.k.download_as<std::uint16_t>());
    now.h_before.assign(k.begin(), k.end());
    now.v_new_before = must(tensors.w.download_as<std::uint16_t>());
    now.ht_before = must(tensors.g.download_as<float>());
    return now;
  };
  const auto unchanged = [](const RunResult& a, const RunResult& b) {
    return bit_difference(a, b).empty() && differing(a.h_before, b.h_before) == 0 &&
           differing(a.v_new_before, b.v_new_before) == 0 &&
           differing(a.ht_before, b.ht_before) == 0;
  };
  const RunResult before = contents();
  for (const FirstUseMode mode : {FirstUseMode::kBlock, FirstUseMode::kBackground}) {
    EngineOptions options;
    options.first_use = mode;
    options.tune_budget_ms = 20'000;
    options.scratch_limit = std::int64_t{64} << 20;
    Engine engine = must(engine_of(gpu, options));
    const auto start = Clock::now();
    Plan plan = must(engine.plan(problem));
    const double first_s = seconds_since(start);
    if (mode == FirstUseMode::kBackground) {
      CHECK(plan.why().provisional);
      CHECK(plan.why().source == PickSource::kHeuristic);
    }
    while (plan.why().provisional && seconds_since(start) < 30) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      plan = must(engine.plan(problem));
    }
    INFO(plan.why().text);
    CHECK(plan.why().source == PickSource::kTimedNow);
    CHECK(engine.stats().first_uses == 1);
    CHECK(engine.stats().scratch_peak_bytes > 0);
    CHECK(engine.stats().scratch_peak_bytes <= options.scratch_limit);
    CHECK(unchanged(before, contents()));
    CHECK(tensors.damage().ok());
    report_counts("{\"what\":\"first use beside live tensors\",\"mode\":\"" +
                  std::string(mode == FirstUseMode::kBlock ? "block" : "background") +
                  "\",\"first_plan_s\":" + std::to_string(first_s) +
                  ",\"scratch_bytes\":" + std::to_string(engine.stats().scratch_peak_bytes) + "}");
    // And it is right afterwards, with ht in place of h0 and v_new in place of u.
    DeviceTensors again = must(DeviceTensors::make(gpu, inputs, in_place));
    must(launch_and_wait(gpu, plan, again.args()));
    RunResult got;
    got.h = must(again.h.download_as<std::uint16_t>());
    got.v_new = must(again.u.download_as<std::uint16_t>());
    got.ht = must(again.h0.download_as<float>());
    RunResult reference = wanted;
    INFO(bit_difference(reference, got));
    CHECK(bit_difference(reference, got).empty());
  }
}

TEST_CASE("First use of a long problem, without scratch, and on a busy GPU",
          "[gpu][runtime_first_use]") {
  SCANJIT_TEST_GPU(gpu);
  SECTION("60,000 tokens are timed on fewer chunks") {
    EngineOptions options;
    options.scratch_limit = std::int64_t{32} << 20;
    options.tune_budget_ms = 20'000;
    Engine engine = must(engine_of(gpu, options));
    const Plan plan = must(engine.plan(small_scan(2, 60'000)));
    INFO(plan.why().text);
    CHECK(plan.why().source == PickSource::kTimedNow);
    CHECK(engine.stats().scratch_peak_bytes <= options.scratch_limit);
  }
  SECTION("without scratch the heuristic serves") {
    EngineOptions options;
    options.scratch_limit = 4096;
    Engine engine = must(engine_of(gpu, options));
    CHECK(must(engine.plan(small_scan(2, 600))).why().source == PickSource::kHeuristic);
    CHECK(engine.stats().first_uses_no_scratch == 1);
  }
  SECTION("on a busy GPU nothing is stored, three times") {
    EngineOptions options;
    options.tune_budget_ms = 20'000;
    options.scratch_limit = std::int64_t{64} << 20;
    Engine engine = must(engine_of(gpu, options));
    const GatedDeltaHProblem problem = small_scan(4, 700);
    must(engine.plan_with(problem, must(engine.plan(small_scan(4, 70'000))).why().config).status());
    const std::int64_t stored = engine::internals(engine).store->stats().published;
    {
      const Neighbour neighbour(gpu);
      for (int call = 0; call < 5; ++call)
        CHECK(must(engine.plan(problem)).why().source == PickSource::kHeuristic);
    }
    CHECK(engine.stats().first_uses_busy == 3);
    CHECK(engine::internals(engine).store->stats().published == stored);
    CHECK_FALSE(must(engine.why(problem)).provisional);
    report_counts("{\"what\":\"busy\",\"busy\":" + std::to_string(engine.stats().first_uses_busy) +
                  "}");
  }
}

TEST_CASE("A capture in each mode survives another thread's cold key", "[gpu][runtime_capture]") {
  SCANJIT_TEST_GPU(gpu);
  const cuda::DriverApi& api = gpu.api();
  const GatedDeltaHProblem problem = small_scan(4, 200);
  const reference::GatedDeltaHInputs inputs = inputs_for(problem);
  const RunResult wanted = must(run(gpu, inputs, {}));
  EngineOptions options;
  options.tune_budget_ms = 20'000;
  options.scratch_limit = std::int64_t{64} << 20;
  Engine engine = must(engine_of(gpu, options));
  const Plan plan = must(engine.plan(problem));
  const CUstream stream = make_stream(api);
  PlainTensors tensors = must(PlainTensors::make(api, inputs, stream));
  must(cuda::check(api, api.cuStreamSynchronize(stream), "cuStreamSynchronize"));
  std::int64_t cold_width =
      24;  // of keys: each is a kernel of its own, compiled during the capture
  std::int64_t survived = 0;
  for (const auto mode :
       {cuda::CU_STREAM_CAPTURE_MODE_GLOBAL, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        cuda::CU_STREAM_CAPTURE_MODE_RELAXED}) {
    INFO("capture mode " << static_cast<int>(mode));
    const GatedDeltaHProblem cold = small_scan(4, 200, 4, cold_width),
                             missing = small_scan(4, 200, 4, cold_width + 100);
    cold_width += 8;
    const EngineStats before = engine.stats();
    must(tensors.poison(stream));
    must(cuda::check(api, api.cuStreamSynchronize(stream), "cuStreamSynchronize"));
    must(cuda::check(api, api.cuStreamBeginCapture(stream, mode), "cuStreamBeginCapture"));
    must(plan.launch(tensors.args(), {}, stream));
    Status other;
    std::thread thread([&] {
      other = gpu.make_current();
      if (other.ok()) other = engine.plan(cold).status();
    });
    thread.join();
    INFO(other.to_string());
    CHECK(other.ok());
    CHECK(engine.stats().plans == before.plans + 1);
    CHECK(engine.stats().first_uses + engine.stats().first_uses_busy >
          before.first_uses + before.first_uses_busy);
    // This thread meets one itself: refused by name, and the capture goes on.
    const Status miss = engine.gated_delta_h(missing, tensors.args(), {}, stream);
    CHECK(miss.code() == ErrorCode::kCaptureMiss);
    CHECK(miss.message().find("K=" + std::to_string(missing.K)) != std::string::npos);
    // The one that it has planned, in one step; nothing new.
    must(engine.gated_delta_h(problem, tensors.args(), {}, stream));
    replay(api, stream);
    const RunResult got = must(tensors.outputs(stream));
    INFO(bit_difference(wanted, got));
    CHECK(bit_difference(wanted, got).empty());
    ++survived;
  }
  // Other lengths of a loaded kernel serve a capture that has no plan of them.
  const GatedDeltaHProblem shorter = small_scan(4, 150);
  must(cuda::check(api, api.cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
                   "cuStreamBeginCapture"));
  must(engine.gated_delta_h(shorter, tensors.args(), {}, stream));
  replay(api, stream);
  CHECK(must(engine.why(shorter)).config == plan.why().config);
  // The legacy stream beside a capture on a blocking stream.
  const CUstream blocking = make_stream(api, cuda::CU_STREAM_DEFAULT);
  must(cuda::check(api, api.cuStreamBeginCapture(blocking, cuda::CU_STREAM_CAPTURE_MODE_RELAXED),
                   "cuStreamBeginCapture"));
  must(plan.launch(tensors.args(), {}, blocking));
  CHECK(engine.gated_delta_h(small_scan(4, 200, 4, 88), tensors.args(), {}, nullptr).code() ==
        ErrorCode::kCaptureMiss);
  replay(api, blocking);
  report_counts("{\"what\":\"captures beside cold keys\",\"modes\":3,\"survived\":" +
                std::to_string(survived) +
                ",\"capture_misses\":" + std::to_string(engine.stats().capture_misses) + "}");
}

TEST_CASE("Twenty widths are captured after prewarm with nothing compiled, loaded or allocated",
          "[gpu][runtime_capture]") {
  SCANJIT_TEST_GPU(gpu);
  const cuda::DriverApi& api = gpu.api();
  EngineOptions options;
  options.tune_mode = TuneMode::kReplay;
  Engine engine = must(engine_of(gpu, options));
  std::vector<GatedDeltaHProblem> problems;
  for (std::int64_t N = 1; N <= 20; ++N) problems.push_back(small_scan(N, 64));
  for (const PrewarmItem& item : engine.prewarm(problems)) must(item.status);
  engine.seal();
  const reference::GatedDeltaHInputs inputs = inputs_for(problems.back());
  const RunResult wanted = must(run(gpu, inputs, {}));
  const CUstream stream = make_stream(api);
  const PlainTensors tensors = must(PlainTensors::make(api, inputs, stream));
  must(cuda::check(api, api.cuStreamSynchronize(stream), "cuStreamSynchronize"));
  const EngineStats before = engine.stats();
  const std::int64_t free_bytes = gpu.free_bytes();
  must(cuda::check(api, api.cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
                   "cuStreamBeginCapture"));
  for (const GatedDeltaHProblem& problem : problems)
    must(engine.gated_delta_h(problem, tensors.args(), {}, stream));
  CHECK(gpu.free_bytes() == free_bytes);
  replay(api, stream);
  const RunResult got = must(tensors.outputs(stream));
  CHECK(bit_difference(wanted, got).empty());
  const EngineStats after = engine.stats();
  CHECK(after.compiles == before.compiles);
  CHECK(after.binary_hits == before.binary_hits);
  CHECK(after.plans == before.plans);
  CHECK(after.sealed_misses == 0);
  CHECK(after.lookups == before.lookups + 20);
}

TEST_CASE("Many threads meet many cold keys and compute what one does", "[gpu][runtime_threads]") {
  SCANJIT_TEST_GPU(gpu);
  const cuda::DriverApi& api = gpu.api();
  constexpr std::int64_t kHeads = 50, kWidths = 4;
  constexpr std::size_t kThreads = 64, kStreams = 8;
  const auto problem_of = [](std::int64_t N, std::int64_t HV) {
    GatedDeltaHProblem p = small_scan(N, 32, HV, 16);
    p.V = p.BT = 16;
    p.has_h = p.has_v_new = false;
    return p;
  };
  std::vector<GatedDeltaHProblem> problems;
  for (std::int64_t HV = 1; HV <= kHeads; ++HV)
    for (std::int64_t N = 1; N <= kWidths; ++N) problems.push_back(problem_of(N, HV));
  // The inputs of the largest serve all: each reads the front of them as its own layout.
  const reference::GatedDeltaHInputs inputs = inputs_for(problems.back());
  const PlainTensors shared = must(PlainTensors::make(api, inputs, gpu.stream()));
  const std::int64_t ht_bytes = kWidths * kHeads * 16 * 16 * 4;
  const auto ht_of = [&](Engine& engine, const GatedDeltaHProblem& problem, cuda::DeviceBuffer& ht,
                         CUstream stream) -> Result<std::vector<float>> {
    GatedDeltaHArgs args = shared.args();
    args.h = args.v_new = nullptr;
    args.ht = static_cast<float*>(ht.data());
    SCANJIT_TRY(engine.gated_delta_h(problem, args, {}, stream));
    std::vector<float> host(static_cast<std::size_t>(problem.B * problem.HV * 16 * 16));
    SCANJIT_TRY(ht.download(host.data(), static_cast<std::int64_t>(host.size() * 4), 0, stream));
    return host;
  };
  EngineOptions options;
  options.tune_mode = TuneMode::kOff;
  std::vector<CUstream> streams;
  for (std::size_t i = 0; i < kStreams; ++i) streams.push_back(make_stream(api));
  Engine engine = must(engine_of(gpu, options));
  std::vector<std::vector<std::size_t>> hashes(kThreads, std::vector<std::size_t>(problems.size()));
  const auto hash_of = [](const std::vector<float>& values) {
    return std::hash<std::string_view>()(
        {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  };
  std::atomic<std::size_t> ready{0};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  const auto start = Clock::now();
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      if (!gpu.make_current().ok()) ++failed;
      auto ht = cuda::DeviceBuffer::allocate(api, ht_bytes);
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      for (std::size_t i = 0; i < problems.size() && ht.ok(); ++i) {
        const std::size_t at = (i + t / 4 * 13) % problems.size();
        const auto got = ht_of(engine, problems[at], *ht, streams[t % kStreams]);
        if (got.ok())
          hashes[t][at] = hash_of(*got);
        else
          ++failed;
      }
      if (!ht.ok()) ++failed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = seconds_since(start);
  const EngineStats stats = engine.stats();
  // Afterwards alone: what one thread computes.
  std::int64_t different = 0;
  cuda::DeviceBuffer ht = must(cuda::DeviceBuffer::allocate(api, ht_bytes));
  for (std::size_t at = 0; at < problems.size(); ++at) {
    const std::size_t wanted = hash_of(must(ht_of(engine, problems[at], ht, gpu.stream())));
    for (const auto& mine : hashes) different += mine[at] != wanted ? 1 : 0;
  }
  CHECK(failed == 0);
  CHECK(different == 0);
  CHECK(stats.plans == static_cast<std::int64_t>(problems.size()));
  CHECK(stats.compile_errors == 0);
  // Heads and widths are no part of the code: a few configs, each compiled once.
  CHECK(stats.compiles + stats.binary_hits <= 8);
  report_counts("{\"what\":\"threads\",\"threads\":64,\"keys\":" + std::to_string(problems.size()) +
                ",\"launches\":" + std::to_string(stats.launches) +
                ",\"kernels\":" + std::to_string(stats.compiles + stats.binary_hits) +
                ",\"different\":" + std::to_string(different) +
                ",\"seconds\":" + std::to_string(seconds) + "}");
}

TEST_CASE("Threads that meet a cold key together compile and time it once",
          "[gpu][runtime_threads]") {
  SCANJIT_TEST_GPU(gpu);
  EngineOptions options;
  options.tune_budget_ms = 20'000;
  options.wait_ms = 60'000;
  options.scratch_limit = std::int64_t{64} << 20;
  Engine engine = must(engine_of(gpu, options));
  std::vector<GatedDeltaHProblem> problems;
  for (std::int64_t HV = 1; HV <= 8; ++HV) problems.push_back(small_scan(1, 64, HV));
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 32; ++t) {
    threads.emplace_back([&, t] {
      if (!gpu.make_current().ok()) ++failed;
      for (std::size_t i = 0; i < problems.size(); ++i) {
        if (!engine.plan(problems[(i + static_cast<std::size_t>(t)) % problems.size()]).ok())
          ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
  const EngineStats stats = engine.stats();
  CHECK(stats.first_uses == static_cast<std::int64_t>(problems.size()));
  CHECK(stats.waits_ended == 0);
  CHECK(stats.compile_errors == 0);
}

TEST_CASE("Contexts come and go, and the caller's stays current", "[gpu][runtime_contexts]") {
  SCANJIT_TEST_GPU(gpu);
  const cuda::DriverApi& api = gpu.api();
  const GatedDeltaHProblem problem = small_scan(3, 130);
  const reference::GatedDeltaHInputs inputs = inputs_for(problem);
  const RunResult wanted = must(run(gpu, inputs, {}));
  const auto current = [&] { return must(cuda::current_context(api)); };
  EngineOptions options;
  options.tune_mode = TuneMode::kOff;
  Engine engine = must(engine_of(gpu, options)), second = must(engine_of(gpu, options));
  const auto right_in = [&](Engine& which, CUstream stream) {
    const PlainTensors tensors = must(PlainTensors::make(api, inputs, stream));
    must(which.gated_delta_h(problem, tensors.args(), {}, stream));
    const RunResult got = must(tensors.outputs(stream));
    INFO(bit_difference(wanted, got));
    CHECK(bit_difference(wanted, got).empty());
  };
  SECTION("the primary one, by every kind of stream, from two engines") {
    right_in(engine, make_stream(api));
    right_in(second, make_stream(api));
    right_in(engine, nullptr);
    for (const std::uintptr_t handle : {1, 2}) right_in(engine, reinterpret_cast<CUstream>(handle));
    CHECK(current() == gpu.context());
    std::thread([&] {  // a thread without a context
      CHECK(engine.plan(problem).ok());
      CHECK(current() == nullptr);
    })
        .join();
    CHECK(engine.stats().plans == 1);
  }
  SECTION("a created one that is destroyed, and its successor of the same handle") {
    CUcontext created = nullptr;
    must(cuda::check(api, api.cuCtxCreate(&created, 0, gpu.facts().device), "cuCtxCreate"));
    const CUstream stream = make_stream(api);
    right_in(engine, stream);
    const Plan plan = must(engine.plan(problem));
    const PlainTensors tensors = must(PlainTensors::make(api, inputs, stream));
    must(gpu.make_current());  // the stream's context decides, not the current one
    must(engine.gated_delta_h(problem, tensors.args(), {}, stream));
    must(plan.launch(tensors.args(), {}, stream));
    CHECK(current() == gpu.context());
    CHECK(plan.launch(tensors.args(), {}, gpu.stream()).code() == ErrorCode::kInvalidArgument);
    const Plan ours = must(engine.plan(problem));
    CHECK(ours.launch(tensors.args(), {}, stream).code() == ErrorCode::kInvalidArgument);
    CHECK(current() == gpu.context());
    CHECK(engine.stats().plans == 2);
    must(cuda::check(api, api.cuCtxDestroy(created), "cuCtxDestroy"));
    CHECK(plan.launch(tensors.args(), {}, gpu.stream()).code() == ErrorCode::kDeviceLost);
    CHECK(current() == gpu.context());

    // Handles are used again soon: of contexts that follow upon each other some share one.
    int reused = 0;
    for (int i = 0; i < 6 && reused == 0; ++i) {
      CUcontext old = nullptr, next = nullptr;
      must(cuda::check(api, api.cuCtxCreate(&old, 0, gpu.facts().device), "cuCtxCreate"));
      const Plan stale = must(engine.plan(problem));
      must(cuda::check(api, api.cuCtxDestroy(old), "cuCtxDestroy"));
      must(cuda::check(api, api.cuCtxCreate(&next, 0, gpu.facts().device), "cuCtxCreate"));
      if (next == old) {
        ++reused;
        CHECK(stale.launch(tensors.args(), {}, nullptr).code() == ErrorCode::kDeviceLost);
        const std::int64_t plans = engine.stats().plans;
        right_in(engine, make_stream(api));
        CHECK(engine.stats().plans == plans + 1);
      }
      must(cuda::check(api, api.cuCtxDestroy(next), "cuCtxDestroy"));
    }
    must(gpu.make_current());
    right_in(engine, gpu.stream());  // no context's end is the engine's
    report_counts("{\"what\":\"contexts\",\"handles_reused\":" + std::to_string(reused) + "}");
  }
  SECTION("one on each of two GPUs") {
    if (must(cuda::device_count(api)) < 2) {
      WARN("one GPU only: two in one process are left out");
      return;
    }
    options.device = 1;
    Engine other = must(engine_of(gpu, options));
    CUcontext context = nullptr;
    must(cuda::check(api, api.cuDevicePrimaryCtxRetain(&context, 1), "cuDevicePrimaryCtxRetain"));
    must(cuda::check(api, api.cuCtxSetCurrent(context), "cuCtxSetCurrent"));
    right_in(other, make_stream(api));
    CHECK(engine.plan(problem).status().code() == ErrorCode::kInvalidArgument);
    CHECK(current() == context);
    must(gpu.make_current());
    right_in(engine, gpu.stream());
  }
  must(gpu.make_current());
}

TEST_CASE("A fault on the device is device_lost from then on", "[gpu][runtime_device_lost]") {
  SCANJIT_TEST_GPU(gpu);
  const cuda::DriverApi& api = gpu.api();
  EngineOptions options;
  options.tune_mode = TuneMode::kOff;
  Engine engine = must(engine_of(gpu, options));
  const GatedDeltaHProblem problem = small_scan(2, 100);
  const PlainTensors tensors = must(PlainTensors::make(api, inputs_for(problem), gpu.stream()));
  const Plan plan = must(engine.plan(problem));
  must(plan.launch(tensors.args(), {}, gpu.stream()));
  must(gpu.launch("kernels/test_kernels.cu", "trap", 1, 32, UniformParams{}));
  CHECK(api.cuStreamSynchronize(gpu.stream()) != cuda::CUDA_SUCCESS);
  CHECK(plan.launch(tensors.args(), {}, gpu.stream()).code() == ErrorCode::kDeviceLost);
  CHECK(engine.plan(problem).status().code() == ErrorCode::kDeviceLost);
  CHECK(engine.plan(small_scan(5, 100)).status().code() == ErrorCode::kDeviceLost);
  CHECK(engine.gated_delta_h(problem, tensors.args(), {}, gpu.stream()).code() ==
        ErrorCode::kDeviceLost);
}

}  // namespace scanjit::test
