// Directories that cannot be used: an engine serves from memory with one warning.

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "engine_world.hpp"
#include "os/posix_file_system.hpp"
#include "store_world.hpp"
#include "support/wrapped_file_system.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

/// Where writing fails with `error_number`, as on a read-only or full disk.
class UnwritableFileSystem final : public WrappedFileSystem {
 public:
  UnwritableFileSystem(os::FileSystem& inner, int error_number)
      : WrappedFileSystem(inner), error_number_(error_number) {}
  [[nodiscard]] Result<std::unique_ptr<os::FileWriter>> create(const std::string& path) override {
    return os::system_error(error_number_, "create", path);
  }
  [[nodiscard]] Status rename(const std::string&, const std::string& to) override {
    return os::system_error(error_number_, "rename to", to);
  }
  [[nodiscard]] Status make_directory(const std::string& path) override {
    return os::system_error(error_number_, "make the directory", path);
  }
  [[nodiscard]] Status touch(const std::string& path) override {
    return os::system_error(error_number_, "touch", path);
  }
  [[nodiscard]] Result<std::optional<os::FileLock>> try_lock(const std::string& path) override {
    return unsupported(os::system_error(error_number_, "lock", path).message());
  }

 private:
  int error_number_;
};

/// An engine that times a short list on first use and compiles with the fake NVRTC; warnings are
/// counted.
struct Serving : EngineWorld {
  GatedDeltaHProblem problem = small_layer();
  int warnings = 0;
  std::string last_warning;

  Serving() {
    environment = fake_nvrtc_environment();
    options.pack_dirs.clear();
    options.tune_budget_ms = 600'000;  // how fast this machine is, is not what is tested
    const Config heuristic = *made(problem)->heuristic(limits());
    for (const Config& config : made(problem)->space().all()) {
      if (config != heuristic && made(problem)->legal(config, limits()).ok()) {
        shortlist({config});
        break;
      }
    }
    options.log = [this](LogLevel level, const std::string& line) {
      if (level != LogLevel::kWarning) return;
      ++warnings;
      last_warning = line;
    };
  }

  /// Two keys are timed, compiled, launched and looked up again, with `expected` warnings in all.
  void check_serves(os::FileSystem& on, int expected) {
    warnings = 0;
    last_warning.clear();
    engine::KernelLoader kernels;
    engine::Parts some = parts();
    some.files = &on;
    some.loader = &kernels;
    CurrentContext context(driver);
    auto engine = engine::create_engine(options, some);
    INFO(engine.status().to_string());
    REQUIRE(engine.ok());
    for (const GatedDeltaHProblem& one : {problem, small_layer(2, 4096)}) {
      const auto plan = engine->plan(one);
      INFO(plan.status().to_string());
      REQUIRE(plan.ok());
      CHECK(plan->why().source == PickSource::kTimedNow);
      CHECK(plan->launch(far_apart(one), {}, nullptr).ok());
      CHECK(engine->plan(one)->why().binary_id == plan->why().binary_id);
    }
    CHECK(engine->stats().compiles >= 2);
    INFO(last_warning);
    CHECK(warnings == expected);
  }
};

}  // namespace

TEST_CASE("a read-only, full or broken disk costs one warning", "[environment]") {
  const FakeNvrtc nvrtc;
  Serving world;
  world.check_serves(world.files, 0);
  for (const int error : {EROFS, ENOSPC, EACCES, EIO, EDQUOT, ENAMETOOLONG}) {
    INFO(error);
    for (const bool made_before : {false, true}) {
      os::MemoryFileSystem memory;
      if (made_before) REQUIRE(memory.make_directories("/cache/bin").ok());
      UnwritableFileSystem files(memory, error);
      world.check_serves(files, 1);
      CHECK(world.last_warning.find("/cache") != std::string::npos);
      CHECK(world.last_warning.find(os::system_error(error, "", "").message().substr(9)) !=
            std::string::npos);
    }
  }
}

TEST_CASE("every call to the disk fails: one warning", "[environment]") {
  const FakeNvrtc nvrtc;
  Serving world;
  os::MemoryFileSystem memory;
  REQUIRE(memory.make_directories("/cache/bin").ok());
  memory.fail_call(1, EIO, true);
  world.check_serves(memory, 1);
}

TEST_CASE("a cache of somebody else's, or that others can write to, is neither read nor written",
          "[environment]") {
  const FakeNvrtc nvrtc;
  Serving world;
  const auto check = [&](os::MemoryFileSystem& files, const std::string& says) {
    const auto before = files.list_directory("/cache");
    world.check_serves(files, 1);
    CHECK(world.last_warning.find(says) != std::string::npos);
    CHECK(*files.list_directory("/cache") == *before);
  };
  {
    os::MemoryFileSystem files;
    REQUIRE(files.make_directories("/cache").ok());
    files.set_owner("/cache", 4242);
    check(files, "belongs to user 4242");
  }
  for (const std::uint32_t mode : {0777U, 0722U, 0702U, 01777U}) {
    os::MemoryFileSystem files;
    REQUIRE(files.make_directories("/cache").ok());
    files.set_mode("/cache", mode);
    check(files, "chmod 700");
  }
  {
    os::MemoryFileSystem files;
    REQUIRE(files.make_directories("/real").ok());
    files.put_symlink("/cache", "/real");
    const int before = static_cast<int>(files.list_directory("/real")->size());
    world.check_serves(files, 1);
    CHECK(static_cast<int>(files.list_directory("/real")->size()) == before);
  }
  {
    os::MemoryFileSystem files;
    files.put("/cache", "a file");
    world.check_serves(files, 1);
  }
}

