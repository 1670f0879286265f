// Many processes on one cache directory: cold at once, killed at any time, without locks, and where
// a rename is seen late.

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "engine_world.hpp"
#include "os/posix_file_system.hpp"
#include "store_world.hpp"
#include "support/wrapped_file_system.hpp"
#include "tuning/tuned_store.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

constexpr int kKernels = 6;
constexpr int kProcesses = 16;
// Longer than any machine takes: how long to wait is not what is tested here.
constexpr std::int64_t kWaitMs = 600'000;

/// The file system that the parent asked for by SCANJIT_TEST_FILES.
os::FileSystem& chosen_files() {
  static LocklessFileSystem no_locks(os::posix_file_system(), ENOLCK);
  static LocklessFileSystem broken_locks(os::posix_file_system(), EIO);
  static LocklessFileSystem read_only_locks(os::posix_file_system(), EROFS);
  static LateFileSystem late(os::posix_file_system(), std::int64_t{200} * 1'000'000);
  static const std::map<std::string, os::FileSystem*> all = {{"", &os::posix_file_system()},
                                                             {"ENOLCK", &no_locks},
                                                             {"EIO", &broken_locks},
                                                             {"EROFS", &read_only_locks},
                                                             {"late", &late}};
  return *all.at(variable("SCANJIT_TEST_FILES"));
}

tuning::StoreOptions store_options(os::FileSystem& files, const std::string& cache) {
  tuning::StoreOptions options;
  options.files = &files;
  options.cache_dir = cache;
  options.gpu = tuning::samples::h200();
  options.toolchain = tuning::samples::toolchain();
  return options;
}

/// A config that tells the key, so that a mix-up shows.
Config marked(int number) { return {16 * (number + 1), 32, 2, 4}; }
tuning::KeyQuery query_of(int number) {
  static constexpr std::int64_t kChunks[] = {1, 4, 16, 100, 1000};
  return tuning::samples::query(std::int64_t{1} << (number / 5), kChunks[number % 5]);
}

/// Lines of the file in which the fake NVRTC counts, by line.
std::map<std::string, int> compilations(const std::string& path) {
  std::map<std::string, int> count;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) ++count[line];
  return count;
}

/// Waits until the child says so; what its test framework prints before is passed over.
bool is_ready(os::Process& child) {
  for (;;) {
    const auto line = child.read_line(kWaitMs);
    if (!line.ok() || !line->has_value()) return false;
    if (**line == "ready") return true;
  }
}

struct Race {
  int failed = 0;                       // processes
  std::map<std::string, int> compiled;  // how often each kernel
};

/// Sixteen processes of the hidden test `tag` that start together on an empty directory below
/// `folder`; `outputs` gets what each says after it was let go.
Race race(const TemporaryDirectory& folder, const std::string& tag, const std::string& files_kind,
          std::vector<std::string>& outputs) {
  std::vector<os::Process> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(start_child(
        tag, {"SCANJIT_TEST_CACHE=" + folder.file("cache"), "SCANJIT_TEST_FILES=" + files_kind,
              "SCANJIT_TEST_FIRST=" + std::to_string(i % kKernels), "SCANJIT_FAKE_NVRTC_US=20000",
              "SCANJIT_FAKE_NVRTC_COUNT=" + folder.file("count")}));
  }
  Race result;
  for (os::Process& child : children) REQUIRE(is_ready(child));
  for (os::Process& child : children) REQUIRE(child.write("go\n", kWaitMs).ok());
  for (os::Process& child : children) {
    std::string output;
    for (auto line = child.read_line(kWaitMs); line.ok() && line->has_value();
         line = child.read_line(kWaitMs))
      output += **line + "\n";
    outputs.push_back(output);
    const auto exit = child.wait(kWaitMs);
    const bool good = exit.ok() && exit->has_value() && (*exit)->success();
    if (!good) UNSCOPED_INFO(output << child.error_output());
    result.failed += good ? 0 : 1;
  }
  result.compiled = compilations(folder.file("count"));
  return result;
}
Race cold_race(const std::string& files_kind) {
  const TemporaryDirectory folder;
  std::vector<std::string> outputs;
  return race(folder, "[.cold_child]", files_kind, outputs);
}

