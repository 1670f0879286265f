#include "tuning/select.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/guard.hpp"
#include "tuning/config_space.hpp"

namespace scanjit::tuning {
namespace {

constexpr int kFewestRounds = 7;
constexpr int kConfirmedRounds = 3;  // a partial selection trusts no less
constexpr int kDropFarRound = 3;     // from this round on, drop what is far behind
constexpr double kDropFarGap = 0.30;
constexpr int kDropRound = 5;  // from this round on, drop what is clearly behind
constexpr double kDropGap = 0.03;
constexpr double kSettled = 2.0;  // standard errors that settle a comparison
// A quiet GPU may have two modes some percent apart; a neighbour takes a multiple.
constexpr double kModes = 4;
constexpr std::size_t kMaxDetailBytes = 400;

double median_of(std::vector<double> values) {
  const std::size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle),
                   values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (upper +
          *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle))) /
         2;
}

/// How far apart the quarters of the values lie, as a part of their median.
double middle_spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t quarter = values.size() / 4;
  return (values[values.size() - 1 - quarter] - values[quarter]) / values[values.size() / 2];
}

struct Sample {
  std::size_t round;
  double us;
};

struct Candidate {
  Config config;
  std::vector<Sample> samples;
  bool dropped = false;
  double effect = 0;  // fitted logarithm of its time
  double low = 0;     // least and greatest of its samples' logarithms, rounds taken out
  double high = 0;
  double error = 0;  // standard error of `effect`

  [[nodiscard]] int rounds() const {
    int count = 0;
    for (std::size_t i = 0; i < samples.size(); ++i)
      count += i == 0 || samples[i].round != samples[i - 1].round;
    return count;
  }
};

/// Fits log(time) = effect of the candidate + effect of the round, by alternating medians.
void fit(std::vector<Candidate>& candidates, std::size_t rounds) {
  constexpr int kSweeps = 4;
  std::vector<double> round_effects(rounds, 0.0);
  for (Candidate& candidate : candidates) {
    std::vector<double> logs;
    for (const Sample& sample : candidate.samples) logs.push_back(std::log(sample.us));
    if (!logs.empty()) candidate.effect = median_of(std::move(logs));
  }
  std::vector<std::vector<double>> by_round(rounds);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (auto& residuals : by_round) residuals.clear();
    for (const Candidate& candidate : candidates) {
      for (const Sample& sample : candidate.samples) {
        by_round[sample.round].push_back(std::log(sample.us) - candidate.effect);
      }
    }
    for (std::size_t r = 0; r < rounds; ++r) {
      if (!by_round[r].empty()) round_effects[r] = median_of(by_round[r]);
    }
    for (Candidate& candidate : candidates) {
      std::vector<double> adjusted;
      for (const Sample& sample : candidate.samples)
        adjusted.push_back(std::log(sample.us) - round_effects[sample.round]);
      if (adjusted.empty()) continue;
      candidate.effect = median_of(adjusted);
      const auto [low, high] = std::minmax_element(adjusted.begin(), adjusted.end());
      candidate.low = *low;
      candidate.high = *high;
      const double count = static_cast<double>(adjusted.size());
      std::vector<double> deviations;
      for (const double value : adjusted) deviations.push_back(std::abs(value - candidate.effect));
      // 1.4826 x median deviation estimates sigma; a median's standard error is 1.2533 sigma /
      // sqrt(n).
      candidate.error = 1.2533 * 1.4826 * median_of(std::move(deviations)) / std::sqrt(count);
    }
  }
}

struct Choice {
  std::size_t winner = 0;
  double tie = 0;
  bool settled = true;
};

