#pragma once
/// \file
/// Makes plans and keeps them: everything of an engine that lies behind a look-up. It chooses a
/// config, has it compiled and loaded, times on first use (in the call or on a thread of its own),
/// serves captures and a sealed engine from what is loaded, and journals what is untuned.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/config_choice.hpp"
#include "engine/first_use.hpp"
#include "engine/internals.hpp"
#include "engine/miss_ring.hpp"
#include "engine/plan.hpp"
#include "engine/plan_table.hpp"

namespace scanjit::engine {

using OpPointer = std::shared_ptr<const ops::OpProblem>;

/// Thread-safe. No lock is held while compiling, loading, timing or reading files.
class Planner {
 public:
  /// Whether a call may time its key itself, or leaves that to the background thread.
  enum class Timing { kInCall, kInBackground };

  Planner(std::shared_ptr<Internals> internals, std::shared_ptr<SharedState> state);
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;
  ~Planner();

  /// The plan, if it is there for good; else null, and `plan` or `plan_for_stream` must see. Takes
  /// no lock and allocates nothing.
  [[nodiscard]] const PlanTable::Entry* find(const PlanKey& key) const noexcept {
    if (closing()) return nullptr;
    const PlanTable::Entry* entry = table_.find(key);
    return entry != nullptr && entry->settled ? entry : nullptr;
  }

  [[nodiscard]] bool closing() const noexcept { return closing_.load(std::memory_order_relaxed); }
  /// Tells this planner from every other one of the process, past ones included.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] std::uint64_t version() const noexcept { return table_.version(); }

  /// One flight for each key: who comes second waits for `wait_ms`, then gets the heuristic's plan.
  /// Errors: as Engine::plan; kCancelled after `close`.
  [[nodiscard]] Result<PlanPointer> plan(const OpPointer& op, const PlanKey& key,
                                         const cuda::ContextId& context, Timing timing);
  /// The same for a launch on `stream`, which may be capturing. Errors: also kCaptureMiss.
  [[nodiscard]] Result<PlanPointer> plan_for_stream(const OpPointer& op, const PlanKey& key,
                                                    const cuda::ContextId& context,
                                                    cuda::CUstream stream);
  /// With the caller's config. Errors: as Engine::plan_with.
  [[nodiscard]] Result<PlanPointer> plan_with(const OpPointer& op, const PlanKey& key,
                                              const cuda::ContextId& context, const Config& config);
  /// Compiles what these problems will need, in parallel; what is to be timed is left to `plan`.
  [[nodiscard]] Status compile_ahead(const std::vector<OpPointer>& ops,
                                     const cuda::ContextId& context);

  /// Which plan a problem has, or would get, in `context` (null: anywhere on the device).
  [[nodiscard]] Result<Why> why(const OpPointer& op, const ops::ProblemWords& words,
                                const cuda::ContextId* context);

  void seal();
  [[nodiscard]] bool sealed() const noexcept { return sealed_; }
  void close();
  [[nodiscard]] MissRing& misses() noexcept { return misses_; }
  [[nodiscard]] std::string selection_digest() const;

  /// Fills in what it counts.
  void add_to(EngineStats& stats) const;

 private:
  /// Something that `close` waits for. One that began before `seal` may still compile and load, and
  /// `seal` waits for it as well.
  class Call {
   public:
    [[nodiscard]] static Result<Call> begin(Planner& planner);
    Call(Call&& other) noexcept
        : planner_(std::exchange(other.planner_, nullptr)), sealed_(other.sealed_) {}
    Call& operator=(Call&&) = delete;
    ~Call();
    [[nodiscard]] bool sealed() const noexcept { return sealed_; }

   private:
    Call(Planner& planner, bool sealed) noexcept : planner_(&planner), sealed_(sealed) {}
    Planner* planner_;
    bool sealed_;
  };

  /// One plan being made, which callers of its key wait for.
  struct Flight {
    std::optional<Result<PlanPointer>> result;
    bool overdue = false;  ///< somebody has waited in vain; nobody else waits
    PlanPointer stand_in;  ///< what serves those, once it is made
  };
  struct Decision {
    Choice choice;
    bool settled = true;         ///< false: a later call looks again
    bool in_background = false;  ///< to be timed there
  };
  /// A key to be timed in the background.
  struct Wanted {
    OpPointer op;
    PlanKey key;
    cuda::ContextId context;
  };

  Result<PlanPointer> fly(const OpPointer& op, const PlanKey& key, const cuda::ContextId& context,
                          Timing timing);
  Result<PlanPointer> stand_in(Flight& flight, const OpPointer& op, const cuda::ContextId& context);
  Result<PlanPointer> make(const OpPointer& op, const PlanKey& key, const cuda::ContextId& context,
                           Timing timing);
  Result<Decision> decide(const OpPointer& op, const ops::DeviceLimits& limits, Timing timing);
  Result<PlanPointer> retimed(const OpPointer& op, const ops::DeviceLimits& limits,
                              const Choice& choice, PlanPointer plan,
                              const cuda::ContextId& context);
  Result<PlanPointer> assemble(const OpPointer& op, const Choice& choice,
                               const cuda::ContextId& context);
  Result<PlanPointer> assemble_first(const OpPointer& op, const Choice& choice,
                                     const cuda::ContextId& context);
  Result<PlanPointer> sealed_plan(const OpPointer& op, const PlanKey& key,
                                  const cuda::ContextId& context);
  Result<PlanPointer> loaded_plan(const OpPointer& op, const PlanKey& key,
                                  const cuda::ContextId& context, bool provisional);
  Result<PlanPointer> loaded_with(const OpPointer& op, const Choice& choice,
                                  const cuda::ContextId& context) const;
  Result<PlanPointer> forced(const PlanKey& key, const Config* config) const;
  std::shared_ptr<Plan::Impl> empty_plan(const OpPointer& op, const Choice& choice,
                                         const cuda::ContextId& context,
                                         const ops::DeviceLimits& limits) const;
  void keep(const OpPointer& op, const PlanKey& key, const PlanPointer& plan, bool settled);
  void note_miss(const OpPointer& op);
  [[nodiscard]] bool times(const OpPointer& op, const ops::DeviceLimits& limits) const;
  [[nodiscard]] tuning::ShapeKey shape_key(const ops::OpProblem& op) const {
    return internals_->store->key_of(op.key_query());
  }

  bool want(Wanted wanted);
  void run_background();
  void time_in_background(const Wanted& wanted);

  const std::uint64_t id_;
  std::shared_ptr<Internals> internals_;
  std::shared_ptr<SharedState> state_;
  FirstUse first_use_;
  PlanTable table_;
  MissRing misses_;
  std::atomic<bool> closing_{false}, sealed_{false};  // set with `mutex_` held
  std::atomic<std::int64_t> plans_{0}, exact_{0}, fallback_{0}, waits_ended_{0}, capture_misses_{0},
      sealed_misses_{0}, sealed_refused_{0};

  mutable std::mutex mutex_;  // all below
  std::condition_variable changed_;
  int calls_ = 0;   // in progress
  int makers_ = 0;  // those that began before `seal`, and what the background thread is at
  std::unordered_map<PlanKey, std::shared_ptr<Flight>, PlanKeyHash> flights_;
  struct Forced {
    Config config;
    PlanPointer plan;
  };
  std::unordered_map<PlanKey, std::vector<Forced>, PlanKeyHash> forced_;
  std::deque<Wanted> wanted_;
  std::mutex ending_;  // of `close`: the thread is joined once
  std::thread background_;
};

}  // namespace scanjit::engine
