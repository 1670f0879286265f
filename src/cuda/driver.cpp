#include "cuda/driver.hpp"

#include <atomic>
#include <mutex>
#include <vector>

namespace scanjit::cuda {
namespace {

std::vector<std::string> driver_files(const Environment& environment) {
  if (!environment.scanjit_cuda_library.empty()) return {environment.scanjit_cuda_library};
  return {"libcuda.so.1",
          "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
          "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
          "/usr/lib64/libcuda.so.1",
          "/usr/local/nvidia/lib64/libcuda.so.1",
          "/usr/local/nvidia/lib/libcuda.so.1",
          "/usr/lib/wsl/lib/libcuda.so.1",
          "/run/opengl-driver/lib/libcuda.so.1"};
}

// Fills the table from one library; the error is a clause for the list of what was tried.
Result<DriverApi> fill_table(const os::DynamicLibrary& library) {
  DriverApi api;
#define SCANJIT_REQUIRED_FUNCTION(member, exported, parameters)                        \
  if (auto address = library.symbol(#exported); address.ok()) {                        \
    api.member = reinterpret_cast<decltype(api.member)>(*address);                     \
  } else {                                                                             \
    return unsupported(library.path() + " has no " #exported                           \
                                        ": the driver is older than CUDA 12.0 (525)"); \
  }
#define SCANJIT_OPTIONAL_FUNCTION(member, exported, parameters) \
  if (auto address = library.symbol(#exported); address.ok())   \
    api.member = reinterpret_cast<decltype(api.member)>(*address);
  SCANJIT_DRIVER_FUNCTIONS(SCANJIT_REQUIRED_FUNCTION)
  SCANJIT_DRIVER_OPTIONAL_FUNCTIONS(SCANJIT_OPTIONAL_FUNCTION)
#undef SCANJIT_REQUIRED_FUNCTION
#undef SCANJIT_OPTIONAL_FUNCTION
  return api;
}

Result<DriverApi> open_file(const std::string& file, os::LibraryLoader& loader) {
  SCANJIT_ASSIGN_OR_RETURN(const auto library, loader.open(file));
  SCANJIT_ASSIGN_OR_RETURN(DriverApi api, fill_table(*library));
  if (const Status status = check(api, api.cuInit(0), "cuInit"); !status.ok()) {
    return unsupported(library->path() + ": " + status.message());
  }
  return api;
}

bool is_sticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return true;
    default: return false;
  }
}

}  // namespace

Result<DriverApi> open_driver(const Environment& environment, os::LibraryLoader& loader) {
  os::FailedLibraries tried;
  for (const std::string& file : driver_files(environment)) {
    Result<DriverApi> api = open_file(file, loader);
    if (api.ok()) return api;
    tried.add(file, api.status());
  }
  const std::string hint = environment.scanjit_cuda_library.empty()
                               ? " (SCANJIT_CUDA_LIBRARY can name its file)"
                               : " (SCANJIT_CUDA_LIBRARY)";
  return unsupported("no usable CUDA driver; looked at" + hint + ": " + tried.text());
}

Result<const DriverApi*> load_driver(const Environment& environment) {
  static std::atomic<const DriverApi*> loaded{nullptr};
  static std::mutex mutex;
  static DriverApi table;  // trivially destroyed: threads may still use it while the process exits
  if (const DriverApi* api = loaded.load(std::memory_order_acquire)) return api;
  const std::lock_guard lock(mutex);
  if (const DriverApi* api = loaded.load(std::memory_order_acquire)) return api;
  SCANJIT_ASSIGN_OR_RETURN(table, open_driver(environment));
  loaded.store(&table, std::memory_order_release);
  return &table;
}

std::string version_text(int cuda_version) {
  return std::to_string(cuda_version / 1000) + "." + std::to_string(cuda_version % 1000 / 10);
}

Status check(const DriverApi& api, CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr)
    name = "an error unknown to the driver";
  if (api.cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr)
    text = "no description";
  const ErrorCode code = result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kOutOfMemory
                         : is_sticky(result)                ? ErrorCode::kDeviceLost
                                                            : ErrorCode::kCudaError;
  ErrorDetails details;
  details.cuda_result = result;
  return Status(code,
                std::string(call) + " failed: " + name + " (" +
                    std::to_string(static_cast<int>(result)) + "): " + text,
                std::move(details));
}

}  // namespace scanjit::cuda
