// The n-th call to the driver, to NVRTC or to the file system fails, for every n until there is no
// n-th call: from making an engine to the launch, nothing crashes or leaks, an error is a sentence,
// and the next call works.

#include <cerrno>

#include "cuda/nvrtc.hpp"
#include "engine_world.hpp"
#include "store_world.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

struct Tally {
  std::int64_t trials = 0, failures = 0, errors = 0;
};

/// What one way through an engine meets.
struct Way {
  const char* name;
  TuneMode mode;
  bool warm;  ///< the cache is filled
};
constexpr Way kWays[] = {{"cold, heuristic", TuneMode::kOff, false},
                         {"warm, replay", TuneMode::kReplay, true},
                         {"cold, first use", TuneMode::kFirstUse, false},
                         {"warm, first use", TuneMode::kFirstUse, true}};

void remove_all(os::FileSystem& files, const std::string& folder) {
  const auto names = files.list_directory(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = folder + "/" + name;
    if (files.info(path)->type == os::FileType::kDirectory) {
      remove_all(files, path);
    } else {
      REQUIRE(files.remove_file(path).ok());
    }
  }
  REQUIRE(files.remove_directory(folder).ok());
}

class Trial {
 public:
  EngineWorld world;
  FakeNvrtc nvrtc;
  // Packed and with many sequences: two kernels and a workspace.
  GatedDeltaHProblem problem = packed();

  explicit Trial(const Way& way) : way_(way) {
    world.environment = fake_nvrtc_environment();
    world.options.pack_dirs.clear();
    world.options.compile_jobs = 1;
    world.options.tune_mode = way.mode;
    world.options.tune_budget_ms = 600'000;  // how fast this machine is, is not what is tested
    const Config heuristic = *made(problem)->heuristic(world.limits());
    for (const Config& config : made(problem)->space().all()) {
      if (config != heuristic && made(problem)->legal(config, world.limits()).ok()) {
        world.shortlist({config});
        break;
      }
    }
    context_.emplace(world.driver);
    stream_ = context_->stream();
    if (!way.warm) return;
    const TuneMode mode = std::exchange(world.options.tune_mode, TuneMode::kFirstUse);
    engine::KernelLoader loader;
    REQUIRE(attempt(loader).ok());
    world.options.tune_mode = mode;
  }

  /// The whole way once, in an engine of its own. `again`: calls once more in that engine.
  Status attempt(engine::KernelLoader& loader, const std::function<void(Engine&)>& again = {}) {
    engine::Parts parts = world.parts();
    parts.loader = &loader;
    auto engine = engine::create_engine(world.options, parts);
    if (!engine.ok()) return engine.status();
    const Status status = call(*engine);
    if (again) again(*engine);
    return status;
  }
  Status call(Engine& engine) {
    const auto bytes = workspace_bound(problem);
    REQUIRE(bytes.ok());
    return engine.gated_delta_h(problem, far_apart(problem), workspace_of(*bytes), stream_);
  }

  /// One trial: `arm` sets the fault, `disarm` takes it back. True if the fault was met.
  template <class Arm, class Disarm, class Calls>
  bool run(std::int64_t nth, Arm&& arm, Disarm&& disarm, Calls&& calls, Tally& tally,
           bool may_fail) {
    if (!way_.warm) remove_all(world.files, "/cache");
    const FakeLive before = world.driver.live();
    const std::int64_t calls_before = calls();
    engine::KernelLoader loader;
    arm(nth);
    bool fine = true, met = false;
    const auto next_call = [&](Engine& engine) {
      met = calls() - calls_before >= nth;
      disarm();
      world.check_thread_clean(1);
      fine = fine && call(engine).ok();
    };
    const Status status = attempt(loader, next_call);
    if (!met) met = calls() - calls_before >= nth;
    disarm();
    world.check_thread_clean(1);
    fine = fine && attempt(loader).ok();  // a new engine works as well
    if (!status.ok()) {
      ++tally.errors;
      fine = fine && may_fail && status.message().size() > 10 &&
             status.code() != ErrorCode::kInternal && status.code() != ErrorCode::kDeviceLost;
    }
    const FakeLive now = world.driver.live();
    // What could not be given back because just that call failed is one object. Modules stay.
    fine = fine && now.allocations - before.allocations <= 1;
    fine = fine && now.streams - before.streams + now.events - before.events + now.graph_execs -
                           before.graph_execs + now.graphs - before.graphs + now.pools -
                           before.pools + now.primary_retains - before.primary_retains <=
                       1;
    fine = fine && nvrtc.live() == 0;
    if (!fine) {
      UNSCOPED_INFO(way_.name << ", call " << nth << ": " << status.to_string());
      CHECK(fine);
    }
    ++tally.trials;
    tally.failures += fine ? 0 : 1;
    return met;
  }

