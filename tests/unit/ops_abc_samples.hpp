#pragma once
// Problems and addresses of ABC that the ops' and the engine's tests share.
#include "ops/abc_backward.hpp"
#include "ops/abc_forward.hpp"

namespace scanjit::test {

/// The default layer.
inline AbcProblem abc_sizes(std::int64_t B, std::int64_t T) {
  AbcProblem p;
  p.B = B;
  p.T = T;
  p.H = 4;
  return p;
}
inline AbcForwardProblem abc_forward_layer(std::int64_t B, std::int64_t T) {
  AbcForwardProblem p;
  static_cast<AbcProblem&>(p) = abc_sizes(B, T);
  return p;
}
inline AbcBackwardProblem abc_backward_layer(std::int64_t B, std::int64_t T) {
  AbcBackwardProblem p;
  static_cast<AbcProblem&>(p) = abc_sizes(B, T);
  return p;
}
/// With every optional tensor but `saved`.
inline AbcForwardProblem abc_forward_whole(std::int64_t B, std::int64_t T) {
  AbcForwardProblem p = abc_forward_layer(B, T);
  p.has_hk0 = p.has_hv0 = p.has_z0 = p.has_hkt = p.has_hvt = p.has_zt = true;
  return p;
}
inline AbcBackwardProblem abc_backward_whole(std::int64_t B, std::int64_t T) {
  AbcBackwardProblem p = abc_backward_layer(B, T);
  p.has_hk0 = p.has_hv0 = p.has_z0 = p.has_dhkt = p.has_dhvt = true;
  return p;
}

inline std::shared_ptr<const ops::AbcForward> made(const AbcForwardProblem& problem) {
  auto result = ops::AbcForward::make(problem);
  return result.ok() ? *result : nullptr;
}
inline std::shared_ptr<const ops::AbcBackward> made(const AbcBackwardProblem& problem) {
  auto result = ops::AbcBackward::make(problem);
  return result.ok() ? *result : nullptr;
}

/// Addresses that nothing is read from: every tensor of the problem, aligned and far apart.
inline void far_apart(const AbcProblem& p, AbcInputs& in) {
  const auto at = [](std::uintptr_t place) { return reinterpret_cast<void*>(place << 44); };
  in.q = at(1);
  in.k = at(2);
  in.v = at(3);
  in.s = at(4);
  if (p.has_hk0) in.hk0 = static_cast<float*>(at(5));
  if (p.has_hv0) in.hv0 = static_cast<float*>(at(6));
  if (p.has_z0) in.z0 = static_cast<float*>(at(7));
}
inline AbcForwardArgs far_apart(const AbcForwardProblem& p) {
  const auto at = [](std::uintptr_t place) { return reinterpret_cast<void*>(place << 44); };
  AbcForwardArgs args;
  far_apart(p, args);
  args.o = at(8);
  if (p.has_hkt) args.hkt = static_cast<float*>(at(9));
  if (p.has_hvt) args.hvt = static_cast<float*>(at(10));
  if (p.has_zt) args.zt = static_cast<float*>(at(11));
  if (p.has_saved) args.saved = at(12);
  return args;
}
inline AbcBackwardArgs far_apart(const AbcBackwardProblem& p) {
  const auto at = [](std::uintptr_t place) { return reinterpret_cast<void*>(place << 44); };
  const auto floats = [&](std::uintptr_t place) { return static_cast<float*>(at(place)); };
  AbcBackwardArgs args;
  far_apart(p, args);
  args.dout = at(8);
  if (p.has_dhkt) args.dhkt = floats(9);
  if (p.has_dhvt) args.dhvt = floats(10);
  if (p.has_saved) args.saved = at(12);
  args.dq = at(16);
  args.dk = at(17);
  args.dv = at(18);
  args.ds = at(19);
  if (p.has_hk0) args.dhk0 = floats(20);
  if (p.has_hv0) args.dhv0 = floats(21);
  if (p.has_z0) args.dz0 = floats(22);
  return args;
}

}  // namespace scanjit::test
