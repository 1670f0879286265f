#pragma once
/// \file
/// NVRTC (NVIDIA's run-time compiler, versions 12 and 13) as a table of function pointers.

#include <cstddef>
#include <string>
#include <vector>

#include "core/environment.hpp"
#include "os/dynamic_library.hpp"
#include "os/file_system.hpp"
#include "os/posix_file_system.hpp"
#include "scanjit/result.hpp"

namespace scanjit::cuda {

enum nvrtcResult : int {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_COMPILATION = 6
};
using nvrtcProgram = struct nvrtcProgram_st*;

// X(function, return type, parameters)
#define SCANJIT_NVRTC_FUNCTIONS(X)                                                    \
  X(nvrtcGetErrorString, const char*, (nvrtcResult result))                           \
  X(nvrtcVersion, nvrtcResult, (int* major, int* minor))                              \
  X(nvrtcGetNumSupportedArchs, nvrtcResult, (int* count))                             \
  X(nvrtcGetSupportedArchs, nvrtcResult, (int* archs))                                \
  X(nvrtcCreateProgram, nvrtcResult,                                                  \
    (nvrtcProgram * program, const char* source, const char* name, int headers,       \
     const char* const* header_texts, const char* const* header_names))               \
  X(nvrtcDestroyProgram, nvrtcResult, (nvrtcProgram * program))                       \
  X(nvrtcCompileProgram, nvrtcResult,                                                 \
    (nvrtcProgram program, int count, const char* const* options))                    \
  X(nvrtcGetPTXSize, nvrtcResult, (nvrtcProgram program, std::size_t * bytes))        \
  X(nvrtcGetPTX, nvrtcResult, (nvrtcProgram program, char* ptx))                      \
  X(nvrtcGetCUBINSize, nvrtcResult, (nvrtcProgram program, std::size_t * bytes))      \
  X(nvrtcGetCUBIN, nvrtcResult, (nvrtcProgram program, char* cubin))                  \
  X(nvrtcGetProgramLogSize, nvrtcResult, (nvrtcProgram program, std::size_t * bytes)) \
  X(nvrtcGetProgramLog, nvrtcResult, (nvrtcProgram program, char* log))

struct NvrtcApi {
#define SCANJIT_DECLARE_FUNCTION(member, type, parameters) type(*member) parameters = nullptr;
  SCANJIT_NVRTC_FUNCTIONS(SCANJIT_DECLARE_FUNCTION)
#undef SCANJIT_DECLARE_FUNCTION
  int major = 0;
  int minor = 0;
  /// "13.0.88": what a record of a toolchain says.
  std::string version;
  /// "13.0.88 CL-36424714": two NVRTCs with the same build make the same cubin of the same source.
  std::string build;
  std::string library;  ///< the file that was opened
  std::string
      builtins;  ///< libnvrtc-builtins as opened from the same folder; "" if none lies there
  std::vector<int> archs;  ///< what it compiles for: 80, 90, 100, ...
};

/// Opens NVRTC and the libnvrtc-builtins that lies beside it, which NVRTC itself would look for on
/// the loader path only, and compiles an empty program to see that they work and of which build
/// they are. Looked for: SCANJIT_NVRTC_LIBRARY (a file; nothing else is tried when it is set), the
/// loader path, CUDA_HOME and CUDA_PATH, /usr/local/cuda*, distributions' folders, and the Python
/// packages' nvidia/*/lib under VIRTUAL_ENV, CONDA_PREFIX, the user's and the system's pythons.
/// Version 13 is preferred where a folder has both. The library stays open for the life of the
/// process. Errors: kUnsupported, with a sentence that lists where was looked.
[[nodiscard]] Result<NvrtcApi> open_nvrtc(const Environment& environment,
                                          os::LibraryLoader& loader = os::system_loader(),
                                          os::FileSystem& files = os::posix_file_system());

/// The process's one table: the first call that succeeds opens it, later calls return the same.
/// Thread-safe. Errors: as `open_nvrtc`; the next call tries again.
[[nodiscard]] Result<const NvrtcApi*> load_nvrtc(const Environment& environment);

/// The table if some call in this process has loaded it already, else null. Loads nothing.
[[nodiscard]] const NvrtcApi* loaded_nvrtc() noexcept;

struct NvrtcHeader {
  std::string name;  ///< as it is spelt in #include
  std::string text;
};

struct NvrtcOutput {
  std::string code;  ///< cubin or PTX
  std::string log;
};

enum class NvrtcTarget { kCubin, kPtx };

/// Compiles one translation unit. Thread-safe: several compile at once.
/// Errors: kCompileFailed with the compiler's log, if it wrote one, in the details; kOutOfMemory;
/// kInternal (a virtual architecture).
[[nodiscard]] Result<NvrtcOutput> compile(const NvrtcApi& api, const std::string& name,
                                          const std::string& source,
                                          const std::vector<NvrtcHeader>& headers,
                                          const std::vector<std::string>& options,
                                          NvrtcTarget target);

}  // namespace scanjit::cuda