 private:
  static GatedDeltaHProblem packed() {
    GatedDeltaHProblem p = small_layer();
    p.B = 1;
    p.packed = true;
    p.sequences = 3;
    p.T = 192;
    return p;
  }

  const Way& way_;
  std::optional<CurrentContext> context_;
  cuda::CUstream stream_ = nullptr;
};

}  // namespace

TEST_CASE("whatever driver call fails, an error is a sentence and the next call works",
          "[fault_loop]") {
  Tally tally;
  for (const Way& way : kWays) {
    for (const cuda::CUresult error : {cuda::CUDA_ERROR_UNKNOWN, cuda::CUDA_ERROR_OUT_OF_MEMORY}) {
      Trial trial(way);
      bool met = true;
      // Every call of the way to the first measurement, then ever fewer of the many alike that
      // follow; all of them at night.
      const std::int64_t every = variable("SCANJIT_NIGHTLY").empty() ? 400 : 1'000'000;
      for (std::int64_t nth = 1; met; nth += nth < every ? 1 : nth / 8) {
        met = trial.run(
            nth, [&](std::int64_t n) { trial.world.driver.fail_call("", n, error); },
            [&] { trial.world.driver.clear_faults(); }, [&] { return trial.world.driver.calls(); },
            tally, true);
      }
    }
  }
  CHECK(tally.failures == 0);
  CHECK(tally.errors > 100);
  report_count("the n-th driver call fails, from engine to launch", tally.trials, tally.failures);
}

TEST_CASE("whatever NVRTC call fails, an error is a sentence and the next call works",
          "[fault_loop]") {
  Tally tally;
  constexpr int kInternalError = 11;
  for (const Way& way : kWays) {
    for (const int error : {int{cuda::NVRTC_ERROR_OUT_OF_MEMORY},
                            int{cuda::NVRTC_ERROR_COMPILATION}, kInternalError}) {
      Trial trial(way);
      bool met = true;
      for (std::int64_t nth = 1; met; ++nth) {
        REQUIRE(nth < 500);
        met = trial.run(
            nth, [&](std::int64_t n) { trial.nvrtc.fail_call(static_cast<long>(n), error); },
            [&] { trial.nvrtc.fail_call(0, 0); },
            [&] { return static_cast<std::int64_t>(trial.nvrtc.calls()); }, tally, true);
      }
    }
  }
  CHECK(tally.failures == 0);
  CHECK(tally.errors > 10);
  report_count("the n-th NVRTC call fails, from engine to launch", tally.trials, tally.failures);
}

TEST_CASE("whatever call fails while NVRTC is opened, it is refused with a sentence",
          "[fault_loop]") {
  const FakeNvrtc nvrtc;
  Tally tally;
  for (long nth = 1;; ++nth) {
    REQUIRE(nth < 100);
    const long before = nvrtc.calls();
    nvrtc.fail_call(nth, cuda::NVRTC_ERROR_OUT_OF_MEMORY);
    const auto opened = cuda::open_nvrtc(fake_nvrtc_environment());
    nvrtc.fail_call(0, 0);
    if (nvrtc.calls() - before < nth) {
      CHECK(opened.ok());
      break;
    }
    ++tally.trials;
    bool fine = cuda::open_nvrtc(fake_nvrtc_environment()).ok() && nvrtc.live() == 0;
    if (!opened.ok()) {
      fine = fine && opened.status().code() == ErrorCode::kUnsupported &&
             opened.status().message().find(SCANJIT_FAKE_NVRTC) != std::string::npos;
      ++tally.errors;
    }
    CHECK(fine);
    tally.failures += fine ? 0 : 1;
  }
  CHECK(tally.errors >= 5);
  report_count("the n-th NVRTC call fails while it is opened", tally.trials, tally.failures);
}

TEST_CASE("whatever file call fails, once or from then on, every call is served", "[fault_loop]") {
  Tally tally;
  for (const Way& way : kWays) {
    for (const int error : {EIO, ENOSPC, EACCES, ENOENT}) {
      for (const bool persist : {false, true}) {
        Trial trial(way);
        bool met = true;
        for (std::int64_t nth = 1; met; ++nth) {
          REQUIRE(nth < 2000);
          met = trial.run(
              nth, [&](std::int64_t n) { trial.world.files.fail_call(n, error, persist); },
              [&] { trial.world.files.clear_fault(); }, [&] { return trial.world.files.calls(); },
              tally, false);
        }
      }
    }
  }
  CHECK(tally.failures == 0);
  CHECK(tally.errors == 0);
  report_count("the n-th file call fails, from engine to launch", tally.trials, tally.failures);
}
