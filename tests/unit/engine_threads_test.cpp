// Many callers at once: one flight of a key, nobody waits too long, and an engine ends under load.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "engine_world.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

/// A clock at which the timing of a key stands still until it is let go.
class HeldClock final : public os::Clock {
 public:
  [[nodiscard]] std::int64_t now_us() const noexcept override {
    std::unique_lock lock(mutex_);
    if (held_) {
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !held_; });
    }
    return os::steady_clock().now_us();
  }
  void sleep_us(std::int64_t duration_us) noexcept override {
    os::steady_clock().sleep_us(duration_us);
  }
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
    waiting_ = 0;
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  /// Until somebody stands at it.
  void await_visitor() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int waiting_ = 0;
  bool held_ = false;
};

}  // namespace

TEST_CASE("64 threads on 8 streams meet 200 cold keys: each is timed once and loaded once",
          "[engine]") {
  EngineWorld world;
  world.options.cache_dir = "none";
  world.options.wait_ms = 120'000;
  constexpr int kThreads = 64, kStreams = 8;
  constexpr std::int64_t kKeys = 200;
  std::vector<GatedDeltaHProblem> problems;
  for (std::int64_t heads = 1; heads <= kKeys; ++heads) {
    problems.push_back(small_layer(1, 16));
    problems.back().BT = 16;
    problems.back().HV = heads;
  }
  world.stock(problems.front());  // heads are no part of the code
  const Config other = two_others(world, problems.front())[0];
  world.shortlist({other});
  cuda::CUcontext context = nullptr;
  REQUIRE(world.driver.api().cuCtxCreate(&context, 0, 0) == cuda::CUDA_SUCCESS);
  std::vector<cuda::CUstream> streams(kStreams);
  for (cuda::CUstream& stream : streams) {
    REQUIRE(world.driver.api().cuStreamCreateWithPriority(&stream, cuda::CU_STREAM_NON_BLOCKING,
                                                          0) == cuda::CUDA_SUCCESS);
  }
  auto engine = world.engine();
  REQUIRE(engine.ok());
  std::atomic<int> ready{0}, bad{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      world.driver.api().cuCtxSetCurrent(context);
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      for (std::size_t i = 0; i < problems.size(); ++i) {
        // Four neighbours at once at each key, begun all over the list.
        const GatedDeltaHProblem& problem =
            problems[(i + static_cast<std::size_t>(t / 4) * 13) % problems.size()];
        if (!engine->gated_delta_h(problem, far_apart(problem), {}, streams[t % kStreams]).ok())
          ++bad;
      }
      if (world.driver.context_depth() != 1) ++bad;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(bad == 0);
  const EngineStats stats = engine->stats();
  CHECK(stats.first_uses + stats.first_uses_busy == kKeys);
  CHECK(stats.first_uses == kKeys);
  CHECK(stats.plans == kKeys);
  CHECK(stats.waits_ended == 0);
  CHECK(stats.launches == kThreads * kKeys);
  CHECK(stats.lookups + stats.plans <= stats.launches);
  // The heuristic's kernels and the short list's, whatever number of keys share them.
  std::set<std::string> sources;
  for (const GatedDeltaHProblem& problem : problems) {
    for (const Config& config : {*made(problem)->heuristic(world.limits()), other})
      sources.insert(to_string(config));
  }
  CHECK(stats.binary_hits == static_cast<std::int64_t>(sources.size()));
  CHECK(world.driver.calls("cuModuleLoadData") == static_cast<std::int64_t>(sources.size()));
}

TEST_CASE("who has waited wait_ms for another's plan gets the heuristic, and publishes nothing",
          "[engine]") {
  EngineWorld world;
  world.options.wait_ms = 40;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  const auto others = two_others(world, problem);
  world.shortlist(others);
  world.set_time(problem, others[1], 5);
  cuda::CUcontext context = nullptr;
  REQUIRE(world.driver.api().cuCtxCreate(&context, 0, 0) == cuda::CUDA_SUCCESS);
  HeldClock clock;
  engine::Parts parts = world.parts();
  parts.clock = &clock;
  auto engine = engine::create_engine(world.options, parts);
  REQUIRE(engine.ok());
  clock.hold();
  Result<Plan> first = Status(ErrorCode::kInternal, "not yet");
  std::thread timing([&] {
    world.driver.api().cuCtxSetCurrent(context);
    first = engine->plan(problem);
  });
  clock.await_visitor();
  const auto begin = std::chrono::steady_clock::now();
  for (int call = 1; call <= 20; ++call) {
    const auto plan = engine->plan(problem);
    REQUIRE(plan.ok());
    CHECK(plan->why().source == PickSource::kHeuristic);
    CHECK(plan->why().provisional);
    CHECK(engine->stats().waits_ended == call);
  }
  // Only the first of them has waited.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(20 * 40));
  CHECK(engine->stats().plans == 0);
  clock.let_go();
  timing.join();
  REQUIRE(first.ok());
  CHECK(first->why().config == others[1]);
  CHECK(engine->plan(problem)->why().config == others[1]);
  CHECK(engine->stats().first_uses == 1);
}

TEST_CASE("an engine that is closed under load waits for what is being made, and cancels the rest",
          "[engine]") {
  EngineWorld world;
  world.options.cache_dir = "none";
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  cuda::CUcontext context = nullptr;
  REQUIRE(world.driver.api().cuCtxCreate(&context, 0, 0) == cuda::CUDA_SUCCESS);
  for (int round = 0; round < 6; ++round) {
    world.options.first_use = round % 2 == 0 ? FirstUseMode::kBlock : FirstUseMode::kBackground;
    std::optional<Engine> engine(world.engine().value());
    Plan kept = *engine->plan(problem);
    std::atomic<int> running{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        world.driver.api().cuCtxSetCurrent(context);
        ++running;
        for (std::int64_t i = 1;; ++i) {
          GatedDeltaHProblem mine = problem;
          mine.HV = 2 * (1 + (t + i) % 9);
          Status status;
          switch (i % 4) {
            case 0: status = engine->plan(mine).status(); break;
            case 1: status = engine->why(mine).status(); break;
            case 2: status = engine->plan_with(mine, kept.why().config).status(); break;
            default: status = engine->gated_delta_h(mine, far_apart(mine), {}, nullptr);
          }
          if (status.code() == ErrorCode::kCancelled) return;
          if (!status.ok()) ++wrong;
        }
      });
    }
    while (running < 8) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
    engine->close();
    CHECK(engine->plan(problem).status().code() == ErrorCode::kCancelled);
    for (std::thread& thread : threads) thread.join();
    engine.reset();
    CHECK(wrong == 0);
    CHECK(kept.launch(far_apart(problem), {}, nullptr).ok());  // plans outlive their engine
  }
  const FakeLive live = world.driver.live();
  CHECK(live.pools == 0);
  CHECK(live.allocations == 0);
  CHECK(live.graph_execs == 0);
}

