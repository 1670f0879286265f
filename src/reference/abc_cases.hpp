#pragma once
/// \file
/// The ABC fixture: problems, inputs and limits that were fixed before there was a kernel, and
/// random problems beside them. The same seed gives the same bits on every machine.

#include <cstdint>
#include <string>
#include <vector>

#include "reference/abc.hpp"
#include "scanjit/types.hpp"

namespace scanjit::reference {

/// What s looks like. In the steep kinds even slots are steep and odd ones normal.
enum class AbcSlots : int {
  kNormal = 1,    ///< normal
  kWide = 2,      ///< 8 x normal
  kRampUp = 3,    ///< +50 a row, falling back every 64 rows, at another row for each slot
  kRampDown = 4,  ///< -50 a row, likewise
  kStepUp = 5,    ///< normal, +50 more from one row of each 64 on, another row for each slot
  kStepDown = 6,  ///< -50 likewise
  kPulse = 7,     ///< normal, +50 in one row of each 64
  /// Normal with a fifth of the rows -inf; slots 0, 4, 8.. -inf for the first rows, slots 1, 9..
  /// always (with z0, theirs is -inf too in slots 0, 16.. and 1, 17..)
  kEmpty = 8,
};
[[nodiscard]] const char* to_string(AbcSlots slots) noexcept;  ///< "normal", "ramp_up"

struct AbcCase {
  DType dtype = DType::kBf16;
  AbcShape shape;
  bool has_dhkt = false, has_dhvt = false;
  AbcSlots slots = AbcSlots::kNormal;
  std::uint64_t seed = 0;
};
/// One line that names everything: "abc dtype=bf16 B=1 .. seed=3".
[[nodiscard]] std::string to_string(const AbcCase& abc_case);

/// A case's tensors as the device gets them.
struct AbcTensors {
  std::vector<std::uint16_t> q, k, v, s, dout;
  std::vector<float> hk0, hv0, z0, dhkt, dhvt;
};
/// Errors: kOutOfMemory.
[[nodiscard]] Result<AbcTensors> generate(const AbcCase& abc_case);
/// The same numbers in f64.
[[nodiscard]] AbcInputs inputs_of(DType dtype, const AbcTensors& tensors);
[[nodiscard]] AbcCotangents cotangents_of(DType dtype, const AbcTensors& tensors);

/// Both types; B 1, 2; H 1, 4; K 64, 128, 256; M 32, 64; V 64, 256, 512; T 63, 64, 65, 127, 257,
/// 512, each with and without states, state-free T 2048; the four cases in which the peer fails;
/// every kind of slots.
[[nodiscard]] const std::vector<AbcCase>& abc_fixture();
/// Case `seed` of the series of random shapes: K 1..256, M 1..128, V 1..512, every set of optional
/// tensors, every kind of slots, lengths around multiples of 64, 0 and 1.
[[nodiscard]] AbcCase random_abc_case(std::uint64_t seed);
inline constexpr std::uint64_t kAbcRandomCases = 100;  ///< seeds 0 to 99 belong to the fixture

/// The largest relative L2 error against f64 of every output and gradient.
[[nodiscard]] constexpr double abc_limit(DType dtype) noexcept {
  return dtype == DType::kBf16 ? 2e-2 : 5e-3;
}
/// "" if `got` is within the limit, else a line with figures. An element may also be off by 1e-5 on
/// average (inputs are of size 1), and a tensor with `terms` by half a unit in the last place of
/// these. Non-finite elements must agree.
[[nodiscard]] std::string abc_failure(const std::string& tensor, DType dtype,
                                      const std::vector<double>& got,
                                      const std::vector<double>& reference,
                                      const std::vector<double>& terms = {});

/// SHA-256 of the fixture: lines of all cases, their limits, the inputs of the first of every kind.
[[nodiscard]] Result<std::string> abc_fixture_digest();

}  // namespace scanjit::reference
