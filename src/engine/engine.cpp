#include "scanjit/engine.hpp"

#include "core/guard.hpp"
#include "engine/internals.hpp"
#include "engine/planner.hpp"
#include "engine/thread_plans.hpp"
#include "ops/abc_backward.hpp"
#include "ops/abc_forward.hpp"
#include "ops/gated_delta_h.hpp"
#include "ops/kda_forward.hpp"

namespace scanjit {

using engine::OpPointer;
using engine::PlanKey;
using engine::Planner;
using engine::PlanTable;

const char* to_string(PickSource source) noexcept {
  switch (source) {
    case PickSource::kForced: return "forced";
    case PickSource::kExact: return "exact";
    case PickSource::kTimedNow: return "timed_now";
    case PickSource::kOtherOptionalSet: return "other_optional_set";
    case PickSource::kOtherDtype: return "other_dtype";
    case PickSource::kNeighbourChunks: return "neighbour_chunks";
    case PickSource::kNeighbourWidth: return "neighbour_width";
    case PickSource::kNearestGpu: return "nearest_gpu";
    case PickSource::kHeuristic: return "heuristic";
  }
  return "unknown";
}

struct Engine::Impl {
  explicit Impl(std::shared_ptr<engine::Internals> made)
      : internals(std::move(made)),
        state(std::make_shared<engine::SharedState>()),
        planner(internals, state) {
    engine::watch_forks();
    state->generation = engine::process_generation();
  }

  // What a call came to; a fault of the device that it met is latched.
  Status latched(Status status) { return status.ok() ? status : state->noted(std::move(status)); }
  template <class T>
  Result<T> latched(Result<T> result) {
    if (!result.ok()) return state->noted(result.status());
    return result;
  }

  // In the calling thread's context, or the primary one.
  template <class Op>
  Result<Plan> plan(const typename Op::Problem& problem, Planner::Timing timing) {
    SCANJIT_TRY(state->usable());
    PlanKey key{Op::words(problem), 0};
    engine::ThreadPlans::Slot* slot = nullptr;
    const cuda::CUresult known = internals->api().cuCtxGetId(nullptr, &key.context);
    if (known == cuda::CUDA_SUCCESS) {
      const std::uint64_t version = planner.version();  // read before the table is
      slot = &engine::ThreadPlans::slot_of(key);
      if (slot->holds(planner.id(), version, key) && !planner.closing()) {
        lookups.raise();
        return Plan(slot->plan);
      }
      if (const PlanTable::Entry* entry = planner.find(key)) {
        lookups.raise();
        slot->missed(planner.id(), version, key, entry->plan);
        return Plan(entry->plan);
      }
    }
    SCANJIT_TRY(state->fault(internals->api(), known, "cuCtxGetId"));
    SCANJIT_ASSIGN_OR_RETURN(const OpPointer op, Op::make(problem));
    SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, internals->context(planner.sealed()));
    key.context = context.id;
    if (const PlanTable::Entry* entry = planner.find(key)) {
      lookups.raise();
      return Plan(entry->plan);
    }
    Result<PlanPointer> plan = planner.plan(op, key, context, timing);
    if (!plan.ok()) return plan.status();
    // The calls that follow find it here.
    if (const std::uint64_t version = planner.version(); slot != nullptr) {
      if (const PlanTable::Entry* entry = planner.find(key))
        slot->missed(planner.id(), version, key, entry->plan);
    }
    return Plan(*std::move(plan));
  }

