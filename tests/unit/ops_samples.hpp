#pragma once
// Problems and devices that the ops' and the engine's tests share.
#include "ops/gated_delta_h.hpp"

namespace scanjit::test {

inline tuning::GpuFacts h200_facts() {
  return {{"NVIDIA H200"}, 9, 0, 132, 60 << 20, 232448, 6144};
}
inline ops::DeviceLimits h200() { return ops::limits_of(h200_facts()); }

/// A layer of Qwen3.5's shape: N sequences of T tokens, dense.
inline GatedDeltaHProblem layer(std::int64_t N, std::int64_t T) {
  GatedDeltaHProblem p;
  p.B = N;
  p.T = T;
  p.H = 16;
  p.HV = 32;
  p.has_g = true;
  p.has_h0 = true;
  p.has_ht = true;
  return p;
}

/// The same packed: T tokens of all N sequences together.
inline GatedDeltaHProblem packed_layer(std::int64_t N, std::int64_t T) {
  GatedDeltaHProblem p = layer(1, T);
  p.packed = true;
  p.sequences = N;
  return p;
}

inline std::shared_ptr<const ops::GatedDeltaH> made(const GatedDeltaHProblem& problem) {
  auto result = ops::GatedDeltaH::make(problem);
  return result.ok() ? *result : nullptr;
}

inline Status checked(const ops::GatedDeltaH& op, const GatedDeltaHArgs& args,
                      Workspace workspace) {
  return op.check_args(args, workspace, op.workspace_bound());
}

/// Addresses that nothing is read from: every tensor of the problem, 16-byte aligned and far apart.
inline GatedDeltaHArgs far_apart(const GatedDeltaHProblem& p) {
  const auto at = [](std::uintptr_t place) { return reinterpret_cast<void*>(place << 44); };
  const auto floats = [&](std::uintptr_t place) { return static_cast<float*>(at(place)); };
  GatedDeltaHArgs args;
  args.k = at(1);
  args.w = at(2);
  args.u = at(3);
  if (p.has_g) args.g = floats(4);
  if (p.has_gk) args.gk = floats(5);
  if (p.has_h0) args.h0 = floats(6);
  if (p.has_h0_indices) args.h0_indices = at(7);
  if (p.packed) args.cu_seqlens = at(8);
  if (p.has_chunk_offsets) args.chunk_offsets = at(9);
  if (p.has_ht_indices) args.ht_indices = at(10);
  if (p.has_h) args.h = at(11);
  if (p.has_v_new) args.v_new = at(12);
  if (p.has_ht) args.ht = floats(13);
  return args;
}
inline Workspace workspace_of(std::int64_t bytes) {
  return {bytes > 0 ? reinterpret_cast<void*>(std::uintptr_t{15} << 44) : nullptr, bytes};
}

}  // namespace scanjit::test
