#pragma once
/// \file
/// The CUDA driver as a table of function pointers, filled by dlopen. Everything else in this
/// folder and its users take a `const DriverApi&`, so that tests can hand in a table of fakes.

#include <string>

#include "core/environment.hpp"
#include "cuda/driver_types.hpp"
#include "os/dynamic_library.hpp"
#include "scanjit/result.hpp"

// X(member, exported symbol, parameters): functions that every driver we support has (CUDA 12.0,
// that is 525, and later).
#define SCANJIT_DRIVER_FUNCTIONS(X)                                                                \
  X(cuInit, cuInit, (unsigned flags))                                                              \
  X(cuDriverGetVersion, cuDriverGetVersion, (int* version))                                        \
  X(cuGetErrorName, cuGetErrorName, (CUresult error, const char** text))                           \
  X(cuGetErrorString, cuGetErrorString, (CUresult error, const char** text))                       \
  X(cuDeviceGet, cuDeviceGet, (CUdevice * device, int ordinal))                                    \
  X(cuDeviceGetCount, cuDeviceGetCount, (int* count))                                              \
  X(cuDeviceGetName, cuDeviceGetName, (char* name, int length, CUdevice device))                   \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute,                                                    \
    (int* value, CUdevice_attribute attribute, CUdevice device))                                   \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (std::size_t * bytes, CUdevice device))                 \
  X(cuDeviceGetUuid, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                         \
  X(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext * context))                                       \
  X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext context))                                         \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext context))                                    \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext * context))                                    \
  X(cuCtxGetDevice, cuCtxGetDevice, (CUdevice * device))                                           \
  X(cuCtxGetId, cuCtxGetId, (CUcontext context, unsigned long long* id))                           \
  X(cuCtxCreate, cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device))           \
  X(cuCtxDestroy, cuCtxDestroy_v2, (CUcontext context))                                            \
  X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int* least, int* greatest))         \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))    \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                    \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState,                                        \
    (CUdevice device, unsigned* flags, int* active))                                               \
  X(cuStreamCreateWithPriority, cuStreamCreateWithPriority,                                        \
    (CUstream * stream, unsigned flags, int priority))                                             \
  X(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream))                                        \
  X(cuStreamGetCtx, cuStreamGetCtx, (CUstream stream, CUcontext * context))                        \
  X(cuStreamSynchronize, cuStreamSynchronize, (CUstream stream))                                   \
  X(cuStreamQuery, cuStreamQuery, (CUstream stream))                                               \
  X(cuStreamWaitEvent, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))        \
  X(cuStreamIsCapturing, cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus * status))   \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))    \
  X(cuStreamEndCapture, cuStreamEndCapture, (CUstream stream, CUgraph * graph))                    \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode,                          \
    (CUstreamCaptureMode * mode))                                                                  \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,                                      \
    (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                                 \
  X(cuGraphUpload, cuGraphUpload, (CUgraphExec exec, CUstream stream))                             \
  X(cuGraphLaunch, cuGraphLaunch, (CUgraphExec exec, CUstream stream))                             \
  X(cuGraphDestroy, cuGraphDestroy, (CUgraph graph))                                               \
  X(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec exec))                                    \
  X(cuEventCreate, cuEventCreate, (CUevent * event, unsigned flags))                               \
  X(cuEventRecord, cuEventRecord, (CUevent event, CUstream stream))                                \
  X(cuEventSynchronize, cuEventSynchronize, (CUevent event))                                       \
  X(cuEventQuery, cuEventQuery, (CUevent event))                                                   \
  X(cuEventElapsedTime, cuEventElapsedTime, (float* milliseconds, CUevent start, CUevent end))     \
  X(cuEventDestroy, cuEventDestroy_v2, (CUevent event))                                            \
  X(cuModuleLoadData, cuModuleLoadData, (CUmodule * module, const void* image))                    \
  X(cuModuleUnload, cuModuleUnload, (CUmodule module))                                             \
  X(cuModuleGetFunction, cuModuleGetFunction,                                                      \
    (CUfunction * function, CUmodule module, const char* name))                                    \
  X(cuFuncSetAttribute, cuFuncSetAttribute,                                                        \
    (CUfunction function, CUfunction_attribute attribute, int value))                              \
  X(cuFuncGetAttribute, cuFuncGetAttribute,                                                        \
    (int* value, CUfunction_attribute attribute, CUfunction function))                             \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor,      \
    (int* blocks, CUfunction function, int block_size, std::size_t dynamic_smem_bytes))            \
  X(cuLaunchKernel, cuLaunchKernel,                                                                \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
     unsigned block_y, unsigned block_z, unsigned smem_bytes, CUstream stream, void** params,      \
     void** extra))                                                                                \
  X(cuLaunchKernelEx, cuLaunchKernelEx,                                                            \
    (const CUlaunchConfig* config, CUfunction function, void** params, void** extra))              \
  X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr * pointer, std::size_t bytes))                         \
  X(cuMemFree, cuMemFree_v2, (CUdeviceptr pointer))                                                \
  X(cuMemAllocAsync, cuMemAllocAsync, (CUdeviceptr * pointer, std::size_t bytes, CUstream stream)) \
  X(cuMemFreeAsync, cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))                        \
  X(cuMemGetInfo, cuMemGetInfo_v2, (std::size_t * free, std::size_t * total))                      \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                                       \
    (CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream))                        \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                                       \
    (void* to, CUdeviceptr from, std::size_t bytes, CUstream stream))                              \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2,                                                       \
    (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream))                        \
  X(cuMemsetD8Async, cuMemsetD8Async,                                                              \
    (CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream))                     \
  X(cuMemsetD16Async, cuMemsetD16Async,                                                            \
    (CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream))                    \
  X(cuMemsetD32Async, cuMemsetD32Async,                                                            \
    (CUdeviceptr to, unsigned value, std::size_t count, CUstream stream))                          \
  X(cuMemPoolCreate, cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps* properties))     \
  X(cuMemPoolDestroy, cuMemPoolDestroy, (CUmemoryPool pool))                                       \
  X(cuMemPoolSetAttribute, cuMemPoolSetAttribute,                                                  \
    (CUmemoryPool pool, CUmemPool_attribute attribute, void* value))                               \
  X(cuMemPoolTrimTo, cuMemPoolTrimTo, (CUmemoryPool pool, std::size_t bytes_to_keep))              \
  X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync,                                              \
    (CUdeviceptr * pointer, std::size_t bytes, CUmemoryPool pool, CUstream stream))                \
  X(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled,                                                \
    (CUtensorMap * map, CUtensorMapDataType type, std::uint32_t rank, void* address,               \
     const std::uint64_t* dims, const std::uint64_t* strides, const std::uint32_t* box,            \
     const std::uint32_t* element_strides, CUtensorMapInterleave interleave,                       \
     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill))

