#include "ops/op_problem.hpp"

namespace scanjit::ops {

tuning::LegalFn legal_fn(const OpProblem& problem, const DeviceLimits& limits) {
  return [&problem, &limits](const Config& config) { return problem.legal(config, limits); };
}

Result<std::vector<Config>> candidates(const OpProblem& problem, const DeviceLimits& limits) {
  SCANJIT_ASSIGN_OR_RETURN(const Config heuristic, problem.heuristic(limits));
  return tuning::enumerate(problem.space(), heuristic, legal_fn(problem, limits),
                           [&](const Config& config) { return problem.score(config, limits); });
}

}  // namespace scanjit::ops
