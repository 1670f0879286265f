#pragma once
// An engine without a GPU, a disk or a compiler: a fake driver, files in memory, and a pack that
// holds made-up machine code for every config.
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "engine/first_use.hpp"
#include "engine/internals.hpp"
#include "jit/binary_cache.hpp"
#include "ops_abc_samples.hpp"
#include "ops_samples.hpp"
#include "os/memory_file_system.hpp"
#include "support/catch.hpp"
#include "support/fake_driver.hpp"

namespace scanjit::test {

/// Small enough that synthetic tensors cost nothing.
inline GatedDeltaHProblem small_layer(std::int64_t N = 2, std::int64_t T = 128) {
  GatedDeltaHProblem p = layer(N, T);
  p.H = 1;
  p.HV = 2;
  p.K = 64;
  p.V = 64;
  return p;
}

class EngineWorld {
 public:
  FakeDriver driver{2};
  os::MemoryFileSystem files;
  engine::KernelLoader loader;
  engine::VainTries vain_tries;
  std::vector<std::string> lines;  // of the log
  EngineOptions options;
  Environment environment;
  std::string shortlists = R"({"schema": "scanjit-shortlists/1", "lists": []})";
  std::vector<tuning::ShippedText> shipped;

  EngineWorld() {
    environment.home = "/home/user";
    environment.scanjit_nvrtc_library = "/nowhere/libnvrtc.so";
    options.cache_dir = "/cache";
    options.pack_dirs = {"/pack"};
    options.log = [this](LogLevel, const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines.push_back(line);
    };
  }

  engine::Parts parts() {
    engine::Parts parts;
    parts.api = &driver.api();
    parts.files = &files;
    parts.clock = &os::steady_clock();
    parts.loader = &loader;
    parts.vain_tries = &vain_tries;
    parts.environment = environment;
    parts.shipped = shipped;
    parts.shortlists = shortlists;
    return parts;
  }

  Result<Engine> engine() { return engine::create_engine(options, parts()); }

  ops::DeviceLimits limits() {
    const auto facts = cuda::device_facts(driver.api(), 0, nullptr);
    REQUIRE(facts.ok());
    return engine::limits_of(*facts);
  }

  /// Machine code of every legal config of a problem.
  template <class Problem>
  void stock(const Problem& problem) {
    const auto op = made(problem);
    REQUIRE(op != nullptr);
    for (const Config& config : op->space().all()) {
      if (op->legal(config, limits()).ok()) stock(problem, config);
    }
  }
  template <class Problem>
  void stock(const Problem& problem, const Config& config) {
    jit::KernelProviderOptions provider_options;
    const auto provider = jit::KernelProvider::create(provider_options, files);
    REQUIRE(provider.ok());
    for (const jit::KernelSource& source : made(problem)->kernels(config, limits())) {
      jit::StoredBinary binary;
      binary.source_id = *(*provider)->source_id(source, "sm_90a");
      binary.binary_id = jit::make_binary_id(binary.source_id, "13.0.88 made up");
      binary.entry = source.entry;
      binary.arch = "sm_90a";
      binary.nvrtc = "13.0.88";
      binary.cubin = "no machine code";
      files.put("/pack/bin/" + binary.binary_id + ".cubin", jit::encode_binary(binary));
    }
  }

  /// A shortlist of these configs for every source class.
  void shortlist(const std::vector<Config>& configs) {
    engine::Shortlists list({{"gated_delta_h", made(small_layer())->key_query().key.kernel_revision,
                              "sm_90a", "any", configs}});
    shortlists = list.to_json();
  }

  /// Launches of `config` take `us`, others 10.
  template <class Problem>
  void set_time(const Problem& problem, const Config& config, double us) {
    const auto source = made(problem)->stages(config, limits()).back().source;
    times_[{static_cast<unsigned>(source.threads), static_cast<unsigned>(source.smem_bytes)}] = us;
    driver.set_launch_time([this](const FakeLaunch& launch) {
      const auto found = times_.find({launch.block[0], launch.smem_bytes});
      return found == times_.end() ? 10.0 : found->second;
    });
  }