int most(const std::map<std::string, int>& compiled) {
  int most = 0;
  for (const auto& [line, count] : compiled) most = std::max(most, count);
  return most;
}

}  // namespace

TEST_CASE("child: gets every kernel from a cold directory", "[.cold_child]") {
  const auto provider =
      provider_on(chosen_files(), variable("SCANJIT_TEST_CACHE"), {},
                  [](jit::KernelProviderOptions& o) { o.process_wait_ms = kWaitMs; });
  const int first = std::stoi(variable("SCANJIT_TEST_FIRST"));
  REQUIRE(provider->toolchain().ok());
  std::cout << "ready" << std::endl;
  std::string line;
  REQUIRE(std::getline(std::cin, line));
  std::map<int, std::string> codes;
  for (int i = 0; i < kKernels; ++i) {
    const int number = (first + i) % kKernels;
    const auto binary = provider->get(numbered_kernel(number), "sm_90a");
    if (!binary.ok()) std::cerr << binary.status().to_string() << std::endl;
    REQUIRE(binary.ok());
    codes[number] = code_of(*binary);
  }
  CHECK(provider->counters().corrupt_files == 0);
  // Compared last, since knowing what is expected compiles: not in the file that counts.
  REQUIRE(::unsetenv("SCANJIT_FAKE_NVRTC_COUNT") == 0);
  for (const auto& [number, code] : codes) CHECK(code == expected_code(number));
}

TEST_CASE("sixteen cold processes compile each kernel once", "[processes]") {
  constexpr int kRounds = 3;
  int failures = 0, compiled = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Race result = cold_race("");
    CHECK(result.failed == 0);
    CHECK(result.compiled.size() == kKernels);
    CHECK(most(result.compiled) == 1);
    failures += result.failed;
    for (const auto& [line, count] : result.compiled) {
      compiled += count;
      failures += count - 1;
    }
  }
  report_count("16 processes cold on one directory: failed, or a kernel compiled twice",
               kRounds * kProcesses, failures, "\"compiles\":" + std::to_string(compiled));
}

TEST_CASE("sixteen cold processes are right where locks fail or a rename is seen late",
          "[processes]") {
  int failures = 0, runs = 0;
  for (const char* kind : {"ENOLCK", "EIO", "EROFS", "late"}) {
    INFO(kind);
    const Race result = cold_race(kind);
    CHECK(result.failed == 0);
    CHECK(result.compiled.size() == kKernels);
    CHECK(most(result.compiled) <= kProcesses);
    failures += result.failed;
    runs += kProcesses;
  }
  report_count("16 processes cold without locks or with renames seen late: failed", runs, failures);
}

TEST_CASE("child: an engine that times a cold key", "[.cold_engine]") {
  EngineWorld world;
  world.environment = fake_nvrtc_environment();
  world.options.pack_dirs.clear();
  world.options.cache_dir = variable("SCANJIT_TEST_CACHE");
  world.options.tune_budget_ms = kWaitMs;
  const GatedDeltaHProblem problem = small_layer();
  const Config heuristic = *made(problem)->heuristic(world.limits());
  for (const Config& config : made(problem)->space().all()) {
    if (config == heuristic || !made(problem)->legal(config, world.limits()).ok()) continue;
    world.shortlist({config});
    world.set_time(problem, config, 5);
    break;
  }
  engine::Parts parts = world.parts();
  parts.files = &chosen_files();
  CurrentContext context(world.driver);
  std::cout << "ready" << std::endl;
  std::string line;
  REQUIRE(std::getline(std::cin, line));
  std::int64_t timed = 0;
  // One that waited too long for the others serves the heuristic; its next engine finds their
  // entry.
  for (bool tuned = false; !tuned;) {
    auto engine = engine::create_engine(world.options, parts);
    REQUIRE(engine.ok());
    const auto plan = engine->plan(problem);
    INFO(plan.status().to_string());
    REQUIRE(plan.ok());
    CHECK(plan->launch(far_apart(problem), {}, nullptr).ok());
    CHECK(engine->stats().corrupt_files == 0);
    timed += engine->stats().first_uses;
    tuned = plan->why().tuned;
    if (tuned) std::cout << "timed " << timed << " " << to_string(plan->why().config) << std::endl;
  }
}

