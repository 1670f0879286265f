#include "engine/planner.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include "core/guard.hpp"
#include "core/hash.hpp"
#include "cuda/stream.hpp"

namespace scanjit::engine {
namespace {

constexpr std::size_t kMostWanted = 1024;             // keys that wait for the background thread
constexpr std::chrono::milliseconds kBusyPause{500};  // after it found the GPU busy

std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return 1 + last.fetch_add(1, std::memory_order_relaxed);
}

// Errors of one config that another config may not have.
bool another_may_do(const Status& status) {
  return status.code() == ErrorCode::kUnsupported || status.code() == ErrorCode::kCompileFailed;
}

Status add_stage(Plan::Impl& plan, const ops::Stage& stage, const LoadedKernel& kernel) {
  SCANJIT_ASSIGN_OR_RETURN(LaunchStage launch, make_launch(*plan.api, stage, kernel.function));
  plan.stages.push_back(std::move(launch));
  // Of the last stage, the tuned one.
  plan.why.binary_id = kernel.binary_id;
  plan.why.binary_from = kernel.binary_from;
  plan.why.binary_nvrtc = kernel.nvrtc;
  return {};
}

}  // namespace

Planner::Planner(std::shared_ptr<Internals> internals, std::shared_ptr<SharedState> state)
    : id_(next_id()),
      internals_(std::move(internals)),
      state_(std::move(state)),
      first_use_(*internals_) {}

Planner::~Planner() { close(); }

Result<Planner::Call> Planner::Call::begin(Planner& planner) {
  const std::lock_guard lock(planner.mutex_);
  if (planner.closing_) return Status(ErrorCode::kCancelled, "the engine is being destroyed");
  ++planner.calls_;
  if (!planner.sealed_) ++planner.makers_;
  return Call(planner, planner.sealed_);
}

Planner::Call::~Call() {
  if (planner_ == nullptr) return;
  const std::lock_guard lock(planner_->mutex_);
  --planner_->calls_;
  if (!sealed_) --planner_->makers_;
  planner_->changed_.notify_all();
}

void Planner::seal() {
  std::unique_lock lock(mutex_);
  sealed_ = true;
  wanted_.clear();
  changed_.notify_all();
  changed_.wait(lock, [this] { return makers_ == 0; });
  lock.unlock();
  internals_->store->seal();
}

void Planner::close() {
  const std::lock_guard one_at_a_time(ending_);
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    wanted_.clear();
    changed_.notify_all();
  }
  if (background_.joinable()) background_.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return calls_ == 0; });
}

// --- assembling ---------------------------------------------------------------------------------

std::shared_ptr<Plan::Impl> Planner::empty_plan(const OpPointer& op, const Choice& choice,
                                                const cuda::ContextId& context,
                                                const ops::DeviceLimits& limits) const {
  auto plan = std::make_shared<Plan::Impl>();
  plan->api = &internals_->api();
  plan->context = context;
  plan->problem = op;
  plan->workspace_bytes = op->workspace_bytes(choice.config, limits);
  plan->state = state_;
  plan->why = why_of(choice, shape_key(*op).text());
  return plan;
}

Result<PlanPointer> Planner::assemble(const OpPointer& op, const Choice& choice,
                                      const cuda::ContextId& context) {
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals_->limits(context));
  auto plan = empty_plan(op, choice, context, limits);
  for (const ops::Stage& stage : op->stages(choice.config, limits)) {
    SCANJIT_ASSIGN_OR_RETURN(
        const auto kernel,
        internals_->parts.loader->load(internals_->api(), context, *internals_->provider,
                                       stage.source, internals_->facts.arch));
    SCANJIT_TRY(add_stage(*plan, stage, *kernel));
  }
  // The pick was measured on the machine code of the NVRTC that its entry names.
  if (choice.record != nullptr) {
    plan->why.stale_toolchain |=
        tuning::is_stale(choice.record->toolchain, {plan->why.binary_nvrtc, "", ""});
  }
  plan->why.text = describe(plan->why);
  return PlanPointer(std::move(plan));
}