TEST_CASE("no home and an unknown user: memory only, one warning; asked for: none",
          "[environment]") {
  const FakeNvrtc nvrtc;
  Serving world;
  world.options.cache_dir = "none";
  world.check_serves(world.files, 0);
  world.options.cache_dir = "relative/path";
  world.check_serves(world.files, 1);
  CHECK(world.last_warning.find("relative/path") != std::string::npos);
  world.options.cache_dir.clear();
  world.environment.scanjit_cache_dir = "none";
  world.check_serves(world.files, 0);
  CHECK(world.files.list_directory("/")->empty());
}

TEST_CASE("child: an engine of a user whom nobody knows", "[.unknown_user]") {
  Serving world;
  world.options.cache_dir.clear();
  world.check_serves(os::posix_file_system(), 1);
  std::cerr << world.last_warning << std::endl;
  CHECK(world.last_warning.find("memory") != std::string::npos);
}

TEST_CASE("a process of an unknown uid without HOME serves", "[environment]") {
  if (::geteuid() != 0) {
    std::cout << "skipped: changing the uid needs root" << std::endl;
    return;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobodyKnows = 1'234'567;
    if (::setgid(kNobodyKnows) != 0 || ::setuid(kNobodyKnows) != 0) ::_exit(9);
    ::unsetenv("HOME");
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("SCANJIT_CACHE_DIR");
    const int out = ::open("/dev/null", O_WRONLY);
    ::dup2(out, 1);
    ::execl("/proc/self/exe", "tests", "[.unknown_user]", static_cast<char*>(nullptr));
    ::_exit(8);
  }
  int raw = 0;
  REQUIRE(::waitpid(child, &raw, 0) == child);
  REQUIRE(WIFEXITED(raw));
  if (WEXITSTATUS(raw) == 9 || WEXITSTATUS(raw) == 8) {
    std::cout << "skipped: this machine lets nobody else run the program" << std::endl;
    return;
  }
  CHECK(WEXITSTATUS(raw) == 0);
}

TEST_CASE("real directories: absent, unwritable, world-writable", "[environment]") {
  const FakeNvrtc nvrtc;
  Serving world;
  const TemporaryDirectory folder;
  auto& files = os::posix_file_system();
  world.options.cache_dir = folder.file("not/there/yet");
  world.check_serves(files, 0);
  CHECK(std::filesystem::is_directory(folder.file("not/there/yet/bin")));
  struct stat made {};
  REQUIRE(::stat(folder.file("not").c_str(), &made) == 0);
  CHECK((made.st_mode & 0777U) == 0700U);

  world.options.cache_dir = folder.file("open");
  std::filesystem::create_directory(folder.file("open"));
  std::filesystem::permissions(folder.file("open"), std::filesystem::perms(0777));
  world.check_serves(files, 1);
  CHECK(std::filesystem::is_empty(folder.file("open")));

  std::ofstream(folder.file("file")) << "no folder";
  world.options.cache_dir = folder.file("file/cache");
  world.check_serves(files, 1);
  world.options.cache_dir = "/proc/scanjit";
  world.check_serves(files, 1);
}

TEST_CASE("a real disk that is full", "[environment]") {
  const FakeNvrtc nvrtc;
  const TemporaryDirectory folder;
  // One page for everything; folders and empty files fit.
  if (::mount("scanjit", folder.path().c_str(), "tmpfs", 0, "size=4k,mode=700") != 0) {
    std::cout << "skipped: a small tmpfs cannot be mounted here" << std::endl;
    return;
  }
  std::ofstream(folder.file("filler")) << std::string(4096, 'x');
  {
    Serving world;
    world.options.cache_dir = folder.file("cache");
    world.check_serves(os::posix_file_system(), 1);
    CHECK(world.last_warning.find("No space left") != std::string::npos);
  }
  int temporaries = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    temporaries += os::is_temporary_name(entry.path().filename().string()) ? 1 : 0;
  CHECK(temporaries == 0);
  CHECK(::umount(folder.path().c_str()) == 0);
}

TEST_CASE("a forked child is refused at once, whatever it calls, and its parent goes on",
          "[environment]") {
  const FakeNvrtc nvrtc;
  Serving world;
  world.options.tune_mode = TuneMode::kOff;
  CurrentContext context(world.driver);
  auto engine = world.engine();
  const auto plan = engine->plan(world.problem);
  REQUIRE(plan.ok());
  const auto calls = world.driver.calls();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto refused = [](const Status& status) {
      return status.code() == ErrorCode::kUnsupported && !status.message().empty();
    };
    const GatedDeltaHProblem cold = small_layer(3, 640);
    bool right = refused(engine->plan(world.problem).status());
    right = right && refused(engine->plan(cold).status());
    right = right && refused(engine->plan_with(cold, plan->why().config).status());
    right = right && refused(engine->why(cold).status());
    right = right && refused(engine->gated_delta_h(cold, far_apart(cold), {}, nullptr));
    right = right && refused(plan->launch(far_apart(world.problem), {}, nullptr));
    const auto items = engine->prewarm({cold});
    right = right && items.size() == 1 && refused(items[0].status);
    right = right && engine->stats().plans == 0;  // counters are behind a lock: nothing is read
    right = right && world.driver.calls() == calls;
    ::_exit(right ? 0 : 1);
  }
  int raw = 0;
  REQUIRE(::waitpid(child, &raw, 0) == child);
  REQUIRE(WIFEXITED(raw));
  CHECK(WEXITSTATUS(raw) == 0);
  CHECK(plan->launch(far_apart(world.problem), {}, nullptr).ok());
}
