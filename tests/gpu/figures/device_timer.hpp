#pragma once
// Times of several configs of one problem, in turn, so that a drift of the clock touches all alike.

#include <memory>
#include <vector>

#include "engine/internals.hpp"
#include "ops/op_problem.hpp"
#include "scanjit/gated_delta_h.hpp"

namespace scanjit::test {

using Problem = std::shared_ptr<const ops::OpProblem>;
[[nodiscard]] Result<Problem> op_of(const GatedDeltaHProblem& problem);

struct ConfigTime {
  Config config;
  double us = 0;  // median over the rounds
};

/// GPU time of each config at the problem's full size.
[[nodiscard]] Result<std::vector<ConfigTime>> time_configs(engine::Internals& internals,
                                                           const Problem& problem,
                                                           const std::vector<Config>& configs,
                                                           int rounds);

/// The best of all legal configs and, from the same rounds, the times of `wanted` (in their order).
struct Exhaustive {
  ConfigTime best;
  std::vector<ConfigTime> wanted;
  std::size_t legal = 0;
  const char* l2 = "";
  /// Percent by which wanted[i] is slower than the best.
  [[nodiscard]] double regret_percent(std::size_t i) const {
    return 100 * (wanted[i].us / best.us - 1);
  }
};
/// Every legal config is timed once; those within 15% of the fastest, and `wanted`, then in
/// `rounds` interleaved rounds.
[[nodiscard]] Result<Exhaustive> exhaustive(engine::Internals& internals, const Problem& problem,
                                            const std::vector<Config>& wanted, int rounds = 9);

[[nodiscard]] double median(std::vector<double> values);

}  // namespace scanjit::test
