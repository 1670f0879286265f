#pragma once
/// \file
/// Random problems: odd shapes and every option of the gated-delta state scan, from one number.

#include <cstdint>
#include <string>

#include "reference/generators.hpp"

namespace scanjit::reference {

/// A problem, its inputs, and how its buffers lie.
struct GatedDeltaHCase {
  std::uint64_t seed = 0;
  GatedDeltaHProblem problem;
  GeneratorOptions generator;
  bool ht_in_place = false;      ///< ht is the memory of h0: same stride, slots and indices
  bool v_new_in_place = false;   ///< v_new is the memory of u
  int misalign_elements = 0;     ///< every tensor starts this many elements past a 16-byte boundary
  bool host_cu_seqlens = false;  ///< give the launch the host copy of the lengths
};

/// Case `seed` of the series: at most `max_tokens` tokens in all, lengths around multiples of BT
/// and 0, K 1..256, V 1..300, both types, layouts and bases, every set of optional tensors, pools
/// with repeated, missing and out-of-range slots, strides, all gate sets. Inputs are `wy`.
[[nodiscard]] GatedDeltaHCase random_case(std::uint64_t seed, std::int64_t max_tokens = 4096);

/// One line that names the seed and everything the case chose.
[[nodiscard]] std::string to_string(const GatedDeltaHCase& random_case);

}  // namespace scanjit::reference
