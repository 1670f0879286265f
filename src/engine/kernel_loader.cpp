#include "engine/kernel_loader.hpp"

#include <new>

#include "core/guard.hpp"

namespace scanjit::engine {
namespace {

Result<std::shared_ptr<const LoadedKernel>> ready_kernel(const cuda::DriverApi& api,
                                                         const cuda::Module& module,
                                                         const jit::Binary& binary,
                                                         const jit::KernelSource& source) {
  auto kernel = std::make_shared<LoadedKernel>();
  SCANJIT_ASSIGN_OR_RETURN(kernel->function, module.function(binary.entry));
  SCANJIT_TRY(cuda::prepare(api, kernel->function, source.smem_bytes));
  SCANJIT_ASSIGN_OR_RETURN(kernel->facts, cuda::function_facts(api, kernel->function));
  if (source.threads > kernel->facts.max_threads) {
    return unsupported(binary.entry + " needs blocks of " + std::to_string(source.threads) +
                       " threads; the device allows it " +
                       std::to_string(kernel->facts.max_threads));
  }
  kernel->smem_bytes = source.smem_bytes;
  kernel->binary_id = binary.binary_id;
  kernel->binary_from = binary.from;
  kernel->nvrtc = binary.nvrtc;
  return std::shared_ptr<const LoadedKernel>(std::move(kernel));
}

}  // namespace

KernelLoader& KernelLoader::process() noexcept {
  // Never destroyed: plans and driver threads may outlive static objects.
  alignas(KernelLoader) static unsigned char storage[sizeof(KernelLoader)];
  static auto* const loader = new (storage) KernelLoader;
  return *loader;
}

Result<std::shared_ptr<const LoadedKernel>> KernelLoader::load(const cuda::DriverApi& api,
                                                               const cuda::ContextId& context,
                                                               jit::KernelProvider& provider,
                                                               const jit::KernelSource& source,
                                                               const std::string& arch) {
  SCANJIT_ASSIGN_OR_RETURN(const std::string source_id, provider.source_id(source, arch));
  const Key key{&api, context.id, source_id};
  {
    std::unique_lock lock(mutex_);
    while (true) {
      const auto [place, fresh] = kernels_.try_emplace(key);
      if (fresh) break;
      if (place->second != nullptr) return place->second;
      landed_.wait(lock);
    }
  }
  Result<std::shared_ptr<const LoadedKernel>> loaded =
      guard([&] { return load_now(api, provider, source, arch); });
  const std::lock_guard lock(mutex_);
  const auto place = kernels_.find(key);
  if (loaded.ok()) {
    place->second = *loaded;
  } else {
    kernels_.erase(place);  // the next one tries again
  }
  landed_.notify_all();
  return loaded;
}

Result<std::shared_ptr<const LoadedKernel>> KernelLoader::load_now(const cuda::DriverApi& api,
                                                                   jit::KernelProvider& provider,
                                                                   const jit::KernelSource& source,
                                                                   const std::string& arch) const {
  SCANJIT_ASSIGN_OR_RETURN(jit::Binary binary, provider.get(source, arch));
  Result<cuda::Module> module = cuda::Module::load(api, *binary.cubin);
  while (!module.ok() && module.status().code() == ErrorCode::kUnsupported) {
    // Machine code that this driver cannot take is a miss, whoever made it; none is tried twice.
    Result<jit::Binary> other = provider.get_instead(binary, source, arch);
    if (!other.ok()) return other.status().with_context(module.status().message());
    binary = std::move(*other);
    module = cuda::Module::load(api, *binary.cubin);
  }
  if (!module.ok()) return module.status();
  return ready_kernel(api, *module, binary, source);
}

std::shared_ptr<const LoadedKernel> KernelLoader::find(const cuda::DriverApi& api,
                                                       const cuda::ContextId& context,
                                                       const std::string& source_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = kernels_.find(Key{&api, context.id, source_id});
  return found == kernels_.end() ? nullptr : found->second;
}

}  // namespace scanjit::engine
