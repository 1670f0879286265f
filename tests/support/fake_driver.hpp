#pragma once
/// \file
/// A CUDA driver without a GPU, for tests: a table of fakes over a model of devices, contexts,
/// streams with their captures, modules, events and memory. Work "runs" when it is enqueued (a
/// captured graph: when it is launched) and takes virtual time on its stream. Any call can be made
/// to fail.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.hpp"

namespace scanjit::test {

/// One kernel that ran (or, `captured`, was put into a graph).
struct FakeLaunch {
  std::string kernel;
  cuda::CUstream stream = nullptr;
  cuda::CUcontext context = nullptr;
  std::array<unsigned, 3> grid = {};
  std::array<unsigned, 3> block = {};
  unsigned smem_bytes = 0;
  bool captured = false;
  bool programmatic = false;  ///< with programmatic stream serialisation
};

/// What one device says of itself; starts as an H200.
struct FakeDevice {
  std::string name = "NVIDIA H200";
  std::size_t total_bytes = std::size_t{141} << 30;
  std::size_t free_bytes = std::size_t{140} << 30;  ///< of which allocations take
  std::map<cuda::CUdevice_attribute, int> attributes;
};

/// Objects that were made and not destroyed.
struct FakeLive {
  std::int64_t contexts = 0, primary_retains = 0, streams = 0, events = 0, modules = 0, graphs = 0,
               graph_execs = 0, pools = 0, allocations = 0;
  std::int64_t allocated_bytes = 0;
  friend bool operator==(const FakeLive&, const FakeLive&) = default;
};

/// One at a time in a process, since a table of function pointers has room for no more.
/// Thread-safe.
class FakeDriver {
 public:
  explicit FakeDriver(int devices = 1);
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;
  ~FakeDriver();

  [[nodiscard]] const cuda::DriverApi& api() const noexcept;
  /// Change it before the code under test looks.
  [[nodiscard]] FakeDevice& device(int ordinal);

  // Faults.

  /// The `nth` call from now (1: the next) of `function` ("cuMemAlloc"; "": of any function)
  /// returns `result` and does nothing else.
  void fail_call(const std::string& function, std::int64_t nth, cuda::CUresult result);
  void clear_faults();
  /// From now on every call that touches the device in `context` (null: in any) returns `result`.
  void break_context(cuda::CUcontext context, cuda::CUresult result);
  [[nodiscard]] std::int64_t calls(const std::string& function = "") const;
  /// Those of them that were made by a thread whose capture mode was not relaxed.
  [[nodiscard]] std::int64_t unrelaxed_calls(const std::string& function) const;
  /// From now on `context` has only so many multiprocessors.
  void limit_context(cuda::CUcontext context, int sm_count);
  /// From now on a context that is made gets the handle of one that was destroyed.
  void reuse_context_handles();

  // Kernels.

  /// Virtual microseconds that a launch takes; 10 if never set. Called with the driver's lock held.
  void set_launch_time(std::function<double(const FakeLaunch&)> time_us);
  /// What a launch does, given the pointers to its parameters; nothing if never set. Parameters of
  /// a captured launch are copied: `params_bytes` of the first one. Called with the driver's lock
  /// held.
  void set_kernel(std::function<void(const FakeLaunch&, const void* params)> body,
                  std::size_t params_bytes);
  [[nodiscard]] std::vector<FakeLaunch> launches() const;
  void clear_launches();
  /// Value of a function's attribute from now on, for every kernel of this name ("": all others).
  void set_function_attribute(const std::string& kernel, cuda::CUfunction_attribute attribute,
                              int value);

  /// From now on machine code for which this holds is refused, as what is of another GPU or too
  /// new.
  void refuse_images(std::function<bool(const void* image)> refused);

  // What is left.

  [[nodiscard]] FakeLive live() const;
  /// Contexts on this thread's stack.
  [[nodiscard]] std::size_t context_depth() const;
  /// This thread's capture mode.
  [[nodiscard]] cuda::CUstreamCaptureMode capture_mode() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace scanjit::test
