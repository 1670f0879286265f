#pragma once
/// \file
/// ABC forward as an op: outputs from the states before every segment, which it computes first.

#include <memory>

#include "ops/abc_op.hpp"
#include "tuning/record.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::ops {

class AbcForward final : public AbcOp {
 public:
  using Problem = AbcForwardProblem;
  using Args = AbcForwardArgs;
  static constexpr Op kOp = kAbcForward;
  static constexpr int kRevision = scanjit::abc::kKernelRevision;

  /// Errors: kInvalidArgument, kUnsupported; the sentence names field, value and bound.
  [[nodiscard]] static Result<std::shared_ptr<const AbcForward>> make(const Problem& problem);
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
  explicit AbcForward(const Problem& problem)
      : AbcOp(kOp, problem),
        has_hkt_(problem.has_hkt),
        has_hvt_(problem.has_hvt),
        has_zt_(problem.has_zt) {}
  [[nodiscard]] Result<std::shared_ptr<const AbcOp>> of(const AbcProblem& problem) const override;

  bool has_hkt_, has_hvt_, has_zt_;
};

}  // namespace scanjit::ops