  template <class Op>
  Result<Plan> plan_with(const typename Op::Problem& problem, const Config& config) {
    SCANJIT_TRY(state->usable());
    SCANJIT_ASSIGN_OR_RETURN(const OpPointer op, Op::make(problem));
    SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, internals->context(planner.sealed()));
    Result<PlanPointer> plan =
        planner.plan_with(op, {Op::words(problem), context.id}, context, config);
    if (!plan.ok()) return plan.status();
    return Plan(*std::move(plan));
  }

  template <class Op>
  Status run(const typename Op::Problem& problem, const typename Op::Args& args,
             Workspace workspace, Stream stream) {
    SCANJIT_TRY(state->usable());
    const cuda::DriverApi& api = internals->api();
    const auto handle = static_cast<cuda::CUstream>(stream);
    cuda::CUcontext current = nullptr;
    SCANJIT_TRY(cuda::check(api, api.cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
    SCANJIT_ASSIGN_OR_RETURN(const cuda::CUcontext context, cuda::stream_context(api, handle));
    PlanKey key{Op::words(problem), 0};
    if (context != nullptr)
      SCANJIT_TRY(cuda::check(api, api.cuCtxGetId(context, &key.context), "cuCtxGetId"));
    PlanPointer made;  // alive until the launch is made
    const Plan::Impl* plan = nullptr;
    if (const PlanTable::Entry* entry = planner.find(key)) {
      lookups.raise();
      plan = entry->plan.get();
    } else {
      // A default stream without a current context: the device's primary one.
      SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId id, context == nullptr
                                                             ? internals->context(planner.sealed())
                                                             : cuda::identify(api, context));
      key.context = id.id;
      SCANJIT_ASSIGN_OR_RETURN(const OpPointer op, Op::make(problem));
      Result<PlanPointer> planned = planner.plan_for_stream(op, key, id, handle);
      if (!planned.ok()) return planned.status();
      made = *std::move(planned);
      plan = made.get();
    }
    if (current == plan->context.context) return plan->launch<Op>(args, workspace, handle);
    SCANJIT_ASSIGN_OR_RETURN(const auto scope,
                             cuda::ScopedContext::enter(api, plan->context.context));
    return plan->launch<Op>(args, workspace, handle);
  }

  template <class Op>
  std::vector<PrewarmItem> prewarm(const std::vector<typename Op::Problem>& problems) {
    if (state->usable().ok()) {
      std::vector<OpPointer> ops;
      for (const auto& problem : problems) {
        if (auto op = Op::make(problem); op.ok()) ops.push_back(*std::move(op));
      }
      // What goes wrong here goes wrong again below, and is told there.
      if (const auto context = internals->context(planner.sealed()); context.ok())
        static_cast<void>(planner.compile_ahead(ops, *context));
    }
    std::vector<PrewarmItem> items;
    for (const auto& problem : problems) {
      const Result<Plan> made =
          guard([&] { return latched(plan<Op>(problem, Planner::Timing::kInCall)); });
      items.push_back({made.status(), made.ok() ? made->why() : Why{}});
    }
    return items;
  }

  template <class Op>
  Result<Why> why(const typename Op::Problem& problem) {
    SCANJIT_TRY(state->usable());
    SCANJIT_ASSIGN_OR_RETURN(const OpPointer op, Op::make(problem));
    SCANJIT_ASSIGN_OR_RETURN(const cuda::CUcontext current,
                             cuda::current_context(internals->api()));
    const ops::ProblemWords words = Op::words(problem);
    if (current == nullptr) return planner.why(op, words, nullptr);
    SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context,
                             cuda::identify(internals->api(), current));
    return planner.why(op, words, &context);
  }

  /// In a forked child neither locks nor the driver can be trusted.
  [[nodiscard]] bool forked() const noexcept {
    return state->generation != engine::process_generation();
  }

  [[nodiscard]] Planner::Timing timing() const noexcept {
    return internals->options.first_use == FirstUseMode::kBackground
               ? Planner::Timing::kInBackground
               : Planner::Timing::kInCall;
  }

  std::shared_ptr<engine::Internals> internals;
  std::shared_ptr<engine::SharedState> state;
  engine::StripedCounter lookups;
  Planner planner;
};

struct EngineAccess {
  static Engine make(std::shared_ptr<Engine::Impl> impl) { return Engine(std::move(impl)); }
  static Engine::Impl& impl(Engine& engine) noexcept { return *engine.impl_; }
};

namespace engine {

Result<Engine> create_engine(const EngineOptions& options, Parts parts) {
  return guard([&]() -> Result<Engine> {
    SCANJIT_ASSIGN_OR_RETURN(auto internals, Internals::make(options, std::move(parts)));
    return EngineAccess::make(std::make_shared<Engine::Impl>(std::move(internals)));
  });
}

Internals& internals(Engine& engine) noexcept { return *EngineAccess::impl(engine).internals; }

}  // namespace engine

