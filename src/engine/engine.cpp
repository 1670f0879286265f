#include "scanjit/engine.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <optional>
#include <unordered_map>

#include "core/guard.hpp"
#include "cuda/stream.hpp"
#include "engine/config_choice.hpp"
#include "engine/first_use.hpp"
#include "engine/fork_guard.hpp"
#include "engine/internals.hpp"
#include "engine/plan_table.hpp"

namespace scanjit {
namespace {

using engine::Choice;
using engine::PlanKey;
using engine::PlanTable;

using PlanPointer = std::shared_ptr<const Plan::Impl>;
using OpPointer = std::shared_ptr<const ops::GatedDeltaH>;

constexpr std::chrono::milliseconds kWait{2000};  // for another thread at the same plan

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const noexcept { return key.hash(); }
};

// Errors of one config that another config may not have.
bool another_may_do(const Status& status) {
  return status.code() == ErrorCode::kUnsupported || status.code() == ErrorCode::kCompileFailed;
}

}  // namespace

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
        first_use(*internals) {
    state->generation = engine::process_generation();
  }

  // Something that the engine must not end under.
  class Call {
   public:
    static Result<Call> begin(Impl& impl) {
      const std::lock_guard lock(impl.mutex);
      if (impl.closing) return Status(ErrorCode::kCancelled, "the engine is being destroyed");
      ++impl.calls;
      return Call(impl);
    }
    Call(Call&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
    Call& operator=(Call&&) = delete;
    ~Call() {
      if (impl_ == nullptr) return;
      const std::lock_guard lock(impl_->mutex);
      --impl_->calls;
      impl_->changed.notify_all();
    }

   private:
    explicit Call(Impl& impl) noexcept : impl_(&impl) {}
    Impl* impl_;
  };

  void close() {
    std::unique_lock lock(mutex);
    closing = true;
    changed.wait(lock, [this] { return calls == 0; });
  }

  // One plan being made, which all callers of its key wait for.
  struct Flight {
    std::optional<Result<PlanPointer>> result;
  };

  Result<PlanPointer> plan_in(const GatedDeltaHProblem& problem, const cuda::ContextId& context);
  Result<PlanPointer> plan_for_stream(const GatedDeltaHProblem& problem, const PlanKey& key,
                                      const cuda::ContextId& context, cuda::CUstream stream);
  Result<PlanPointer> fly(const OpPointer& op, const PlanKey& key, const cuda::ContextId& context);
  Result<PlanPointer> make_plan(const OpPointer& op, const PlanKey& key,
                                const cuda::ContextId& context);
  Result<Choice> choose(const OpPointer& op, const ops::DeviceLimits& limits, bool& settled);
  Result<PlanPointer> assemble_first(const OpPointer& op, const Choice& choice,
                                     const cuda::ContextId& context);
  Result<PlanPointer> assemble(const OpPointer& op, const Choice& choice,
                               const cuda::ContextId& context);
  Result<PlanPointer> loaded_plan(const OpPointer& op, const PlanKey& key,
                                  const cuda::ContextId& context);
  Result<PlanPointer> forced_plan(const OpPointer& op, const PlanKey& key, const Config& config,
                                  const cuda::ContextId& context);
  Status compile_all(const std::vector<GatedDeltaHProblem>& problems);
  std::shared_ptr<Plan::Impl> empty_plan(const OpPointer& op, const Choice& choice,
                                         const cuda::ContextId& context) const;
  Status add_stage(Plan::Impl& plan, const ops::Stage& stage, const engine::LoadedKernel& kernel);
  std::string key_text(const OpPointer& op) const {
    return internals->store->key_of(op->key_query()).text();
  }

  std::shared_ptr<engine::Internals> internals;
  std::shared_ptr<engine::SharedState> state;
  engine::FirstUse first_use;
  PlanTable table;
  std::atomic<std::int64_t> lookups{0}, plans{0}, exact{0}, fallback{0};

  std::mutex mutex;  // all below; not held while compiling, loading or timing
  std::condition_variable changed;
  bool closing = false;
  int calls = 0;
  std::unordered_map<PlanKey, std::shared_ptr<Flight>, PlanKeyHash> flights;
  struct Forced {
    Config config;
    PlanPointer plan;
  };
  std::unordered_map<PlanKey, std::vector<Forced>, PlanKeyHash> forced;
};

// --- making plans -------------------------------------------------------------------------------

