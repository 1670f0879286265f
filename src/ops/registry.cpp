#include "ops/registry.hpp"

#include <algorithm>

#include "core/checked_math.hpp"
#include "gated_delta_h/gated_delta_h_params.h"
#include "ops/gated_delta_h.hpp"

namespace scanjit::ops {
namespace {

bool has_word(const std::vector<std::string>& words, const char* word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Status check_op(const std::string& op) {
  const std::vector<std::string>& names = op_names();
  if (std::find(names.begin(), names.end(), op) != names.end()) return {};
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  return not_found("there is no op \"" + op + "\"; the ops are " + known);
}

// Fields that shapes and keys spell alike.
Status fill_words(const std::string& gate, const std::vector<std::string>& optional,
                  GatedDeltaHProblem& problem) {
  if (gate != "none" && gate != "g" && gate != "gk" && gate != "g+gk") {
    return invalid_argument("gate is \"" + gate +
                            "\"; for gated_delta_h it must be none, g, gk or g+gk");
  }
  problem.has_g = gate == "g" || gate == "g+gk";
  problem.has_gk = gate == "gk" || gate == "g+gk";
  for (const std::string& name : optional) {
    if (name != "h" && name != "h0" && name != "ht" && name != "v_new") {
      return invalid_argument("optional tensor \"" + name +
                              "\" is unknown; gated_delta_h has h, h0, ht and v_new");
    }
  }
  problem.has_h = has_word(optional, "h");
  problem.has_h0 = has_word(optional, "h0");
  problem.has_ht = has_word(optional, "ht");
  problem.has_v_new = has_word(optional, "v_new");
  return {};
}

// N sequences of T tokens each, dense or packed.
Status fill_lengths(std::int64_t N, std::int64_t T, bool packed, GatedDeltaHProblem& problem) {
  problem.packed = packed;
  if (!packed) {
    problem.B = N;
    problem.T = T;
    return {};
  }
  const auto tokens = checked_multiply(N, T);
  if (!tokens)
    return invalid_argument("N * T = " + std::to_string(N) + " * " + std::to_string(T) +
                            " overflows 63 bits");
  problem.B = 1;
  problem.sequences = N;
  problem.T = *tokens;
  return {};
}

Result<std::shared_ptr<const OpProblem>> made(const GatedDeltaHProblem& problem) {
  SCANJIT_ASSIGN_OR_RETURN(auto op, GatedDeltaH::make(problem));
  return std::shared_ptr<const OpProblem>(std::move(op));
}

}  // namespace

const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names{"gated_delta_h"};
  return names;
}

Result<GatedDeltaHProblem> gated_delta_h_problem(const tuning::Shape& shape) {
  SCANJIT_TRY(check_op(shape.op));
  GatedDeltaHProblem problem;
  problem.dtype = shape.dtype;
  problem.H = shape.H;
  problem.HV = shape.HV;
  problem.K = shape.K;
  problem.V = shape.V;
  problem.BT = shape.BT;
  SCANJIT_TRY(fill_words(shape.gate, shape.optional, problem));
  SCANJIT_TRY(fill_lengths(shape.N, shape.T, shape.packed, problem));
  return problem;
}

Result<std::shared_ptr<const OpProblem>> make_problem(const tuning::Shape& shape) {
  SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHProblem problem, gated_delta_h_problem(shape));
  return made(problem);
}

Result<std::shared_ptr<const OpProblem>> make_problem(const tuning::ShapeKey& key,
                                                      const tuning::MeasuredPoint& point) {
  SCANJIT_TRY(check_op(key.kernel));
  if (key.kernel_revision != scanjit::gated_delta_h::kKernelRevision) {
    return unsupported("the key is of revision " + std::to_string(key.kernel_revision) +
                       " of gated_delta_h; this is revision " +
                       std::to_string(scanjit::gated_delta_h::kKernelRevision));
  }
  GatedDeltaHProblem problem;
  problem.dtype = key.dtype;
  problem.H = key.H;
  problem.HV = key.HV;
  problem.K = key.K;
  problem.V = key.V;
  problem.BT = key.BT;
  problem.gate_base = key.gate_base;
  problem.layout = key.layout;
  problem.numerics = key.numerics;
  problem.cu_seqlens_type = problem.index_type =
      key.index == "i32" ? IndexType::kInt32 : IndexType::kInt64;
  problem.has_h0_indices = key.pool == "h0" || key.pool == "h0+ht";
  problem.has_ht_indices = key.pool == "ht" || key.pool == "h0+ht";
  problem.aligned16 = key.alignment == 16;
  SCANJIT_TRY(fill_words(key.gate, key.optional, problem));
  SCANJIT_TRY(fill_lengths(point.sequences, point.tokens, key.packed, problem));
  return made(problem);
}

}  // namespace scanjit::ops
