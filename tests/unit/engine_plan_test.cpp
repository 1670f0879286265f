#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "engine/record_check.hpp"
#include "engine_world.hpp"
#include "gated_delta_h/gated_delta_h_params.h"
#include "ops/registry.hpp"

using namespace scanjit;
using namespace scanjit::test;

TEST_CASE("a plan is made once, launches on the caller's stream and leaves the thread as it was",
          "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  GatedDeltaHProblem problem = packed_layer(70, 7000);
  world.stock(problem, *made(problem)->heuristic(world.limits()));
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  auto engine = world.engine();
  REQUIRE(engine.ok());
  const auto plan = engine->plan(problem);
  REQUIRE(plan.ok());
  CHECK(plan->workspace_bytes() == *workspace_bound(problem));
  CHECK(plan->why().source == PickSource::kHeuristic);
  CHECK(plan->why().binary_from == "pack:/pack");
  CHECK_FALSE(plan->why().text.empty());
  world.check_thread_clean(1);

  const GatedDeltaHArgs args = far_apart(problem);
  REQUIRE(plan->launch(args, workspace_of(plan->workspace_bytes()), stream).ok());
  const auto launches = world.driver.launches();
  REQUIRE(launches.size() == 2);
  const auto stages = made(problem)->stages(plan->why().config, world.limits());
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(launches[i].kernel == stages[i].source.entry);
    CHECK(launches[i].stream == stream);
    CHECK(launches[i].context == context.get());
    CHECK(launches[i].grid[0] == static_cast<unsigned>(stages[i].grid));
    CHECK(launches[i].block[0] == static_cast<unsigned>(stages[i].source.threads));
    CHECK(launches[i].smem_bytes == static_cast<unsigned>(stages[i].source.smem_bytes));
  }

  const std::int64_t loads = world.driver.calls("cuModuleLoadData");
  for (int i = 0; i < 10; ++i)
    REQUIRE(engine->gated_delta_h(problem, args, workspace_of(1024), stream).ok());
  CHECK(world.driver.calls("cuModuleLoadData") == loads);
  const EngineStats stats = engine->stats();
  CHECK(stats.plans == 1);
  CHECK(stats.lookups == 10);
  CHECK(stats.launches == 11);
  CHECK(stats.binary_hits == 2);
  CHECK(stats.fallback == 1);
  CHECK(stats.compiles == 0);
}

TEST_CASE("bad arguments launch nothing", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  GatedDeltaHArgs args = far_apart(problem);
  args.h = args.v_new;
  CHECK(engine->gated_delta_h(problem, args, {}, context.stream()).code() ==
        ErrorCode::kInvalidArgument);
  GatedDeltaHProblem bad = problem;
  bad.K = 257;
  CHECK(engine->plan(bad).status().code() == ErrorCode::kInvalidArgument);
  CHECK(engine->gated_delta_h(bad, args, {}, nullptr).code() == ErrorCode::kInvalidArgument);
  CHECK(engine->plan_with(problem, {48, 64, 2, 3}).status().code() == ErrorCode::kUnsupported);
  CHECK(Plan().launch(args, {}, nullptr).code() == ErrorCode::kInvalidArgument);
  CHECK(world.driver.launches().empty());
}

TEST_CASE("every config that ships is legal on its GPU", "[engine]") {
  REQUIRE_FALSE(engine::shipped_configs().empty());
  for (const tuning::ShippedText& text : engine::shipped_configs()) {
    const auto file = tuning::tuned_file_from_json(text.text, tuning::Checksum::kWithout);
    REQUIRE(file.ok());
    REQUIRE_FALSE(file->entries.empty());
    // Judged, and not passed over as those of another build.
    const auto problem =
        ops::make_problem(file->entries.front().key, file->entries.front().measured_at.front());
    REQUIRE(problem.ok());
    REQUIRE((*problem)->key_query().key.space == file->entries.front().key.space);
    const Status status = engine::check_records(*file);
    INFO(text.name << ": " << status.message());
    CHECK(status.ok());
  }
}

TEST_CASE("a cache directory or pack that cannot be used is warned of once, and no more",
          "[engine]") {
  EngineWorld world;
  int warnings = 0;
  world.options.log = [&](LogLevel level, const std::string&) {
    warnings += level >= LogLevel::kWarning ? 1 : 0;
  };
  world.stock(small_layer());
  REQUIRE(world.engine().ok());
  CHECK(warnings == 0);
  world.options.cache_dir = "none";
  REQUIRE(world.engine().ok());
  CHECK(warnings == 0);
  world.options.cache_dir = "a/relative/path";
  REQUIRE(world.engine().ok());
  CHECK(warnings == 1);
  world.options.cache_dir = "/cache";
  world.options.pack_dirs = {"/pack", "/no/such/pack"};
  REQUIRE(world.engine().ok());
  CHECK(warnings == 2);
  world.files.put("/empty/readme", "");
  world.options.pack_dirs = {"/empty"};
  REQUIRE(world.engine().ok());
  CHECK(warnings == 3);
}

