#pragma once
/// \file
/// Noise-aware choice among the candidates of one measured point.
///
/// All live candidates are timed in interleaved rounds, each round beginning at another candidate;
/// the default is timed twice in each, at its first and last place: the two times are the control.
/// The logarithm of a time is taken as candidate + round + noise and fitted by medians (a median
/// polish), so that neither a drift of the clock from round to round nor single outliers reach the
/// comparison. A candidate clearly above the best is dropped: from the third round on if it is
/// slower by 30%, from the fifth if by more than 3% and twice the noise; in both cases all its
/// times must lie above the best one's. After `rounds` rounds more follow, up to `max_rounds`,
/// while the choice hangs on a difference that the samples do not settle.
///
/// The choice: candidates within `tie` of the best are equal. If the default is one of them it
/// stays; otherwise the first in `fewer_resources` order wins.
///
/// Pure: time and the GPU come in as callables. Not thread-safe; calls `measure` from this thread
/// only.

#include <cstddef>
#include <functional>
#include <vector>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"
#include "tuning/record.hpp"

namespace scanjit::tuning {

/// Times one block of launches of a candidate; microseconds of one launch. An error rejects the
/// candidate and is recorded (`reject_reason`); kCancelled ends the selection.
using MeasureFn = std::function<Result<double>(const Config&)>;
/// Whether the candidate's outputs equal the default's, bit for bit. An error rejects it too.
using BitsEqualFn = std::function<Result<bool>(const Config&)>;
/// Milliseconds of any steady clock.
using ClockFn = std::function<double()>;

struct SelectOptions {
  int rounds = 9;             ///< at least 7
  int max_rounds = 45;        ///< at least `rounds`
  double budget_ms = 0;       ///< 0: no limit. Looked at between blocks
  double busy_spread = 0.05;  ///< control above this: the GPU is busy
  double min_gain = 0.01;     ///< smaller differences are a tie, whatever the samples say
};

struct Measured {
  Config config;
  Timing us;
  double ratio = 1;      ///< fitted time over the default's
  bool dropped = false;  ///< eliminated before the last round
};

struct Selection {
  Config winner;
  std::vector<Measured> measured;  ///< by ratio, best first; the default is among them
  std::vector<Rejected> rejected;
  Config default_config;
  Timing default_us;
  double noise = 0;  ///< the control: median over rounds of |first - last| / the smaller
  double tie =
      0;  ///< differences of ratios up to this counted as none: `min_gain`, or more in noise
  int rounds = 0;  ///< completed
  /// Noise above `busy_spread`, or the middle half of the default's times over all rounds spreads by
  /// four times that: the default is the winner; store nothing.
  bool busy = false;
  bool partial = false;  ///< the budget ended before `rounds`, or before every candidate was tried
};

/// `candidates[0]` is the default. A partial selection chooses among what at least three rounds
/// have confirmed, else the default. Errors: kInvalidArgument (no candidate, one that is there
/// twice, too few rounds), kTimeout (the budget ended before one round), kCancelled, and whatever
/// `measure` says of the default.
[[nodiscard]] Result<Selection> select(const std::vector<Config>& candidates,
                                       const MeasureFn& measure, const BitsEqualFn& bits_equal,
                                       const ClockFn& clock, const SelectOptions& options);

/// Median with its 95% confidence interval from order statistics (the whole range below 6 samples).
/// `samples` must not be empty.
[[nodiscard]] Timing summarise(std::vector<double> samples);

}  // namespace scanjit::tuning
