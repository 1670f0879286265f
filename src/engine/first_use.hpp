#pragma once
/// \file
/// Timing a key on its first use: a short list of configs, once per key among threads and
/// processes.

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/config_choice.hpp"
#include "engine/internals.hpp"

namespace scanjit::engine {

/// Thread-safe. Never an error to its caller: what cannot be timed is served otherwise.
class FirstUse {
 public:
  struct Counters {
    std::int64_t timed = 0;
    std::int64_t busy = 0;
    std::int64_t no_scratch = 0;
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
  /// stays so.
  [[nodiscard]] Outcome run(const std::shared_ptr<const ops::OpProblem>& problem,
                            const ops::DeviceLimits& limits, const tuning::Record* stale);

  [[nodiscard]] Counters counters() const;

 private:
  struct Key {
    bool running = false;
    int tries = 0;
  };
  Outcome run_alone(const std::shared_ptr<const ops::OpProblem>& problem,
                    const ops::DeviceLimits& limits, const tuning::Record* stale);
  Outcome time_now(const std::shared_ptr<const ops::OpProblem>& problem,
                   const ops::DeviceLimits& limits, const tuning::Record* stale);
  std::optional<Choice> published(const ops::OpProblem& problem, const ops::DeviceLimits& limits,
                                  const tuning::Record* stale) const;
  std::vector<Config> candidates(const ops::OpProblem& problem, const ops::DeviceLimits& limits,
                                 const tuning::Record* stale) const;

  Internals& internals_;
  mutable std::mutex mutex_;  // all below; not held while compiling or timing
  std::condition_variable ended_;
  std::map<std::string, Key> keys_;
  bool gpu_taken_ = false;  // one key is timed at a time
  Counters counters_;
};

}  // namespace scanjit::engine
