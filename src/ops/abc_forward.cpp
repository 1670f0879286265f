#include "ops/abc_forward.hpp"

#include "core/guard.hpp"

namespace scanjit::ops {

Result<std::shared_ptr<const AbcForward>> AbcForward::make(const Problem& problem) {
  std::shared_ptr<AbcForward> made(new AbcForward(problem));
  SCANJIT_TRY(made->check());
  made->add_tokens(kO, problem.V, true);
  if (problem.has_hkt) made->add_states(kHkt, problem.K * problem.M, true);
  if (problem.has_hvt) made->add_states(kHvt, problem.M * problem.V, true);
  if (problem.has_zt) made->add_states(kZt, problem.M, true);
  return std::shared_ptr<const AbcForward>(std::move(made));
}

ProblemWords AbcForward::words(const Problem& p) noexcept {
  return AbcOp::words(kOp, p, {p.has_hkt, p.has_hvt, p.has_zt});
}

AbcForward::Problem AbcForward::problem() const noexcept {
  Problem problem;
  static_cast<AbcProblem&>(problem) = problem_;
  problem.has_hkt = has_hkt_;
  problem.has_hvt = has_hvt_;
  problem.has_zt = has_zt_;
  return problem;
}

Result<std::shared_ptr<const AbcOp>> AbcForward::of(const AbcProblem& shared) const {
  Problem problem = this->problem();
  static_cast<AbcProblem&>(problem) = shared;
  SCANJIT_ASSIGN_OR_RETURN(auto made, make(problem));
  return std::shared_ptr<const AbcOp>(std::move(made));
}

Status AbcForward::check_args(const Args& args, Workspace workspace,
                              std::int64_t workspace_bytes) const {
  return check_addresses(addresses(args, workspace), workspace, workspace_bytes);
}

Addresses AbcForward::addresses(const Args& args, Workspace workspace) noexcept {
  Addresses a;
  put_inputs(args, a);
  a.tensor[kO] = args.o;
  a.tensor[kHkt] = args.hkt;
  a.tensor[kHvt] = args.hvt;
  a.tensor[kZt] = args.zt;
  a.tensor[kSaved] = args.saved;
  a.workspace = workspace.data;
  return a;
}

}  // namespace scanjit::ops

namespace scanjit {

Result<std::int64_t> workspace_bound(const AbcForwardProblem& problem, std::int64_t limit) {
  return guard([&]() -> Result<std::int64_t> {
    SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::AbcForward::make(problem));
    return op->workspace_bound_under(limit);
  });
}

Result<std::int64_t> abc_saved_bytes(const AbcProblem& problem) {
  return guard([&]() -> Result<std::int64_t> {
    AbcForwardProblem forward;
    static_cast<AbcProblem&>(forward) = problem;
    SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::AbcForward::make(forward));
    return op->saved_bytes();
  });
}

}  // namespace scanjit
