// ABC from the words of shape files and stored keys.
#include <algorithm>

#include "ops/abc_backward.hpp"
#include "ops/abc_forward.hpp"

namespace scanjit::ops {
namespace {

struct Flag {
  const char* name;
  bool* flag;
};

// Sets the flags of the optional tensors that are named.
Status fill_optional(const Op& op, const std::vector<std::string>& optional,
                     const std::vector<Flag>& flags) {
  for (const std::string& name : optional) {
    const auto flag =
        std::find_if(flags.begin(), flags.end(), [&](const Flag& one) { return name == one.name; });
    if (flag == flags.end()) {
      std::string known;
      for (const Flag& one : flags) known += (known.empty() ? "" : ", ") + std::string(one.name);
      return invalid_argument("optional tensor \"" + name + "\" is unknown; " + op.name + " has " +
                              known);
    }
    *flag->flag = true;
  }
  return {};
}

Status fill_optional(const std::vector<std::string>& optional, AbcForwardProblem& p) {
  return fill_optional(kAbcForward, optional,
                       {{"hk0", &p.has_hk0},
                        {"hv0", &p.has_hv0},
                        {"z0", &p.has_z0},
                        {"hkt", &p.has_hkt},
                        {"hvt", &p.has_hvt},
                        {"zt", &p.has_zt},
                        {"saved", &p.has_saved}});
}
Status fill_optional(const std::vector<std::string>& optional, AbcBackwardProblem& p) {
  return fill_optional(kAbcBackward, optional,
                       {{"hk0", &p.has_hk0},
                        {"hv0", &p.has_hv0},
                        {"z0", &p.has_z0},
                        {"dhkt", &p.has_dhkt},
                        {"dhvt", &p.has_dhvt},
                        {"saved", &p.has_saved}});
}

// Of a shape or a key: fields that both have.
template <class Problem, class Words>
Result<Problem> of_words(const Op& op, const Words& words, std::int64_t B, std::int64_t T) {
  if (words.packed)
    return unsupported(std::string(op.name) + " has no packed form; give packed as false");
  if (words.gate != "none")
    return invalid_argument("gate is \"" + words.gate + "\"; " + op.name + " has none");
  if (words.HV != words.H) {
    return invalid_argument("HV is " + std::to_string(words.HV) + "; for " + op.name +
                            " it must be H = " + std::to_string(words.H));
  }
  if (words.BT != scanjit::abc::kTile) {
    return unsupported("BT is " + std::to_string(words.BT) + "; for " + op.name + " it must be " +
                       std::to_string(scanjit::abc::kTile));
  }
  Problem problem;
  problem.dtype = words.dtype;
  problem.B = B;
  problem.T = T;
  problem.H = words.H;
  problem.K = words.K;
  problem.M = words.M;
  problem.V = words.V;
  problem.numerics = words.numerics;
  SCANJIT_TRY(fill_optional(words.optional, problem));
  return problem;
}

template <class Problem>
Result<Problem> of_key(const Op& op, const tuning::ShapeKey& key,
                       const tuning::MeasuredPoint& point) {
  SCANJIT_ASSIGN_OR_RETURN(Problem problem,
                           of_words<Problem>(op, key, point.sequences, point.tokens));
  problem.aligned16 = key.alignment == 16;
  return problem;
}

}  // namespace

Result<AbcForwardProblem> AbcForward::problem_of(const tuning::Shape& shape) {
  return of_words<AbcForwardProblem>(kOp, shape, shape.N, shape.T);
}
Result<AbcForwardProblem> AbcForward::problem_of(const tuning::ShapeKey& key,
                                                 const tuning::MeasuredPoint& point) {
  return of_key<AbcForwardProblem>(kOp, key, point);
}
Result<AbcBackwardProblem> AbcBackward::problem_of(const tuning::Shape& shape) {
  return of_words<AbcBackwardProblem>(kOp, shape, shape.N, shape.T);
}
Result<AbcBackwardProblem> AbcBackward::problem_of(const tuning::ShapeKey& key,
                                                   const tuning::MeasuredPoint& point) {
  return of_key<AbcBackwardProblem>(kOp, key, point);
}

}  // namespace scanjit::ops
