#pragma once
/// \file
/// A plan: a checked problem, its loaded kernels and their geometry.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/context.hpp"
#include "cuda/tensor_map.hpp"
#include "engine/fork_guard.hpp"
#include "engine/kernel_loader.hpp"
#include "engine/striped_counter.hpp"
#include "ops/op_problem.hpp"
#include "scanjit/engine.hpp"

namespace scanjit::engine {

/// What an engine and its plans share; outlives whichever ends first.
struct SharedState {
  std::atomic<bool> device_lost{false};  ///< latched: nothing is launched any more
  std::uint64_t generation = 0;          ///< process_generation() of the engine's process
  StripedCounter launches;

  /// kUnsupported after a fork, kDeviceLost once latched.
  [[nodiscard]] Status usable() const {
    if (generation == process_generation() && !device_lost.load(std::memory_order_relaxed))
      return {};
    return why_unusable();
  }
  /// Latches a sticky fault of the device, which a destroyed context is not; returns `status`.
  Status noted(Status status);
  /// Ok, unless `result` is such a fault: then it is latched, and returned as the failure of `call`.
  [[nodiscard]] Status fault(const cuda::DriverApi& api, cuda::CUresult result, const char* call);

 private:
  [[nodiscard]] Status why_unusable() const;
};

/// One launch, ready.
struct LaunchStage {
  struct Map {
    std::size_t tensor = 0;  ///< place in ops::Addresses
    std::size_t offset = 0;  ///< in the parameters
    cuda::AddresslessMap map;
  };
  cuda::CUfunction function = nullptr;
  unsigned grid = 0;
  unsigned threads = 0;
  unsigned smem_bytes = 0;
  std::vector<Map> maps;
  ops::StageNote note;
};

/// Errors: kCudaError if the driver refuses a tensor map.
[[nodiscard]] Result<LaunchStage> make_launch(const cuda::DriverApi& api, const ops::Stage& stage,
                                              cuda::CUfunction function);
/// All that a stage's kernel is given. Allocates nothing.
[[nodiscard]] Status fill_launch_params(const cuda::DriverApi& api, const ops::OpProblem& problem,
                                        const LaunchStage& stage, const ops::Addresses& addresses,
                                        ops::StageParams& params);

/// Enqueues a problem's stages. The stages' context must be current. Allocates nothing when ok.
[[nodiscard]] Status enqueue(const cuda::DriverApi& api, const ops::OpProblem& problem,
                             const std::vector<LaunchStage>& stages,
                             const ops::Addresses& addresses, cuda::CUstream stream);

}  // namespace scanjit::engine

namespace scanjit {

struct Plan::Impl {
  const cuda::DriverApi* api = nullptr;
  cuda::ContextId context;
  std::shared_ptr<const ops::OpProblem> problem;
  std::int64_t workspace_bytes = 0;
  std::vector<engine::LaunchStage> stages;
  Why why;
  std::shared_ptr<engine::SharedState> state;

  /// The plan's context must be current and `stream` one of its own: kInvalidArgument if the driver
  /// says that it is not, or if the plan is of another op.
  template <class Op>
  [[nodiscard]] Status launch(const typename Op::Args& args, Workspace workspace,
                              cuda::CUstream stream) const {
    if (problem->op().number != Op::kOp.number) return other_op(Op::kOp);
    const Op& op = static_cast<const Op&>(*problem);
    SCANJIT_TRY(op.check_args(args, workspace, workspace_bytes));
    return stages.empty() ? Status() : enqueue(Op::addresses(args, workspace), stream);
  }

 private:
  [[nodiscard]] Status other_op(const ops::Op& wanted) const;
  [[nodiscard]] Status enqueue(const ops::Addresses& addresses, cuda::CUstream stream) const;
};

using PlanPointer = std::shared_ptr<const Plan::Impl>;

}  // namespace scanjit