/// The rule of the header, over candidates with at least `fewest` rounds. [0] is the default.
Choice choose(const std::vector<Candidate>& candidates, int fewest, double min_gain) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& one = candidates[i];
    if (!one.dropped && one.rounds() >= fewest && one.effect < candidates[best].effect) best = i;
  }
  const auto error = [&](std::size_t i) {
    return i == best ? 0.0 : std::hypot(candidates[i].error, candidates[best].error);
  };
  Choice choice;
  // One tolerance for all, wide enough that noise alone never unseats the default.
  choice.tie = std::max(std::log1p(min_gain), kSettled * error(0));
  std::vector<std::size_t> order;
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    if (!candidates[i].dropped && candidates[i].rounds() >= fewest) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return fewer_resources(candidates[a].config, candidates[b].config);
  });
  order.insert(order.begin(), 0);
  choice.winner = best;
  for (const std::size_t i : order) {
    const double gap = candidates[i].effect - candidates[best].effect;
    // How close the comparison came to going the other way.
    if (i != best && std::abs(gap - std::log1p(min_gain)) < kSettled * error(i))
      choice.settled = false;
    if (gap <= choice.tie) {
      choice.winner = i;
      break;
    }
  }
  return choice;
}

/// Marks what is clearly behind the best.
void drop(std::vector<Candidate>& candidates, int rounds, double noise) {
  if (rounds < kDropFarRound) return;
  std::size_t best = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].dropped && candidates[i].effect < candidates[best].effect) best = i;
  }
  const double least = rounds >= kDropRound ? std::max(kDropGap, 2 * noise) : kDropFarGap;
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    Candidate& one = candidates[i];
    if (!one.dropped && one.low > candidates[best].high &&
        one.effect - candidates[best].effect > std::log1p(least)) {
      one.dropped = true;
    }
  }
}

Rejected rejected_by(const Config& config, const Status& status) {
  return {config, reject_reason(status.code()), status.message().substr(0, kMaxDetailBytes)};
}

}  // namespace

Timing summarise(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto n = samples.size();
  // The ranks n/2 -+ 1.96 sqrt(n)/2 enclose the median with 95% probability.
  const double half = 0.98 * std::sqrt(static_cast<double>(n));
  const double low = std::floor(static_cast<double>(n) / 2 - half);
  const double high = std::ceil(static_cast<double>(n) / 2 + half);
  const std::size_t first = low < 0 ? 0 : static_cast<std::size_t>(low);
  const std::size_t last = high >= static_cast<double>(n) ? n - 1 : static_cast<std::size_t>(high);
  return {median_of(samples), samples[first], samples[last], static_cast<int>(n)};
}

