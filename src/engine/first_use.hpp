#pragma once
/// \file
/// Timing a key on its first use: a short list of configs, once per key among threads and
/// processes.

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "engine/config_choice.hpp"
#include "engine/internals.hpp"

namespace scanjit::engine {

/// How often timing a key came to nothing, because the GPU was busy or the budget ended before one
/// round: counted for the whole process, so that an engine made anew does not begin again.
/// Thread-safe.
class VainTries {
 public:
  static constexpr int kMost = 3;
  [[nodiscard]] static VainTries& process() noexcept;
  [[nodiscard]] bool exhausted(const std::string& key) const;
  void count(const std::string& key);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int> tries_;  // by GPU and key
};

/// Thread-safe. Never an error to its caller: what cannot be timed is served otherwise.
class FirstUse {
 public:
  struct Counters {
    std::int64_t timed = 0;
    std::int64_t busy = 0;
    std::int64_t no_scratch = 0;
    std::int64_t scratch_peak_bytes = 0;
  };
  struct Outcome {
    std::optional<Choice> choice;  ///< timed here, or by another thread or process meanwhile
    bool retry =
        false;  ///< a later call may have more luck: the GPU was busy, or another is still timing
  };

  explicit FirstUse(Internals& internals) : internals_(internals) {}

  /// Whether this key may be timed at all: its architecture has a shortlist.
  [[nodiscard]] bool possible(const ops::OpProblem& problem) const;

  /// Times the shortlist and the heuristic's config, or after a change of toolchain the kept
  /// candidates of `stale`, and publishes the record. The problem's context must be current and
  /// stays so. `stop` (may be empty) is asked between measurements: once true, nothing is timed any
  /// more.
  [[nodiscard]] Outcome run(const std::shared_ptr<const ops::OpProblem>& problem,
                            const ops::DeviceLimits& limits, const tuning::Record* stale,
                            const std::function<bool()>& stop);

  [[nodiscard]] Counters counters() const;

 private:
  Outcome run_alone(const std::shared_ptr<const ops::OpProblem>& problem,
                    const ops::DeviceLimits& limits, const tuning::Record* stale,
                    const std::function<bool()>& stop);
  Outcome time_now(const std::shared_ptr<const ops::OpProblem>& problem,
                   const ops::DeviceLimits& limits, const tuning::Record* stale,
                   const std::function<bool()>& stop);
  std::optional<Choice> published(const ops::OpProblem& problem, const ops::DeviceLimits& limits,
                                  const tuning::Record* stale) const;
  std::vector<Config> candidates(const ops::OpProblem& problem, const ops::DeviceLimits& limits,
                                 const tuning::Record* stale) const;

  Internals& internals_;
  mutable std::mutex mutex_;  // all below; not held while compiling or timing
  std::condition_variable ended_;
  std::set<std::string> running_;  // keys
  bool gpu_taken_ = false;         // one key is timed at a time
  Counters counters_;
};

}  // namespace scanjit::engine