Engine::Engine(std::shared_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}
Engine::~Engine() {
  if (!impl_) return;
  if (impl_->forked()) {
    // Everything stays as it is.
    static_cast<void>(new (std::nothrow) std::shared_ptr<Impl>(std::move(impl_)));
    return;
  }
  close();
  const std::string& journal = impl_->internals->options.journal_path;
  if (journal.empty() || impl_->planner.misses().size() == 0) return;
  if (const auto written = flush_journal(journal); !written.ok())
    impl_->internals->log.warning("the journal was not written: " + written.status().message());
}

Result<Engine> Engine::create(const EngineOptions& options) {
  return guard([&]() -> Result<Engine> {
    SCANJIT_ASSIGN_OR_RETURN(engine::Parts parts, engine::process_parts());
    return engine::create_engine(options, std::move(parts));
  });
}

namespace {

Status moved_from() { return invalid_argument("the engine was moved away"); }

// What each op's entry points have in common; `impl` is null once the engine was moved away.
template <class Op>
Result<Plan> plan_of(Engine::Impl* impl, const typename Op::Problem& problem) {
  return guard([&]() -> Result<Plan> {
    if (impl == nullptr) return moved_from();
    return impl->latched(impl->plan<Op>(problem, impl->timing()));
  });
}

template <class Op>
Result<Plan> plan_with_of(Engine::Impl* impl, const typename Op::Problem& problem,
                          const Config& config) {
  return guard([&]() -> Result<Plan> {
    if (impl == nullptr) return moved_from();
    return impl->latched(impl->plan_with<Op>(problem, config));
  });
}

template <class Op>
Status run_of(Engine::Impl* impl, const typename Op::Problem& problem,
              const typename Op::Args& args, Workspace workspace, Stream stream) {
  return guard([&]() -> Status {
    if (impl == nullptr) return moved_from();
    return impl->latched(impl->run<Op>(problem, args, workspace, stream));
  });
}

template <class Op>
std::vector<PrewarmItem> prewarm_of(Engine::Impl* impl,
                                    const std::vector<typename Op::Problem>& problems) {
  std::vector<PrewarmItem> items;
  static_cast<void>(guard([&]() -> Status {
    if (impl == nullptr) {
      items.assign(problems.size(), {moved_from(), {}});
    } else {
      items = impl->prewarm<Op>(problems);
    }
    return {};
  }));
  return items;
}

template <class Op>
Result<Why> why_for(Engine::Impl* impl, const typename Op::Problem& problem) {
  return guard([&]() -> Result<Why> {
    if (impl == nullptr) return moved_from();
    return impl->latched(impl->why<Op>(problem));
  });
}

}  // namespace

Result<Plan> Engine::plan(const GatedDeltaHProblem& problem) {
  return plan_of<ops::GatedDeltaH>(impl_.get(), problem);
}
Result<Plan> Engine::plan(const AbcForwardProblem& problem) {
  return plan_of<ops::AbcForward>(impl_.get(), problem);
}
Result<Plan> Engine::plan(const AbcBackwardProblem& problem) {
  return plan_of<ops::AbcBackward>(impl_.get(), problem);
}

Result<Plan> Engine::plan_with(const GatedDeltaHProblem& problem, const Config& config) {
  return plan_with_of<ops::GatedDeltaH>(impl_.get(), problem, config);
}
Result<Plan> Engine::plan_with(const AbcForwardProblem& problem, const Config& config) {
  return plan_with_of<ops::AbcForward>(impl_.get(), problem, config);
}
Result<Plan> Engine::plan_with(const AbcBackwardProblem& problem, const Config& config) {
  return plan_with_of<ops::AbcBackward>(impl_.get(), problem, config);
}