// The choice, or where it does not compile or load, the first of its fallbacks that does.
Result<PlanPointer> Planner::assemble_first(const OpPointer& op, const Choice& choice,
                                            const cuda::ContextId& context) {
  Result<PlanPointer> plan = assemble(op, choice, context);
  if (plan.ok() || !another_may_do(plan.status())) return plan;
  Choice other = choice;
  other.recorded_us = 0;
  Status refused = plan.status();
  for (std::size_t i = 0; i < choice.fallbacks.size() && another_may_do(refused); ++i) {
    internals_->log.warning("config " + to_string(other.config) + " cannot serve " +
                            shape_key(*op).text() + ": " + refused.message());
    other.passed_over += (other.passed_over.empty() ? "" : " ") + to_string(other.config) +
                         " cannot serve: " + refused.message() + ".";
    other.config = choice.fallbacks[i];
    if (i + 1 == choice.fallbacks.size()) {  // the heuristic comes last
      other.source = PickSource::kHeuristic;
      other.layer = "heuristic";
      other.record = nullptr;
    }
    Result<PlanPointer> next = assemble(op, other, context);
    if (next.ok()) return next;
    refused = next.status();
  }
  return plan;
}

// --- deciding -----------------------------------------------------------------------------------

// Whether a problem of no entry is one for first use. Entries are of whole GPUs.
bool Planner::times(const OpPointer& op, const ops::DeviceLimits& limits) const {
  return internals_->options.tune_mode == TuneMode::kFirstUse && limits.part_of_sms == 0 &&
         first_use_.possible(*op) && refused_entry(*internals_->store, *op, limits).empty();
}

Result<Planner::Decision> Planner::decide(const OpPointer& op, const ops::DeviceLimits& limits,
                                          Timing timing) {
  const tuning::TunedStore& store = *internals_->store;
  const TuneMode mode = internals_->options.tune_mode;
  Decision decision;
  if (mode == TuneMode::kFirstUse && limits.part_of_sms == 0) {
    const auto pick = store.find_exact(op->key_query(), ops::legal_fn(*op, limits));
    if (pick && !pick->stale_toolchain) {
      decision.choice = choice_of(*pick, *op, limits);
      return decision;
    }
    const bool again = pick.has_value() && op->tokens_per_sequence() > 0;
    if (again || (!pick && times(op, limits))) {
      if (timing == Timing::kInBackground) {
        decision.in_background = true;
      } else {
        FirstUse::Outcome outcome =
            first_use_.run(op, limits, again ? pick->record.get() : nullptr, {});
        decision.settled = !outcome.retry;
        if (outcome.choice) {
          decision.choice = *std::move(outcome.choice);
          return decision;
        }
      }
    }
  }
  SCANJIT_ASSIGN_OR_RETURN(decision.choice, choose(mode, store, *op, limits));
  decision.choice.provisional = decision.in_background || !decision.settled;
  return decision;
}

// In `kFirstUse`: an entry that was measured on another NVRTC's machine code than the plan has now
// is timed again, as one of another driver.
Result<PlanPointer> Planner::retimed(const OpPointer& op, const ops::DeviceLimits& limits,
                                     const Choice& choice, PlanPointer plan,
                                     const cuda::ContextId& context) {
  if (internals_->options.tune_mode != TuneMode::kFirstUse || limits.part_of_sms != 0 ||
      choice.source != PickSource::kExact || !plan->why.stale_toolchain || choice.stale_toolchain ||
      op->tokens_per_sequence() == 0)
    return plan;
  FirstUse::Outcome outcome = first_use_.run(op, limits, choice.record.get(), {});
  if (!outcome.choice) return plan;
  return assemble_first(op, *outcome.choice, context);
}