TEST_CASE("the destructor waits for a call that is being made", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  cuda::CUcontext context = nullptr;
  REQUIRE(world.driver.api().cuCtxCreate(&context, 0, 0) == cuda::CUDA_SUCCESS);
  HeldClock clock;
  engine::Parts parts = world.parts();
  parts.clock = &clock;
  std::optional<Engine> engine(engine::create_engine(world.options, parts).value());
  clock.hold();
  std::atomic<bool> served{false}, ended{false};
  std::thread timing([&] {
    world.driver.api().cuCtxSetCurrent(context);
    served = engine->plan(problem).ok();
  });
  clock.await_visitor();
  std::thread ending([&] {
    engine->close();
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK_FALSE(ended);
  clock.let_go();
  ending.join();
  timing.join();
  engine.reset();
  CHECK(served);
}

TEST_CASE("in the background a key is timed while the heuristic serves", "[engine]") {
  EngineWorld world;
  world.options.first_use = FirstUseMode::kBackground;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  const auto others = two_others(world, problem);
  world.shortlist(others);
  world.set_time(problem, others[1], 5);
  CurrentContext context(world.driver);
  HeldClock clock;
  engine::Parts parts = world.parts();
  parts.clock = &clock;
  {
    auto engine = engine::create_engine(world.options, parts);
    REQUIRE(engine.ok());
    clock.hold();
    const auto plan = engine->plan(problem);
    REQUIRE(plan.ok());
    CHECK(plan->why().source == PickSource::kHeuristic);
    CHECK(plan->why().provisional);
    clock.await_visitor();  // the engine's own thread
    const std::int64_t lookups = engine->stats().lookups;
    CHECK(engine->plan(problem)->why().provisional);
    CHECK(engine->stats().lookups == lookups + 1);  // nobody waits, nobody looks again
    clock.let_go();
    for (int i = 0; i < 5000 && engine->stats().first_uses == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < 5000 && engine->plan(problem)->why().provisional; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(engine->plan(problem)->why().source == PickSource::kTimedNow);
    CHECK(engine->plan(problem)->why().config == others[1]);
    CHECK(engine->stats().first_uses == 1);
    world.check_thread_clean(1);
  }
  CHECK(world.driver.live().pools == 0);
}

TEST_CASE("prewarm times in the call, whatever first_use says", "[engine]") {
  EngineWorld world;
  world.options.first_use = FirstUseMode::kBackground;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  CurrentContext context(world.driver);
  auto engine = world.engine();
  CHECK(engine->prewarm({problem})[0].why.source == PickSource::kTimedNow);
}

TEST_CASE("in the background a context may end before its key is timed", "[engine]") {
  EngineWorld world;
  world.options.first_use = FirstUseMode::kBackground;
  const GatedDeltaHProblem problem = small_layer(), second = small_layer(4, 1024);
  world.stock(problem);
  world.stock(second);
  world.shortlist(two_others(world, problem));
  world.driver.reuse_context_handles();
  HeldClock clock;
  engine::Parts parts = world.parts();
  parts.clock = &clock;
  auto engine = engine::create_engine(world.options, parts);
  REQUIRE(engine.ok());
  CurrentContext stays(world.driver);
  clock.hold();
  REQUIRE(engine->plan(problem).ok());
  clock.await_visitor();
  {
    CurrentContext goes(world.driver);
    REQUIRE(engine->plan(second).ok());
  }
  CurrentContext successor(world.driver);  // has the handle of the one that is gone
  clock.let_go();
  for (int i = 0; i < 5000 && world.lines_with("is gone") == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(world.lines_with("is gone") == 1);
  CHECK(engine->stats().first_uses == 1);
  CHECK(engine->plan(second).ok());
}
