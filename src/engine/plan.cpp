#include "engine/plan.hpp"

#include <string>

#include "core/guard.hpp"
#include "ops/abc_backward.hpp"
#include "ops/abc_forward.hpp"
#include "ops/gated_delta_h.hpp"
#include "ops/kda_forward.hpp"

namespace scanjit::engine {

Status SharedState::why_unusable() const {
  if (generation != process_generation()) {
    return unsupported(
        "this process was forked after the engine was made; CUDA does not survive a fork, make an "
        "engine in the child");
  }
  return Status(ErrorCode::kDeviceLost,
                "an earlier fault left the CUDA context unusable; end the process or make a new "
                "context and engine");
}

Status SharedState::noted(Status status) {
  const int result = status.details().cuda_result;
  const bool context_gone =
      result == cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED || result == cuda::CUDA_ERROR_INVALID_CONTEXT;
  if (status.code() == ErrorCode::kDeviceLost && result != 0 && !context_gone)
    device_lost.store(true, std::memory_order_relaxed);
  return status;
}

Status SharedState::fault(const cuda::DriverApi& api, cuda::CUresult result, const char* call) {
  if (result == cuda::CUDA_SUCCESS) return {};
  Status status = noted(cuda::check(api, result, call));
  return device_lost.load(std::memory_order_relaxed) ? std::move(status) : Status();
}

Result<LaunchStage> make_launch(const cuda::DriverApi& api, const ops::Stage& stage,
                                cuda::CUfunction function) {
  LaunchStage launch{function,
                     static_cast<unsigned>(stage.grid),
                     static_cast<unsigned>(stage.source.threads),
                     static_cast<unsigned>(stage.source.smem_bytes),
                     {},
                     stage.note};
  for (const ops::TensorMap& map : stage.maps) {
    SCANJIT_ASSIGN_OR_RETURN(
        cuda::AddresslessMap made,
        cuda::AddresslessMap::make(api, {map.rank, map.extents, map.strides, map.box}));
    launch.maps.push_back({map.tensor, map.offset, made});
  }
  return launch;
}

Status fill_launch_params(const cuda::DriverApi& api, const ops::OpProblem& problem,
                          const LaunchStage& stage, const ops::Addresses& addresses,
                          ops::StageParams& params) {
  problem.fill_params(stage.note, addresses, params);
  for (const LaunchStage::Map& map : stage.maps) {
    SCANJIT_TRY(map.map.write(api, addresses.tensor[map.tensor], params.bytes.data() + map.offset));
  }
  return {};
}

Status enqueue(const cuda::DriverApi& api, const ops::OpProblem& problem,
               const std::vector<LaunchStage>& stages, const ops::Addresses& addresses,
               cuda::CUstream stream) {
  ops::StageParams params;
  void* pointers[] = {params.bytes.data()};
  for (const LaunchStage& stage : stages) {
    SCANJIT_TRY(fill_launch_params(api, problem, stage, addresses, params));
    const cuda::CUlaunchConfig config{stage.grid, 1,       1, stage.threads, 1, 1, stage.smem_bytes,
                                      stream,     nullptr, 0};
    const cuda::CUresult result = api.cuLaunchKernelEx(&config, stage.function, pointers, nullptr);
    if (result != cuda::CUDA_SUCCESS) return cuda::check(api, result, "cuLaunchKernelEx");
  }
  return {};
}

}  // namespace scanjit::engine

namespace scanjit {

namespace {

constexpr const char* kForeignStream = "stream belongs to another context than the plan";

// What is known better of a launch that the driver refused: whether the stream is another
// context's.
Status explained(const cuda::DriverApi& api, const cuda::ContextId& context, cuda::CUstream stream,
                 Status refused) {
  const int result = refused.details().cuda_result;
  if (result != cuda::CUDA_ERROR_INVALID_HANDLE && result != cuda::CUDA_ERROR_INVALID_CONTEXT &&
      result != cuda::CUDA_ERROR_INVALID_VALUE)
    return refused;
  const auto owner = cuda::stream_context(api, stream);
  unsigned long long id = 0;
  if (!owner.ok() || *owner == nullptr || api.cuCtxGetId(*owner, &id) != cuda::CUDA_SUCCESS ||
      id == context.id)
    return refused;
  return invalid_argument(kForeignStream);
}

}  // namespace

Status Plan::Impl::other_op(const ops::Op& wanted) const {
  return invalid_argument(std::string("the plan is of ") + problem->op().name +
                          ", the arguments are of " + wanted.name);
}

Status Plan::Impl::enqueue(const ops::Addresses& addresses, cuda::CUstream stream) const {
  state->launches.raise();
  Status status = engine::enqueue(*api, *problem, stages, addresses, stream);
  if (status.ok()) return status;
  return state->noted(explained(*api, context, stream, std::move(status)));
}

std::int64_t Plan::workspace_bytes() const noexcept { return impl_ ? impl_->workspace_bytes : 0; }

const Why& Plan::why() const noexcept {
  static const Why none;
  return impl_ ? impl_->why : none;
}

namespace {

template <class Op>
Status launch_plan(const Plan::Impl* plan, const typename Op::Args& args, Workspace workspace,
                   Stream stream) {
  return guard([&]() -> Status {
    if (plan == nullptr) return invalid_argument("the plan is empty");
    const Plan::Impl& impl = *plan;
    SCANJIT_TRY(impl.state->usable());
    const auto handle = static_cast<cuda::CUstream>(stream);
    // An id is never used again, so that the current context is the plan's, and alive, if it has
    // it.
    unsigned long long id = 0;
    if (impl.api->cuCtxGetId(nullptr, &id) == cuda::CUDA_SUCCESS && id == impl.context.id)
      return impl.launch<Op>(args, workspace, handle);
    const cuda::CUresult known = impl.api->cuCtxGetId(impl.context.context, &id);
    SCANJIT_TRY(impl.state->fault(*impl.api, known, "cuCtxGetId"));
    if (known != cuda::CUDA_SUCCESS || id != impl.context.id) {
      return Status(ErrorCode::kDeviceLost,
                    "the context that the plan was made in has been destroyed");
    }
    SCANJIT_ASSIGN_OR_RETURN(const cuda::CUcontext owner, cuda::stream_context(*impl.api, handle));
    if (owner != nullptr && owner != impl.context.context) return invalid_argument(kForeignStream);
    SCANJIT_ASSIGN_OR_RETURN(const auto scope,
                             cuda::ScopedContext::enter(*impl.api, impl.context.context));
    return impl.launch<Op>(args, workspace, handle);
  });
}

}  // namespace

Status Plan::launch(const GatedDeltaHArgs& args, Workspace workspace, Stream stream) const {
  return launch_plan<ops::GatedDeltaH>(impl_.get(), args, workspace, stream);
}
Status Plan::launch(const AbcForwardArgs& args, Workspace workspace, Stream stream) const {
  return launch_plan<ops::AbcForward>(impl_.get(), args, workspace, stream);
}
Status Plan::launch(const AbcBackwardArgs& args, Workspace workspace, Stream stream) const {
  return launch_plan<ops::AbcBackward>(impl_.get(), args, workspace, stream);
}

Status Plan::launch(const KdaForwardArgs& args, Workspace workspace, Stream stream) const {
  return launch_plan<ops::KdaForward>(impl_.get(), args, workspace, stream);
}

}  // namespace scanjit