std::shared_ptr<Plan::Impl> Engine::Impl::empty_plan(const OpPointer& op, const Choice& choice,
                                                     const cuda::ContextId& context) const {
  auto plan = std::make_shared<Plan::Impl>();
  plan->api = &internals->api();
  plan->context = context;
  plan->problem = op;
  plan->state = state;
  plan->why = engine::why_of(choice, key_text(op));
  return plan;
}

Status Engine::Impl::add_stage(Plan::Impl& plan, const ops::Stage& stage,
                               const engine::LoadedKernel& kernel) {
  SCANJIT_ASSIGN_OR_RETURN(engine::LaunchStage launch,
                           engine::make_launch(internals->api(), stage, kernel.function));
  plan.stages.push_back(std::move(launch));
  plan.why.binary_id = kernel.binary_id;  // of the last stage, the tuned one
  plan.why.binary_from = kernel.binary_from;
  plan.why.binary_nvrtc = kernel.nvrtc;
  return {};
}

Result<PlanPointer> Engine::Impl::assemble(const OpPointer& op, const Choice& choice,
                                           const cuda::ContextId& context) {
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals->limits(context));
  auto plan = empty_plan(op, choice, context);
  for (const ops::Stage& stage : op->stages(choice.config, limits)) {
    SCANJIT_ASSIGN_OR_RETURN(const auto kernel, internals->parts.loader->load(
                                                    internals->api(), context, *internals->provider,
                                                    stage.source, internals->facts.arch));
    SCANJIT_TRY(add_stage(*plan, stage, *kernel));
  }
  plan->why.text = engine::describe(plan->why);
  return PlanPointer(std::move(plan));
}

// The choice, or where it does not compile or load, the first of its fallbacks that does.
Result<PlanPointer> Engine::Impl::assemble_first(const OpPointer& op, const Choice& choice,
                                                 const cuda::ContextId& context) {
  Result<PlanPointer> plan = assemble(op, choice, context);
  for (std::size_t i = 0;
       i < choice.fallbacks.size() && !plan.ok() && another_may_do(plan.status()); ++i) {
    internals->log.warning("config " + to_string(choice.config) + " cannot serve " + key_text(op) +
                           ": " + plan.status().message());
    Choice other = choice;
    other.config = choice.fallbacks[i];
    other.recorded_us = 0;
    if (i + 1 == choice.fallbacks.size()) {  // the heuristic comes last
      other.source = PickSource::kHeuristic;
      other.layer = "heuristic";
    }
    Result<PlanPointer> next = assemble(op, other, context);
    if (next.ok()) return next;
  }
  return plan;
}

Result<Choice> Engine::Impl::choose(const OpPointer& op, const ops::DeviceLimits& limits,
                                    bool& settled) {
  settled = true;
  const TuneMode mode = internals->options.tune_mode;
  if (mode != TuneMode::kFirstUse) return engine::choose(mode, *internals->store, *op, limits);
  const auto pick = internals->store->find_exact(op->key_query(), ops::legal_fn(*op, limits));
  if (pick && !pick->stale_toolchain) return engine::choice_of(*pick, *op, limits);
  const bool retime = pick.has_value() && op->tokens_per_sequence() > 0;
  if (retime || (!pick && first_use.possible(*op))) {
    engine::FirstUse::Outcome outcome =
        first_use.run(op, limits, retime ? pick->record.get() : nullptr);
    settled = !outcome.retry;
    if (outcome.choice) return *std::move(outcome.choice);
  }
  return engine::choose(TuneMode::kReplay, *internals->store, *op, limits);
}

Result<PlanPointer> Engine::Impl::make_plan(const OpPointer& op, const PlanKey& key,
                                            const cuda::ContextId& context) {
  const cuda::RelaxedCaptureScope relaxed(internals->api());
  SCANJIT_ASSIGN_OR_RETURN(const auto entered,
                           cuda::ScopedContext::enter(internals->api(), context.context));
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals->limits(context));
  bool settled = true;
  SCANJIT_ASSIGN_OR_RETURN(const Choice choice, choose(op, limits, settled));
  SCANJIT_ASSIGN_OR_RETURN(PlanPointer plan, assemble_first(op, choice, context));
  ++plans;
  ++(plan->why.tuned ? exact : fallback);
  table.put({key, plan, settled});
  return plan;
}