Result<Selection> select(const std::vector<Config>& candidates, const MeasureFn& measure,
                         const BitsEqualFn& bits_equal, const ClockFn& clock,
                         const SelectOptions& options) {
  return guard([&]() -> Result<Selection> {
    if (candidates.empty()) return invalid_argument("there is no candidate to select from");
    if (options.rounds < kFewestRounds || options.max_rounds < options.rounds) {
      return invalid_argument("selection has " + std::to_string(options.rounds) + " to " +
                              std::to_string(options.max_rounds) +
                              " rounds; it must have at least " + std::to_string(kFewestRounds) +
                              ", and no less at most than at least");
    }
    if (std::set<Config>(candidates.begin(), candidates.end()).size() != candidates.size()) {
      return invalid_argument("a candidate is there twice");
    }
    const double start_ms = clock();
    const auto out_of_time = [&] {
      return options.budget_ms > 0 && clock() - start_ms >= options.budget_ms;
    };

    Selection selection;
    selection.default_config = candidates.front();
    std::vector<Candidate> live{{candidates.front(), {}}};
    bool untried = false;
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      if (bits_equal) {
        if (out_of_time()) {
          untried = true;
          break;
        }
        const Result<bool> equal = bits_equal(candidates[i]);
        if (!equal.ok()) {
          if (equal.status().code() == ErrorCode::kCancelled) return equal.status();
          selection.rejected.push_back(rejected_by(candidates[i], equal.status()));
          continue;
        }
        if (!*equal) {
          selection.rejected.push_back({candidates[i], RejectReason::kWrongBits,
                                        "outputs differ from the default config's"});
          continue;
        }
      }
      live.push_back({candidates[i], {}});
    }

    // What tells a busy GPU: that the default's two times of a round differ, in the median, or that
    // its times of all rounds do; a neighbour's bursts are often longer than a round.
    std::vector<double> control, defaults;
    double unrest = 0;
    std::size_t round = 0;
    bool ended = untried && out_of_time();
    bool settled = false;
    while (!ended && !settled && round < static_cast<std::size_t>(options.max_rounds)) {
      std::vector<std::size_t> order;
      for (std::size_t i = 1; i < live.size(); ++i) {
        if (!live[i].dropped) order.push_back(i);
      }
      if (!order.empty()) {
        std::rotate(order.begin(),
                    order.begin() + static_cast<std::ptrdiff_t>(round % order.size()), order.end());
      }
      order.insert(order.begin(), 0);
      order.push_back(0);
      std::vector<std::pair<std::size_t, double>> times;
      std::vector<std::size_t> failed;
      for (const std::size_t i : order) {
        if (out_of_time()) {
          ended = true;
          break;
        }
        Result<double> us = measure(live[i].config);
        if (us.ok() && !(std::isfinite(*us) && *us > 0)) {
          us = internal_error("measured " + std::to_string(*us) + " us, which is no time");
        }
        if (!us.ok()) {
          if (i == 0 || us.status().code() == ErrorCode::kCancelled) return us.status();
          selection.rejected.push_back(rejected_by(live[i].config, us.status()));
          failed.push_back(i);
          continue;
        }
        times.emplace_back(i, *us);
      }
      if (ended) {  // a round that was cut short counts for nobody
        for (const std::size_t i : failed) live[i].samples.clear();
      } else {
        for (const auto& [i, us] : times) live[i].samples.push_back({round, us});
        const double a = times.front().second, b = times.back().second;
        control.push_back(std::abs(a - b) / std::min(a, b));
        defaults.insert(defaults.end(), {a, b});
        ++round;
      }
      std::sort(failed.rbegin(), failed.rend());
      for (const std::size_t i : failed) live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      if (ended || round == 0) continue;

      const int rounds = static_cast<int>(round);
      selection.noise = median_of(control);
      unrest = std::max(selection.noise, middle_spread(defaults) / kModes);
      fit(live, round);
      drop(live, rounds, selection.noise);
      if (rounds >= options.rounds) {
        // Few rounds may call a quiet GPU busy by chance: a doubtful verdict takes as many again.
        const bool busy = unrest > options.busy_spread;
        const bool doubtful =
            busy && unrest < 2 * options.busy_spread && rounds < 2 * options.rounds;
        settled =
            busy ? !doubtful
                 : live.size() == 1 || choose(live, kConfirmedRounds, options.min_gain).settled;
      }
    }

    selection.rounds = static_cast<int>(round);
    selection.partial = untried || selection.rounds < options.rounds;
    selection.busy = unrest > options.busy_spread;
    if (round == 0) {
      return Status(ErrorCode::kTimeout, "the budget of " + std::to_string(options.budget_ms) +
                                             " ms ended before one round of timing");
    }
    fit(live, round);
    const Choice choice = choose(live, kConfirmedRounds, options.min_gain);
    selection.tie = std::expm1(choice.tie);
    selection.winner = selection.busy ? selection.default_config : live[choice.winner].config;
    for (const Candidate& candidate : live) {
      if (candidate.samples.empty()) continue;
      std::vector<double> times;
      for (const Sample& sample : candidate.samples) times.push_back(sample.us);
      selection.measured.push_back({candidate.config, summarise(std::move(times)),
                                    std::exp(candidate.effect - live.front().effect),
                                    candidate.dropped});
    }
    selection.default_us = selection.measured.front().us;
    std::sort(selection.measured.begin(), selection.measured.end(),
              [](const Measured& a, const Measured& b) {
                if (a.ratio != b.ratio) return a.ratio < b.ratio;
                return fewer_resources(a.config, b.config);
              });
    return selection;
  });
}

}  // namespace scanjit::tuning
