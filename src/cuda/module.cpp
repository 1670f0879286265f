#include "cuda/module.hpp"

#include <utility>

namespace scanjit::cuda {
namespace {

// What the driver answers to machine code that it cannot run.
bool refuses_image(CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_SHARED_OBJECT_INIT_FAILED:
    case CUDA_ERROR_NOT_SUPPORTED: return true;
    default: return false;
  }
}

}  // namespace

Result<Module> Module::load(const DriverApi& api, const std::string& cubin) {
  CUmodule module = nullptr;
  const CUresult result = api.cuModuleLoadData(&module, cubin.data());
  if (refuses_image(result)) {
    const Status status = check(api, result, "cuModuleLoadData");
    return Status(ErrorCode::kUnsupported,
                  "the driver refuses the machine code: " + status.message(), status.details());
  }
  SCANJIT_TRY(check(api, result, "cuModuleLoadData"));
  return Module(api, module);
}

Result<CUfunction> Module::function(const std::string& name) const {
  CUfunction function = nullptr;
  const CUresult result = api_->cuModuleGetFunction(&function, module_, name.c_str());
  if (result == CUDA_ERROR_NOT_FOUND)
    return not_found("the loaded machine code has no kernel named " + name);
  SCANJIT_TRY(check(*api_, result, "cuModuleGetFunction"));
  return function;
}

Status Module::unload() {
  if (module_ == nullptr) return {};
  return check(*api_, api_->cuModuleUnload(std::exchange(module_, nullptr)), "cuModuleUnload");
}

Result<FunctionFacts> function_facts(const DriverApi& api, CUfunction function) {
  FunctionFacts facts;
  const std::pair<CUfunction_attribute, int*> wanted[] = {
      {CU_FUNC_ATTRIBUTE_NUM_REGS, &facts.registers},
      {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &facts.smem_static},
      {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &facts.local_bytes},
      {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &facts.max_threads},
  };
  for (const auto& [attribute, value] : wanted) {
    SCANJIT_TRY(
        check(api, api.cuFuncGetAttribute(value, attribute, function), "cuFuncGetAttribute"));
  }
  return facts;
}

Status prepare(const DriverApi& api, CUfunction function, int smem_bytes) {
  const CUresult result =
      api.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes);
  if (result == CUDA_ERROR_INVALID_VALUE) {
    return unsupported("the device has no " + std::to_string(smem_bytes) +
                       " bytes of shared memory for one block");
  }
  SCANJIT_TRY(check(api, result, "cuFuncSetAttribute"));
  // Older drivers load a function's code in cuModuleGetFunction.
  if (api.cuFuncLoad != nullptr) SCANJIT_TRY(check(api, api.cuFuncLoad(function), "cuFuncLoad"));
  return {};
}

Result<int> blocks_per_sm(const DriverApi& api, CUfunction function, int threads, int smem_bytes) {
  int blocks = 0;
  SCANJIT_TRY(check(api,
                    api.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                        &blocks, function, threads, static_cast<std::size_t>(smem_bytes)),
                    "cuOccupancyMaxActiveBlocksPerMultiprocessor"));
  return blocks;
}

}  // namespace scanjit::cuda
