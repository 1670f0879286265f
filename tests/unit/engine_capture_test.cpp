#include "engine_world.hpp"

using namespace scanjit;
using namespace scanjit::test;

TEST_CASE("with a plan at hand a capturing stream is launched on and nothing is asked",
          "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  auto engine = world.engine();
  REQUIRE(engine->plan(problem).ok());
  Capture capture(world.driver.api(), stream);
  const std::int64_t asked = world.driver.calls("cuStreamIsCapturing");
  CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, stream).ok());
  CHECK(world.driver.calls("cuStreamIsCapturing") == asked);
  CHECK(world.driver.launches().back().captured);
  CHECK(capture.end());
}

TEST_CASE("without one a capture gets a miss that names the key, and goes on", "[engine]") {
  EngineWorld world;
  for (const TuneMode mode : {TuneMode::kOff, TuneMode::kReplay, TuneMode::kFirstUse}) {
    world.options.tune_mode = mode;
    const GatedDeltaHProblem problem = small_layer();
    world.stock(problem);
    CurrentContext context(world.driver);
    const auto stream = context.stream();
    auto engine = world.engine();
    Capture capture(world.driver.api(), stream);
    const Status miss = engine->gated_delta_h(problem, far_apart(problem), {}, stream);
    CHECK(miss.code() == ErrorCode::kCaptureMiss);
    CHECK(miss.message().find("kernel=gated_delta_h") != std::string::npos);
    CHECK(world.driver.launches().empty());
    CHECK(capture.end());
    CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, stream)
              .ok());  // no longer capturing
    world.driver.clear_launches();
  }
}

TEST_CASE("another thread's capture survives a cold key", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  auto engine = world.engine();
  Capture capture(world.driver.api(), stream);  // this thread's, in global mode
  Status other;
  std::thread thread([&] {
    world.driver.api().cuCtxSetCurrent(context.get());
    other = engine->plan(problem).status();
  });
  thread.join();
  CHECK(other.ok());
  CHECK(capture.end());
}

TEST_CASE("a capture is served by kernels that are loaded already", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  auto engine = world.engine();
  REQUIRE(engine->plan(problem).ok());
  // The same kernel, other lengths: no plan of its own yet.
  const GatedDeltaHProblem longer = small_layer(2, 256), forced = small_layer(3, 64);
  const std::int64_t loads = world.driver.calls("cuModuleLoadData");
  {
    Capture capture(world.driver.api(), stream);
    CHECK(engine->gated_delta_h(longer, far_apart(longer), {}, stream).ok());
    CHECK(engine->gated_delta_h(longer, far_apart(longer), {}, stream).ok());
    CHECK(world.driver.launches().size() == 2);
    CHECK(capture.end());
  }
  CHECK(world.driver.calls("cuModuleLoadData") == loads);
  // Out of the capture it is planned as usual.
  const std::int64_t plans = engine->stats().plans;
  CHECK(engine->plan(longer).ok());
  CHECK(engine->stats().plans == plans + 1);
}

TEST_CASE("the legacy stream beside a capturing blocking stream counts as capturing", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  cuda::CUstream blocking = nullptr;
  REQUIRE(world.driver.api().cuStreamCreateWithPriority(&blocking, cuda::CU_STREAM_DEFAULT, 0) ==
          cuda::CUDA_SUCCESS);
  auto engine = world.engine();
  Capture capture(world.driver.api(), blocking);
  CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, nullptr).code() ==
        ErrorCode::kCaptureMiss);
  CHECK(capture.end());
}

TEST_CASE("an invalidated capture counts as one", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  auto engine = world.engine();
  Capture capture(world.driver.api(), stream);
  world.driver.api().cuStreamSynchronize(stream);  // which is what invalidates it
  CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, stream).code() ==
        ErrorCode::kCaptureMiss);
  CHECK(engine->stats().capture_misses == 1);
  CHECK(engine->stats().journal_keys == 1);
  CHECK_FALSE(capture.end());
  CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, stream).ok());
}

TEST_CASE("of what is loaded a capture takes the entry's pick, its alternates, then the heuristic",
          "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kReplay;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  const auto others = two_others(world, problem);
  const Config heuristic = *made(problem)->heuristic(world.limits());
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  // Loads these configs by way of other lengths, and tells which one a capture is served by.
  const auto served = [&](const std::vector<Config>& loaded) {
    engine::KernelLoader loader;
    engine::Parts parts = world.parts();
    parts.loader = &loader;
    auto engine = engine::create_engine(world.options, parts);
    tuning::Record record = record_for(world, *engine, problem, others[0]);
    record.alternates = {{others[1], 6, 0.1}};
    REQUIRE(engine::internals(*engine).store->publish(record).ok());
    for (const Config& config : loaded)
      REQUIRE(engine->plan_with(small_layer(2, 4096), config).ok());
    Capture capture(world.driver.api(), stream);
    REQUIRE(engine->gated_delta_h(problem, far_apart(problem), {}, stream).ok());
    CHECK(capture.end());
    const Why why = *engine->why(problem);
    CHECK(why.provisional == (why.config != others[0]));
    return why.config;
  };
  const Config any = [&] {
    for (const Config& config : made(problem)->space().all()) {
      if (made(problem)->legal(config, world.limits()).ok() && config != heuristic &&
          config != others[0] && config != others[1])
        return config;
    }
    return Config{};
  }();
  CHECK(served({any, heuristic, others[1], others[0]}) == others[0]);
  CHECK(served({any, heuristic, others[1]}) == others[1]);
  CHECK(served({any, heuristic}) == heuristic);
  CHECK(served({any}) == any);
}

TEST_CASE("what loads, allocates or may synchronise is called in relaxed capture mode",
          "[engine]") {
  EngineWorld world;
  world.options.first_use = GENERATE(FirstUseMode::kBlock, FirstUseMode::kBackground);
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  {
    auto engine = world.engine();
    REQUIRE(engine->plan(problem).ok());  // in the primary context, which it has to make
    CurrentContext context(world.driver);
    const auto stream = context.stream();
    const std::int64_t ours = world.driver.unrelaxed_calls("cuStreamCreateWithPriority");
    REQUIRE(engine->gated_delta_h(problem, far_apart(problem), {}, stream).ok());
    REQUIRE(engine->prewarm({small_layer(8, 1024)}).front().status.ok());
    engine->seal();  // waits for the background thread
    CHECK(world.driver.unrelaxed_calls("cuStreamCreateWithPriority") == ours);
  }
  for (const char* call :
       {"cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad", "cuFuncSetAttribute",
        "cuMemPoolCreate", "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemPoolTrimTo",
        "cuMemPoolDestroy", "cuMemGetInfo", "cuEventCreate", "cuEventSynchronize",
        "cuStreamSynchronize", "cuStreamDestroy", "cuGraphInstantiateWithFlags", "cuGraphUpload",
        "cuGraphExecDestroy", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"}) {
    INFO(call);
    CHECK(world.driver.calls(call) > 0);
    CHECK(world.driver.unrelaxed_calls(call) == 0);
  }
}
