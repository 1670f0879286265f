#include "engine_world.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

// A stream that captures while this lives.
class Capture {
 public:
  Capture(const cuda::DriverApi& api, cuda::CUstream stream,
          cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL)
      : api_(api), stream_(stream) {
    REQUIRE(api_.cuStreamBeginCapture(stream, mode) == cuda::CUDA_SUCCESS);
  }
  /// Whether nothing has invalidated it.
  [[nodiscard]] bool end() {
    cuda::CUgraph graph = nullptr;
    const bool good =
        api_.cuStreamEndCapture(stream_, &graph) == cuda::CUDA_SUCCESS && graph != nullptr;
    if (graph != nullptr) api_.cuGraphDestroy(graph);
    return good;
  }

 private:
  const cuda::DriverApi& api_;
  cuda::CUstream stream_;
};

}  // namespace

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