Result<PlanPointer> Engine::Impl::fly(const OpPointer& op, const PlanKey& key,
                                      const cuda::ContextId& context) {
  std::unique_lock lock(mutex);
  if (const PlanTable::Entry* entry = table.find(key); entry != nullptr && entry->settled)
    return entry->plan;
  auto& place = flights[key];
  if (place) {
    const std::shared_ptr<Flight> flight = place;
    if (changed.wait_for(lock, kWait, [&] { return flight->result.has_value(); }))
      return *flight->result;
    lock.unlock();
    // The other thread is still compiling or timing: serve the heuristic and publish nothing.
    const cuda::RelaxedCaptureScope relaxed(internals->api());
    SCANJIT_ASSIGN_OR_RETURN(const auto entered,
                             cuda::ScopedContext::enter(internals->api(), context.context));
    SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals->limits(context));
    SCANJIT_ASSIGN_OR_RETURN(const Choice choice, engine::heuristic_choice(*op, limits));
    return assemble(op, choice, context);
  }
  const auto flight = place = std::make_shared<Flight>();
  lock.unlock();
  Result<PlanPointer> result = guard([&] { return make_plan(op, key, context); });
  lock.lock();
  flight->result = result;
  flights.erase(key);
  changed.notify_all();
  return result;
}

Result<PlanPointer> Engine::Impl::forced_plan(const OpPointer& op, const PlanKey& key,
                                              const Config& config,
                                              const cuda::ContextId& context) {
  {
    const std::lock_guard lock(mutex);
    for (const Forced& one : forced[key]) {
      if (one.config == config) return one.plan;
    }
  }
  const cuda::RelaxedCaptureScope relaxed(internals->api());
  SCANJIT_ASSIGN_OR_RETURN(const auto entered,
                           cuda::ScopedContext::enter(internals->api(), context.context));
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals->limits(context));
  SCANJIT_TRY(op->legal(config, limits));
  Choice choice;
  choice.config = config;
  choice.source = PickSource::kForced;
  choice.layer = "caller";
  SCANJIT_ASSIGN_OR_RETURN(PlanPointer plan, assemble(op, choice, context));
  ++plans;
  const std::lock_guard lock(mutex);
  forced[key].push_back({config, plan});
  return plan;
}

// While capturing: a plan out of kernels that are in the context already, whatever their config,
// since all configs give the same bits. Nothing is compiled, loaded or allocated on the device.
Result<PlanPointer> Engine::Impl::loaded_plan(const OpPointer& op, const PlanKey& key,
                                              const cuda::ContextId& context) {
  {
    const std::lock_guard lock(mutex);
    const auto found = forced.find(key);
    if (found != forced.end() && !found->second.empty()) return found->second.back().plan;
  }
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals->limits(context));
  SCANJIT_ASSIGN_OR_RETURN(Choice choice, engine::heuristic_choice(*op, limits));
  std::vector<Config> configs = op->space().all();
  configs.insert(configs.begin(), choice.config);
  for (const Config& config : configs) {
    if (!op->legal(config, limits).ok()) continue;
    choice.config = config;
    choice.layer = "loaded";
    auto plan = empty_plan(op, choice, context);
    bool all_loaded = true;
    for (const ops::Stage& stage : op->stages(config, limits)) {
      SCANJIT_ASSIGN_OR_RETURN(const std::string source_id,
                               internals->provider->source_id(stage.source, internals->facts.arch));
      const auto kernel = internals->parts.loader->find(internals->api(), context, source_id);
      all_loaded = kernel != nullptr;
      if (!all_loaded) break;
      SCANJIT_TRY(add_stage(*plan, stage, *kernel));
    }
    if (!all_loaded) continue;
    plan->why.text = engine::describe(plan->why);
    PlanPointer made(std::move(plan));
    table.put({key, made, false});
    return made;
  }
  return Status(ErrorCode::kCaptureMiss, "the stream is capturing and no kernel is loaded for " +
                                             key_text(op) +
                                             "; plan or prewarm this problem before capturing");
}

Result<PlanPointer> Engine::Impl::plan_in(const GatedDeltaHProblem& problem,
                                          const cuda::ContextId& context) {
  const PlanKey key{ops::GatedDeltaH::words(problem), context.id};
  if (const PlanTable::Entry* entry = table.find(key); entry != nullptr && entry->settled) {
    lookups.fetch_add(1, std::memory_order_relaxed);
    return entry->plan;
  }
  SCANJIT_ASSIGN_OR_RETURN(const auto call, Call::begin(*this));
  SCANJIT_ASSIGN_OR_RETURN(const OpPointer op, ops::GatedDeltaH::make(problem));
  Result<PlanPointer> plan = fly(op, key, context);
  if (!plan.ok()) return state->noted(plan.status());
  return plan;
}

