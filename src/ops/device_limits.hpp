#pragma once
/// \file
/// What legality and scores are checked against: the shared memory, registers and so on of one
/// device. Plain data, so that an op can be asked about a GPU that is not there.

#include "tuning/record.hpp"

namespace scanjit::ops {

struct DeviceLimits {
  int compute_major = 0;
  int compute_minor = 0;
  int sm_count = 0;          ///< of the context, where that has fewer than the device
  int part_of_sms = 0;       ///< where it has fewer: the device's; else 0
  int smem_optin_bytes = 0;  ///< the most that a block can have
  int smem_per_sm_bytes = 0;
  int smem_reserved_bytes = 0;  ///< of each block, taken by the system
  int regs_per_sm = 0;
  int regs_per_block = 0;
  int threads_per_sm = 0;
  int threads_per_block = 0;
  int blocks_per_sm = 0;

  friend bool operator==(const DeviceLimits&, const DeviceLimits&) = default;
};

/// The limits of a GPU model known from its tuned file alone: what the file does not say is the
/// compute capability's.
[[nodiscard]] DeviceLimits limits_of(const tuning::GpuFacts& gpu) noexcept;

}  // namespace scanjit::ops
