#pragma once
/// \file
/// A cubin loaded into the current context.

#include <string>

#include "cuda/driver.hpp"

namespace scanjit::cuda {

/// One loaded cubin. Unloading is left to the destruction of the context unless `unload` is called:
/// cuModuleUnload synchronises.
class Module {
 public:
  /// `cubin` is not kept. Errors: kUnsupported if the driver refuses the image (another
  /// architecture, too new a toolkit, damaged), kOutOfMemory, kCudaError, kDeviceLost.
  [[nodiscard]] static Result<Module> load(const DriverApi& api, const std::string& cubin);
  /// Errors: kNotFound.
  [[nodiscard]] Result<CUfunction> function(const std::string& name) const;
  [[nodiscard]] Status unload();
  [[nodiscard]] CUmodule get() const noexcept { return module_; }

 private:
  Module(const DriverApi& api, CUmodule module) noexcept : api_(&api), module_(module) {}
  const DriverApi* api_;
  CUmodule module_;
};

/// What a loaded function takes.
struct FunctionFacts {
  int registers = 0;    ///< of a thread
  int smem_static = 0;  ///< bytes of a block
  int local_bytes = 0;  ///< of a thread
  int max_threads = 0;  ///< of a block, from its launch bounds
};
[[nodiscard]] Result<FunctionFacts> function_facts(const DriverApi& api, CUfunction function);

/// Makes a function ready to launch with `smem_bytes` of dynamic shared memory: loads its code now,
/// so that no launch (perhaps inside a capture) has to, and opts in to the shared memory. Errors:
/// kUnsupported if the device has not that much.
[[nodiscard]] Status prepare(const DriverApi& api, CUfunction function, int smem_bytes);

/// Blocks of this function that one multiprocessor holds at a time.
[[nodiscard]] Result<int> blocks_per_sm(const DriverApi& api, CUfunction function, int threads,
                                        int smem_bytes);

}  // namespace scanjit::cuda