  /// Lines of the log that contain `words`.
  std::int64_t lines_with(const std::string& words) {
    const std::lock_guard lock(mutex_);
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(words) != std::string::npos;
    });
  }

  /// Nothing of ours is left on this thread.
  void check_thread_clean(std::size_t depth) const {
    CHECK(driver.context_depth() == depth);
    CHECK(driver.capture_mode() == cuda::CU_STREAM_CAPTURE_MODE_GLOBAL);
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<unsigned, unsigned>, double> times_;
};

/// A context that is current while this lives.
class CurrentContext {
 public:
  explicit CurrentContext(FakeDriver& driver, int device = 0) : api_(driver.api()) {
    REQUIRE(api_.cuCtxCreate(&context_, 0, device) == cuda::CUDA_SUCCESS);
  }
  ~CurrentContext() { api_.cuCtxDestroy(context_); }
  [[nodiscard]] cuda::CUcontext get() const { return context_; }
  [[nodiscard]] cuda::CUstream stream() {
    cuda::CUstream made = nullptr;
    REQUIRE(api_.cuStreamCreateWithPriority(&made, cuda::CU_STREAM_NON_BLOCKING, 0) ==
            cuda::CUDA_SUCCESS);
    return made;
  }

 private:
  const cuda::DriverApi& api_;
  cuda::CUcontext context_ = nullptr;
};

/// An entry of a problem that names `config`.
inline tuning::Record record_for(EngineWorld& world, Engine& engine,
                                 const GatedDeltaHProblem& problem, const Config& config) {
  tuning::Record record;
  const auto op = made(problem);
  record.key = engine::internals(engine).store->key_of(op->key_query());
  record.measured_at = {{op->key_query().sequences, op->tokens_per_sequence()}};
  record.config = config;
  record.us = {5, 4.9, 5.1, 9};
  record.default_config = *op->heuristic(world.limits());
  record.default_us = 10;
  record.toolchain = {"13.0.88", "", "0.1.0"};
  return record;
}

inline Config other_than(const Config& taken, const GatedDeltaHProblem& problem,
                         const ops::DeviceLimits& limits) {
  for (const Config& config : made(problem)->space().all()) {
    if (config != taken && made(problem)->legal(config, limits).ok()) return config;
  }
  return {};
}

/// Two legal configs beside the heuristic that the fake driver can tell apart.
inline std::vector<Config> two_others(EngineWorld& world, const GatedDeltaHProblem& problem) {
  const auto op = made(problem);
  const Config heuristic = *op->heuristic(world.limits());
  std::set<std::pair<int, int>> seen;
  const auto fresh = [&](const Config& config) {
    const auto source = op->stages(config, world.limits()).back().source;
    return seen.insert({source.threads, source.smem_bytes}).second;
  };
  static_cast<void>(fresh(heuristic));
  std::vector<Config> configs;
  for (const Config& config : op->space().all()) {
    if (op->legal(config, world.limits()).ok() && config != heuristic && fresh(config))
      configs.push_back(config);
    if (configs.size() == 2) break;
  }
  return configs;
}

/// A stream that captures while this lives.
class Capture {
 public:
  Capture(const cuda::DriverApi& api, cuda::CUstream stream,
          cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL)
      : api_(api), stream_(stream) {
    REQUIRE(api_.cuStreamBeginCapture(stream, mode) == cuda::CUDA_SUCCESS);
  }
  /// Whether nothing has invalidated it.
  [[nodiscard]] bool end() {
    cuda::CUgraph graph = nullptr;
    const bool good =
        api_.cuStreamEndCapture(stream_, &graph) == cuda::CUDA_SUCCESS && graph != nullptr;
    if (graph != nullptr) api_.cuGraphDestroy(graph);
    return good;
  }

 private:
  const cuda::DriverApi& api_;
  cuda::CUstream stream_;
};

}  // namespace scanjit::test
