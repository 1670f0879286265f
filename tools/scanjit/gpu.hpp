#pragma once
/// \file
/// An engine with a context made current and a stream to launch on: what commands that run kernels
/// begin with.

#include "cuda/context.hpp"
#include "cuda/stream.hpp"
#include "engine/internals.hpp"
#include "scanjit/engine.hpp"
#include "session.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::cli {

/// Made, used and destroyed on one thread; the context stays current meanwhile.
struct Gpu {
  Engine engine;
  engine::Internals& internals;
  ops::DeviceLimits limits;
  cuda::ContextId context;
  cuda::ScopedContext scope;
  cuda::OwnedStream stream;

  [[nodiscard]] const cuda::DriverApi& api() const noexcept { return internals.api(); }
};

/// `options.log` is set from the session. Errors: kUnsupported (no driver, no device),
/// kInvalidArgument.
[[nodiscard]] Result<Gpu> open_gpu(Session& session, EngineOptions options);

/// Which config the engine would serve a shape with. Errors: as Engine::why, and of the shape.
[[nodiscard]] Result<Why> why_of(Engine& engine, const tuning::Shape& shape);

/// The free device memory less a reserve for what kernels and the driver take: what tools may fill.
[[nodiscard]] Result<std::int64_t> usable_memory(const Gpu& gpu);

/// Who measured: GPU, driver, NVRTC, commit and command, the head of a benchmark file.
[[nodiscard]] Json provenance(Session& session, engine::Internals& internals);

}  // namespace scanjit::cli
