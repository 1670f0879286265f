#include <cstring>
#include <random>

#include "engine/op_timer.hpp"
#include "engine/tune_key.hpp"
#include "engine_world.hpp"
#include "gated_delta_h/gated_delta_h_params.h"

using namespace scanjit;
using namespace scanjit::test;

TEST_CASE("first use times a short list on memory of its own and stores the winner", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  const auto others = two_others(world, problem);
  world.shortlist(others);
  world.set_time(problem, others[1], 5);
  CurrentContext context(world.driver);
  const auto live = world.driver.live();
  {
    auto engine = world.engine();
    CHECK(engine->why(problem)->source == PickSource::kHeuristic);
    CHECK(engine->why(problem)->text.find("short list") != std::string::npos);
    const auto plan = engine->plan(problem);
    REQUIRE(plan.ok());
    CHECK(plan->why().config == others[1]);
    CHECK(plan->why().source == PickSource::kTimedNow);
    CHECK(plan->why().tuned);
    CHECK(engine->stats().first_uses == 1);
    world.check_thread_clean(1);
    // Another length of the same key is not timed again.
    CHECK(engine->plan(small_layer(2, 192))->why().source == PickSource::kExact);
    CHECK(engine->stats().first_uses == 1);
    CHECK(world.driver.live().allocations == live.allocations);
    CHECK(world.driver.live().pools == live.pools);
    CHECK(world.driver.live().streams == live.streams);
    CHECK(world.driver.live().events == live.events);
    CHECK(world.driver.live().graph_execs == live.graph_execs);
  }
  for (const FakeLaunch& launch : world.driver.launches()) CHECK(launch.stream != nullptr);
  world.driver.clear_launches();
  auto next = world.engine();
  CHECK(next->plan(problem)->why().source == PickSource::kExact);
  CHECK(next->plan(problem)->why().layer == "cache");
  CHECK(next->stats().first_uses == 0);
  CHECK(world.driver.launches().empty());
}

TEST_CASE("nothing forbidden is called while timing", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  CurrentContext context(world.driver);
  auto engine = world.engine();
  REQUIRE(engine->plan(problem).ok());
  for (const char* call : {"cuMemAlloc", "cuMemFree", "cuModuleUnload", "cuCtxSynchronize"})
    CHECK(world.driver.calls(call) == 0);
}

TEST_CASE("without a short list for the architecture nothing is timed", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  CHECK(engine->plan(problem)->why().source == PickSource::kHeuristic);
  CHECK(world.driver.launches().empty());
  CHECK(engine->stats().first_uses == 0);
  CHECK(engine->stats().fallback == 1);
}

TEST_CASE("a busy GPU stores nothing, and is tried three times", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  // Somebody else takes a share of the GPU that changes all the time.
  std::mt19937 random(3);
  int launches = 0;
  double slower = 1;
  world.driver.set_launch_time([&](const FakeLaunch&) {
    if (launches++ % 40 == 0) slower = 1 + static_cast<double>(random() % 1000) / 500;
    return 10 * slower;
  });
  CurrentContext context(world.driver);
  auto engine = world.engine();
  for (int call = 1; call <= 5; ++call) {
    CHECK(engine->plan(problem)->why().source == PickSource::kHeuristic);
    CHECK(engine->stats().first_uses_busy == std::min(call, 3));
  }
  CHECK(engine->stats().first_uses == 0);
  CHECK(engine->stats().lookups == 2);  // settled after the third
  auto again = world.engine();          // the process has had its tries
  CHECK(again->plan(problem)->why().source == PickSource::kHeuristic);
  CHECK_FALSE(again->plan(problem)->why().provisional);
  CHECK(again->stats().first_uses_busy == 0);
  CHECK(engine::internals(*engine).store->stats().published == 0);
}

