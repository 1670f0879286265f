#pragma once
/// \file
/// The ops by name, and problems made from the plain words of shape files and stored keys.

#include <memory>
#include <string>
#include <vector>

#include "ops/op_problem.hpp"
#include "tuning/record.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::ops {

/// "gated_delta_h", ...
[[nodiscard]] const std::vector<std::string>& op_names();

/// A shape's problem. Errors: kNotFound (unknown op; the sentence lists the known ones),
/// kInvalidArgument and kUnsupported as the op.
[[nodiscard]] Result<std::shared_ptr<const OpProblem>> make_problem(const tuning::Shape& shape);

/// Ok if this is the op of that name. Errors: kNotFound (there is no such op), kInvalidArgument.
[[nodiscard]] Status check_op(const std::string& name, const Op& wanted);
/// A shape's problem as the public struct of one op, for tools that launch on tensors of their own.
template <class AnOp>
[[nodiscard]] Result<typename AnOp::Problem> problem_of(const tuning::Shape& shape) {
  SCANJIT_TRY(check_op(shape.op, AnOp::kOp));
  return AnOp::problem_of(shape);
}

/// A problem of this key (its source fields decide) at a point of its box: the kernels that it
/// needs are the entry's. Errors: as above; kUnsupported if the key is of another kernel revision.
[[nodiscard]] Result<std::shared_ptr<const OpProblem>> make_problem(
    const tuning::ShapeKey& key, const tuning::MeasuredPoint& point);

}  // namespace scanjit::ops