Status Engine::gated_delta_h(const GatedDeltaHProblem& problem, const GatedDeltaHArgs& args,
                             Workspace workspace, Stream stream) {
  return run_of<ops::GatedDeltaH>(impl_.get(), problem, args, workspace, stream);
}
Status Engine::abc_forward(const AbcForwardProblem& problem, const AbcForwardArgs& args,
                           Workspace workspace, Stream stream) {
  return run_of<ops::AbcForward>(impl_.get(), problem, args, workspace, stream);
}
Status Engine::abc_backward(const AbcBackwardProblem& problem, const AbcBackwardArgs& args,
                            Workspace workspace, Stream stream) {
  return run_of<ops::AbcBackward>(impl_.get(), problem, args, workspace, stream);
}

std::vector<PrewarmItem> Engine::prewarm(const std::vector<GatedDeltaHProblem>& problems) {
  return prewarm_of<ops::GatedDeltaH>(impl_.get(), problems);
}
std::vector<PrewarmItem> Engine::prewarm(const std::vector<AbcForwardProblem>& problems) {
  return prewarm_of<ops::AbcForward>(impl_.get(), problems);
}
std::vector<PrewarmItem> Engine::prewarm(const std::vector<AbcBackwardProblem>& problems) {
  return prewarm_of<ops::AbcBackward>(impl_.get(), problems);
}

Result<Why> Engine::why(const GatedDeltaHProblem& problem) {
  return why_for<ops::GatedDeltaH>(impl_.get(), problem);
}
Result<Why> Engine::why(const AbcForwardProblem& problem) {
  return why_for<ops::AbcForward>(impl_.get(), problem);
}
Result<Why> Engine::why(const AbcBackwardProblem& problem) {
  return why_for<ops::AbcBackward>(impl_.get(), problem);
}

Result<Plan> Engine::plan(const KdaForwardProblem& problem) {
  return plan_of<ops::KdaForward>(impl_.get(), problem);
}

Result<Plan> Engine::plan_with(const KdaForwardProblem& problem, const Config& config) {
  return plan_with_of<ops::KdaForward>(impl_.get(), problem, config);
}

Status Engine::kda_forward(const KdaForwardProblem& problem, const KdaForwardArgs& args,
                           Workspace workspace, Stream stream) {
  return run_of<ops::KdaForward>(impl_.get(), problem, args, workspace, stream);
}

std::vector<PrewarmItem> Engine::prewarm(const std::vector<KdaForwardProblem>& problems) {
  return prewarm_of<ops::KdaForward>(impl_.get(), problems);
}

Result<Why> Engine::why(const KdaForwardProblem& problem) {
  return why_for<ops::KdaForward>(impl_.get(), problem);
}

void Engine::close() {
  static_cast<void>(guard([&]() -> Status {
    if (impl_ && !impl_->forked()) impl_->planner.close();
    return {};
  }));
}

void Engine::seal() {
  static_cast<void>(guard([&]() -> Status {
    if (impl_ && !impl_->forked()) impl_->planner.seal();
    return {};
  }));
}

Result<std::int64_t> Engine::flush_journal(const std::string& path) {
  return guard([&]() -> Result<std::int64_t> {
    if (!impl_) return moved_from();
    if (impl_->forked()) return impl_->state->usable();
    if (path.empty()) return invalid_argument("no file is named for the journal");
    return impl_->planner.misses().flush(*impl_->internals->parts.files, path);
  });
}

std::string Engine::selection_digest() const {
  std::string digest;
  static_cast<void>(guard([&]() -> Status {
    if (impl_ && !impl_->forked()) digest = impl_->planner.selection_digest();
    return {};
  }));
  return digest;
}

EngineStats Engine::stats() const {
  EngineStats stats;
  if (!impl_ || impl_->forked()) return stats;
  const jit::KernelProvider::Counters provider = impl_->internals->provider->counters();
  impl_->planner.add_to(stats);
  stats.lookups = impl_->lookups.value();
  stats.launches = impl_->state->launches.value();
  stats.compiles = provider.compiles;
  stats.compile_errors = provider.compile_errors;
  stats.binary_hits = provider.binary_hits;
  stats.corrupt_files = provider.corrupt_files + impl_->internals->store->stats().corrupt_files;
  return stats;
}

}  // namespace scanjit
