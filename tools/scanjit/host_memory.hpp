#pragma once
/// \file
/// Whether a problem fits into this machine's memory: asked before anything is allocated, since a
/// system that overcommits kills the process instead of refusing.

#include <cstdint>

#include "reference/gated_delta_h.hpp"
#include "scanjit/result.hpp"

namespace scanjit::cli {

/// What a command keeps on the host at once.
enum class HostUse {
  kInputs,  ///< inputs, and a copy of them as they are written out
  kRun,     ///< tensors as the file has them, laid out, as they were before the launch and after it
  kOracle,  ///< the same, and the results of both oracles
};

/// Bytes that a command needs for a problem of these sizes; a double, since the sizes may be
/// absurd.
[[nodiscard]] double host_bytes(const reference::GatedDeltaHSizes& sizes, HostUse use);

/// The machine's memory, or what its container may use of it.
[[nodiscard]] double machine_bytes();

/// Ok, or kOutOfMemory with both figures.
[[nodiscard]] Status check_fits_host(const GatedDeltaHProblem& problem, HostUse use);

}  // namespace scanjit::cli
