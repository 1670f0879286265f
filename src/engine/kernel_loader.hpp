#pragma once
/// \file
/// Loaded kernels: each source once per context, whoever asks. Modules stay loaded for the life of
/// their context, since unloading synchronises and plans may outlive their engine.

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "cuda/context.hpp"
#include "cuda/module.hpp"
#include "jit/kernel_provider.hpp"

namespace scanjit::engine {

/// A function of one context, with its code loaded and its shared memory granted.
struct LoadedKernel {
  cuda::CUfunction function = nullptr;
  int smem_bytes = 0;
  cuda::FunctionFacts facts;
  std::string binary_id;
  std::string binary_from;  ///< "cache", "pack:DIR", "compiled" or "memory"
  std::string nvrtc;        ///< version that compiled it
};

/// Thread-safe.
class KernelLoader {
 public:
  /// The process's one loader.
  [[nodiscard]] static KernelLoader& process() noexcept;

  /// The kernel of `source` in the context, which must be current; loads it if it is not loaded
  /// yet, once, however many threads ask. For a cubin that the driver refuses another is taken, see
  /// KernelProvider::get_instead.
  /// Errors: as jit::KernelProvider::get and cuda::Module::load; kUnsupported if the context cannot
  /// give the shared memory or threads.
  [[nodiscard]] Result<std::shared_ptr<const LoadedKernel>> load(const cuda::DriverApi& api,
                                                                 const cuda::ContextId& context,
                                                                 jit::KernelProvider& provider,
                                                                 const jit::KernelSource& source,
                                                                 const std::string& arch);

  /// The same if it is loaded already, else null. Makes no driver call.
  [[nodiscard]] std::shared_ptr<const LoadedKernel> find(const cuda::DriverApi& api,
                                                         const cuda::ContextId& context,
                                                         const std::string& source_id) const;

 private:
  using Key =
      std::tuple<const cuda::DriverApi*, unsigned long long, std::string>;  // context id, source id
  Result<std::shared_ptr<const LoadedKernel>> load_now(const cuda::DriverApi& api,
                                                       jit::KernelProvider& provider,
                                                       const jit::KernelSource& source,
                                                       const std::string& arch) const;

  mutable std::mutex mutex_;  // all below; not held while compiling or loading
  std::condition_variable landed_;
  std::map<Key, std::shared_ptr<const LoadedKernel>> kernels_;  // null: being loaded
};

}  // namespace scanjit::engine