Result<PlanPointer> Planner::make(const OpPointer& op, const PlanKey& key,
                                  const cuda::ContextId& context, Timing timing) {
  const cuda::RelaxedCaptureScope relaxed(internals_->api());
  SCANJIT_ASSIGN_OR_RETURN(const auto entered,
                           cuda::ScopedContext::enter(internals_->api(), context.context));
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals_->limits(context));
  SCANJIT_ASSIGN_OR_RETURN(const Decision decision, decide(op, limits, timing));
  SCANJIT_ASSIGN_OR_RETURN(PlanPointer plan, assemble_first(op, decision.choice, context));
  if (timing == Timing::kInCall) {
    SCANJIT_ASSIGN_OR_RETURN(plan, retimed(op, limits, decision.choice, std::move(plan), context));
  }
  ++plans_;
  ++(plan->why.tuned ? exact_ : fallback_);
  if (internals_->options.tune_mode != TuneMode::kOff && !plan->why.tuned) note_miss(op);
  // First the plan, then its successor: the other way round the worse one could come last.
  keep(op, key, plan, decision.settled);
  if (decision.in_background && !want({op, key, context})) keep(op, key, plan, false);
  return plan;
}

void Planner::keep(const OpPointer& op, const PlanKey& key, const PlanPointer& plan, bool settled) {
  if (!table_.put({key, plan, settled})) {
    internals_->log.warn_once("plan table",
                              "more than " + std::to_string(PlanTable::kMostEntries) +
                                  " problems were met; further ones are planned at every call (" +
                                  shape_key(*op).text() + ")");
  }
}

void Planner::note_miss(const OpPointer& op) {
  misses_.note(shape_key(*op), {op->key_query().sequences, op->tokens_per_sequence()});
}

// --- flights ------------------------------------------------------------------------------------

Result<PlanPointer> Planner::fly(const OpPointer& op, const PlanKey& key,
                                 const cuda::ContextId& context, Timing timing) {
  std::unique_lock lock(mutex_);
  const PlanTable::Entry* entry = table_.find(key);
  if (entry != nullptr && entry->settled) return entry->plan;
  auto& place = flights_[key];
  if (place) {
    const std::shared_ptr<Flight> flight = place;
    if (entry != nullptr) return entry->plan;  // serves until the flight has landed
    const auto landed = [&] { return flight->result.has_value() || flight->overdue; };
    changed_.wait_for(lock, std::chrono::milliseconds(internals_->options.wait_ms), landed);
    if (flight->result) return *flight->result;
    flight->overdue = true;
    changed_.notify_all();
    ++waits_ended_;
    if (flight->stand_in != nullptr) return flight->stand_in;
    lock.unlock();
    return stand_in(*flight, op, context);
  }
  const auto flight = place = std::make_shared<Flight>();
  lock.unlock();
  Result<PlanPointer> result = guard([&] { return make(op, key, context, timing); });
  lock.lock();
  flight->result = result;
  flights_.erase(key);
  changed_.notify_all();
  return result;
}

// The other thread is still compiling or timing: the heuristic serves, and nothing is published.
Result<PlanPointer> Planner::stand_in(Flight& flight, const OpPointer& op,
                                      const cuda::ContextId& context) {
  const cuda::RelaxedCaptureScope relaxed(internals_->api());
  SCANJIT_ASSIGN_OR_RETURN(const auto entered,
                           cuda::ScopedContext::enter(internals_->api(), context.context));
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals_->limits(context));
  SCANJIT_ASSIGN_OR_RETURN(Choice choice, heuristic_choice(*op, limits));
  choice.provisional = true;
  SCANJIT_ASSIGN_OR_RETURN(PlanPointer plan, assemble(op, choice, context));
  const std::lock_guard lock(mutex_);
  if (flight.stand_in == nullptr) flight.stand_in = plan;
  return plan;
}

Result<PlanPointer> Planner::plan(const OpPointer& op, const PlanKey& key,
                                  const cuda::ContextId& context, Timing timing) {
  SCANJIT_ASSIGN_OR_RETURN(const auto call, Call::begin(*this));
  return call.sealed() ? sealed_plan(op, key, context) : fly(op, key, context, timing);
}