// The same for functions that drivers before 12.4 lack: null there.
#define SCANJIT_DRIVER_OPTIONAL_FUNCTIONS(X)       \
  X(cuFuncLoad, cuFuncLoad, (CUfunction function)) \
  X(cuCtxGetDevResource, cuCtxGetDevResource,      \
    (CUcontext context, CUdevResource * resource, CUdevResourceType type))

namespace scanjit::cuda {

/// Plain function pointers; copyable, immutable once filled, usable from any thread.
struct DriverApi {
#define SCANJIT_DECLARE_FUNCTION(member, symbol, parameters) CUresult(*member) parameters = nullptr;
  SCANJIT_DRIVER_FUNCTIONS(SCANJIT_DECLARE_FUNCTION)
  SCANJIT_DRIVER_OPTIONAL_FUNCTIONS(SCANJIT_DECLARE_FUNCTION)
#undef SCANJIT_DECLARE_FUNCTION
};

/// Opens the driver library, fills the table and calls cuInit. The library stays open for the life
/// of the process. Looked for, in this order: SCANJIT_CUDA_LIBRARY (a file; nothing else is tried
/// when it is set), the loader path, the folders where distributions, containers and WSL keep it.
/// Errors: kUnsupported, with a sentence that lists where was looked and what was wrong there, or
/// says which function the driver lacks (it is too old), or what cuInit answered.
[[nodiscard]] Result<DriverApi> open_driver(const Environment& environment,
                                            os::LibraryLoader& loader = os::system_loader());

/// The process's one table: the first call that succeeds opens it, later calls return the same.
/// Thread-safe. Errors: as `open_driver`; the next call tries again.
[[nodiscard]] Result<const DriverApi*> load_driver(const Environment& environment);

/// "12.4" from 12040.
[[nodiscard]] std::string version_text(int cuda_version);

/// Ok for CUDA_SUCCESS, else a sentence "<call> failed: CUDA_ERROR_... (<number>): <driver's
/// words>", with the number in the details. kOutOfMemory for out of memory; kDeviceLost for faults
/// that stay with the context (illegal address, launch failure, ...) and for a destroyed context;
/// else kCudaError.
[[nodiscard]] Status check(const DriverApi& api, CUresult result, const char* call);

}  // namespace scanjit::cuda
