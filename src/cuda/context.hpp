#pragma once
/// \file
/// Contexts: make one current for a scope, hold a device's primary one, run driver calls that
/// another thread's stream capture must not notice.

#include <cstdint>

#include "cuda/driver.hpp"

namespace scanjit::cuda {

/// Makes `context` current for the life of the object; what was current before is current again
/// after, on every way out. Pops only what it pushed. Must end on the thread that it began on.
class ScopedContext {
 public:
  [[nodiscard]] static Result<ScopedContext> enter(const DriverApi& api, CUcontext context);
  ScopedContext(ScopedContext&& other) noexcept : api_(other.api_) { other.api_ = nullptr; }
  ScopedContext& operator=(ScopedContext&&) = delete;
  ~ScopedContext();

 private:
  explicit ScopedContext(const DriverApi& api) noexcept : api_(&api) {}
  const DriverApi* api_;
};

/// Driver calls of this thread that may load, allocate or query neither fail in nor invalidate a
/// stream capture that this or another thread has begun. The thread's mode is restored at the end
/// of the scope.
class RelaxedCaptureScope {
 public:
  explicit RelaxedCaptureScope(const DriverApi& api) noexcept;
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;
  ~RelaxedCaptureScope();

 private:
  const DriverApi& api_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

/// A device's primary context, retained for the life of the object (which makes it if nobody had).
/// It is not made current.
class PrimaryContext {
 public:
  [[nodiscard]] static Result<PrimaryContext> retain(const DriverApi& api, CUdevice device);
  PrimaryContext(PrimaryContext&& other) noexcept;
  PrimaryContext& operator=(PrimaryContext&& other) noexcept;
  ~PrimaryContext();
  [[nodiscard]] CUcontext get() const noexcept { return context_; }

 private:
  PrimaryContext(const DriverApi& api, CUdevice device, CUcontext context) noexcept
      : api_(&api), device_(device), context_(context) {}
  const DriverApi* api_;
  CUdevice device_;
  CUcontext context_;
};

/// The context that is current on this thread; null if none is.
[[nodiscard]] Result<CUcontext> current_context(const DriverApi& api);

/// A context and what it may be known by for ever: addresses are reused after a context is
/// destroyed, ids are not.
struct ContextId {
  CUcontext context = nullptr;
  CUdevice device = 0;
  unsigned long long id = 0;
  friend bool operator==(const ContextId&, const ContextId&) = default;
};

/// Errors: kDeviceLost if the context is gone.
[[nodiscard]] Result<ContextId> identify(const DriverApi& api, CUcontext context);

/// The context that `stream` belongs to; of a default stream (null, 1, 2) the current one.
[[nodiscard]] Result<CUcontext> stream_context(const DriverApi& api, CUstream stream);

}  // namespace scanjit::cuda