TEST_CASE("scratch keeps to its limit and is counted", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer(2, 60'000);
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  world.options.scratch_limit = 8 << 20;
  CurrentContext context(world.driver);
  auto engine = world.engine();
  REQUIRE(engine->plan(problem).ok());
  CHECK(engine->stats().first_uses == 1);
  CHECK(engine->stats().scratch_peak_bytes > world.options.scratch_limit / 4);
  CHECK(engine->stats().scratch_peak_bytes <= world.options.scratch_limit);
  CHECK(world.driver.live().allocated_bytes == 0);
}

TEST_CASE("without scratch the heuristic serves and a counter says so", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  SECTION("the limit is too small") { world.options.scratch_limit = 1000; }
  SECTION("the device is full") { world.driver.device(0).free_bytes = 100000; }
  SECTION("an allocation fails") {
    world.driver.fail_call("cuMemAllocFromPoolAsync", 3, cuda::CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("there is no stream-ordered memory") {
    world.driver.device(0).attributes[cuda::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 0;
  }
  CurrentContext context(world.driver);
  auto engine = world.engine();
  const auto plan = engine->plan(problem);
  REQUIRE(plan.ok());
  CHECK(plan->why().source == PickSource::kHeuristic);
  CHECK(engine->stats().first_uses_no_scratch == 1);
  CHECK(engine->plan(problem).ok());
  CHECK(engine->stats().first_uses_no_scratch == 1);
}

TEST_CASE("a candidate with other bits is rejected, however fast", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  const auto others = two_others(world, problem);
  world.shortlist(others);
  world.set_time(problem, others[0], 1);
  world.set_time(problem, others[1], 5);
  const auto wrong = made(problem)->stages(others[0], world.limits()).back().source;
  world.driver.set_kernel(
      [&](const FakeLaunch& launch, const void* params) {
        scanjit::gated_delta_h::ScanParams scan;
        std::memcpy(&scan, params, sizeof(scan));
        const bool other = launch.block[0] == static_cast<unsigned>(wrong.threads) &&
                           launch.smem_bytes == static_cast<unsigned>(wrong.smem_bytes);
        static_cast<unsigned char*>(scan.v_new)[17] = other ? 2 : 1;
      },
      sizeof(scanjit::gated_delta_h::ScanParams));
  CurrentContext context(world.driver);
  auto engine = world.engine();
  CHECK(engine->plan(problem)->why().config == others[1]);
  const auto pick = engine::internals(*engine).store->find_exact(made(problem)->key_query(), {});
  REQUIRE(pick.has_value());
  REQUIRE(pick->record->rejected.size() == 1);
  CHECK(pick->record->rejected[0].config == others[0]);
  CHECK(pick->record->rejected[0].reason == tuning::RejectReason::kWrongBits);
  CHECK(pick->record->toolchain.nvrtc == "13.0.88");
}

TEST_CASE("an entry of another driver is timed again, three configs at most", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  const auto others = two_others(world, problem);
  world.shortlist(others);
  world.set_time(problem, others[1], 5);
  CurrentContext context(world.driver);
  {
    auto engine = world.engine();
    REQUIRE(engine->plan(problem).ok());
    auto record =
        *engine::internals(*engine).store->find_exact(made(problem)->key_query(), {})->record;
    record.toolchain.driver = "400.0";
    REQUIRE(engine::internals(*engine).store->publish(record).ok());
  }
  world.options.tune_mode = TuneMode::kReplay;
  CHECK(world.engine()->plan(problem)->why().stale_toolchain);
  world.options.tune_mode = TuneMode::kFirstUse;
  auto engine = world.engine();
  const auto plan = engine->plan(problem);
  CHECK(plan->why().source == PickSource::kTimedNow);
  CHECK_FALSE(plan->why().stale_toolchain);
  CHECK(engine->stats().first_uses == 1);
}

TEST_CASE("a lock that another holds is waited for no longer than two seconds", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  CurrentContext context(world.driver);
  auto engine = world.engine();
  const auto key = engine::internals(*engine).store->key_of(made(problem)->key_query());
  REQUIRE(world.files.make_directories("/cache/locks").ok());
  const std::string path = "/cache/locks/" + key.file_name() + ".lock";
  auto held = world.files.try_lock(path);
  REQUIRE((held.ok() && held->has_value()));
  const auto begin = os::steady_clock().now_ms();
  CHECK(engine->plan(problem)->why().source == PickSource::kHeuristic);
  const auto waited = os::steady_clock().now_ms() - begin;
  CHECK(waited >= 1900);
  CHECK(waited < 10000);
  held->reset();
  CHECK(engine->plan(problem)->why().source == PickSource::kTimedNow);
}

TEST_CASE("a read-only disk does not keep a key from being timed", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  CurrentContext context(world.driver);
  auto engine = world.engine();
  world.files.put("/cache/locks", "a file where a folder should be");
  CHECK(engine->plan(problem)->why().source == PickSource::kTimedNow);
}

TEST_CASE("large tensors are timed on what fits, cold sets rotate", "[engine]") {
  EngineWorld world;
  GatedDeltaHProblem problem = small_layer(2, 4096);
  world.stock(problem);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  engine::OpTimerOptions options;
  options.scratch_limit = 4 << 20;
  const auto small = engine::OpTimer::create(engine::internals(*engine), made(problem), options);
  REQUIRE(small.ok());
  CHECK(small->timed().tokens_per_sequence() < 4096);
  CHECK(small->sets() == 1);

  options.scratch_limit = 64 << 20;
  options.l2 = engine::L2Policy::kCold;
  const auto cold =
      engine::OpTimer::create(engine::internals(*engine), made(small_layer(2, 128)), options);
  REQUIRE(cold.ok());
  CHECK(std::string(cold->l2()) == "cold");
  CHECK(cold->sets() > 1);
}

TEST_CASE("what wins on the chunks that fit need not win on all", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer(2, 4096);  // 64 chunks, of which 4 MiB holds a few
  world.stock(problem);
  // A launch takes 5 us and 2 a chunk.
  double chunks = 0;
  world.driver.set_kernel(
      [&](const FakeLaunch&, const void* params) {
        const auto* p = static_cast<const gated_delta_h::ScanParams*>(params);
        chunks = static_cast<double>((p->T + problem.BT - 1) / problem.BT);
      },
      sizeof(gated_delta_h::ScanParams));
  world.driver.set_launch_time([&](const FakeLaunch&) { return 5 + 2 * chunks; });
  CurrentContext context(world.driver);
  auto engine = world.engine();
  engine::OpTimerOptions options;
  options.scratch_limit = 4 << 20;
  auto timer = engine::OpTimer::create(engine::internals(*engine), made(problem), options);
  REQUIRE(timer.ok());
  REQUIRE(timer->timed().key_query().chunks < 64);
  const Result<double> us = timer->measure(*made(problem)->heuristic(world.limits()));
  REQUIRE(us.ok());
  CHECK(*us == Approx(5 + 2 * 64));
}

TEST_CASE("a block is as long as was asked, though a lone run takes longer than one among many",
          "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer(2, 128);
  world.stock(problem);
  // The first runs are slow, as a launch on an idle GPU is.
  int launches = 0;
  world.driver.set_launch_time([&](const FakeLaunch&) { return ++launches <= 3 ? 100.0 : 10.0; });
  CurrentContext context(world.driver);
  auto engine = world.engine();
  engine::OpTimerOptions options;
  options.block_us = 2000;
  auto timer = engine::OpTimer::create(engine::internals(*engine), made(problem), options);
  REQUIRE(timer.ok());
  const Config config = *made(problem)->heuristic(world.limits());
  REQUIRE(timer->measure(config).ok());
  launches = 100;
  REQUIRE(timer->measure(config).ok());
  CHECK(launches - 100 >= 180);  // and the untimed replay before the block
}

TEST_CASE("whatever driver call fails, first use serves, and gives everything back", "[engine]") {
  const GatedDeltaHProblem problem = small_layer(1, 64);
  EngineWorld world;
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  world.options.cache_dir = "none";
  CurrentContext context(world.driver);
  int served = 0;
  std::int64_t nth = 1;
  bool ended = false;
  // Every call of the way to the first measurement, then ever fewer of the many that follow.
  for (; nth < 200000 && !ended; nth += nth < 300 ? 1 : nth / 8) {
    world.driver.clear_faults();
    const auto live = world.driver.live();
    const std::int64_t before = world.driver.calls();
    engine::KernelLoader loader;
    engine::Parts parts = world.parts();
    parts.loader = &loader;
    world.driver.fail_call("", nth, cuda::CUDA_ERROR_UNKNOWN);
    {
      auto engine = engine::create_engine(world.options, parts);
      if (engine.ok() && engine->plan(problem).ok()) ++served;
    }
    ended = world.driver.calls() - before < nth;
    INFO("call " << nth);
    world.check_thread_clean(1);
    const auto now = world.driver.live();
    // What could not be given back because just that call failed is one object.
    CHECK(now.allocations - live.allocations <= 1);
    CHECK(now.streams - live.streams + now.events - live.events + now.graph_execs -
              live.graph_execs + now.pools - live.pools <=
          1);
  }
  CHECK(ended);
  CHECK(served > 50);
}
