#pragma once
/// \file
/// What a cubin, and the log of its making, tell of a kernel.

#include <cstdint>
#include <string>

#include "scanjit/result.hpp"

namespace scanjit::jit {

/// What one kernel takes, of a thread unless said otherwise.
struct KernelResources {
  int registers = 0;
  int smem_static = 0;          ///< bytes of a block that the code declares itself
  int spill_loads = 0;          ///< bytes
  int spill_stores = 0;         ///< bytes
  int stack = 0;                ///< bytes
  std::int64_t code_bytes = 0;  ///< machine code of the kernel

  friend bool operator==(const KernelResources&, const KernelResources&) = default;
};

/// All but `code_bytes`, of `entry`, from NVRTC's log under `--ptxas-options=-v`.
/// Errors: kInternal if the log does not tell of `entry`.
[[nodiscard]] Result<KernelResources> parse_resources(const std::string& log,
                                                      const std::string& entry);

/// The machine code of `entry` (ELF section .text.<entry>) in a cubin: two cubins run the same
/// instructions if these bytes are equal. Errors: kCorrupt, kNotFound. Safe on any bytes.
[[nodiscard]] Result<std::string> text_section(const std::string& cubin, const std::string& entry);

}  // namespace scanjit::jit
