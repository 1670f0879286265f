#include "kda_samples.hpp"

#include "engine_world.hpp"

using namespace scanjit;
using namespace scanjit::test;

TEST_CASE("the engine plans and launches KDA, serial and split", "[engine][kda]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kReplay;
  KdaForwardProblem problem = packed_kda(3, 1000, 4);
  problem.numerics = GENERATE("default", "split4");
  const auto op = made(problem);
  world.stock(problem, *op->heuristic(world.limits()));
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  auto engine = world.engine();
  REQUIRE(engine.ok());
  const auto plan = engine->plan(problem);
  INFO(plan.status().message());
  REQUIRE(plan.ok());
  CHECK(plan->why().config.segment_chunks == (problem.numerics == "split4" ? 4 : 0));
  CHECK(plan->workspace_bytes() == *workspace_bound(problem));
  CHECK(engine->why(problem)->config == plan->why().config);

  const KdaForwardArgs args = far_apart(problem);
  const Workspace workspace = kda_workspace(plan->workspace_bytes());
  REQUIRE(plan->launch(args, workspace, stream).ok());
  const auto stages = op->stages(plan->why().config, world.limits());
  const auto launches = world.driver.launches();
  REQUIRE(launches.size() == stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    CHECK(launches[i].kernel == stages[i].source.entry);
    CHECK(launches[i].grid[0] == static_cast<unsigned>(stages[i].grid));
    CHECK(launches[i].block[0] == static_cast<unsigned>(stages[i].source.threads));
  }
  REQUIRE(engine->kda_forward(problem, args, workspace, stream).ok());
  CHECK(engine->stats().lookups == 1);
  CHECK(engine->prewarm(std::vector<KdaForwardProblem>{problem}).front().status.ok());
  CHECK(engine->plan_with(problem, plan->why().config)->why().source == PickSource::kForced);
  CHECK(engine->plan_with(problem, {64, 128, 2, 4, 5}).status().code() == ErrorCode::kUnsupported);
  CHECK(plan->launch(args, {}, stream).message().find("workspace is 0 bytes") != std::string::npos);
  world.check_thread_clean(1);
}

TEST_CASE("a plan takes the arguments of its own op alone", "[engine][kda]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  const GatedDeltaHProblem scan = small_layer();
  const KdaForwardProblem kda = kda_layer(1, 128, 2);
  world.stock(scan, *made(scan)->heuristic(world.limits()));
  world.stock(kda, *made(kda)->heuristic(world.limits()));
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  auto engine = world.engine();
  const auto scan_plan = engine->plan(scan);
  const auto kda_plan = engine->plan(kda);
  REQUIRE((scan_plan.ok() && kda_plan.ok()));
  const Status wrong = scan_plan->launch(far_apart(kda), kda_workspace(1 << 30), stream);
  CHECK(wrong.code() == ErrorCode::kInvalidArgument);
  CHECK(wrong.message() == "the plan is of gated_delta_h, the arguments are of kda_forward");
  CHECK(kda_plan->launch(far_apart(scan), {}, stream).code() == ErrorCode::kInvalidArgument);
  CHECK(world.driver.launches().empty());
}

TEST_CASE("a workspace limit is part of the problem, and its plan needs no more", "[engine][kda]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  KdaForwardProblem problem = kda_layer(1, 4096, 2);
  world.stock(problem, *made(problem)->heuristic(world.limits()));
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  auto engine = world.engine();
  const auto whole = engine->plan(problem);
  problem.workspace_limit = whole->workspace_bytes() / 4;
  const auto sliced = engine->plan(problem);
  REQUIRE(sliced.ok());
  CHECK(sliced->workspace_bytes() <= problem.workspace_limit);
  REQUIRE(
      sliced->launch(far_apart(problem), kda_workspace(sliced->workspace_bytes()), stream).ok());
  CHECK(world.driver.launches().size() > 2 * 4);
}