TEST_CASE("N = 0 is planned and launched without a kernel", "[engine]") {
  EngineWorld world;
  CurrentContext context(world.driver);
  auto engine = world.engine();
  const GatedDeltaHProblem problem = small_layer(0, 128);
  CHECK(engine->gated_delta_h(problem, {}, {}, context.stream()).ok());
  CHECK(world.driver.launches().empty());
  CHECK(engine->stats().compiles == 0);
}

TEST_CASE("tune modes say where a config may come from", "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  const Config heuristic = *made(problem)->heuristic(world.limits());
  const Config tuned = other_than(heuristic, problem, world.limits());

  world.options.tune_mode = TuneMode::kStrict;
  {
    auto engine = world.engine();
    const Status miss = engine->plan(problem).status();
    CHECK(miss.code() == ErrorCode::kNotFound);
    CHECK(miss.message().find("kernel=gated_delta_h") != std::string::npos);
    CHECK(engine->why(problem).status().code() == ErrorCode::kNotFound);
    REQUIRE(
        engine::internals(*engine).store->publish(record_for(world, *engine, problem, tuned)).ok());
    const auto plan = engine->plan(problem);
    REQUIRE(plan.ok());
    CHECK(plan->why().config == tuned);
    CHECK(plan->why().source == PickSource::kExact);
    CHECK(plan->why().tuned);
    CHECK(plan->why().recorded_us == Approx(5));
    CHECK(engine->stats().exact == 1);
  }
  for (const TuneMode mode : {TuneMode::kReplay, TuneMode::kFirstUse, TuneMode::kStrict}) {
    world.options.tune_mode = mode;
    auto engine = world.engine();  // reads the cache file
    CHECK(engine->why(problem)->config == tuned);
    CHECK(engine->plan(problem)->why().config == tuned);
    CHECK(engine->plan(problem)->why().layer == "cache");
  }
  world.options.tune_mode = TuneMode::kOff;
  CHECK(world.engine()->plan(problem)->why().config == heuristic);
}

TEST_CASE("a neighbour's entry serves, and is told apart from an exact one", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kReplay;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  GatedDeltaHProblem f16 = problem;
  f16.dtype = DType::kF16;
  world.stock(f16);
  GatedDeltaHProblem longer = small_layer(2, 1024);
  GatedDeltaHProblem wider = small_layer(4, 128);
  GatedDeltaHProblem without = problem;
  without.has_v_new = false;
  world.stock(without);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  const Config tuned =
      other_than(*made(problem)->heuristic(world.limits()), problem, world.limits());
  CHECK(engine->why(f16)->source == PickSource::kHeuristic);
  REQUIRE(
      engine::internals(*engine).store->publish(record_for(world, *engine, problem, tuned)).ok());
  const std::pair<GatedDeltaHProblem, PickSource> steps[] = {
      {problem, PickSource::kExact},
      {without, PickSource::kOtherOptionalSet},
      {f16, PickSource::kOtherDtype},
      {longer, PickSource::kNeighbourChunks},
      {wider, PickSource::kNeighbourWidth}};
  for (const auto& [asked, source] : steps) {
    const auto plan = engine->plan(asked);
    REQUIRE(plan.ok());
    INFO(plan->why().text);
    CHECK(plan->why().source == source);
    CHECK(plan->why().tuned == (source == PickSource::kExact));
    CHECK(plan->why().config == tuned);
  }
}

TEST_CASE("a neighbour serves only if the heuristic tells no difference", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kReplay;
  // Twice the sequences fill twice the multiprocessors: other blocks suit them.
  const GatedDeltaHProblem narrow = small_layer(32, 1024), wide = small_layer(64, 1024);
  const Config heuristic = *made(wide)->heuristic(world.limits());
  REQUIRE(*made(narrow)->heuristic(world.limits()) != heuristic);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  tuning::Record record =
      record_for(world, *engine, narrow, other_than(heuristic, narrow, world.limits()));
  REQUIRE(engine::internals(*engine).store->publish(record).ok());
  CHECK(engine->why(narrow)->source == PickSource::kExact);
  CHECK(engine->why(wide)->source == PickSource::kHeuristic);
  CHECK(engine->why(wide)->config == heuristic);
}

