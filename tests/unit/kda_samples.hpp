#pragma once
// Problems of KDA forward that the ops' and the engine's tests share.
#include "ops/kda_forward.hpp"
#include "ops_samples.hpp"

namespace scanjit::test {

/// A layer of Kimi Linear's shape with everything fused: N sequences of T tokens, dense.
inline KdaForwardProblem kda_layer(std::int64_t N, std::int64_t T, std::int64_t HV = 32) {
  KdaForwardProblem p;
  p.B = N;
  p.T = T;
  p.H = HV;
  p.HV = HV;
  p.has_A_log = p.has_dt_bias = true;
  p.has_h0 = p.has_ht = true;
  return p;
}

/// The same packed: T tokens of all N sequences together.
inline KdaForwardProblem packed_kda(std::int64_t N, std::int64_t T, std::int64_t HV = 32) {
  KdaForwardProblem p = kda_layer(1, T, HV);
  p.packed = true;
  p.sequences = N;
  return p;
}

inline std::shared_ptr<const ops::KdaForward> made(const KdaForwardProblem& problem) {
  auto result = ops::KdaForward::make(problem);
  return result.ok() ? *result : nullptr;
}

/// Addresses that nothing is read from: every tensor of the problem, 16-byte aligned and far apart.
inline KdaForwardArgs far_apart(const KdaForwardProblem& p) {
  const auto at = [](std::uintptr_t place) { return reinterpret_cast<void*>(place << 43); };
  KdaForwardArgs args;
  args.q = at(1);
  args.k = at(2);
  args.v = at(3);
  args.g = at(4);
  args.beta = at(5);
  if (p.has_A_log) args.A_log = static_cast<float*>(at(6));
  if (p.has_dt_bias) args.dt_bias = static_cast<float*>(at(7));
  if (p.has_h0) args.h0 = at(8);
  if (p.has_h0_indices) args.h0_indices = at(9);
  if (p.packed) args.cu_seqlens = at(10);
  if (p.has_ht_indices) args.ht_indices = at(11);
  if (p.checkpoints > 0) args.checkpoint_offsets = static_cast<std::int32_t*>(at(12));
  args.o = at(13);
  if (p.has_ht) args.ht = at(14);
  if (p.checkpoints > 0) args.checkpoints = at(15);
  return args;
}

/// A workspace that is far from every tensor of `far_apart`.
inline Workspace kda_workspace(std::int64_t bytes) {
  return {reinterpret_cast<void*>(std::uintptr_t{20} << 43), bytes};
}

}  // namespace scanjit::test