Result<PlanPointer> Planner::plan_for_stream(const OpPointer& op, const PlanKey& key,
                                             const cuda::ContextId& context,
                                             cuda::CUstream stream) {
  SCANJIT_ASSIGN_OR_RETURN(const auto call, Call::begin(*this));
  if (call.sealed()) return sealed_plan(op, key, context);
  bool capturing = false;
  {
    const cuda::RelaxedCaptureScope relaxed(internals_->api());
    SCANJIT_ASSIGN_OR_RETURN(const auto entered,
                             cuda::ScopedContext::enter(internals_->api(), context.context));
    SCANJIT_ASSIGN_OR_RETURN(capturing, cuda::is_capturing(internals_->api(), stream));
  }
  if (!capturing) {
    return fly(op, key, context,
               internals_->options.first_use == FirstUseMode::kBackground ? Timing::kInBackground
                                                                          : Timing::kInCall);
  }
  if (const PlanTable::Entry* entry = table_.find(key)) return entry->plan;
  SCANJIT_ASSIGN_OR_RETURN(PlanPointer plan, loaded_plan(op, key, context, true));
  if (plan != nullptr) return plan;
  ++capture_misses_;
  note_miss(op);
  return Status(ErrorCode::kCaptureMiss, "the stream is capturing and no kernel is loaded for " +
                                             shape_key(*op).text() +
                                             "; plan or prewarm this problem before capturing");
}

// --- plans of what is loaded --------------------------------------------------------------------

// Null if not every kernel of this choice is loaded.
Result<PlanPointer> Planner::loaded_with(const OpPointer& op, const Choice& choice,
                                         const cuda::ContextId& context) const {
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals_->limits(context));
  auto plan = empty_plan(op, choice, context, limits);
  for (const ops::Stage& stage : op->stages(choice.config, limits)) {
    SCANJIT_ASSIGN_OR_RETURN(const std::string source_id,
                             internals_->provider->source_id(stage.source, internals_->facts.arch));
    const auto kernel = internals_->parts.loader->find(internals_->api(), context, source_id);
    if (kernel == nullptr) return PlanPointer();
    SCANJIT_TRY(add_stage(*plan, stage, *kernel));
  }
  plan->why.text = describe(plan->why);
  return PlanPointer(std::move(plan));
}

Result<PlanPointer> Planner::forced(const PlanKey& key, const Config* config) const {
  const std::lock_guard lock(mutex_);
  const auto found = forced_.find(key);
  if (found == forced_.end()) return PlanPointer();
  for (const Forced& one : found->second) {
    if (config == nullptr || one.config == *config) return one.plan;
  }
  return PlanPointer();
}

// A plan out of kernels that are in the context already, whatever their config, since all configs
// give the same bits: the entry's own and its alternates, the heuristic's, then any. Nothing is
// compiled, loaded or allocated on the device. Null if there is none.
Result<PlanPointer> Planner::loaded_plan(const OpPointer& op, const PlanKey& key,
                                         const cuda::ContextId& context, bool provisional) {
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals_->limits(context));
  SCANJIT_ASSIGN_OR_RETURN(Choice choice, heuristic_choice(*op, limits));
  const Config heuristic = choice.config;
  std::vector<Config> others;
  if (internals_->options.tune_mode != TuneMode::kOff && limits.part_of_sms == 0) {
    const auto pick = internals_->store->find_exact(op->key_query(), ops::legal_fn(*op, limits));
    if (pick) {
      choice = choice_of(*pick, *op, limits);
      others = choice.fallbacks;
    }
  }
  SCANJIT_ASSIGN_OR_RETURN(PlanPointer plan, loaded_with(op, choice, context));
  if (plan == nullptr) {
    SCANJIT_ASSIGN_OR_RETURN(plan, forced(key, nullptr));
  }
  if (plan == nullptr) {
    const std::vector<Config> all = op->space().all();
    others.push_back(heuristic);
    others.insert(others.end(), all.begin(), all.end());
    choice.recorded_us = 0;
    choice.source = PickSource::kHeuristic;
    choice.layer = "loaded";
    choice.record = nullptr;
    choice.provisional = provisional;
    for (std::size_t i = 0; i < others.size() && plan == nullptr; ++i) {
      choice.config = others[i];
      if (!op->legal(choice.config, limits).ok()) continue;
      SCANJIT_ASSIGN_OR_RETURN(plan, loaded_with(op, choice, context));
    }
  }
  if (plan != nullptr) keep(op, key, plan, !provisional);
  return plan;
}

