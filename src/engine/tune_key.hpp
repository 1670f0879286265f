#pragma once
/// \file
/// Tunes one key: times candidates at one or several points of its box and makes the record.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/op_timer.hpp"
#include "tuning/regret.hpp"
#include "tuning/select.hpp"

namespace scanjit::engine {

struct TuneKeyOptions {
  OpTimerOptions timer;
  tuning::SelectOptions
      select;  ///< `budget_ms` covers compiling and timing, of all points together
  /// Called after each step from this thread; may be empty.
  std::function<void(const std::string& step)> progress;
  /// Asked between measurements; true ends with kCancelled. May be empty.
  std::function<bool()> stop;
};

struct TunedKey {
  /// Nothing if the GPU was busy at some point.
  std::optional<tuning::Record> record;
  std::vector<tuning::PointSelection> points;  ///< everything that was measured
  double noise = 0;                            ///< the worst point's control
  std::int64_t scratch_bytes = 0;              ///< device memory of the point that took most
};

/// `problems`: points of one key; the first one's key and times are recorded. `candidates[0]` is
/// the default. Illegal candidates are recorded as rejected. Publishes nothing. Errors: as
/// OpTimer::create and tuning::select; kInvalidArgument if the problems' keys differ.
[[nodiscard]] Result<TunedKey> tune_key(
    Internals& internals, const std::vector<std::shared_ptr<const ops::OpProblem>>& problems,
    const std::vector<Config>& candidates, const TuneKeyOptions& options);

}  // namespace scanjit::engine
