// Sealing, the journal of what was untuned, and the digest that ranks compare.
#include "engine/miss_ring.hpp"
#include "engine_world.hpp"
#include "tuning/journal.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

std::vector<tuning::JournalEntry> journal_in(EngineWorld& world, const std::string& path) {
  const auto text = world.files.read_file(path, 1 << 20);
  REQUIRE(text.ok());
  const auto entries = tuning::journal_from_json(*text);
  REQUIRE(entries.ok());
  return *entries;
}

}  // namespace

TEST_CASE("a sealed engine compiles, loads, allocates and reads nothing", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = GENERATE(TuneMode::kOff, TuneMode::kReplay, TuneMode::kFirstUse);
  const GatedDeltaHProblem planned = small_layer(), longer = small_layer(2, 256);
  GatedDeltaHProblem other = small_layer();
  other.K = 32;
  world.stock(planned);
  world.stock(other);
  world.shortlist(two_others(world, planned));
  CurrentContext context(world.driver);
  const auto stream = context.stream();
  auto engine = world.engine();
  REQUIRE(engine->plan(planned).ok());
  engine->seal();

  const std::int64_t files = world.files.calls();
  const char* const kForbidden[] = {"cuModuleLoadData",   "cuMemAllocFromPoolAsync",
                                    "cuMemPoolCreate",    "cuMemAlloc",
                                    "cuMemAllocAsync",    "cuDevicePrimaryCtxRetain",
                                    "cuFuncLoad",         "cuStreamCreateWithPriority",
                                    "cuEventCreate",      "cuGraphInstantiateWithFlags",
                                    "cuStreamIsCapturing"};
  std::vector<std::int64_t> before;
  for (const char* call : kForbidden) before.push_back(world.driver.calls(call));

  CHECK(engine->plan(planned).ok());
  CHECK(engine->stats().sealed_misses == 0);
  // The kernel is loaded, the lengths are new: served, counted and journaled once.
  for (int i = 0; i < 3; ++i)
    CHECK(engine->gated_delta_h(longer, far_apart(longer), {}, stream).ok());
  CHECK(engine->stats().sealed_misses == 1);
  CHECK(engine->stats().sealed_refused == 0);
  // Of the other width no kernel is loaded.
  for (int i = 0; i < 2; ++i) {
    const Status refused = engine->gated_delta_h(other, far_apart(other), {}, stream);
    CHECK(refused.code() == ErrorCode::kNotFound);
    CHECK(refused.message().find("sealed") != std::string::npos);
    CHECK(refused.message().find("K=32") != std::string::npos);
  }
  CHECK(engine->plan_with(other, *made(other)->heuristic(world.limits())).status().code() ==
        ErrorCode::kNotFound);
  CHECK(engine->stats().sealed_misses == 4);
  CHECK(engine->stats().sealed_refused == 3);
  CHECK(engine->why(other).ok());
  CHECK(engine->prewarm({other})[0].status.code() == ErrorCode::kNotFound);
  {
    CurrentContext unplanned(world.driver);
    CHECK(engine->plan(planned).status().code() == ErrorCode::kNotFound);
  }
  cuda::CUcontext none = nullptr;
  world.driver.api().cuCtxPopCurrent(&none);
  CHECK(engine->plan(planned).status().code() == ErrorCode::kNotFound);
  world.driver.api().cuCtxPushCurrent(none);

  for (std::size_t i = 0; i < std::size(kForbidden); ++i) {
    INFO(kForbidden[i]);
    CHECK(world.driver.calls(kForbidden[i]) == before[i]);
  }
  CHECK(world.files.calls() == files);
  world.check_thread_clean(1);

  // The journal names what was untuned.
  REQUIRE(engine->flush_journal("/journal.json").ok());
  const auto entries = journal_in(world, "/journal.json");
  const auto key_of = [&](const GatedDeltaHProblem& problem) {
    return engine::internals(*engine).store->key_of(made(problem)->key_query());
  };
  CHECK(std::any_of(entries.begin(), entries.end(),
                    [&](const auto& entry) { return entry.key == key_of(other); }));
  CHECK(engine->stats().journal_keys == 0);
}

TEST_CASE("seal waits for what is being timed in the background, and ends it", "[engine]") {
  EngineWorld world;
  world.options.first_use = FirstUseMode::kBackground;
  world.options.cache_dir = "none";
  std::vector<GatedDeltaHProblem> problems;
  for (std::int64_t heads = 1; heads <= 20; ++heads) {
    problems.push_back(small_layer(1, 64));
    problems.back().HV = heads;
  }
  world.stock(problems.front());
  world.shortlist(two_others(world, problems.front()));
  CurrentContext context(world.driver);
  auto engine = world.engine();
  for (const GatedDeltaHProblem& problem : problems) REQUIRE(engine->plan(problem).ok());
  engine->seal();
  const std::int64_t calls = world.driver.calls();
  CHECK(world.driver.live().pools == 0);
  for (const GatedDeltaHProblem& problem : problems) CHECK(engine->plan(problem).ok());
  CHECK(engine->stats().sealed_misses == 0);
  // A look-up asks for the context, and that is all.
  CHECK(world.driver.calls() == calls + static_cast<std::int64_t>(problems.size()));
}