Result<PlanPointer> Planner::sealed_plan(const OpPointer& op, const PlanKey& key,
                                         const cuda::ContextId& context) {
  if (const PlanTable::Entry* entry = table_.find(key)) {
    if (!entry->settled) keep(op, key, entry->plan, true);  // nothing better will come
    return entry->plan;
  }
  ++sealed_misses_;
  SCANJIT_ASSIGN_OR_RETURN(PlanPointer plan, loaded_plan(op, key, context, false));
  if (plan == nullptr || !plan->why.tuned) note_miss(op);
  if (plan != nullptr) return plan;
  ++sealed_refused_;
  return not_found("the engine is sealed and no kernel is loaded for " + shape_key(*op).text() +
                   "; plan or prewarm this problem before sealing");
}

Result<PlanPointer> Planner::plan_with(const OpPointer& op, const PlanKey& key,
                                       const cuda::ContextId& context, const Config& config) {
  SCANJIT_ASSIGN_OR_RETURN(const auto call, Call::begin(*this));
  SCANJIT_ASSIGN_OR_RETURN(PlanPointer plan, forced(key, &config));
  if (plan != nullptr) return plan;
  const cuda::RelaxedCaptureScope relaxed(internals_->api());
  SCANJIT_ASSIGN_OR_RETURN(const auto entered,
                           cuda::ScopedContext::enter(internals_->api(), context.context));
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals_->limits(context));
  SCANJIT_TRY(op->legal(config, limits));
  Choice choice;
  choice.config = config;
  choice.source = PickSource::kForced;
  choice.layer = "caller";
  if (call.sealed()) {
    ++sealed_misses_;
    SCANJIT_ASSIGN_OR_RETURN(plan, loaded_with(op, choice, context));
    if (plan == nullptr) {
      ++sealed_refused_;
      return not_found("the engine is sealed and config " + to_string(config) +
                       " is not loaded for " + shape_key(*op).text());
    }
  } else {
    SCANJIT_ASSIGN_OR_RETURN(plan, assemble(op, choice, context));
  }
  ++plans_;
  const std::lock_guard lock(mutex_);
  if (forced_.size() < PlanTable::kMostEntries) forced_[key].push_back({config, plan});
  return plan;
}

Status Planner::compile_ahead(const std::vector<OpPointer>& ops, const cuda::ContextId& context) {
  SCANJIT_ASSIGN_OR_RETURN(const auto call, Call::begin(*this));
  if (call.sealed()) return {};
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals_->limits(context));
  std::vector<jit::KernelSource> sources;
  for (const OpPointer& op : ops) {
    const auto choice = choose(internals_->options.tune_mode, *internals_->store, *op, limits);
    if (!choice.ok() || (choice->source != PickSource::kExact && times(op, limits))) continue;
    for (const ops::Stage& stage : op->stages(choice->config, limits))
      sources.push_back(stage.source);
  }
  static_cast<void>(internals_->provider->get_all(sources, internals_->facts.arch));
  return {};
}

// --- in the background --------------------------------------------------------------------------

bool Planner::want(Wanted wanted) {
  const std::lock_guard lock(mutex_);
  if (closing_ || sealed_ || wanted_.size() >= kMostWanted) return false;
  wanted_.push_back(std::move(wanted));
  changed_.notify_all();
  if (background_.joinable()) return true;
  const Status started = guard([&] {
    background_ = std::thread([this] { run_background(); });
    return Status();
  });
  if (!started.ok()) wanted_.clear();
  return started.ok();
}

void Planner::run_background() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !wanted_.empty(); });
    if (closing_) return;
    const Wanted wanted = std::move(wanted_.front());
    wanted_.pop_front();
    ++makers_;
    lock.unlock();
    const Status status = guard([&] {
      time_in_background(wanted);
      return Status();
    });
    if (!status.ok()) internals_->log.warning("timing in the background: " + status.message());
    lock.lock();
    --makers_;
    changed_.notify_all();
  }
}

