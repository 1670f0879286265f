#include "gpu/figures/device_timer.hpp"

#include <algorithm>

#include "cuda/memory.hpp"
#include "engine/op_timer.hpp"
#include "ops/gated_delta_h.hpp"

namespace scanjit::test {
namespace {

Result<engine::OpTimer> timer_of(engine::Internals& internals, const Problem& problem) {
  SCANJIT_ASSIGN_OR_RETURN(const cuda::MemoryInfo memory, cuda::memory_info(internals.api()));
  engine::OpTimerOptions options;
  options.scratch_limit = memory.free_bytes - (std::int64_t{4} << 30);
  options.block_us = 1000;
  return engine::OpTimer::create(internals, problem, options);
}

/// Medians of `rounds` interleaved rounds; a config that cannot run ends it.
Result<std::vector<ConfigTime>> time_rounds(engine::OpTimer& timer,
                                            const std::vector<Config>& configs, int rounds) {
  std::vector<std::vector<double>> samples(configs.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < configs.size(); ++i) {
      const std::size_t at = (i + static_cast<std::size_t>(round)) % configs.size();
      SCANJIT_ASSIGN_OR_RETURN(const double us, timer.measure(configs[at]));
      samples[at].push_back(us);
    }
  }
  std::vector<ConfigTime> times;
  for (std::size_t i = 0; i < configs.size(); ++i)
    times.push_back({configs[i], median(samples[i])});
  return times;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Result<Problem> op_of(const GatedDeltaHProblem& problem) {
  SCANJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const ops::GatedDeltaH> op,
                           ops::GatedDeltaH::make(problem));
  return Problem(op);
}

Result<std::vector<ConfigTime>> time_configs(engine::Internals& internals, const Problem& problem,
                                             const std::vector<Config>& configs, int rounds) {
  SCANJIT_ASSIGN_OR_RETURN(engine::OpTimer timer, timer_of(internals, problem));
  static_cast<void>(timer.compile(configs));
  return time_rounds(timer, configs, rounds);
}

Result<Exhaustive> exhaustive(engine::Internals& internals, const Problem& problem,
                              const std::vector<Config>& wanted, int rounds) {
  SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, internals.context());
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals.limits(context));
  std::vector<Config> legal;
  for (const Config& config : problem->space().all()) {
    if (problem->legal(config, limits).ok()) legal.push_back(config);
  }
  if (legal.empty()) return unsupported("no config is legal here");
  SCANJIT_ASSIGN_OR_RETURN(engine::OpTimer timer, timer_of(internals, problem));
  static_cast<void>(timer.compile(legal));
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<ConfigTime> screened, time_rounds(timer, legal, 1));
  double fastest = screened.front().us;
  for (const ConfigTime& time : screened) fastest = std::min(fastest, time.us);
  std::vector<Config> finalists = wanted;
  for (const ConfigTime& time : screened) {
    if (time.us <= 1.15 * fastest) finalists.push_back(time.config);
  }
  std::sort(finalists.begin(), finalists.end());
  finalists.erase(std::unique(finalists.begin(), finalists.end()), finalists.end());
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<ConfigTime> times,
                           time_rounds(timer, finalists, rounds));

  Exhaustive result;
  result.legal = legal.size();
  result.l2 = timer.l2();
  result.best =
      *std::min_element(times.begin(), times.end(),
                        [](const ConfigTime& a, const ConfigTime& b) { return a.us < b.us; });
  for (const Config& config : wanted) {
    result.wanted.push_back(*std::find_if(
        times.begin(), times.end(), [&](const ConfigTime& time) { return time.config == config; }));
  }
  return result;
}

}  // namespace scanjit::test
