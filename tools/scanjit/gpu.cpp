#include "gpu.hpp"

#include <utility>

#include "commit.hpp"
#include "cuda/memory.hpp"
#include "ops/abc_backward.hpp"
#include "ops/abc_forward.hpp"
#include "ops/gated_delta_h.hpp"
#include "ops/kda_forward.hpp"
#include "ops/registry.hpp"

namespace scanjit::cli {
namespace {

template <class Op>
Result<Why> why_as(Engine& engine, const tuning::Shape& shape) {
  SCANJIT_ASSIGN_OR_RETURN(const typename Op::Problem problem, ops::problem_of<Op>(shape));
  return engine.why(problem);
}

}  // namespace

Result<Why> why_of(Engine& engine, const tuning::Shape& shape) {
  if (shape.op == ops::kKdaForward.name) return why_as<ops::KdaForward>(engine, shape);
  if (shape.op == ops::kAbcForward.name) return why_as<ops::AbcForward>(engine, shape);
  if (shape.op == ops::kAbcBackward.name) return why_as<ops::AbcBackward>(engine, shape);
  return why_as<ops::GatedDeltaH>(engine, shape);
}

Result<Gpu> open_gpu(Session& session, EngineOptions options) {
  options.log = session.log_sink();
  SCANJIT_ASSIGN_OR_RETURN(engine::Parts parts, engine::process_parts());
  parts.environment = session.environment;
  SCANJIT_ASSIGN_OR_RETURN(Engine engine, engine::create_engine(options, std::move(parts)));
  engine::Internals& internals = engine::internals(engine);
  SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, internals.context());
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals.limits(context));
  SCANJIT_ASSIGN_OR_RETURN(cuda::ScopedContext scope,
                           cuda::ScopedContext::enter(internals.api(), context.context));
  SCANJIT_ASSIGN_OR_RETURN(
      cuda::OwnedStream stream,
      cuda::OwnedStream::create(internals.api(), cuda::OwnedStream::Priority::kNormal));
  return Gpu{std::move(engine), internals, limits, context, std::move(scope), std::move(stream)};
}

Result<std::int64_t> usable_memory(const Gpu& gpu) {
  SCANJIT_ASSIGN_OR_RETURN(const cuda::MemoryInfo memory, cuda::memory_info(gpu.api()));
  return memory.free_bytes - memory.free_bytes / 16;
}

Json provenance(Session& session, engine::Internals& internals) {
  Json head;
  head["gpu"] = internals.facts.name;
  head["driver"] = internals.facts.driver;
  const Result<std::string> nvrtc = internals.provider->toolchain();
  head["nvrtc"] = nvrtc.ok() ? *nvrtc : "";
  head["scanjit"] = engine::version();
  head["commit"] = SCANJIT_COMMIT;
  head["command"] = shell_line(session.arguments);
  return head;
}

}  // namespace scanjit::cli
