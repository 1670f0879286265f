#include "gpu.hpp"

#include <dlfcn.h>

#include <cstdlib>

namespace server {

// The driver's exported names, where a function has several versions the one of CUDA 12.
struct Gpu::Functions {
  int (*cuInit)(unsigned) = nullptr;
  int (*cuGetErrorName)(int, const char**) = nullptr;
  int (*cuDevicePrimaryCtxRetain)(Handle*, int) = nullptr;
  int (*cuDevicePrimaryCtxRelease_v2)(int) = nullptr;
  int (*cuCtxSetCurrent)(Handle) = nullptr;
  int (*cuMemAlloc_v2)(DeviceAddress*, std::size_t) = nullptr;
  int (*cuMemFree_v2)(DeviceAddress) = nullptr;
  int (*cuStreamCreateWithPriority)(Handle*, unsigned, int) = nullptr;
  int (*cuStreamDestroy_v2)(Handle) = nullptr;
  int (*cuMemcpyHtoDAsync_v2)(DeviceAddress, const void*, std::size_t, Handle) = nullptr;
  int (*cuMemcpyDtoHAsync_v2)(void*, DeviceAddress, std::size_t, Handle) = nullptr;
  int (*cuMemsetD8Async)(DeviceAddress, unsigned char, std::size_t, Handle) = nullptr;
  int (*cuStreamSynchronize)(Handle) = nullptr;
  int (*cuStreamBeginCapture_v2)(Handle, int) = nullptr;
  int (*cuStreamEndCapture)(Handle, Handle*) = nullptr;
  int (*cuGraphInstantiateWithFlags)(Handle*, Handle, unsigned long long) = nullptr;
  int (*cuGraphLaunch)(Handle, Handle) = nullptr;
  int (*cuGraphDestroy)(Handle) = nullptr;
  int (*cuGraphExecDestroy)(Handle) = nullptr;
};

std::string Gpu::open(int device) {
  static Functions functions;
  const char* named = std::getenv("SCANJIT_CUDA_LIBRARY");
  void* library =
      dlopen(named != nullptr && *named != '\0' ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::string("no CUDA driver: ") + dlerror();
#define LOOK_UP(name)                                                                 \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(library, #name)); \
  if (functions.name == nullptr) return std::string("the driver has no " #name);
  LOOK_UP(cuInit)
  LOOK_UP(cuGetErrorName)
  LOOK_UP(cuDevicePrimaryCtxRetain)
  LOOK_UP(cuDevicePrimaryCtxRelease_v2)
  LOOK_UP(cuCtxSetCurrent)
  LOOK_UP(cuMemAlloc_v2)
  LOOK_UP(cuMemFree_v2)
  LOOK_UP(cuStreamCreateWithPriority)
  LOOK_UP(cuStreamDestroy_v2)
  LOOK_UP(cuMemcpyHtoDAsync_v2)
  LOOK_UP(cuMemcpyDtoHAsync_v2)
  LOOK_UP(cuMemsetD8Async)
  LOOK_UP(cuStreamSynchronize)
  LOOK_UP(cuStreamBeginCapture_v2)
  LOOK_UP(cuStreamEndCapture)
  LOOK_UP(cuGraphInstantiateWithFlags)
  LOOK_UP(cuGraphLaunch)
  LOOK_UP(cuGraphDestroy)
  LOOK_UP(cuGraphExecDestroy)
#undef LOOK_UP
  cu_ = &functions;
  if (const int result = cu_->cuInit(0); result != 0) return "cuInit: " + text(result);
  device_ = device;
  if (const int result = cu_->cuDevicePrimaryCtxRetain(&context_, device); result != 0)
    return "device " + std::to_string(device) + ": " + text(result);
  return "";
}

void Gpu::close() {
  if (context_ != nullptr) static_cast<void>(cu_->cuDevicePrimaryCtxRelease_v2(device_));
  context_ = nullptr;
}

std::string Gpu::text(int result) const {
  const char* name = nullptr;
  if (cu_->cuGetErrorName(result, &name) != 0 || name == nullptr) name = "unknown";
  return std::string(name) + " (" + std::to_string(result) + ")";
}

int Gpu::enter() const { return cu_->cuCtxSetCurrent(context_); }
int Gpu::allocate(std::size_t bytes, DeviceAddress* address) const {
  return cu_->cuMemAlloc_v2(address, bytes);
}
void Gpu::free(DeviceAddress address) const { static_cast<void>(cu_->cuMemFree_v2(address)); }
int Gpu::make_stream(Handle* stream) const {
  constexpr unsigned kNonBlocking = 1;
  return cu_->cuStreamCreateWithPriority(stream, kNonBlocking, 0);
}
void Gpu::free_stream(Handle stream) const { static_cast<void>(cu_->cuStreamDestroy_v2(stream)); }
int Gpu::upload(DeviceAddress to, const void* from, std::size_t bytes, Handle stream) const {
  return cu_->cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
}
int Gpu::download(void* to, DeviceAddress from, std::size_t bytes, Handle stream) const {
  return cu_->cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
}
int Gpu::fill(DeviceAddress to, unsigned char value, std::size_t bytes, Handle stream) const {
  return cu_->cuMemsetD8Async(to, value, bytes, stream);
}
int Gpu::wait(Handle stream) const { return cu_->cuStreamSynchronize(stream); }

int Gpu::begin_capture(Handle stream) const {
  constexpr int kGlobal = 0;  // the strictest mode, and the default of serving engines
  return cu_->cuStreamBeginCapture_v2(stream, kGlobal);
}
int Gpu::end_capture(Handle stream, Handle* graph) const {
  return cu_->cuStreamEndCapture(stream, graph);
}
int Gpu::instantiate(Handle graph, Handle* exec) const {
  return cu_->cuGraphInstantiateWithFlags(exec, graph, 0);
}
int Gpu::replay(Handle exec, Handle stream) const { return cu_->cuGraphLaunch(exec, stream); }
void Gpu::free_graph(Handle graph, Handle exec) const {
  if (exec != nullptr) static_cast<void>(cu_->cuGraphExecDestroy(exec));
  if (graph != nullptr) static_cast<void>(cu_->cuGraphDestroy(graph));
}

}  // namespace server
