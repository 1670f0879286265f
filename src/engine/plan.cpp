#include "engine/plan.hpp"

#include <string>

#include "core/guard.hpp"
#include "engine/fork_guard.hpp"

namespace scanjit::engine {

Status SharedState::usable() const {
  if (generation != process_generation()) {
    return unsupported(
        "this process was forked after the engine was made; CUDA does not survive a fork, make an "
        "engine in the child");
  }
  if (device_lost.load(std::memory_order_relaxed)) {
    return Status(ErrorCode::kDeviceLost,
                  "an earlier fault left the CUDA context unusable; end the process or make a new "
                  "context and engine");
  }
  return {};
}

Status SharedState::noted(Status status) {
  if (status.code() == ErrorCode::kDeviceLost) device_lost.store(true, std::memory_order_relaxed);
  return status;
}

Result<LaunchStage> make_launch(const cuda::DriverApi& api, const ops::Stage& stage,
                                cuda::CUfunction function) {
  LaunchStage launch{function,
                     static_cast<unsigned>(stage.grid),
                     static_cast<unsigned>(stage.source.threads),
                     static_cast<unsigned>(stage.source.smem_bytes),
                     {}};
  for (const ops::TensorMap& map : stage.maps) {
    SCANJIT_ASSIGN_OR_RETURN(
        cuda::AddresslessMap made,
        cuda::AddresslessMap::make(api, {map.rank, map.extents, map.strides, map.box}));
    launch.maps.push_back({map.tensor, map.offset, made});
  }
  return launch;
}

Status fill_launch_params(const cuda::DriverApi& api, const ops::OpProblem& problem,
                          std::size_t index, const LaunchStage& stage,
                          const ops::Addresses& addresses, ops::StageParams& params) {
  problem.fill_params(index, addresses, params);
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
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const LaunchStage& stage = stages[i];
    SCANJIT_TRY(fill_launch_params(api, problem, i, stage, addresses, params));
    const cuda::CUlaunchConfig config{stage.grid, 1,       1, stage.threads, 1, 1, stage.smem_bytes,
                                      stream,     nullptr, 0};
    const cuda::CUresult result = api.cuLaunchKernelEx(&config, stage.function, pointers, nullptr);
    if (result != cuda::CUDA_SUCCESS) return cuda::check(api, result, "cuLaunchKernelEx");
  }
  return {};
}

}  // namespace scanjit::engine

namespace scanjit {

Status Plan::Impl::launch(const GatedDeltaHArgs& args, Workspace workspace, cuda::CUstream stream,
                          cuda::CUcontext current) const {
  SCANJIT_TRY(problem->check_args(args, workspace));
  if (stages.empty()) return {};
  state->launches.fetch_add(1, std::memory_order_relaxed);
  const ops::Addresses addresses = ops::GatedDeltaH::addresses(args, workspace);
  if (current == context.context)
    return state->noted(engine::enqueue(*api, *problem, stages, addresses, stream));
  SCANJIT_ASSIGN_OR_RETURN(const auto scope, cuda::ScopedContext::enter(*api, context.context));
  return state->noted(engine::enqueue(*api, *problem, stages, addresses, stream));
}

std::int64_t Plan::workspace_bytes() const noexcept {
  return impl_ ? impl_->problem->workspace_bytes() : 0;
}

const Why& Plan::why() const noexcept {
  static const Why none;
  return impl_ ? impl_->why : none;
}

Status Plan::launch(const GatedDeltaHArgs& args, Workspace workspace, Stream stream) const {
  return guard([&]() -> Status {
    if (!impl_) return invalid_argument("the plan is empty");
    const Impl& impl = *impl_;
    SCANJIT_TRY(impl.state->usable());
    const auto handle = static_cast<cuda::CUstream>(stream);
    cuda::CUcontext current = nullptr;
    if (impl.api->cuCtxGetCurrent(&current) != cuda::CUDA_SUCCESS) current = nullptr;
    SCANJIT_ASSIGN_OR_RETURN(const cuda::CUcontext context,
                             cuda::stream_context(*impl.api, handle));
    unsigned long long id = 0;
    if (context == nullptr || impl.api->cuCtxGetId(context, &id) != cuda::CUDA_SUCCESS ||
        id != impl.context.id) {
      unsigned long long own = 0;
      if (impl.api->cuCtxGetId(impl.context.context, &own) != cuda::CUDA_SUCCESS ||
          own != impl.context.id) {
        return Status(ErrorCode::kDeviceLost,
                      "the context that the plan was made in has been destroyed");
      }
      return invalid_argument("stream belongs to another context than the plan");
    }
    return impl.launch(args, workspace, handle, current);
  });
}

}  // namespace scanjit
