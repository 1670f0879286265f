#include "engine/first_use.hpp"

#include <algorithm>
#include <chrono>

#include "engine/tune_key.hpp"

namespace scanjit::engine {
namespace {

constexpr std::int64_t kPollMs = 20;

}  // namespace

VainTries& VainTries::process() noexcept {
  // Never destroyed, as the process's loader.
  alignas(VainTries) static unsigned char storage[sizeof(VainTries)];
  static auto* const tries = new (storage) VainTries;
  return *tries;
}

bool VainTries::exhausted(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = tries_.find(key);
  return found != tries_.end() && found->second >= kMost;
}

void VainTries::count(const std::string& key) {
  const std::lock_guard lock(mutex_);
  ++tries_[key];
}

bool FirstUse::possible(const ops::OpProblem& problem) const {
  if (problem.tokens_per_sequence() == 0) return false;
  const tuning::ShapeKey key = problem.key_query().key;
  return internals_.shortlists.find(key.kernel, key.kernel_revision, internals_.facts.arch,
                                    problem.source_class()) != nullptr;
}

std::vector<Config> FirstUse::candidates(const ops::OpProblem& problem,
                                         const ops::DeviceLimits& limits,
                                         const tuning::Record* stale) const {
  std::vector<Config> list;
  const auto add = [&](const Config& config) {
    if (problem.legal(config, limits).ok() &&
        std::find(list.begin(), list.end(), config) == list.end())
      list.push_back(config);
  };
  if (stale != nullptr) {
    for (const Config& config : tuning::retime_candidates(*stale)) add(config);
    return list;
  }
  if (const auto heuristic = problem.heuristic(limits); heuristic.ok()) add(*heuristic);
  const tuning::ShapeKey key = problem.key_query().key;
  const Shortlist* shortlist = internals_.shortlists.find(
      key.kernel, key.kernel_revision, internals_.facts.arch, problem.source_class());
  if (shortlist == nullptr) return list;
  for (const Config& config : shortlist->configs) add(config);
  return list;
}

std::optional<Choice> FirstUse::published(const ops::OpProblem& problem,
                                          const ops::DeviceLimits& limits,
                                          const tuning::Record* stale) const {
  const auto pick =
      internals_.store->find_exact(problem.key_query(), ops::legal_fn(problem, limits));
  if (!pick) return std::nullopt;
  // What is to be timed again is not news.
  if (stale != nullptr && (pick->stale_toolchain || *pick->record == *stale)) return std::nullopt;
  return choice_of(*pick, problem, limits);
}

FirstUse::Outcome FirstUse::run(const std::shared_ptr<const ops::OpProblem>& problem,
                                const ops::DeviceLimits& limits, const tuning::Record* stale,
                                const std::function<bool()>& stop) {
  const std::string key = internals_.store->key_of(problem->key_query()).text();
  const std::string tries = internals_.facts.uuid + " " + key;
  if (internals_.parts.vain_tries->exhausted(tries)) return {};
  std::unique_lock lock(mutex_);
  if (!running_.insert(key).second) {
    const bool ended = ended_.wait_for(lock, std::chrono::milliseconds(internals_.options.wait_ms),
                                       [&] { return running_.count(key) == 0; });
    lock.unlock();
    if (ended) {
      if (auto choice = published(*problem, limits, stale)) return {std::move(choice), false};
    }
    return {std::nullopt, !internals_.parts.vain_tries->exhausted(tries)};
  }
  lock.unlock();

  // Whatever happens, the key is free again.
  struct Release {
    FirstUse& first_use;
    const std::string& key;
    ~Release() {
      const std::lock_guard guard(first_use.mutex_);
      first_use.running_.erase(key);
      first_use.ended_.notify_all();
    }
  };
  const Release release{*this, key};
  Outcome outcome = run_alone(problem, limits, stale, stop);
  if (internals_.parts.vain_tries->exhausted(tries)) outcome.retry = false;
  return outcome;
}

// Among processes: the lock saves double work, and nothing else depends on it.
FirstUse::Outcome FirstUse::run_alone(const std::shared_ptr<const ops::OpProblem>& problem,
                                      const ops::DeviceLimits& limits, const tuning::Record* stale,
                                      const std::function<bool()>& stop) {
  if (internals_.cache.memory_only()) return time_now(problem, limits, stale, stop);
  os::FileSystem& files = *internals_.parts.files;
  os::Clock& clock = *internals_.parts.clock;
  const tuning::ShapeKey key = internals_.store->key_of(problem->key_query());
  const std::string folder = os::join_path(internals_.cache.path, "locks");
  std::optional<os::FileLock> held;
  if (files.make_directories(folder).ok()) {
    const std::string path = os::join_path(folder, key.file_name() + ".lock");
    const std::int64_t until = clock.now_ms() + internals_.options.wait_ms;
    while (true) {
      Result<std::optional<os::FileLock>> attempt = files.try_lock(path);
      if (!attempt.ok()) break;  // no locking here: go on without
      if (attempt->has_value()) {
        held = std::move(*attempt);
        break;
      }
      if (clock.now_ms() >= until || (stop && stop())) return {std::nullopt, true};
      clock.sleep_ms(kPollMs);
      internals_.store->forget(key);
      if (auto choice = published(*problem, limits, stale)) return {std::move(choice), false};
    }
  }
  // Another process may have been done just before.
  internals_.store->forget(key);
  if (auto choice = published(*problem, limits, stale)) return {std::move(choice), false};
  return time_now(problem, limits, stale, stop);
}

FirstUse::Outcome FirstUse::time_now(const std::shared_ptr<const ops::OpProblem>& problem,
                                     const ops::DeviceLimits& limits, const tuning::Record* stale,
                                     const std::function<bool()>& stop) {
  os::Clock& clock = *internals_.parts.clock;
  const std::vector<Config> configs = candidates(*problem, limits, stale);
  if (configs.empty()) return {};
  const std::int64_t until = clock.now_ms() + internals_.options.tune_budget_ms;
  // Compiled before the GPU is claimed, so that several keys compile at a time.
  std::vector<jit::KernelSource> sources;
  for (const Config& config : configs) {
    for (const ops::Stage& stage : problem->stages(config, limits)) {
      if (std::find(sources.begin(), sources.end(), stage.source) == sources.end())
        sources.push_back(stage.source);
    }
  }
  static_cast<void>(internals_.provider->get_all(
      sources, internals_.facts.arch, [&] { return clock.now_ms() >= until || (stop && stop()); }));

  std::unique_lock lock(mutex_);
  if (!ended_.wait_for(lock, std::chrono::milliseconds(internals_.options.wait_ms),
                       [&] { return !gpu_taken_; }))
    return {std::nullopt, true};
  gpu_taken_ = true;
  lock.unlock();
  struct Release {
    FirstUse& first_use;
    ~Release() {
      const std::lock_guard guard(first_use.mutex_);
      first_use.gpu_taken_ = false;
      first_use.ended_.notify_all();
    }
  };
  std::optional<Result<TunedKey>> tuned;
  {
    const Release release{*this};
    TuneKeyOptions options;
    options.timer.scratch_limit = internals_.options.scratch_limit;
    options.timer.block_us = 1000;
    options.stop = stop;
    options.select.budget_ms =
        static_cast<double>(std::max<std::int64_t>(1, until - clock.now_ms()));
    tuned = tune_key(internals_, {problem}, configs, options);
  }

  const std::string key = internals_.store->key_of(problem->key_query()).text();
  if (!tuned->ok()) {
    const Status error = tuned->status();
    const std::lock_guard guard(mutex_);
    if (error.code() == ErrorCode::kCancelled) return {std::nullopt, true};
    // Without stream-ordered pools there is no scratch either.
    if (error.code() == ErrorCode::kOutOfMemory || error.code() == ErrorCode::kUnsupported)
      ++counters_.no_scratch;
    internals_.log.warn_once(key, "first use of " + key + " was not timed: " + error.message());
    if (error.code() != ErrorCode::kTimeout) return {};
    // A budget that ended before one round was spent on compiling, which need not be done again.
    internals_.parts.vain_tries->count(internals_.facts.uuid + " " + key);
    return {std::nullopt, true};
  }
  {
    const std::lock_guard guard(mutex_);
    counters_.scratch_peak_bytes = std::max(counters_.scratch_peak_bytes, (*tuned)->scratch_bytes);
  }
  if (!(*tuned)->record) {
    internals_.parts.vain_tries->count(internals_.facts.uuid + " " + key);
    const std::lock_guard guard(mutex_);
    ++counters_.busy;
    internals_.log.info("first use of " + key + ": the GPU was busy, nothing is stored");
    return {std::nullopt, true};
  }
  auto record = std::make_shared<const tuning::Record>(*(*tuned)->record);
  // What the disk refuses serves from memory, and the store warns of it.
  static_cast<void>(internals_.store->publish(*record));
  {
    const std::lock_guard guard(mutex_);
    ++counters_.timed;
  }
  tuning::Pick pick;
  pick.record = record;
  pick.config = record->config;
  pick.source = PickSource::kTimedNow;
  pick.layer = "timed now";
  return {choice_of(pick, *problem, limits), false};
}

FirstUse::Counters FirstUse::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace scanjit::engine
