#pragma once
// The same sequences laid out in another way, and outputs brought back into one form: how tests say
// "whatever the strides, pools, layout and packing, the bits are the same".

#include <cstdint>
#include <vector>

#include "gpu/run.hpp"
#include "reference/gated_delta_h.hpp"

namespace scanjit::test {

/// What one sequence's outputs are, free of where they lie. Bits, in the order [chunk][HV][K][V],
/// [token][HV][V] and [HV][K][V]; absent tensors are empty.
struct SequenceBits {
  std::vector<std::uint16_t> h, v_new;
  std::vector<std::uint32_t> ht;
  friend bool operator==(const SequenceBits&, const SequenceBits&) = default;
};

/// Every sequence's outputs. A sequence whose ht slot is -1 has none. Lengths must be good.
[[nodiscard]] std::vector<SequenceBits> sequence_bits(const reference::GatedDeltaHInputs& inputs,
                                                      const RunResult& result);

/// The inputs of `from` laid out as `to` says: strides, layout, packing, pools. `to` must have the
/// same widths, heads, BT, types and lengths (dense: all lengths T). Slots: those given, else n.
/// What no kernel may use is NaN.
[[nodiscard]] Result<reference::GatedDeltaHInputs> rearranged(
    const reference::GatedDeltaHInputs& from, const GatedDeltaHProblem& to,
    const std::vector<std::int64_t>& h0_indices = {},
    const std::vector<std::int64_t>& ht_indices = {});

/// Sequence n of `from` alone: packed with N = 1, or dense with B = 1. `from` has no pools.
[[nodiscard]] Result<reference::GatedDeltaHInputs> alone(const reference::GatedDeltaHInputs& from,
                                                         std::int64_t n, bool packed);

}  // namespace scanjit::test
