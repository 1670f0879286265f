#include "ops/abc_backward.hpp"

#include "core/guard.hpp"

namespace scanjit::ops {

Result<std::shared_ptr<const AbcBackward>> AbcBackward::make(const Problem& problem) {
  std::shared_ptr<AbcBackward> made(new AbcBackward(problem));
  SCANJIT_TRY(made->check());
  const std::int64_t K = problem.K, M = problem.M, V = problem.V;
  made->add_tokens(kDout, V, false);
  if (problem.has_dhkt) made->add_states(kDhkt, K * M, false);
  if (problem.has_dhvt) made->add_states(kDhvt, M * V, false);
  made->add_tokens(kDq, K, true);
  made->add_tokens(kDk, K, true);
  made->add_tokens(kDv, V, true);
  made->add_tokens(kDs, M, true);
  if (problem.has_hk0) made->add_states(kDhk0, K * M, true);
  if (problem.has_hv0) made->add_states(kDhv0, M * V, true);
  if (problem.has_z0) made->add_states(kDz0, M, true);
  return std::shared_ptr<const AbcBackward>(std::move(made));
}

ProblemWords AbcBackward::words(const Problem& p) noexcept {
  return AbcOp::words(kOp, p, {p.has_dhkt, p.has_dhvt});
}

AbcBackward::Problem AbcBackward::problem() const noexcept {
  Problem problem;
  static_cast<AbcProblem&>(problem) = problem_;
  problem.has_dhkt = has_dhkt_;
  problem.has_dhvt = has_dhvt_;
  return problem;
}

Result<std::shared_ptr<const AbcOp>> AbcBackward::of(const AbcProblem& shared) const {
  Problem problem = this->problem();
  static_cast<AbcProblem&>(problem) = shared;
  SCANJIT_ASSIGN_OR_RETURN(auto made, make(problem));
  return std::shared_ptr<const AbcOp>(std::move(made));
}

Status AbcBackward::check_args(const Args& args, Workspace workspace,
                               std::int64_t workspace_bytes) const {
  return check_addresses(addresses(args, workspace), workspace, workspace_bytes);
}

Addresses AbcBackward::addresses(const Args& args, Workspace workspace) noexcept {
  const auto plain = [](const void* pointer) { return const_cast<void*>(pointer); };
  Addresses a;
  put_inputs(args, a);
  a.tensor[kDout] = plain(args.dout);
  a.tensor[kDhkt] = plain(args.dhkt);
  a.tensor[kDhvt] = plain(args.dhvt);
  a.tensor[kSaved] = plain(args.saved);
  a.tensor[kDq] = args.dq;
  a.tensor[kDk] = args.dk;
  a.tensor[kDv] = args.dv;
  a.tensor[kDs] = args.ds;
  a.tensor[kDhk0] = args.dhk0;
  a.tensor[kDhv0] = args.dhv0;
  a.tensor[kDz0] = args.dz0;
  a.workspace = workspace.data;
  return a;
}

}  // namespace scanjit::ops

namespace scanjit {

Result<std::int64_t> workspace_bound(const AbcBackwardProblem& problem, std::int64_t limit) {
  return guard([&]() -> Result<std::int64_t> {
    SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::AbcBackward::make(problem));
    return op->workspace_bound_under(limit);
  });
}

}  // namespace scanjit