TEST_CASE("sixteen cold engines time a key once and agree", "[processes]") {
  int failures = 0, timed = 0;
  for (const char* kind : {"", "late"}) {
    INFO("files: " << kind);
    const TemporaryDirectory folder;
    std::vector<std::string> outputs;
    const Race result = race(folder, "[.cold_engine]", kind, outputs);
    failures += result.failed;
    std::set<std::string> picks;
    int here = 0;
    for (const std::string& output : outputs) {
      const std::size_t at = output.find("timed ");
      REQUIRE(at != std::string::npos);
      here += output[at + 6] - '0';
      picks.insert(output.substr(at + 8, output.find('\n', at) - at - 8));
    }
    CHECK(picks.size() == 1);
    failures += static_cast<int>(picks.size()) - 1;
    if (std::string(kind).empty()) {
      CHECK(here == 1);
      CHECK(most(result.compiled) == 1);
      failures += here - 1;
    }
    timed += here;
  }
  CHECK(failures == 0);
  report_count("16 engines cold on one directory: failed, timed twice or chose differently",
               2 * kProcesses, failures, "\"timed\":" + std::to_string(timed));
}

TEST_CASE("a holder that was stopped is not waited for beyond the limit", "[processes]") {
  const FakeNvrtc nvrtc;
  const TemporaryDirectory folder;
  auto& files = os::posix_file_system();
  os::ManualClock clock;
  const auto provider = provider_on(files, folder.path(), {},
                                    [&](jit::KernelProviderOptions& o) { o.clock = &clock; });
  const std::string binary_id = jit::make_binary_id(
      *provider->source_id(numbered_kernel(1), "sm_90a"), cuda::loaded_nvrtc()->build);
  REQUIRE(files.make_directories(folder.file("locks")).ok());
  const auto held = files.try_lock(folder.file("locks/" + binary_id + ".lock"));
  REQUIRE(held.ok());
  REQUIRE(held->has_value());
  const auto binary = provider->get(numbered_kernel(1), "sm_90a");
  REQUIRE(binary.ok());
  CHECK(binary->from == "compiled");
  CHECK(clock.now_ms() >= 10'000);
  CHECK(clock.now_ms() < 11'000);
  // Another kernel has a lock of its own.
  REQUIRE(provider->get(numbered_kernel(2), "sm_90a").ok());
  CHECK(clock.now_ms() < 11'000);
}

TEST_CASE("what was compiled here is never read again", "[processes]") {
  const FakeNvrtc nvrtc;
  const TemporaryDirectory folder;
  auto& files = os::posix_file_system();
  const auto provider = provider_on(files, folder.path());
  const auto compiled = provider->get(numbered_kernel(1), "sm_90a");
  REQUIRE(compiled.ok());
  CHECK(compiled->from == "compiled");
  for (const auto& entry : std::filesystem::directory_iterator(folder.file("bin")))
    std::ofstream(entry.path(), std::ios::binary) << "another kernel";
  const auto again = provider->get(numbered_kernel(1), "sm_90a");
  REQUIRE(again.ok());
  CHECK(again->from == "memory");
  CHECK(again->cubin == compiled->cubin);
  CHECK(provider->counters().corrupt_files == 0);
}

// --- kills --------------------------------------------------------------------------------------

TEST_CASE("child: compiles, publishes, reads and evicts until it is killed", "[.killed_child]") {
  const std::string cache = variable("SCANJIT_TEST_CACHE");
  auto& files = os::posix_file_system();
  std::map<int, std::string> codes;
  for (int number = 0; number < kKernels; ++number) codes[number] = expected_code(number);
  std::mt19937 random(std::random_device{}());
  const auto fail = [](const std::string& what) {
    std::cerr << what << std::endl;
    std::_Exit(3);
  };
  for (bool first = true;; first = false) {
    // New ones each time, so that everything is read from the disk. The cap holds four binaries.
    const auto provider = provider_on(files, cache, {}, [](jit::KernelProviderOptions& o) {
      o.cache_max_bytes = 2500;
      o.process_wait_ms = kWaitMs;
    });
    auto options = store_options(files, cache);
    options.cache_max_bytes = 8 * 1024;
    tuning::TunedStore store(std::move(options));
    for (int i = 0; i < kKernels; ++i) {
      const int number = static_cast<int>(random() % kKernels);
      const auto binary = provider->get(numbered_kernel(number), "sm_90a");
      if (!binary.ok()) fail(binary.status().to_string());
      if (code_of(*binary) != codes[number]) fail("a wrong kernel");
      if (const auto pick = store.find_exact(query_of(number), {}); pick) {
        if (pick->config != marked(number)) fail("a wrong config");
      }
      const auto record = tuning::samples::record(store.key_of(query_of(number)), marked(number));
      if (const Status status = store.publish(record); !status.ok()) fail(status.to_string());
    }
    if (provider->counters().corrupt_files + store.stats().corrupt_files != 0)
      fail("a damaged file");
    if (first) std::cout << "ready" << std::endl;
  }
}

TEST_CASE("300 kills at random points leave no damaged file, no lock and nothing that is wrong",
          "[processes]") {
  const FakeNvrtc nvrtc;
  constexpr int kKills = 300, kAtOnce = 2;
  const TemporaryDirectory folder;
  const std::string cache = folder.file("cache");
  auto& files = os::posix_file_system();
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  CAPTURE(seed);
  int failures = 0, read = 0;
  // Always two at work: one is killed while the other one reads and writes the same files.
  std::vector<os::Process> children;
  const auto start = [&] {
    return start_child("[.killed_child]",
                       {"SCANJIT_TEST_CACHE=" + cache, "SCANJIT_FAKE_NVRTC_US=300"});
  };
  for (int i = 0; i < kAtOnce; ++i) children.push_back(start());
  for (int kill = 0; kill < kKills; ++kill) {
    os::Process& child = children[static_cast<std::size_t>(kill % kAtOnce)];
    const bool worked = is_ready(child);
    // From here on it works without a pause, so that any time will do.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    const auto ended = child.wait(0);
    const bool good = worked && ended.ok() && !ended->has_value();
    if (!good) UNSCOPED_INFO(child.error_output());
    child.kill();
    failures += good ? 0 : 1;

    // What a reader finds now.
    const auto provider = provider_on(files, "", {cache});
    tuning::TunedStore store(store_options(files, cache));
    for (int number = 0; number < kKernels; ++number) {
      const auto binary = provider->get(numbered_kernel(number), "sm_90a");
      failures += binary.ok() && code_of(*binary) == expected_code(number) ? 0 : 1;
      read += binary.ok() && binary->from != "compiled" ? 1 : 0;
      const auto pick = store.find_exact(query_of(number), {});
      failures += pick && pick->config != marked(number) ? 1 : 0;
      read += pick ? 1 : 0;
    }
    failures += static_cast<int>(provider->counters().corrupt_files + store.stats().corrupt_files);
    child = start();
  }
  for (os::Process& child : children) child.kill();

  int locks = 0;
  const auto names = files.list_directory(cache + "/locks");
  REQUIRE(names.ok());
  for (const std::string& name : *names) {
    const auto lock = files.try_lock(cache + "/locks/" + name);
    REQUIRE(lock.ok());
    failures += lock->has_value() ? 0 : 1;
    ++locks;
  }
  CHECK(locks == kKernels);
  CHECK(failures == 0);
  CHECK(read > kKills);  // or nothing was looked at
  report_count("kill -9 at random points: a damaged file, a wrong answer or a lock that stayed",
               kKills, failures, "\"files_read\":" + std::to_string(read));
}
