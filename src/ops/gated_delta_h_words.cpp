// The gated-delta scan from the words of shape files and stored keys.
#include "ops/gated_delta_h.hpp"
#include "ops/word_problem.hpp"

namespace scanjit::ops {
namespace {

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

}  // namespace

Result<GatedDeltaHProblem> GatedDeltaH::problem_of(const tuning::Shape& shape) {
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

Result<GatedDeltaHProblem> GatedDeltaH::problem_of(const tuning::ShapeKey& key,
                                                   const tuning::MeasuredPoint& point) {
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
  return problem;
}

}  // namespace scanjit::ops