TEST_CASE("a pick that does not load falls to its alternates, then to the heuristic", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kReplay;
  const GatedDeltaHProblem problem = small_layer();
  const Config heuristic = *made(problem)->heuristic(world.limits());
  world.stock(problem, heuristic);  // no machine code of another, and no compiler
  CurrentContext context(world.driver);
  auto engine = world.engine();
  tuning::Record record =
      record_for(world, *engine, problem, other_than(heuristic, problem, world.limits()));
  REQUIRE(engine::internals(*engine).store->publish(record).ok());
  if (cuda::loaded_nvrtc() != nullptr)
    return;  // another test of this process has loaded a compiler
  const auto plan = engine->plan(problem);
  REQUIRE(plan.ok());
  CHECK(plan->why().config == heuristic);
  CHECK(plan->why().source == PickSource::kHeuristic);
  CHECK_FALSE(plan->why().tuned);
  CHECK_FALSE(world.lines.empty());
}

TEST_CASE("many threads at a cold key make one plan and load once", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  auto engine = world.engine();
  cuda::CUcontext context = nullptr;
  REQUIRE(world.driver.api().cuCtxCreate(&context, 0, 0) == cuda::CUDA_SUCCESS);
  std::atomic<int> ready{0}, good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      world.driver.api().cuCtxSetCurrent(context);
      ++ready;
      while (ready < 16) std::this_thread::yield();
      const auto plan = engine->plan(problem);
      if (plan.ok() && plan->launch(far_apart(problem), {}, nullptr).ok()) ++good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == 16);
  CHECK(engine->stats().plans == 1);
  CHECK(engine->stats().binary_hits == 1);
  CHECK(world.driver.calls("cuModuleLoadData") == 1);
}

TEST_CASE("without a current context the primary one serves", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  {
    auto engine = world.engine();
    CHECK(world.driver.live().primary_retains == 0);
    CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, nullptr).ok());
    CHECK(engine->plan(problem).ok());
    CHECK(engine->stats().plans == 1);
    world.check_thread_clean(0);
    CHECK(world.driver.launches().size() == 1);
  }
  CHECK(world.driver.live().primary_retains == 0);
}

TEST_CASE("each context has plans of its own, and one of another device is refused", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  auto engine = world.engine();
  CurrentContext first(world.driver);
  const auto first_stream = first.stream();
  const auto plan = engine->plan(problem);
  REQUIRE(plan.ok());
  {
    CurrentContext second(world.driver);
    const auto second_stream = second.stream();
    CHECK(engine->plan(problem).ok());
    CHECK(engine->stats().plans == 2);
    CHECK(plan->launch(far_apart(problem), {}, second_stream).code() ==
          ErrorCode::kInvalidArgument);
    // The stream's context decides, not the current one.
    CHECK(plan->launch(far_apart(problem), {}, first_stream).ok());
    CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, first_stream).ok());
    CHECK(engine->stats().plans == 2);
    CHECK(world.driver.launches().back().context == first.get());
    world.check_thread_clean(2);
  }
  CurrentContext elsewhere(world.driver, 1);
  const Status status = engine->plan(problem).status();
  CHECK(status.code() == ErrorCode::kInvalidArgument);
  CHECK(status.message().find("device 1") != std::string::npos);
}

TEST_CASE("a plan outlives its engine but not its context", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext keep(world.driver);
  Plan plan;
  {
    auto engine = world.engine();
    plan = *engine->plan(problem);
  }
  CHECK(plan.launch(far_apart(problem), {}, keep.stream()).ok());
  std::optional<CurrentContext> gone(std::in_place, world.driver);
  {
    auto engine = world.engine();
    plan = *engine->plan(problem);
  }
  gone.reset();
  CHECK(plan.launch(far_apart(problem), {}, nullptr).code() == ErrorCode::kDeviceLost);
}

TEST_CASE("a fault that shows first as a context without an id is latched too", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  REQUIRE(engine->plan(problem).ok());
  world.driver.fail_call("cuCtxGetId", 1, cuda::CUDA_ERROR_LAUNCH_FAILED);
  CHECK(engine->plan(problem).status().code() == ErrorCode::kDeviceLost);
  CHECK(engine->plan(problem).status().code() == ErrorCode::kDeviceLost);

  auto other = world.engine();
  const auto plan = other->plan(problem);
  REQUIRE(plan.ok());
  world.driver.fail_call("cuCtxGetCurrent", 1, cuda::CUDA_ERROR_LAUNCH_FAILED);
  CHECK(other->gated_delta_h(problem, far_apart(problem), {}, nullptr).code() ==
        ErrorCode::kDeviceLost);
  CHECK(plan->launch(far_apart(problem), {}, nullptr).code() == ErrorCode::kDeviceLost);
}

