// Entries that do not fit where they are read: edited, of another GPU, of more multiprocessors.
#include "engine_world.hpp"
#include "tuning/store_files.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

const Config kIllegal{64, 64, 2, 3};  // three warps cannot share 64 columns

// Writes a record where another process would have, and returns its path.
std::string write_record(EngineWorld& world, const tuning::GpuFacts& gpu,
                         const tuning::Record& record) {
  const std::string directory = tuning::tuned_root("/cache") + "/" + gpu.directory();
  REQUIRE(tuning::write_entry(world.files, directory, gpu, record).ok());
  return directory + "/" + record.key.file_name();
}

tuning::GpuFacts facts_of(Engine& engine) { return engine::internals(engine).gpu; }

}  // namespace

TEST_CASE("of an entry whose pick is not legal an alternate serves, then the heuristic",
          "[engine]") {
  EngineWorld world;
  const bool has_alternate = GENERATE(true, false);
  world.options.tune_mode = GENERATE(TuneMode::kReplay, TuneMode::kFirstUse);
  const GatedDeltaHProblem problem = small_layer(), neighbour = small_layer(4, 128);
  world.stock(problem);
  const auto others = two_others(world, problem);
  world.shortlist(others);
  const Config heuristic = *made(problem)->heuristic(world.limits());
  REQUIRE_FALSE(made(problem)->legal(kIllegal, world.limits()).ok());
  CurrentContext context(world.driver);
  {
    auto engine = world.engine();
    tuning::Record record = record_for(world, *engine, problem, kIllegal);
    record.alternates = {{{64, 64, 2, 5}, 6, 0.1}};
    if (has_alternate) record.alternates.push_back({others[1], 7, 0.2});
    write_record(world, facts_of(*engine), record);
    // A neighbour that is legal is no reason to pass the heuristic by.
    write_record(world, facts_of(*engine), record_for(world, *engine, neighbour, others[0]));
  }
  auto engine = world.engine();
  const auto foretold = engine->why(problem);
  const auto plan = engine->plan(problem);
  REQUIRE(plan.ok());
  REQUIRE(foretold.ok());
  for (const Why& why : {plan->why(), *foretold, *engine->why(problem)}) {
    INFO(why.text);
    CHECK(why.config == (has_alternate ? others[1] : heuristic));
    CHECK(why.source == (has_alternate ? PickSource::kExact : PickSource::kHeuristic));
    CHECK(why.passed_over.find("legal here") != std::string::npos);
    CHECK(why.passed_over.find(to_string(kIllegal)) != std::string::npos);
    CHECK(why.text.find(why.passed_over) != std::string::npos);
  }
  CHECK(engine->stats().first_uses == 0);
  CHECK(plan->launch(far_apart(problem), {}, context.stream()).ok());

  world.options.tune_mode = TuneMode::kStrict;
  auto strict = world.engine();
  CHECK(strict->plan(problem).status().code() ==
        (has_alternate ? ErrorCode::kOk : ErrorCode::kNotFound));
}

TEST_CASE("an entry of a GPU with other facts is no entry", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kReplay;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);
  const Config heuristic = *made(problem)->heuristic(world.limits());
  const Config other = other_than(heuristic, problem, world.limits());
  CurrentContext context(world.driver);
  {
    auto engine = world.engine();
    tuning::GpuFacts small = facts_of(*engine), mine = small;
    small.sm_count = 66;
    const tuning::Record record = record_for(world, *engine, problem, other);
    const std::string theirs = write_record(world, small, record);
    // Copied to where this GPU's entries lie, it still says whose it is.
    world.files.put(
        tuning::tuned_root("/cache") + "/" + mine.directory() + "/" + record.key.file_name(),
        *world.files.read_file(theirs, 1 << 20));
  }
  auto engine = world.engine();
  CHECK(engine->plan(problem)->why().config == heuristic);
  CHECK(engine->plan(problem)->why().source == PickSource::kHeuristic);
  CHECK(engine->stats().corrupt_files == 1);

  // The same facts that ship under another name of GPU serve as the nearest, and say so.
  tuning::TunedFile shipped;
  shipped.gpu = facts_of(*engine);
  shipped.gpu.names = {"NVIDIA H100"};
  shipped.gpu.l2_bytes = 50 << 20;
  shipped.entries = {record_for(world, *engine, problem, other)};
  const std::string text = tuning::to_json(shipped, tuning::Checksum::kWithout);
  world.shipped = {{"NVIDIA_H100.json", text}};
  auto nearest = world.engine();
  const auto plan = nearest->plan(problem);
  REQUIRE(plan.ok());
  CHECK(plan->why().source == PickSource::kNearestGpu);
  CHECK(plan->why().config == other);
  CHECK_FALSE(plan->why().tuned);
}

