// Whose context a call works in, and that the caller never finds another one current.
#include <functional>

#include "engine_world.hpp"

using namespace scanjit;
using namespace scanjit::test;

TEST_CASE("a context that has the handle of a destroyed one is another context", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.driver.reuse_context_handles();
  auto engine = world.engine();
  cuda::CUcontext first = nullptr, second = nullptr;
  REQUIRE(world.driver.api().cuCtxCreate(&first, 0, 0) == cuda::CUDA_SUCCESS);
  const auto plan = engine->plan(problem);
  REQUIRE(plan.ok());
  CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, nullptr).ok());
  REQUIRE(world.driver.api().cuCtxDestroy(first) == cuda::CUDA_SUCCESS);
  REQUIRE(world.driver.api().cuCtxCreate(&second, 0, 0) == cuda::CUDA_SUCCESS);
  REQUIRE(second == first);
  const auto launches = world.driver.launches().size();
  // The old plan is of the context that is gone, and the engine is not lost for it.
  CHECK(plan->launch(far_apart(problem), {}, nullptr).code() == ErrorCode::kDeviceLost);
  CHECK(world.driver.launches().size() == launches);
  CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, nullptr).ok());
  CHECK(engine->stats().plans == 2);
  CHECK(world.driver.calls("cuModuleLoadData") == 2);
  world.check_thread_clean(1);
  REQUIRE(world.driver.api().cuCtxDestroy(second) == cuda::CUDA_SUCCESS);
}

TEST_CASE("a destroyed context that is current still is an error, not a lost engine", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  auto engine = world.engine();
  CurrentContext keep(world.driver);
  cuda::CUcontext gone = nullptr;
  REQUIRE(world.driver.api().cuCtxCreate(&gone, 0, 0) == cuda::CUDA_SUCCESS);
  std::thread([&] {  // ended by another thread, so that it stays current here
    REQUIRE(world.driver.api().cuCtxDestroy(gone) == cuda::CUDA_SUCCESS);
  })
      .join();
  CHECK(engine->plan(problem).status().code() == ErrorCode::kDeviceLost);
  CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, nullptr).code() != ErrorCode::kOk);
  cuda::CUcontext popped = nullptr;
  world.driver.api().cuCtxPopCurrent(&popped);
  CHECK(engine->plan(problem).ok());
}

TEST_CASE("two engines on one GPU, and one each on two, keep to themselves", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  auto one = world.engine(), same = world.engine();
  world.options.device = 1;
  auto other = world.engine();
  CurrentContext on_1(world.driver, 1);
  CurrentContext on_0(world.driver, 0);
  const auto stream_0 = on_0.stream();
  REQUIRE(one->plan(problem).ok());
  const Plan plan = *same->plan(problem);
  CHECK(world.driver.calls("cuModuleLoadData") == 1);  // kernels belong to the context
  CHECK(other->plan(problem).status().code() == ErrorCode::kInvalidArgument);
  {
    cuda::CUcontext popped = nullptr;
    world.driver.api().cuCtxPopCurrent(&popped);
    CHECK(other->plan(problem).ok());
    // The stream's context decides, whichever is current.
    CHECK(one->gated_delta_h(problem, far_apart(problem), {}, stream_0).ok());
    CHECK(world.driver.launches().back().context == on_0.get());
    CHECK(plan.launch(far_apart(problem), {}, nullptr).code() == ErrorCode::kInvalidArgument);
    world.driver.api().cuCtxPushCurrent(popped);
  }
  CHECK(world.driver.calls("cuModuleLoadData") == 2);
  { Engine ends = std::move(one).value(); }
  CHECK(same->gated_delta_h(problem, far_apart(problem), {}, stream_0).ok());
  world.check_thread_clean(2);
}

TEST_CASE("each thread's default stream is of its current context", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  REQUIRE(engine->plan(problem).ok());
  for (const std::uintptr_t handle : {0, 1, 2}) {
    const auto stream = reinterpret_cast<cuda::CUstream>(handle);
    CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, stream).ok());
    CHECK(world.driver.launches().back().stream == stream);
    CHECK(world.driver.launches().back().context == context.get());
  }
}

TEST_CASE("whichever driver call fails in whichever call of ours, the thread is left as it was",
          "[engine]") {
  EngineWorld world;
  world.options.cache_dir = "none";
  const GatedDeltaHProblem problem = small_layer(1, 64);
  world.stock(problem);
  world.shortlist({two_others(world, problem)[0]});
  CurrentContext context(world.driver);
  const auto stream = context.stream(), captured = context.stream();
  const cuda::DriverApi& api = world.driver.api();
  const Config config =
      other_than(*made(problem)->heuristic(world.limits()), problem, world.limits());
  using Call = std::function<Status(Engine&)>;
  const std::pair<const char*, Call> calls[] = {
      {"plan", [&](Engine& engine) { return engine.plan(problem).status(); }},
      {"plan_with", [&](Engine& engine) { return engine.plan_with(problem, config).status(); }},
      {"one step",
       [&](Engine& engine) {
         return engine.gated_delta_h(problem, far_apart(problem), {}, stream);
       }},
      {"in a capture",
       [&](Engine& engine) {
         return engine.gated_delta_h(problem, far_apart(problem), {}, captured);
       }},
      {"prewarm", [&](Engine& engine) { return engine.prewarm({problem}).front().status; }},
      {"why", [&](Engine& engine) { return engine.why(problem).status(); }},
      {"launch",
       [&](Engine& engine) {
         const auto plan = engine.plan(problem);
         return plan.ok() ? plan->launch(far_apart(problem), {}, stream) : plan.status();
       }},
  };
  // With the stream's context current, another one, and none.
  CurrentContext elsewhere(world.driver);
  cuda::CUcontext popped = nullptr;
  api.cuCtxPopCurrent(&popped);
  const cuda::CUcontext currents[] = {context.get(), elsewhere.get(), nullptr};
  for (const auto& [name, call] : calls) {
    for (const cuda::CUcontext current : currents) {
      int failures = 0;
      bool ended = false;
      // Every call up to the first measurement, then ever fewer of the many that follow.
      for (std::int64_t nth = 1; nth < 100'000 && !ended; nth += nth < 90 ? 1 : nth / 2) {
        engine::KernelLoader loader;
        engine::VainTries vain_tries;
        engine::Parts parts = world.parts();
        parts.loader = &loader;
        parts.vain_tries = &vain_tries;
        auto engine = engine::create_engine(world.options, parts);
        REQUIRE(engine.ok());
        api.cuCtxSetCurrent(current);
        const bool capturing = std::string(name) == "in a capture";
        if (capturing) api.cuStreamBeginCapture(captured, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL);
        const std::int64_t before = world.driver.calls();
        world.driver.fail_call("", nth, cuda::CUDA_ERROR_UNKNOWN);
        if (!call(*engine).ok()) ++failures;
        ended = world.driver.calls() - before < nth;
        world.driver.clear_faults();
        cuda::CUcontext now = nullptr;
        api.cuCtxGetCurrent(&now);
        INFO(name << ", driver call " << nth);
        CHECK(now == current);
        CHECK(world.driver.context_depth() == (current == nullptr ? 0 : 1));
        CHECK(world.driver.capture_mode() == cuda::CU_STREAM_CAPTURE_MODE_GLOBAL);
        if (capturing) {
          cuda::CUgraph graph = nullptr;
          api.cuStreamEndCapture(captured, &graph);
          if (graph != nullptr) api.cuGraphDestroy(graph);
        }
      }
      CHECK(ended);
      CHECK(failures > 0);
    }
  }
  api.cuCtxSetCurrent(context.get());
}
