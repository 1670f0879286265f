#pragma once
/// \file
/// What is asked of a device: what tuned records name it by, and what legality is checked against.

#include <cstdint>
#include <string>

#include "cuda/driver.hpp"

namespace scanjit::cuda {

struct DeviceFacts {
  CUdevice device = 0;
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-xxxxxxxx-xxxx-..."
  int cc_major = 0;
  int cc_minor = 0;
  std::string arch;  ///< "sm_90a": what NVRTC compiles for
  int sm_count = 0;  ///< of the device, or of the context where it has fewer (MPS, green contexts)
  std::int64_t l2_bytes = 0;
  std::int64_t total_bytes = 0;
  int smem_optin_bytes = 0;  ///< the most that a block can have
  int smem_per_sm_bytes = 0;
  int smem_reserved_bytes = 0;  ///< of each block, taken by the system
  int regs_per_sm = 0;
  int regs_per_block = 0;
  int threads_per_sm = 0;
  int threads_per_block = 0;
  int blocks_per_sm = 0;
  int memory_bus_bits = 0;
  int memory_clock_khz = 0;
  int sm_clock_khz = 0;       ///< highest
  bool memory_pools = false;  ///< stream-ordered pools
  std::string cuda_version;   ///< of CUDA, that the driver offers: "13.0"
  std::string driver;         ///< "580.159.04", or "cuda-13.0" where the system does not tell
};

/// "sm_90a" for 9.0, "sm_100a" for 10.0, "sm_103a", "sm_120", "sm_80", "sm_89": the architecture
/// with the most that the device can do and our templates use.
[[nodiscard]] std::string arch_name(int cc_major, int cc_minor);

/// Facts of `device`; `sm_count` of the part of it that `context` has, unless that is null. Makes
/// nothing current.
[[nodiscard]] Result<DeviceFacts> device_facts(const DriverApi& api, CUdevice device,
                                               CUcontext context);

/// Multiprocessors that `context` has of a device of `device_sm_count`: fewer under MPS or in a
/// green context.
[[nodiscard]] int context_sm_count(const DriverApi& api, CUcontext context, int device_sm_count);

/// Devices that the process sees. 0 is no error.
[[nodiscard]] Result<int> device_count(const DriverApi& api);

/// Errors: kUnsupported if the process sees no device, kInvalidArgument if `ordinal` is out of
/// range.
[[nodiscard]] Result<CUdevice> device_of_ordinal(const DriverApi& api, int ordinal);

/// The version in the text of /proc/driver/nvidia/version, "" if there is none in it.
[[nodiscard]] std::string parse_driver_version(const std::string& proc_text);

}  // namespace scanjit::cuda
