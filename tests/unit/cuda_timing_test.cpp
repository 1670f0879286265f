#include "cuda/timing.hpp"

#include <stdexcept>

#include "cuda/context.hpp"
#include "cuda/module.hpp"
#include "support/catch.hpp"
#include "support/fake_driver.hpp"

using namespace scanjit;
using namespace scanjit::cuda;
using test::FakeDriver;
using test::FakeLaunch;

namespace {

struct Bench {
  FakeDriver driver;
  Result<PrimaryContext> primary = PrimaryContext::retain(driver.api(), 0);
  Result<ScopedContext> scope = ScopedContext::enter(driver.api(), primary->get());
  Result<OwnedStream> stream = OwnedStream::create(driver.api(), OwnedStream::Priority::kLowest);
  Result<Module> module = Module::load(driver.api(), "code");
  CUfunction function = *module->function("scan");

  Status launch(CUstream on) {
    return check(driver.api(),
                 driver.api().cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, nullptr, nullptr),
                 "cuLaunchKernel");
  }
};

}  // namespace

TEST_CASE("a graph timer gives microseconds of one repeat", "[cuda]") {
  Bench bench;
  bench.driver.set_launch_time([](const FakeLaunch&) { return 3.5; });
  {
    auto timer =
        GraphTimer::capture(bench.driver.api(), bench.stream->get(), 4, [&](CUstream on) -> Status {
          SCANJIT_TRY(bench.launch(on));
          return bench.launch(on);
        });
    REQUIRE(timer.ok());
    CHECK(bench.driver.launches().size() == 8);  // captured, none ran
    CHECK(*timer->run(1) == Approx(7.0));
    CHECK(*timer->run(5) == Approx(7.0));
    CHECK_FALSE(timer->run(0).ok());
    const GraphTimer moved = std::move(timer).value();
    CHECK(moved.repeats() == 4);
  }
  CHECK(bench.driver.live().graph_execs == 0);
  CHECK(bench.driver.live().graphs == 0);
  CHECK(bench.driver.live().events == 0);
}

TEST_CASE("work that fails or throws while captured leaves the stream usable", "[cuda]") {
  Bench bench;
  const auto failed = GraphTimer::capture(bench.driver.api(), bench.stream->get(), 2,
                                          [](CUstream) { return invalid_argument("no"); });
  CHECK(failed.status().message() == "no");
  const auto thrown =
      GraphTimer::capture(bench.driver.api(), bench.stream->get(), 2,
                          [](CUstream) -> Status { throw std::runtime_error("oh"); });
  CHECK(thrown.status().code() == ErrorCode::kInternal);
  CHECK_FALSE(*is_capturing(bench.driver.api(), bench.stream->get()));
  CHECK(bench.driver.live().graphs == 0);
  CHECK_FALSE(GraphTimer::capture(bench.driver.api(), bench.stream->get(), 0, {}).ok());
}

TEST_CASE("whichever driver call fails, capturing and timing leave nothing behind",
          "[cuda][fault]") {
  Bench bench;
  const auto measure = [&]() -> Status {
    SCANJIT_ASSIGN_OR_RETURN(GraphTimer timer,
                             GraphTimer::capture(bench.driver.api(), bench.stream->get(), 2,
                                                 [&](CUstream on) { return bench.launch(on); }));
    return timer.run(2).status();
  };
  const test::FakeLive before = bench.driver.live();
  int failures = 0;
  for (std::int64_t n = 1; n < 60; ++n) {
    bench.driver.fail_call("", n, CUDA_ERROR_UNKNOWN);
    const Status status = measure();
    bench.driver.clear_faults();
    failures += status.ok() ? 0 : 1;
    INFO("call " << n << ": " << status.to_string());
    // A destroying or capture-ending call that fails is the driver's own leak.
    const auto capturing = is_capturing(bench.driver.api(), bench.stream->get());
    REQUIRE(capturing.ok());
    if (*capturing) {
      CUgraph graph = nullptr;
      bench.driver.api().cuStreamEndCapture(bench.stream->get(), &graph);
      bench.driver.api().cuGraphDestroy(graph);
    }
    CHECK(bench.driver.live().graphs <= before.graphs + 1);
    CHECK(bench.driver.context_depth() == 1);
  }
  CHECK(failures >= 10);
  CHECK(measure().ok());
}