Result<PlanPointer> Engine::Impl::plan_for_stream(const GatedDeltaHProblem& problem,
                                                  const PlanKey& key,
                                                  const cuda::ContextId& context,
                                                  cuda::CUstream stream) {
  SCANJIT_ASSIGN_OR_RETURN(const auto call, Call::begin(*this));
  SCANJIT_ASSIGN_OR_RETURN(const OpPointer op, ops::GatedDeltaH::make(problem));
  bool capturing = false;
  {
    SCANJIT_ASSIGN_OR_RETURN(const auto entered,
                             cuda::ScopedContext::enter(internals->api(), context.context));
    SCANJIT_ASSIGN_OR_RETURN(capturing, cuda::is_capturing(internals->api(), stream));
  }
  if (!capturing) return fly(op, key, context);
  if (const PlanTable::Entry* entry = table.find(key)) return entry->plan;
  return loaded_plan(op, key, context);
}

// The machine code of all problems at once; what is to be timed is left to `plan`.
Status Engine::Impl::compile_all(const std::vector<GatedDeltaHProblem>& problems) {
  SCANJIT_TRY(state->usable());
  SCANJIT_ASSIGN_OR_RETURN(const auto call, Call::begin(*this));
  SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, internals->context());
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals->limits(context));
  const TuneMode mode = internals->options.tune_mode;
  std::vector<jit::KernelSource> sources;
  for (const GatedDeltaHProblem& problem : problems) {
    const auto op = ops::GatedDeltaH::make(problem);
    if (!op.ok()) continue;
    const auto choice = engine::choose(mode, *internals->store, **op, limits);
    if (!choice.ok()) continue;
    if (mode == TuneMode::kFirstUse && choice->source != PickSource::kExact &&
        first_use.possible(**op))
      continue;
    for (const ops::Stage& stage : (*op)->stages(choice->config, limits))
      sources.push_back(stage.source);
  }
  static_cast<void>(internals->provider->get_all(sources, internals->facts.arch));
  return {};
}

// --- the public face ----------------------------------------------------------------------------

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
  if (impl_->state->generation == engine::process_generation()) {
    impl_->close();
  } else {
    // In a forked child neither locks nor the driver can be trusted: leave everything as it is.
    static_cast<void>(new (std::nothrow) std::shared_ptr<Impl>(std::move(impl_)));
  }
}

Result<Engine> Engine::create(const EngineOptions& options) {
  return guard([&]() -> Result<Engine> {
    SCANJIT_ASSIGN_OR_RETURN(engine::Parts parts, engine::process_parts());
    return engine::create_engine(options, std::move(parts));
  });
}

namespace {

Status moved_from() { return invalid_argument("the engine was moved away"); }

}  // namespace

Result<Plan> Engine::plan(const GatedDeltaHProblem& problem) {
  return guard([&]() -> Result<Plan> {
    if (!impl_) return moved_from();
    SCANJIT_TRY(impl_->state->usable());
    const cuda::DriverApi& api = impl_->internals->api();
    cuda::CUcontext current = nullptr;
    PlanKey key{ops::GatedDeltaH::words(problem), 0};
    if (api.cuCtxGetCurrent(&current) == cuda::CUDA_SUCCESS && current != nullptr &&
        api.cuCtxGetId(current, &key.context) == cuda::CUDA_SUCCESS) {
      if (const PlanTable::Entry* entry = impl_->table.find(key);
          entry != nullptr && entry->settled) {
        impl_->lookups.fetch_add(1, std::memory_order_relaxed);
        return Plan(entry->plan);
      }
    }
    SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, impl_->internals->context());
    SCANJIT_ASSIGN_OR_RETURN(PlanPointer plan, impl_->plan_in(problem, context));
    return Plan(std::move(plan));
  });
}

Result<Plan> Engine::plan_with(const GatedDeltaHProblem& problem, const Config& config) {
  return guard([&]() -> Result<Plan> {
    if (!impl_) return moved_from();
    SCANJIT_TRY(impl_->state->usable());
    SCANJIT_ASSIGN_OR_RETURN(const auto call, Impl::Call::begin(*impl_));
    SCANJIT_ASSIGN_OR_RETURN(const OpPointer op, ops::GatedDeltaH::make(problem));
    SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, impl_->internals->context());
    Result<PlanPointer> plan =
        impl_->forced_plan(op, {ops::GatedDeltaH::words(problem), context.id}, config, context);
    if (!plan.ok()) return impl_->state->noted(plan.status());
    return Plan(*std::move(plan));
  });
}

