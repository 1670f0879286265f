// Every byte of a stored binary and of a tuned entry is changed, and each is cut at every length:
// the answer stays right, the file is set aside and made anew in the same call, with one warning.

#include "engine_world.hpp"
#include "os/memory_file_system.hpp"
#include "store_world.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

/// Calls `with` for every damaged form of `good`; their number.
template <class With>
int for_each_damage(const std::string& good, std::size_t step, With&& with) {
  int count = 0;
  for (std::size_t at = 0; at < good.size(); at += step) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      with(bad);
      ++count;
    }
    with(good.substr(0, at));
    ++count;
  }
  return count;
}

struct Warnings {
  int count = 0;
  Log log{[this](LogLevel level, const std::string&) {
    if (level == LogLevel::kWarning) ++count;
  }};
};

std::string only_entry(os::MemoryFileSystem& files, const std::string& folder) {
  const auto names = files.list_directory(folder);
  REQUIRE(names.ok());
  REQUIRE(names->size() == 1);
  return folder + "/" + names->front();
}

}  // namespace

TEST_CASE("a binary damaged anywhere is compiled anew in the same call, with one warning",
          "[damage]") {
  const FakeNvrtc nvrtc;
  const std::string right = expected_code(1);
  for (const bool in_pack : {false, true}) {
    const std::string root = in_pack ? "/pack" : "/cache";
    os::MemoryFileSystem origin;
    REQUIRE(provider_on(origin, root)->get(numbered_kernel(1), "sm_90a").ok());
    const std::string path = only_entry(origin, root + "/bin");
    const std::string good = *origin.read_file(path, 1 << 20);
    int failures = 0;
    const int trials = for_each_damage(good, 1, [&](const std::string& bad) {
      os::MemoryFileSystem files;
      files.put(path, bad);
      Warnings warnings;
      std::vector<std::string> packs;
      if (in_pack) packs.push_back(root);
      const auto provider =
          provider_on(files, in_pack ? "" : root, packs,
                      [&](jit::KernelProviderOptions& o) { o.log = warnings.log; });
      const auto binary = provider->get(numbered_kernel(1), "sm_90a");
      bool fine = binary.ok() && binary->from == "compiled" && code_of(*binary) == right;
      fine = fine && provider->counters().corrupt_files >= 1 && warnings.count == 1;
      // Set aside and replaced in a cache, left alone in a pack.
      fine = fine && *files.read_file(path, 1 << 20) == (in_pack ? bad : good);
      const auto names = files.list_directory(root + "/bin");
      fine = fine && names->size() == (in_pack ? 1 : 2);
      fine = fine && (in_pack || (*names)[1].find(".cubin.corrupt-") != std::string::npos);
      failures += fine ? 0 : 1;
    });
    CHECK(failures == 0);
    report_count("a stored binary changed or cut at every byte, " + root.substr(1), trials,
                 failures);
  }
}

TEST_CASE("a tuned entry damaged anywhere is a miss or as it was, and is published anew",
          "[damage]") {
  using namespace tuning;
  const Config right{64, 64, 2, 4};
  const auto options_on = [](os::FileSystem& files, const std::string& cache, int& warnings) {
    StoreOptions options;
    options.files = &files;
    (cache == "/pack" ? options.pack_dirs.emplace_back() : options.cache_dir) = cache;
    options.gpu = samples::h200();
    options.toolchain = samples::toolchain();
    options.warn = [&warnings](const std::string&, const std::string&) { ++warnings; };
    return options;
  };
  int none = 0;
  os::MemoryFileSystem origin;
  REQUIRE(TunedStore(options_on(origin, "/cache", none)).publish(samples::record()).ok());
  const std::string path = only_entry(origin, "/cache/tuned/" + samples::h200().directory());
  const std::string good = *origin.read_file(path, 1 << 20);
  for (const std::string root : {"/cache", "/pack"}) {
    const std::string at = root + path.substr(std::string("/cache").size());
    int failures = 0, harmless = 0;
    const int trials = for_each_damage(good, 1, [&](const std::string& bad) {
      os::MemoryFileSystem files;
      files.put(at, bad);
      int warnings = 0;
      TunedStore store(options_on(files, root, warnings));
      const auto pick = store.find(samples::query(), {});
      if (pick) {  // a blank in place of a line's end, and such
        ++harmless;
        failures += pick->config == right && warnings == 0 ? 0 : 1;
        return;
      }
      bool fine = store.stats().corrupt_files == 1 && warnings == 1;
      fine = fine && files.exists(at) == (root == "/pack");
      fine = fine && store.publish(samples::record()).ok();
      fine = fine && store.find(samples::query(), {})->config == right && warnings == 1;
      fine = fine && *files.read_file(at, 1 << 20) == (root == "/pack" ? bad : good);
      failures += fine ? 0 : 1;
    });
    CHECK(failures == 0);
    CHECK(harmless < trials / 10);
    report_count("a tuned entry changed or cut at every byte, " + root.substr(1), trials, failures);
  }
}

TEST_CASE("a damaged cache costs an engine's first call a warning and nothing else", "[damage]") {
  const FakeNvrtc nvrtc;
  EngineWorld world;
  world.environment = fake_nvrtc_environment();
  world.options.pack_dirs.clear();
  const GatedDeltaHProblem problem = small_layer();
  const Config heuristic = *made(problem)->heuristic(world.limits());
  Config best = heuristic;
  for (const Config& config : made(problem)->space().all()) {
    if (config != heuristic && made(problem)->legal(config, world.limits()).ok()) best = config;
  }
  world.shortlist({best});
  world.set_time(problem, best, 5);
  CurrentContext context(world.driver);
  {
    auto engine = world.engine();
    REQUIRE(engine.ok());
    const auto plan = engine->plan(problem);
    REQUIRE(plan.ok());
    REQUIRE(plan->why().source == PickSource::kTimedNow);
    REQUIRE(plan->why().config == best);
  }
  const std::string entry =
      only_entry(world.files, "/cache/tuned/" + only_entry(world.files, "/cache/tuned").substr(13));
  const std::string good = *world.files.read_file(entry, 1 << 20);
  const auto binaries = world.files.list_directory("/cache/bin");
  REQUIRE(binaries->size() >= 2);
  int failures = 0;
  const int trials = for_each_damage(good, 61, [&](const std::string& bad) {
    world.files.put(entry, bad);
    // The machine code is damaged in the same way, as by a bad disk.
    for (const std::string& name : *binaries) world.files.put("/cache/bin/" + name, bad);
    world.lines.clear();
    engine::KernelLoader loader;
    engine::Parts parts = world.parts();
    parts.loader = &loader;
    auto engine = engine::create_engine(world.options, parts);
    const auto plan = engine->plan(problem);
    bool fine = plan.ok() && plan->why().tuned && plan->why().config == best;
    fine = fine && plan->launch(far_apart(problem), {}, nullptr).ok();
    fine = fine && world.lines.size() <= 2;  // one of each folder
    fine = fine && engine->stats().corrupt_files >= 1;
    failures += fine ? 0 : 1;
  });
  CHECK(failures == 0);
  report_count("an engine on a damaged cache", trials, failures);
}
