#pragma once
/// \file
/// ABC backward as an op: gradients from what the forward saved, or computes that again first.

#include <memory>

#include "ops/abc_op.hpp"
#include "tuning/record.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::ops {

class AbcBackward final : public AbcOp {
 public:
  using Problem = AbcBackwardProblem;
  using Args = AbcBackwardArgs;
  static constexpr Op kOp = kAbcBackward;
  static constexpr int kRevision = scanjit::abc::kKernelRevision;

  /// Errors: kInvalidArgument, kUnsupported; the sentence names field, value and bound.
  [[nodiscard]] static Result<std::shared_ptr<const AbcBackward>> make(const Problem& problem);
  /// The problem of a shape, and of a key (its source fields decide) at a point of its box; `make`
  /// checks the rest. Errors: kInvalidArgument, kUnsupported.
  [[nodiscard]] static Result<Problem> problem_of(const tuning::Shape& shape);
  [[nodiscard]] static Result<Problem> problem_of(const tuning::ShapeKey& key,
                                                  const tuning::MeasuredPoint& point);
  /// What plans are looked up by. Allocates nothing. Two problems have equal words only if they are
  /// equal, except that all unknown `numerics` look alike (`make` refuses them).
  [[nodiscard]] static ProblemWords words(const Problem& problem) noexcept;
  /// Checks the addresses of one launch whose config needs so much workspace. Allocates nothing
  /// when ok. Errors: kInvalidArgument.
  [[nodiscard]] Status check_args(const Args& args, Workspace workspace,
                                  std::int64_t workspace_bytes) const;
  [[nodiscard]] static Addresses addresses(const Args& args, Workspace workspace) noexcept;

  [[nodiscard]] Problem problem() const noexcept;

 private:
  explicit AbcBackward(const Problem& problem)
      : AbcOp(kOp, problem), has_dhkt_(problem.has_dhkt), has_dhvt_(problem.has_dhvt) {}
  [[nodiscard]] Result<std::shared_ptr<const AbcOp>> of(const AbcProblem& problem) const override;

  bool has_dhkt_, has_dhvt_;
};

}  // namespace scanjit::ops