TEST_CASE("a sticky fault is latched", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  const auto plan = engine->plan(problem);
  world.driver.fail_call("cuLaunchKernelEx", 1, cuda::CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(plan->launch(far_apart(problem), {}, nullptr).code() == ErrorCode::kDeviceLost);
  const auto launches = world.driver.calls("cuLaunchKernelEx");
  CHECK(plan->launch(far_apart(problem), {}, nullptr).code() == ErrorCode::kDeviceLost);
  CHECK(engine->plan(problem).status().code() == ErrorCode::kDeviceLost);
  CHECK(engine->gated_delta_h(problem, far_apart(problem), {}, nullptr).code() ==
        ErrorCode::kDeviceLost);
  CHECK(world.driver.calls("cuLaunchKernelEx") == launches);

  auto other = world.engine();
  const auto again = other->plan(problem);
  REQUIRE(again.ok());
  world.driver.fail_call("cuLaunchKernelEx", 1, cuda::CUDA_ERROR_INVALID_VALUE);
  CHECK(again->launch(far_apart(problem), {}, nullptr).code() == ErrorCode::kCudaError);
  CHECK(again->launch(far_apart(problem), {}, nullptr).ok());  // not a sticky one
}

TEST_CASE("after a fork every call is unsupported", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  const auto plan = engine->plan(problem);
  REQUIRE(plan.ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool right =
        engine->plan(problem).status().code() == ErrorCode::kUnsupported &&
        plan->launch(far_apart(problem), {}, nullptr).code() == ErrorCode::kUnsupported &&
        engine->gated_delta_h(problem, far_apart(problem), {}, nullptr).code() ==
            ErrorCode::kUnsupported &&
        engine->why(problem).status().code() == ErrorCode::kUnsupported &&
        engine->plan_with(problem, plan->why().config).status().code() == ErrorCode::kUnsupported &&
        engine->prewarm({problem}).front().status.code() == ErrorCode::kUnsupported &&
        engine->flush_journal("/journal.json").status().code() == ErrorCode::kUnsupported &&
        engine->selection_digest().empty() && engine->stats().plans == 0;
    engine->seal();
    engine->close();
    { Engine ends = std::move(engine).value(); }
    _exit(right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(plan->launch(far_apart(problem), {}, nullptr).ok());
}

TEST_CASE("a config named by the caller is used as it is", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  const Config config =
      other_than(*made(problem)->heuristic(world.limits()), problem, world.limits());
  const auto plan = engine->plan_with(problem, config);
  REQUIRE(plan.ok());
  CHECK(plan->why().config == config);
  CHECK(plan->why().source == PickSource::kForced);
  CHECK(engine->plan_with(problem, config).ok());
  CHECK(engine->stats().plans == 1);
  CHECK(engine->plan(problem)->why().config != config);  // the caller's word is for that plan alone
}

TEST_CASE("prewarm plans every problem and reports each", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  world.stock(small_layer());
  CurrentContext context(world.driver);
  auto engine = world.engine();
  GatedDeltaHProblem bad = small_layer();
  bad.BT = 48;
  const auto items = engine->prewarm({small_layer(1, 64), small_layer(2, 128), bad});
  REQUIRE(items.size() == 3);
  CHECK(items[0].status.ok());
  CHECK(items[1].status.ok());
  CHECK(items[2].status.code() == ErrorCode::kInvalidArgument);
  CHECK(engine->stats().plans == 2);
}

TEST_CASE(
    "whatever driver call fails, a plan is an error or works, and the thread is left as it was",
    "[engine]") {
  const GatedDeltaHProblem problem = small_layer();
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  world.stock(problem);
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  int failures = 0;
  for (std::int64_t nth = 1; nth < 400; ++nth) {
    world.driver.clear_faults();
    const std::int64_t before = world.driver.calls();
    engine::KernelLoader loader;
    world.driver.fail_call("", nth, cuda::CUDA_ERROR_UNKNOWN);
    {
      engine::Parts parts = world.parts();
      parts.loader = &loader;
      auto engine = engine::create_engine(world.options, parts);
      if (engine.ok()) {
        const Status status = engine->gated_delta_h(problem, far_apart(problem), {}, stream);
        if (!status.ok()) ++failures;
      } else {
        ++failures;
      }
    }
    world.check_thread_clean(1);
    if (world.driver.calls() - before < nth) {
      CHECK(failures > 20);
      world.driver.clear_faults();
      return;
    }
  }
  FAIL("the calls of one plan do not end");
}