Status Engine::gated_delta_h(const GatedDeltaHProblem& problem, const GatedDeltaHArgs& args,
                             Workspace workspace, Stream stream) {
  return guard([&]() -> Status {
    if (!impl_) return moved_from();
    SCANJIT_TRY(impl_->state->usable());
    const cuda::DriverApi& api = impl_->internals->api();
    const auto handle = static_cast<cuda::CUstream>(stream);
    cuda::CUcontext current = nullptr;
    SCANJIT_TRY(cuda::check(api, api.cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
    SCANJIT_ASSIGN_OR_RETURN(const cuda::CUcontext context, cuda::stream_context(api, handle));
    PlanKey key{ops::GatedDeltaH::words(problem), 0};
    if (context != nullptr)
      SCANJIT_TRY(cuda::check(api, api.cuCtxGetId(context, &key.context), "cuCtxGetId"));
    if (const PlanTable::Entry* entry = impl_->table.find(key);
        entry != nullptr && entry->settled) {
      impl_->lookups.fetch_add(1, std::memory_order_relaxed);
      return entry->plan->launch(args, workspace, handle, current);
    }
    // A default stream without a current context: the device's primary one.
    SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId id, context == nullptr
                                                           ? impl_->internals->context()
                                                           : cuda::identify(api, context));
    key.context = id.id;
    const Result<PlanPointer> plan = impl_->plan_for_stream(problem, key, id, handle);
    if (!plan.ok()) return impl_->state->noted(plan.status());
    return (*plan)->launch(args, workspace, handle, current);
  });
}

std::vector<PrewarmItem> Engine::prewarm(const std::vector<GatedDeltaHProblem>& problems) {
  std::vector<PrewarmItem> items;
  static_cast<void>(guard([&]() -> Status {
    if (impl_) {
      const Status status = impl_->compile_all(problems);
      if (!status.ok())
        impl_->internals->log.debug("prewarm: " + status.message());  // `plan` will say it again
    }
    for (const GatedDeltaHProblem& problem : problems) {
      const Result<Plan> made = plan(problem);
      items.push_back({made.status(), made.ok() ? made->why() : Why{}});
    }
    return {};
  }));
  return items;
}

Result<Why> Engine::why(const GatedDeltaHProblem& problem) {
  return guard([&]() -> Result<Why> {
    if (!impl_) return moved_from();
    SCANJIT_TRY(impl_->state->usable());
    engine::Internals& in = *impl_->internals;
    SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::GatedDeltaH::make(problem));
    ops::DeviceLimits limits = engine::limits_of(in.facts);
    SCANJIT_ASSIGN_OR_RETURN(const cuda::CUcontext current, cuda::current_context(in.api()));
    if (current != nullptr) {
      SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, cuda::identify(in.api(), current));
      if (const PlanTable::Entry* entry =
              impl_->table.find({ops::GatedDeltaH::words(problem), context.id}))
        return entry->plan->why;
      SCANJIT_ASSIGN_OR_RETURN(limits, in.limits(context));
    }
    SCANJIT_ASSIGN_OR_RETURN(const Choice choice,
                             engine::choose(in.options.tune_mode, *in.store, *op, limits));
    Why why = engine::why_of(choice, impl_->key_text(op));
    why.text = engine::describe(why);
    if (in.options.tune_mode == TuneMode::kFirstUse && choice.source != PickSource::kExact &&
        impl_->first_use.possible(*op)) {
      why.text += " Its first use will time a short list of configs.";
    }
    return why;
  });
}

EngineStats Engine::stats() const {
  EngineStats stats;
  if (!impl_) return stats;
  const jit::KernelProvider::Counters provider = impl_->internals->provider->counters();
  const engine::FirstUse::Counters first_use = impl_->first_use.counters();
  stats.plans = impl_->plans;
  stats.lookups = impl_->lookups;
  stats.launches = impl_->state->launches;
  stats.compiles = provider.compiles;
  stats.compile_errors = provider.compile_errors;
  stats.binary_hits = provider.binary_hits;
  stats.first_uses = first_use.timed;
  stats.first_uses_busy = first_use.busy;
  stats.first_uses_no_scratch = first_use.no_scratch;
  stats.exact = impl_->exact;
  stats.fallback = impl_->fallback;
  stats.corrupt_files = provider.corrupt_files + impl_->internals->store->stats().corrupt_files;
  return stats;
}

}  // namespace scanjit
