#include "ops/registry.hpp"

#include "ops/abc_backward.hpp"
#include "ops/abc_forward.hpp"
#include "ops/gated_delta_h.hpp"
#include "ops/kda_forward.hpp"

namespace scanjit::ops {
namespace {

using OpPointer = std::shared_ptr<const OpProblem>;

struct Entry {
  Op op;
  int kernel_revision;
  Result<OpPointer> (*of_shape)(const tuning::Shape&);
  Result<OpPointer> (*of_key)(const tuning::ShapeKey&, const tuning::MeasuredPoint&);
};

template <class AnOp, class... Words>
Result<OpPointer> made_of(const Words&... words) {
  SCANJIT_ASSIGN_OR_RETURN(const auto problem, AnOp::problem_of(words...));
  SCANJIT_ASSIGN_OR_RETURN(auto op, AnOp::make(problem));
  return OpPointer(std::move(op));
}

template <class AnOp>
constexpr Entry entry() {
  return {AnOp::kOp, AnOp::kRevision, made_of<AnOp, tuning::Shape>,
          made_of<AnOp, tuning::ShapeKey, tuning::MeasuredPoint>};
}

constexpr Entry kEntries[] = {entry<GatedDeltaH>(), entry<KdaForward>(), entry<AbcForward>(),
                              entry<AbcBackward>()};

Result<const Entry*> find(const std::string& op) {
  std::string known;
  for (const Entry& one : kEntries) {
    if (op == one.op.name) return &one;
    known += (known.empty() ? "" : ", ") + std::string(one.op.name);
  }
  return not_found("there is no op \"" + op + "\"; the ops are " + known);
}

}  // namespace

const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Entry& one : kEntries) list.emplace_back(one.op.name);
    return list;
  }();
  return names;
}

Status check_op(const std::string& name, const Op& wanted) {
  SCANJIT_ASSIGN_OR_RETURN(const Entry* op, find(name));
  if (op->op.number == wanted.number) return {};
  return invalid_argument("the shape is one of " + name + ", not of " + wanted.name);
}

Result<OpPointer> make_problem(const tuning::Shape& shape) {
  SCANJIT_ASSIGN_OR_RETURN(const Entry* op, find(shape.op));
  return op->of_shape(shape);
}

Result<OpPointer> make_problem(const tuning::ShapeKey& key, const tuning::MeasuredPoint& point) {
  SCANJIT_ASSIGN_OR_RETURN(const Entry* op, find(key.kernel));
  if (key.kernel_revision != op->kernel_revision) {
    return unsupported("the key is of revision " + std::to_string(key.kernel_revision) + " of " +
                       op->op.name + "; this is revision " + std::to_string(op->kernel_revision));
  }
  return op->of_key(key, point);
}

}  // namespace scanjit::ops
