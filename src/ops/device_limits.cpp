#include "ops/device_limits.hpp"

namespace scanjit::ops {

// Registers, threads and blocks of a multiprocessor by compute capability: "Technical
// Specifications per Compute Capability" in the CUDA programming guide.
DeviceLimits limits_of(const tuning::GpuFacts& gpu) noexcept {
  DeviceLimits limits;
  limits.compute_major = gpu.compute_major;
  limits.compute_minor = gpu.compute_minor;
  limits.sm_count = gpu.sm_count;
  limits.smem_optin_bytes = static_cast<int>(gpu.smem_optin_bytes);
  limits.smem_reserved_bytes = 1024;
  limits.smem_per_sm_bytes = limits.smem_optin_bytes + limits.smem_reserved_bytes;
  limits.regs_per_sm = 65536;
  limits.regs_per_block = 65536;
  limits.threads_per_block = 1024;
  const bool data_center = (gpu.compute_major == 8 && gpu.compute_minor == 0) ||
                           gpu.compute_major == 9 || gpu.compute_major == 10;
  limits.threads_per_sm = data_center ? 2048 : 1536;
  limits.blocks_per_sm = data_center                                        ? 32
                         : gpu.compute_major == 8 && gpu.compute_minor == 6 ? 16
                                                                            : 24;
  return limits;
}

}  // namespace scanjit::ops
