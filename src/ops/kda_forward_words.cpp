// KDA forward from the words of shape files and stored keys.
#include "ops/kda_forward.hpp"
#include "ops/problem_checks.hpp"
#include "ops/word_problem.hpp"

namespace scanjit::ops {
namespace {

// Fields that shapes and keys spell alike.
Status fill_words(const std::string& gate, const std::vector<std::string>& optional,
                  KdaForwardProblem& problem) {
  const KdaGate gates[] = {KdaGate::kBounded, KdaGate::kSoftplus, KdaGate::kPrecomputed,
                           KdaGate::kScalar};
  const auto* found = std::find_if(std::begin(gates), std::end(gates),
                                   [&](KdaGate one) { return gate == to_string(one); });
  if (found == std::end(gates)) {
    return invalid_argument("gate is \"" + gate +
                            "\"; for kda_forward it must be bounded, softplus, precomputed or "
                            "scalar");
  }
  problem.gate = *found;
  problem.normalize_qk = problem.beta_sigmoid = false;
  for (const std::string& name : optional) {
    if (name == "A_log")
      problem.has_A_log = true;
    else if (name == "beta_f32")
      problem.beta_dtype = DType::kF32;
    else if (name == "beta_sigmoid")
      problem.beta_sigmoid = true;
    else if (name == "checkpoints")
      problem.checkpoints = 1;
    else if (name == "dt_bias")
      problem.has_dt_bias = true;
    else if (name == "g_f32")
      problem.g_dtype = DType::kF32;
    else if (name == "h0")
      problem.has_h0 = true;
    else if (name == "ht")
      problem.has_ht = true;
    else if (name == "normalize_qk")
      problem.normalize_qk = true;
    else if (name == "state_bf16")
      problem.state_dtype = DType::kBf16;
    else {
      return invalid_argument("optional word \"" + name +
                              "\" is unknown; kda_forward has A_log, beta_f32, beta_sigmoid, "
                              "checkpoints, dt_bias, g_f32, h0, ht, normalize_qk and state_bf16");
    }
  }
  return {};
}

Status check_fixed(DType dtype, std::int64_t BT) {
  if (dtype != DType::kBf16)
    return unsupported(std::string("dtype is ") + to_string(dtype) + "; kda_forward takes bf16");
  if (BT != scanjit::kda_forward::kChunkTokens)
    return unsupported("BT is " + number(BT) + "; the chunks of kda_forward have 64 tokens");
  return {};
}

}  // namespace

Result<KdaForwardProblem> KdaForward::problem_of(const tuning::Shape& shape) {
  KdaForwardProblem problem;
  problem.H = shape.H;
  problem.HV = shape.HV;
  problem.K = shape.K;
  problem.V = shape.V;
  problem.numerics = shape.numerics;
  SCANJIT_TRY(check_fixed(shape.dtype, shape.BT));
  SCANJIT_TRY(fill_words(shape.gate, shape.optional, problem));
  SCANJIT_TRY(fill_lengths(shape.N, shape.T, shape.packed, problem));
  return problem;
}

Result<KdaForwardProblem> KdaForward::problem_of(const tuning::ShapeKey& key,
                                                 const tuning::MeasuredPoint& point) {
  KdaForwardProblem problem;
  problem.H = key.H;
  problem.HV = key.HV;
  problem.K = key.K;
  problem.V = key.V;
  problem.layout = key.layout;
  problem.numerics = key.numerics;
  problem.cu_seqlens_type = problem.index_type =
      key.index == "i32" ? IndexType::kInt32 : IndexType::kInt64;
  problem.has_h0_indices = key.pool == "h0" || key.pool == "h0+ht";
  problem.has_ht_indices = key.pool == "ht" || key.pool == "h0+ht";
  problem.aligned16 = key.alignment == 16;
  SCANJIT_TRY(check_fixed(key.dtype, key.BT));
  SCANJIT_TRY(fill_words(key.gate, key.optional, problem));
  SCANJIT_TRY(fill_lengths(point.sequences, point.tokens, key.packed, problem));
  return problem;
}

}  // namespace scanjit::ops