void Planner::time_in_background(const Wanted& wanted) {
  const auto ended = [this] { return closing_ || sealed_; };
  const auto plan = [&]() -> Result<PlanPointer> {
    const cuda::RelaxedCaptureScope relaxed(internals_->api());
    // The context may be gone by now, and another have its handle.
    SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context,
                             cuda::identify(internals_->api(), wanted.context.context));
    if (context != wanted.context) return not_found("the context of the plan is gone");
    SCANJIT_ASSIGN_OR_RETURN(const auto entered,
                             cuda::ScopedContext::enter(internals_->api(), context.context));
    SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals_->limits(context));
    while (true) {
      const auto pick =
          internals_->store->find_exact(wanted.op->key_query(), ops::legal_fn(*wanted.op, limits));
      if (pick && !pick->stale_toolchain)
        return assemble_first(wanted.op, choice_of(*pick, *wanted.op, limits), context);
      FirstUse::Outcome outcome =
          first_use_.run(wanted.op, limits, pick ? pick->record.get() : nullptr, ended);
      if (outcome.choice) return assemble_first(wanted.op, *outcome.choice, context);
      if (!outcome.retry) {  // what serves, serves for good
        SCANJIT_ASSIGN_OR_RETURN(const Choice choice,
                                 choose(TuneMode::kReplay, *internals_->store, *wanted.op, limits));
        return assemble_first(wanted.op, choice, context);
      }
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kBusyPause, ended);
      if (ended()) return Status(ErrorCode::kCancelled, "the engine ends or is sealed");
    }
  }();
  if (plan.ok()) {
    ++plans_;
    ++((*plan)->why.tuned ? exact_ : fallback_);
    keep(wanted.op, wanted.key, *plan, true);
    return;
  }
  static_cast<void>(state_->noted(plan.status()));
  if (plan.status().code() != ErrorCode::kCancelled) {
    internals_->log.warning("timing " + shape_key(*wanted.op).text() +
                            " in the background: " + plan.status().message());
  }
}

// --- telling ------------------------------------------------------------------------------------

Result<Why> Planner::why(const OpPointer& op, const ops::ProblemWords& words,
                         const cuda::ContextId* context) {
  SCANJIT_ASSIGN_OR_RETURN(const auto call, Call::begin(*this));
  ops::DeviceLimits limits = limits_of(internals_->facts);
  if (context != nullptr) {
    if (const PlanTable::Entry* entry = table_.find({words, context->id})) return entry->plan->why;
    SCANJIT_ASSIGN_OR_RETURN(limits, internals_->limits(*context));
  }
  SCANJIT_ASSIGN_OR_RETURN(const Choice choice,
                           choose(internals_->options.tune_mode, *internals_->store, *op, limits));
  Why why = why_of(choice, shape_key(*op).text());
  why.text = describe(why);
  if (choice.source != PickSource::kExact && !call.sealed()) {
    if (times(op, limits)) {
      why.provisional = true;
      why.text += " Its first use will time a short list of configs.";
    } else if (internals_->options.tune_mode == TuneMode::kFirstUse && !first_use_.possible(*op)) {
      why.text += " It will not be timed: there is no short list for " + internals_->facts.arch +
                  ", or the problem has no token.";
    }
  }
  return why;
}

std::string Planner::selection_digest() const {
  std::set<std::string> lines;
  for (const PlanPointer& plan : table_.plans())
    lines.insert(plan->why.key + "\n" + to_string(plan->why.config) + "\n");
  Sha256 hash;
  for (const std::string& line : lines) hash.update(line);
  return hash.hex();
}

void Planner::add_to(EngineStats& stats) const {
  const FirstUse::Counters first_use = first_use_.counters();
  stats.plans = plans_;
  stats.exact = exact_;
  stats.fallback = fallback_;
  stats.waits_ended = waits_ended_;
  stats.first_uses = first_use.timed;
  stats.first_uses_busy = first_use.busy;
  stats.first_uses_no_scratch = first_use.no_scratch;
  stats.scratch_peak_bytes = first_use.scratch_peak_bytes;
  stats.capture_misses = capture_misses_;
  stats.sealed_misses = sealed_misses_;
  stats.sealed_refused = sealed_refused_;
  stats.journal_keys = misses_.size();
  stats.journal_dropped = misses_.dropped();
}

}  // namespace scanjit::engine
