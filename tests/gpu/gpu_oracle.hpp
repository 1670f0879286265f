#pragma once
// The oracle of oracle_gated_delta_h.cu, launched on the GPU: for results of full size.

#include <string>
#include <vector>

#include "gpu/gpu.hpp"
#include "reference/compare.hpp"
#include "scanjit/gated_delta_h.hpp"

namespace scanjit::test {

struct DeviceErrors {
  reference::TensorErrors h, v_new, ht;
};

/// Where packed sequences lie; all empty: dense.
struct SequencePlaces {
  std::vector<long long> begin, length, first_chunk;
};

/// Compares the outputs that `args` points to, which must hold results, with scans of its inputs.
/// Contiguous tensors only, no pools. Waits. Errors: kInvalidArgument if the problem has strides or
/// pools.
[[nodiscard]] Result<DeviceErrors> oracle_errors(Gpu& gpu, const GatedDeltaHProblem& problem,
                                                 const GatedDeltaHArgs& args,
                                                 const SequencePlaces& places = {});

/// "" if every output keeps to the limits of reference::failure, else which does not.
[[nodiscard]] std::string failures(const DeviceErrors& errors, const GatedDeltaHProblem& problem,
                                   reference::GateSet gates, std::int64_t longest_sequence);

}  // namespace scanjit::test
