#pragma once
/// \file
/// Inputs for the gated-delta state scan. The same seed gives the same bits on every machine:
/// random numbers are hashes of (seed, tensor, element) and no function of libm is used.

#include <cstdint>
#include <vector>

#include "reference/gated_delta_h.hpp"
#include "scanjit/result.hpp"

namespace scanjit::reference {

enum class InputKind : int {
  /// k: unit rows; beta ~ U(0,1), v normal. Per chunk and value head, with e_r the sum of the row's
  /// gates in log2 units: A_ij = beta_i sum_c k_ic k_jc 2^(e_ic - e_jc) for j < i;
  /// (I + A) u = beta v; (I + A) w = beta k 2^e; in f64, then rounded. With gk the tensor k holds
  /// k_r 2^(gk_last - gk_r), and the value heads of a key head share their gk. Stable at any
  /// length.
  kWy = 1,
  /// k and w independent unit rows, u normal, as speed is measured. Without gates its state grows
  /// without bound; for correctness only with K >= 64 and strong gates.
  kIndependent = 2,
};

/// Gates per token in log2 units, before they are summed inside a chunk.
enum class GateSet : int {
  kStrong = 1,  ///< -U(0, 0.1)
  kSlow = 2,    ///< -U(0, 2^-10)
  kNone = 3,    ///< gate tensors, if the problem has them, are 0
};

[[nodiscard]] const char* to_string(InputKind kind) noexcept;  ///< "wy", "independent"
[[nodiscard]] const char* to_string(GateSet gates) noexcept;   ///< "strong", "slow", "none"

struct GeneratorOptions {
  InputKind kind = InputKind::kWy;
  GateSet gates = GateSet::kStrong;
  std::uint64_t seed = 0;
  /// Packed: the N lengths, with a sum of at most T; tokens after the last sequence are NaN. Empty:
  /// T cut into N lengths that differ by at most 1.
  std::vector<std::int64_t> lengths;
  /// Where the problem has them; empty: a seeded choice of distinct slots (h0_indices repeat where
  /// the pool is smaller than N; ht_indices are then -1 once every slot is taken).
  std::vector<std::int64_t> h0_indices, ht_indices;
  /// Where the problem has them; empty: as the definition counts.
  std::vector<std::int64_t> chunk_offsets;
  int threads = 0;  ///< 0: as many as the machine has
};

/// Every input of the problem; h0 is 0.1 x normal.
/// Errors: kInvalidArgument (sizes, or options of another size than the problem's), kOutOfMemory.
[[nodiscard]] Result<GatedDeltaHInputs> generate(const GatedDeltaHProblem& problem,
                                                 const GeneratorOptions& options);

}  // namespace scanjit::reference
