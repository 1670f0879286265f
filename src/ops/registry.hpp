#pragma once
/// \file
/// The ops by name, and problems made from the plain words of shape files and stored keys.

#include <memory>
#include <string>
#include <vector>

#include "ops/op_problem.hpp"
#include "scanjit/gated_delta_h.hpp"
#include "tuning/record.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::ops {

/// "gated_delta_h"
[[nodiscard]] const std::vector<std::string>& op_names();

/// A shape's problem. Errors: kNotFound (unknown op; the sentence lists the known ones),
/// kInvalidArgument and kUnsupported as the op.
[[nodiscard]] Result<std::shared_ptr<const OpProblem>> make_problem(const tuning::Shape& shape);
/// The same as the public struct, for tools that launch on tensors of their own.
[[nodiscard]] Result<GatedDeltaHProblem> gated_delta_h_problem(const tuning::Shape& shape);

/// A problem of this key (its source fields decide) at a point of its box: the kernels that it
/// needs are the entry's. Errors: as above; kUnsupported if the key is of another kernel revision.
[[nodiscard]] Result<std::shared_ptr<const OpProblem>> make_problem(
    const tuning::ShapeKey& key, const tuning::MeasuredPoint& point);

}  // namespace scanjit::ops
