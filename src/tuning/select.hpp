#pragma once
/// \file
/// Noise-aware choice among the candidates of one measured point.
///
/// All live candidates are timed in interleaved rounds (round r starts at another candidate, so that a
/// drift of the clock touches all alike), the default twice in each: its two times, at opposite ends
/// of a round, are the control. A candidate's figure is the median of its times; what is compared is
/// the median over rounds of the ratio to the default of the same round, which cancels drift. After
/// the third round a candidate is dropped once its ratio is clearly above the best one's. The default
/// stays unless the best ratio is below 1 by more than the noise; among candidates that the noise
/// cannot tell from the best, `fewer_resources` decides.
///
/// Pure: time and the GPU come in as callables. Not thread-safe; calls `measure` from this thread only.

#include <cstddef>
#include <functional>
#include <vector>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"
#include "tuning/record.hpp"

namespace scanjit::tuning {

/// Times one block of launches of a candidate; microseconds of one launch.
/// An error rejects the candidate and is recorded; kDeviceLost and kCancelled end the selection.
using MeasureFn = std::function<Result<double>(const Config&)>;
/// Whether the candidate's outputs equal the default's, bit for bit. An error rejects it too.
using BitsEqualFn = std::function<Result<bool>(const Config&)>;
/// Milliseconds of any steady clock.
using ClockFn = std::function<double()>;

struct SelectOptions {
  int rounds = 9;             ///< at least 7
  double budget_ms = 0;       ///< 0: no limit
  double busy_spread = 0.05;  ///< control above this: the GPU is busy
  double min_gain = 0.01;     ///< differences below this are a tie, whatever the samples say
};

struct Measured {
  Config config;
  Timing us;
  double ratio = 1;      ///< median over rounds of its time / the default's in the same round
  double ratio_low = 1;  ///< 95% confidence interval of that median
  double ratio_high = 1;
  bool dropped = false;  ///< eliminated before the last round
};

struct Selection {
  Config winner;
  std::vector<Measured> measured;  ///< by ratio, best first; the default is among them
  std::vector<Rejected> rejected;
  Timing default_us;
  double noise = 0;       ///< the control: median over rounds of |a - b| / min(a, b)
  int rounds = 0;         ///< completed
  bool busy = false;      ///< noise above `busy_spread`: store nothing
  bool partial = false;   ///< the budget ended before `rounds`; `winner` is the best confirmed one
};

/// `candidates[0]` is the default. Errors: kInvalidArgument (no candidate, one that is there twice,
/// fewer than 7 rounds), whatever `measure` says of the default, kDeviceLost, kCancelled.
[[nodiscard]] Result<Selection> select(const std::vector<Config>& candidates, const MeasureFn& measure,
                                       const BitsEqualFn& bits_equal, const ClockFn& clock,
                                       const SelectOptions& options);

/// Median with its 95% confidence interval from order statistics (the whole range below 6 samples).
/// `samples` must not be empty.
[[nodiscard]] Timing summarise(std::vector<double> samples);

}  // namespace scanjit::tuning
