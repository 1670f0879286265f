#pragma once
// The GPU under test: driver, context, stream, and the small kernels of this folder.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/environment.hpp"
#include "cuda/context.hpp"
#include "cuda/device_facts.hpp"
#include "cuda/driver.hpp"
#include "cuda/module.hpp"
#include "cuda/stream.hpp"
#include "scanjit/engine.hpp"
#include "scanjit/result.hpp"

namespace scanjit::test {

using cuda::CUcontext;
using cuda::CUdevice;
using cuda::CUdeviceptr;
using cuda::CUfunction;
using cuda::CUresult;
using cuda::CUstream;

/// The process's GPU: device 0 and its primary context. Made once, never destroyed: a fault on the
/// device must not turn the end of the process into another one.
class Gpu {
 public:
  /// Makes the context current on the calling thread as well. Errors: kUnsupported where there is
  /// no driver or no device, which is when tests skip; anything else is a failure.
  [[nodiscard]] static Result<Gpu*> get();

  [[nodiscard]] const cuda::DriverApi& api() const noexcept { return *api_; }
  [[nodiscard]] const Environment& environment() const noexcept { return environment_; }
  [[nodiscard]] const cuda::DeviceFacts& facts() const noexcept { return facts_; }
  [[nodiscard]] CUcontext context() const noexcept { return context_; }
  /// Non-blocking. One test uses it at a time: hold `lock()` where several threads have work for
  /// it.
  [[nodiscard]] CUstream stream() const noexcept { return stream_; }
  [[nodiscard]] std::mutex& lock() noexcept { return lock_; }
  [[nodiscard]] Status make_current() const;
  /// Waits for `stream()`; says what any earlier work did wrong.
  [[nodiscard]] Status synchronize() const;
  [[nodiscard]] std::int64_t free_bytes() const;

  /// An engine that neither times nor reads tuned entries: the heuristic, or the config that the
  /// test names. Compiled kernels are kept in SCANJIT_GPU_TEST_CACHE if that is set, else in memory
  /// only.
  [[nodiscard]] Result<Engine*> engine();

  /// A kernel of this folder, compiled by NVRTC on first need. Thread-safe.
  [[nodiscard]] Result<CUfunction> kernel(const std::string& file, const std::string& name);
  /// Launches it with one parameter struct.
  template <class Params>
  [[nodiscard]] Status launch(const std::string& file, const std::string& name, std::int64_t blocks,
                              int threads, Params params, int smem_bytes = 0) {
    return launch_bytes(file, name, blocks, threads, &params, smem_bytes);
  }

 private:
  Gpu() = default;
  static Result<Gpu*> open();
  Status launch_bytes(const std::string& file, const std::string& name, std::int64_t blocks,
                      int threads, void* params, int smem_bytes);

  Environment environment_;
  const cuda::DriverApi* api_ = nullptr;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  cuda::DeviceFacts facts_;
  std::mutex lock_;
  std::mutex making_;  // engine_, modules_
  std::unique_ptr<Engine> engine_;
  std::map<std::string, cuda::Module> modules_;
};

/// SCANJIT_GPU_* as a number, or `otherwise` if it is unset or no number.
[[nodiscard]] std::int64_t number_from_environment(const char* name, std::int64_t otherwise);

/// Hands `json` (one object, one line) to tools/gpu_check.sh: appended to the file that
/// SCANJIT_GPU_COUNTS names, and printed.
void report_counts(const std::string& json);

}  // namespace scanjit::test
