// ABC through the engine: both directions' plans, their stages, and what a plan of another op says.
#include "engine_world.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

template <class Problem>
Problem small(Problem problem) {
  problem.H = 1;
  problem.K = 64;
  problem.M = 32;
  problem.V = 64;
  return problem;
}

std::vector<std::string> kernels_of(const FakeDriver& driver) {
  std::vector<std::string> names;
  for (const FakeLaunch& launch : driver.launches()) names.push_back(launch.kernel);
  return names;
}

}  // namespace

TEST_CASE("ABC is planned and launched in both directions, with and without what is saved",
          "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  AbcForwardProblem forward = small(abc_forward_whole(2, 200));
  AbcBackwardProblem backward = small(abc_backward_whole(2, 200));
  world.stock(forward);
  world.stock(backward);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  REQUIRE(engine.ok());

  const auto plan = engine->plan(forward);
  REQUIRE(plan.ok());
  CHECK(plan->workspace_bytes() == *workspace_bound(forward));
  CHECK(plan->why().config.segment_chunks == ops::AbcOp::kDefaultSegmentChunks);
  REQUIRE(plan->launch(far_apart(forward), workspace_of(plan->workspace_bytes()), context.stream())
              .ok());
  const std::vector<std::string> whole{"abc_summary", "abc_scan", "abc_forward"};
  CHECK(kernels_of(world.driver) == whole);

  REQUIRE(engine
              ->abc_backward(backward, far_apart(backward),
                             workspace_of(*workspace_bound(backward)), context.stream())
              .ok());
  const std::vector<std::string> gradients{"abc_backward_rows", "abc_summary", "abc_scan_back",
                                           "abc_backward_keys"};
  std::vector<std::string> expected{"abc_summary", "abc_scan", "abc_forward", "abc_summary",
                                    "abc_scan"};
  expected.insert(expected.end(), gradients.begin(), gradients.end());
  CHECK(kernels_of(world.driver) == expected);

  backward.has_saved = true;
  const auto reading = engine->plan(backward);
  REQUIRE(reading.ok());
  CHECK(reading->workspace_bytes() == *workspace_bound(backward));
  REQUIRE(
      reading
          ->launch(far_apart(backward), workspace_of(reading->workspace_bytes()), context.stream())
          .ok());
  expected.insert(expected.end(), gradients.begin(), gradients.end());
  CHECK(kernels_of(world.driver) == expected);

  // Arguments of another op, and too little room.
  const std::size_t launches = world.driver.launches().size();
  for (const Status& status :
       {plan->launch(far_apart(backward), workspace_of(plan->workspace_bytes()), context.stream()),
        reading->launch(far_apart(forward), workspace_of(1 << 30), context.stream()),
        plan->launch(far_apart(small_layer()), workspace_of(1 << 30), context.stream())}) {
    INFO(status.message());
    CHECK(status.code() == ErrorCode::kInvalidArgument);
    CHECK(status.message().find("the plan is of abc_") != std::string::npos);
  }
  CHECK(engine
            ->abc_forward(forward, far_apart(forward), workspace_of(plan->workspace_bytes() - 1),
                          context.stream())
            .code() == ErrorCode::kInvalidArgument);
  CHECK(world.driver.launches().size() == launches);

  const auto why = engine->why(backward);
  REQUIRE(why.ok());
  CHECK(why->key.find("kernel=abc_backward") == 0);
  CHECK(why->key.find("optional=saved") != std::string::npos);
  for (const PrewarmItem& item : engine->prewarm(std::vector{forward})) CHECK(item.status.ok());
  for (const PrewarmItem& item : engine->prewarm(std::vector{backward})) CHECK(item.status.ok());
  world.check_thread_clean(1);
}

TEST_CASE("a named config of ABC must be of the problem's class", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kOff;
  AbcForwardProblem problem = small(abc_forward_layer(2, 600));
  world.stock(problem);
  CurrentContext context(world.driver);
  auto engine = world.engine();
  REQUIRE(engine.ok());
  const Config two{64, 64, 2, 8, 2}, four{64, 64, 2, 8, 4};
  CHECK(engine->plan_with(problem, two).ok());
  const Status other = engine->plan_with(problem, four).status();
  CHECK(other.code() == ErrorCode::kUnsupported);
  CHECK(other.message().find("segment_chunks=2") != std::string::npos);
  problem.numerics = "any";
  world.stock(problem, four);
  const auto plan = engine->plan_with(problem, four);
  REQUIRE(plan.ok());
  // Any class may be asked for; a plan takes what its own needs, not the most.
  CHECK(plan->workspace_bytes() < *workspace_bound(problem));
  CHECK(plan->workspace_bytes() == made(problem)->workspace_bytes(4));
}

TEST_CASE("a first use of ABC times configs of one class, or of all", "[engine]") {
  for (const char* numerics : {"default", "any"}) {
    EngineWorld world;
    AbcForwardProblem problem = small(abc_forward_layer(2, 1024));
    problem.numerics = numerics;
    const bool any = problem.numerics == std::string("any");
    const Config best{128, 64, any ? 2 : 3, 8, any ? 1 : 2};
    engine::Shortlists list({{"abc_forward",
                              made(problem)->key_query().key.kernel_revision,
                              "sm_90a",
                              "any",
                              {best, {64, 64, 3, 8, 4}}}});
    world.shortlists = list.to_json();
    world.stock(problem);
    world.set_time(problem, best, 5);
    CurrentContext context(world.driver);
    auto engine = world.engine();
    REQUIRE(engine.ok());
    const auto plan = engine->plan(problem);
    REQUIRE(plan.ok());
    INFO(plan->why().text);
    CHECK(plan->why().source == PickSource::kTimedNow);
    CHECK(plan->why().config == best);
    CHECK(engine->stats().first_uses == 1);
  }
}
