#include "cuda/context.hpp"

#include <utility>

namespace scanjit::cuda {

Result<ScopedContext> ScopedContext::enter(const DriverApi& api, CUcontext context) {
  if (context == nullptr) return invalid_argument("no context to enter: it is null");
  SCANJIT_TRY(check(api, api.cuCtxPushCurrent(context), "cuCtxPushCurrent"));
  return ScopedContext(api);
}

ScopedContext::~ScopedContext() {
  CUcontext popped = nullptr;
  // Once more where the driver was busy with something else: the caller's context must come back.
  if (api_ != nullptr && api_->cuCtxPopCurrent(&popped) != CUDA_SUCCESS)
    api_->cuCtxPopCurrent(&popped);
}

RelaxedCaptureScope::RelaxedCaptureScope(const DriverApi& api) noexcept : api_(api) {
  exchanged_ = api_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
}

RelaxedCaptureScope::~RelaxedCaptureScope() {
  if (!exchanged_) return;
  CUstreamCaptureMode mode = mode_;
  if (api_.cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
    api_.cuThreadExchangeStreamCaptureMode(&mode_);
}

Result<PrimaryContext> PrimaryContext::retain(const DriverApi& api, CUdevice device) {
  CUcontext context = nullptr;
  SCANJIT_TRY(
      check(api, api.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain"));
  return PrimaryContext(api, device, context);
}

PrimaryContext::PrimaryContext(PrimaryContext&& other) noexcept
    : api_(other.api_), device_(other.device_), context_(std::exchange(other.context_, nullptr)) {}

PrimaryContext& PrimaryContext::operator=(PrimaryContext&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(device_, other.device_);
  std::swap(context_, other.context_);
  return *this;
}

PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) api_->cuDevicePrimaryCtxRelease(device_);
}

Result<CUcontext> current_context(const DriverApi& api) {
  CUcontext context = nullptr;
  SCANJIT_TRY(check(api, api.cuCtxGetCurrent(&context), "cuCtxGetCurrent"));
  return context;
}

Result<ContextId> identify(const DriverApi& api, CUcontext context) {
  ContextId id;
  id.context = context;
  const CUresult result = api.cuCtxGetId(context, &id.id);
  if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    ErrorDetails details;
    details.cuda_result = result;
    return Status(ErrorCode::kDeviceLost, "the CUDA context has been destroyed",
                  std::move(details));
  }
  SCANJIT_TRY(check(api, result, "cuCtxGetId"));
  SCANJIT_ASSIGN_OR_RETURN(const ScopedContext scope, ScopedContext::enter(api, context));
  SCANJIT_TRY(check(api, api.cuCtxGetDevice(&id.device), "cuCtxGetDevice"));
  return id;
}

Result<CUcontext> stream_context(const DriverApi& api, CUstream stream) {
  // The default streams' handles are 0, 1 and 2. Asking about the legacy one while a blocking
  // stream captures would be an error; it belongs to the current context anyway.
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2) return current_context(api);
  CUcontext context = nullptr;
  SCANJIT_TRY(check(api, api.cuStreamGetCtx(stream, &context), "cuStreamGetCtx"));
  return context;
}

}  // namespace scanjit::cuda