TEST_CASE("the journal holds each untuned key once, and is written at the end", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kReplay;
  world.options.journal_path = "/journal.json";
  const GatedDeltaHProblem problem = small_layer(2, 128), same_key = small_layer(2, 192),
                           tuned = small_layer(2, 1024);
  world.stock(problem);
  CurrentContext context(world.driver);
  {
    auto engine = world.engine();
    REQUIRE(
        engine::internals(*engine)
            .store
            ->publish(record_for(world, *engine, tuned, *made(tuned)->heuristic(world.limits())))
            .ok());
    REQUIRE(engine->plan(problem).ok());
    REQUIRE(engine->plan(same_key).ok());
    REQUIRE(engine->plan(tuned).ok());
    CHECK(engine->plan(tuned)->why().tuned);
    CHECK(engine->stats().journal_keys == 1);
    CHECK_FALSE(world.files.exists("/journal.json"));
  }
  auto entries = journal_in(world, "/journal.json");
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].misses == 2);
  CHECK(entries[0].point == tuning::MeasuredPoint{2, 128});
  {
    // Another process's keys are kept, and a file that is something else is left alone.
    auto engine = world.engine();
    REQUIRE(engine->plan(small_layer(1, 64)).ok());
    world.files.put("/notes.txt", "not a journal");
    CHECK(engine->flush_journal("/notes.txt").status().code() == ErrorCode::kCorrupt);
    CHECK(*world.files.read_file("/notes.txt", 100) == "not a journal");
    CHECK(engine->flush_journal("/no/folder/journal.json").status().code() == ErrorCode::kIoError);
    CHECK(engine->flush_journal("").status().code() == ErrorCode::kInvalidArgument);
    CHECK(engine->stats().journal_keys == 1);
    CHECK(*engine->flush_journal("/journal.json") == 2);
    CHECK(engine->stats().journal_keys == 0);
  }
  CHECK(journal_in(world, "/journal.json").size() == 2);

  // What the heuristic serves because nothing else was asked for is no miss.
  world.options.tune_mode = TuneMode::kOff;
  auto engine = world.engine();
  REQUIRE(engine->plan(problem).ok());
  CHECK(engine->stats().journal_keys == 0);
}

TEST_CASE("the ring of misses keeps the latest keys", "[engine]") {
  engine::MissRing ring;
  const auto key_of = [](std::int64_t heads) {
    tuning::ShapeKey key = made(small_layer())->key_query().key;
    key.HV = heads;
    return key;
  };
  constexpr auto kMost = static_cast<std::int64_t>(engine::MissRing::kMostKeys);
  for (std::int64_t heads = 1; heads <= kMost; ++heads) ring.note(key_of(heads), {1, 64});
  ring.note(key_of(1), {1, 64});  // met again: now the latest
  for (std::int64_t heads = kMost + 1; heads <= kMost + 10; ++heads)
    ring.note(key_of(heads), {1, 64});
  ring.note(key_of(7777), {0, 64});
  ring.note(key_of(7777), {1, 0});  // nothing to tune
  CHECK(ring.size() == kMost);
  CHECK(ring.dropped() == 10);
  os::MemoryFileSystem files;
  CHECK(*ring.flush(files, "/journal.json") == kMost);
  CHECK(ring.size() == 0);
  const auto entries = *tuning::journal_from_json(*files.read_file("/journal.json", 1 << 24));
  CHECK(entries.front().key == key_of(12));  // 2 to 11 had to go
  const auto first = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& entry) { return entry.key == key_of(1); });
  REQUIRE(first != entries.end());
  CHECK(first->misses == 2);
  CHECK(entries.back().key == key_of(kMost + 10));
}

TEST_CASE("the selection digest tells whether two engines picked alike", "[engine]") {
  EngineWorld world;
  world.options.tune_mode = TuneMode::kReplay;
  world.options.cache_dir = "none";
  const GatedDeltaHProblem one = small_layer(2, 128), two = small_layer(1, 1024);
  world.stock(one);
  CurrentContext context(world.driver);
  auto a = world.engine(), b = world.engine(), c = world.engine();
  CHECK(a->selection_digest() == b->selection_digest());
  REQUIRE(a->plan(one).ok());
  CHECK(a->selection_digest() != b->selection_digest());
  REQUIRE(a->plan(two).ok());
  REQUIRE(b->plan(two).ok());
  REQUIRE(b->plan(one).ok());
  CHECK(a->selection_digest() == b->selection_digest());
  CHECK(a->selection_digest().size() == 64);
  // Plans that the caller has named are not picks.
  const Config other = other_than(*made(one)->heuristic(world.limits()), one, world.limits());
  REQUIRE(b->plan_with(one, other).ok());
  CHECK(a->selection_digest() == b->selection_digest());
  REQUIRE(engine::internals(*c).store->publish(record_for(world, *c, one, other)).ok());
  REQUIRE(c->plan(one).ok());
  REQUIRE(c->plan(two).ok());
  CHECK(a->selection_digest() != c->selection_digest());
}
