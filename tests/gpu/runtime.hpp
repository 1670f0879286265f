#pragma once
// What the tests of the engine on a real GPU share: engines of their own, and tensors in whatever
// context is current.

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/memory.hpp"
#include "gpu/case.hpp"
#include "gpu/run.hpp"
#include "reference/generators.hpp"

namespace scanjit::test {

/// An engine with options of the test's and a short list of its own, so that first use times
/// whatever revision the kernels have. Without a cache of its own it stores nothing; kernels of
/// other cases serve it.
[[nodiscard]] Result<Engine> engine_of(Gpu& gpu, EngineOptions options);

/// A small dense layer whose kernels compile quickly.
[[nodiscard]] GatedDeltaHProblem small_scan(std::int64_t N, std::int64_t T, std::int64_t HV = 4,
                                            std::int64_t K = 64);

/// A problem's tensors in plain memory of the current context, on a stream of that context.
class PlainTensors {
 public:
  [[nodiscard]] static Result<PlainTensors> make(const cuda::DriverApi& api,
                                                 const reference::GatedDeltaHInputs& inputs,
                                                 CUstream stream);
  [[nodiscard]] const GatedDeltaHArgs& args() const noexcept { return args_; }
  /// Every bit of the outputs set: NaN.
  [[nodiscard]] Status poison(CUstream stream);
  /// The outputs after the stream's work.
  [[nodiscard]] Result<RunResult> outputs(CUstream stream) const;

 private:
  cuda::DeviceBuffer k_, w_, u_, g_, h0_, h_, v_new_, ht_;
  GatedDeltaHArgs args_;
};

/// Inputs of a problem, the same each time.
[[nodiscard]] reference::GatedDeltaHInputs inputs_for(const GatedDeltaHProblem& problem);

}  // namespace scanjit::test
