#include "engine/kernel_loader.hpp"

#include <new>

namespace scanjit::engine {
namespace {

Result<std::shared_ptr<const LoadedKernel>> load_binary(const cuda::DriverApi& api,
                                                        const jit::Binary& binary,
                                                        const jit::KernelSource& source) {
  SCANJIT_ASSIGN_OR_RETURN(const cuda::Module module, cuda::Module::load(api, *binary.cubin));
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
  if (auto loaded = find(api, context, source_id)) return loaded;
  SCANJIT_ASSIGN_OR_RETURN(const jit::Binary binary, provider.get(source, arch));
  Result<std::shared_ptr<const LoadedKernel>> loaded = load_binary(api, binary, source);
  if (!loaded.ok() && loaded.status().code() == ErrorCode::kUnsupported &&
      binary.from != "compiled") {
    // A stored cubin that this driver cannot take is a miss.
    SCANJIT_ASSIGN_OR_RETURN(const jit::Binary fresh, provider.recompile(source, arch));
    loaded = load_binary(api, fresh, source);
  }
  if (!loaded.ok()) return loaded;
  const std::lock_guard lock(mutex_);
  return kernels_.emplace(Key{&api, context.id, source_id}, *loaded).first->second;
}

std::shared_ptr<const LoadedKernel> KernelLoader::find(const cuda::DriverApi& api,
                                                       const cuda::ContextId& context,
                                                       const std::string& source_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = kernels_.find(Key{&api, context.id, source_id});
  return found == kernels_.end() ? nullptr : found->second;
}

}  // namespace scanjit::engine