TEST_CASE("in a context with fewer multiprocessors no entry of the whole GPU serves", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = GENERATE(TuneMode::kReplay, TuneMode::kFirstUse);
  const GatedDeltaHProblem problem = small_layer(64);
  world.stock(problem);
  world.shortlist(two_others(world, problem));
  CurrentContext whole(world.driver);
  auto engine = world.engine();
  const Config other = two_others(world, problem)[0];
  REQUIRE(
      engine::internals(*engine).store->publish(record_for(world, *engine, problem, other)).ok());
  CHECK(engine->plan(problem)->why().config == other);
  CurrentContext part(world.driver);
  world.driver.limit_context(part.get(), 20);
  ops::DeviceLimits limits = world.limits();
  limits.sm_count = 20;
  REQUIRE(*made(problem)->heuristic(limits) != *made(problem)->heuristic(world.limits()));
  const auto plan = engine->plan(problem);
  REQUIRE(plan.ok());
  INFO(plan->why().text);
  CHECK(plan->why().source == PickSource::kHeuristic);
  CHECK(plan->why().config == *made(problem)->heuristic(limits));
  CHECK(plan->why().passed_over.find("132 multiprocessors, this context has 20") !=
        std::string::npos);
  // Nothing that is measured on a part may be taken for the whole.
  CHECK(engine->plan(small_layer(64, 1024))->why().source == PickSource::kHeuristic);
  CHECK(engine->stats().first_uses == 0);
}

TEST_CASE("an entry of another NVRTC's machine code is stale, and first use times it again",
          "[engine]") {
  EngineWorld world;
  const GatedDeltaHProblem problem = small_layer();
  world.stock(problem);  // compiled by 13.0.88
  const auto others = two_others(world, problem);
  world.shortlist(others);
  world.set_time(problem, others[1], 5);
  CurrentContext context(world.driver);
  world.options.tune_mode = TuneMode::kReplay;
  {
    auto engine = world.engine();
    tuning::Record record = record_for(world, *engine, problem, others[0]);
    record.toolchain.nvrtc = "12.4.127";
    record.alternates = {{others[1], 6, 0.1}};
    REQUIRE(engine::internals(*engine).store->publish(record).ok());
    const auto plan = engine->plan(problem);
    REQUIRE(plan.ok());
    CHECK(plan->why().config == others[0]);
    CHECK(plan->why().stale_toolchain);
    CHECK(plan->why().binary_nvrtc == "13.0.88");
    CHECK(plan->why().text.find("13.0.88") != std::string::npos);
    CHECK(engine->stats().first_uses == 0);
  }
  world.options.tune_mode = TuneMode::kFirstUse;
  auto engine = world.engine();
  const auto plan = engine->plan(problem);
  REQUIRE(plan.ok());
  CHECK(plan->why().config == others[1]);
  CHECK(plan->why().source == PickSource::kTimedNow);
  CHECK_FALSE(plan->why().stale_toolchain);
  CHECK(engine->stats().first_uses == 1);
  auto next = world.engine();
  CHECK_FALSE(next->plan(problem)->why().stale_toolchain);
  CHECK(next->stats().first_uses == 0);
}
