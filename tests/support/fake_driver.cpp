#include "support/fake_driver.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace scanjit::cuda {

// What the opaque handles point to here.
struct CUctx_st {
  CUdevice device = 0;
  unsigned long long id = 0;
  bool primary = false;
  bool destroyed = false;
  int sm_count = 0;  // 0: all of the device's
  CUresult broken = CUDA_SUCCESS;
};
struct CUmod_st {
  CUcontext context = nullptr;
  bool unloaded = false;
};
struct CUfunc_st {
  CUmodule module = nullptr;
  std::string name;
  int max_dynamic_smem = 48 << 10;
};
struct CUgraph_st {
  std::vector<std::function<void(CUstream)>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<void(CUstream)>> work;
  CUcontext context = nullptr;
};
struct CUstream_st {
  CUcontext context = nullptr;
  bool blocking = false;
  int priority = 0;
  double time_us = 0;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id captured_by;
  CUgraph graph = nullptr;
};
struct CUevent_st {
  CUcontext context = nullptr;
  bool timing = true;
  bool recorded = false;
  double time_us = 0;
};
struct CUmemPoolHandle_st {
  CUdevice device = 0;
};

}  // namespace scanjit::cuda

namespace scanjit::test {
using namespace scanjit::cuda;

namespace {

struct Fault {
  std::string function;
  std::int64_t countdown = 0;
  CUresult result = CUDA_SUCCESS;
};

struct ThreadState {
  std::vector<CUcontext> contexts;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

struct Allocation {
  std::size_t bytes = 0;
  CUdevice device = 0;
};

}  // namespace

struct FakeDriver::State {
  mutable std::recursive_mutex mutex;
  DriverApi api;
  std::deque<FakeDevice> devices;
  std::map<std::thread::id, ThreadState> threads;
  std::vector<Fault> faults;
  std::map<std::string, std::int64_t> call_counts, unrelaxed_counts;
  bool reuse_contexts = false;
  CUresult broken = CUDA_SUCCESS;
  std::function<double(const FakeLaunch&)> launch_time;
  std::function<void(const FakeLaunch&, const void*)> kernel;
  std::function<bool(const void*)> refuses;
  std::size_t params_bytes = 0;
  std::vector<FakeLaunch> launches;
  std::map<std::pair<std::string, int>, int> function_attributes;

  // Handles are never freed before the driver is, so that a stale one is noticed and not followed.
  std::vector<std::unique_ptr<CUctx_st>> contexts;
  std::vector<std::unique_ptr<CUmod_st>> modules;
  std::vector<std::unique_ptr<CUfunc_st>> functions;
  std::vector<std::unique_ptr<CUgraph_st>> graphs;
  std::vector<std::unique_ptr<CUgraphExec_st>> execs;
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::vector<std::unique_ptr<CUevent_st>> events;
  std::vector<std::unique_ptr<CUmemPoolHandle_st>> pools;
  std::map<CUcontext, std::unique_ptr<CUstream_st>> legacy_streams;
  std::set<void*> alive;  // handles that were not destroyed
  std::map<CUdevice, CUcontext> primary;
  std::map<CUdevice, int> primary_retains;
  std::map<CUdeviceptr, Allocation> allocations;
  unsigned long long next_context_id = 1;

  ThreadState& thread() { return threads[std::this_thread::get_id()]; }
  CUcontext current() {
    ThreadState& self = thread();
    return self.contexts.empty() ? nullptr : self.contexts.back();
  }

  template <class T>
  T* make(std::vector<std::unique_ptr<T>>& pool) {
    pool.push_back(std::make_unique<T>());
    alive.insert(pool.back().get());
    return pool.back().get();
  }
  bool is_alive(const void* handle) const { return alive.count(const_cast<void*>(handle)) != 0; }

  CUcontext make_context(CUdevice device, bool is_primary) {
    CUcontext context = nullptr;
    if (reuse_contexts) {
      const auto gone = std::find_if(contexts.begin(), contexts.end(),
                                     [](const auto& one) { return one->destroyed; });
      if (gone != contexts.end()) {
        context = gone->get();
        *context = {};
        alive.insert(context);
      }
    }
    if (context == nullptr) context = make(contexts);
    context->device = device;
    context->id = next_context_id++;
    context->primary = is_primary;
    return context;
  }

  CUresult health(CUcontext context) const {
    if (broken != CUDA_SUCCESS) return broken;
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context->broken;
  }
  CUresult current_health() { return health(current()); }

  // The stream behind a handle; the current context's default stream behind null, 1 and 2.
  CUstream stream_of(CUstream handle) {
    if (reinterpret_cast<std::uintptr_t>(handle) > 2) return is_alive(handle) ? handle : nullptr;
    CUcontext context = current();
    if (context == nullptr) return nullptr;
    auto& legacy = legacy_streams[context];
    if (!legacy) {
      legacy = std::make_unique<CUstream_st>();
      legacy->context = context;
      legacy->blocking = true;
    }
    return legacy.get();
  }

  bool blocking_stream_captures(CUcontext context) const {
    return std::any_of(streams.begin(), streams.end(), [&](const auto& stream) {
      return stream->context == context && stream->blocking &&
             stream->capture != CU_STREAM_CAPTURE_STATUS_NONE;
    });
  }

  // What calls meet that may synchronise or allocate while something is being captured.
  CUresult unsafe_call() {
    const std::thread::id self = std::this_thread::get_id();
    const CUstreamCaptureMode mode = thread().mode;
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    bool refused = false;
    for (const auto& stream : streams) {
      if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE ||
          stream->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        continue;
      const bool mine = stream->captured_by == self;
      const bool anyones =
          mode == CU_STREAM_CAPTURE_MODE_GLOBAL && stream->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
      if (!mine && !anyones) continue;
      stream->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
      refused = true;
    }
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
  }

  // Work on a stream: at once, or into the graph that is being captured.
  CUresult enqueue(CUstream handle, std::function<void(CUstream)> work) {
    CUstream stream = stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = health(stream->context); result != CUDA_SUCCESS) return result;
    if (reinterpret_cast<std::uintptr_t>(handle) <= 1 &&
        blocking_stream_captures(stream->context)) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
      stream->graph->work.push_back(std::move(work));
    } else {
      work(stream);
    }
    return CUDA_SUCCESS;
  }

  CUresult allocate(CUdeviceptr* pointer, std::size_t bytes, CUdevice on) {
    FakeDevice& target = devices[static_cast<std::size_t>(on)];
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > target.free_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    constexpr std::size_t kAlignment = 256;
    void* memory =
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    target.free_bytes -= bytes;
    *pointer = reinterpret_cast<std::uintptr_t>(memory);
    allocations[*pointer] = {bytes, on};
    return CUDA_SUCCESS;
  }
  CUresult release(CUdeviceptr pointer) {
    const auto found = allocations.find(pointer);
    if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    devices[static_cast<std::size_t>(found->second.device)].free_bytes += found->second.bytes;
    std::free(reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer)));
    allocations.erase(found);
    return CUDA_SUCCESS;
  }
  // True if the range lies in one allocation.
  bool holds(CUdeviceptr pointer, std::size_t bytes) const {
    auto found = allocations.upper_bound(pointer);
    if (found == allocations.begin()) return false;
    --found;
    const std::size_t offset = static_cast<std::size_t>(pointer - found->first);
    return offset <= found->second.bytes && bytes <= found->second.bytes - offset;
  }

  CUresult launch(const CUlaunchConfig& config, CUfunction function, void** params) {
    CUstream stream = stream_of(config.hStream);
    if (stream == nullptr || function == nullptr || function->module->unloaded)
      return CUDA_ERROR_INVALID_HANDLE;
    if (function->module->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    FakeLaunch launch;
    launch.kernel = function->name;
    launch.stream = config.hStream;
    launch.context = stream->context;
    launch.grid = {config.gridDimX, config.gridDimY, config.gridDimZ};
    launch.block = {config.blockDimX, config.blockDimY, config.blockDimZ};
    launch.smem_bytes = config.sharedMemBytes;
    launch.captured = stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    for (unsigned i = 0; i < config.numAttrs; ++i) {
      launch.programmatic |=
          config.attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
          config.attrs[i].value.programmaticStreamSerializationAllowed != 0;
    }
    constexpr unsigned kMostY = 65535, kMostThreads = 1024;
    const auto empty = [](const std::array<unsigned, 3>& dim) {
      return dim[0] == 0 || dim[1] == 0 || dim[2] == 0;
    };
    if (empty(launch.grid) || empty(launch.block) || launch.grid[1] > kMostY ||
        launch.grid[2] > kMostY ||
        launch.block[0] * launch.block[1] * launch.block[2] > kMostThreads ||
        launch.smem_bytes > static_cast<unsigned>(function->max_dynamic_smem)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto copy = std::make_shared<std::vector<std::byte>>(params_bytes);
    if (params_bytes > 0 && params != nullptr) std::memcpy(copy->data(), params[0], params_bytes);
    const CUresult result = enqueue(config.hStream, [this, launch, copy](CUstream on) {
      if (kernel) kernel(launch, copy->data());
      constexpr double kUsualTime = 10;
      on->time_us += launch_time ? launch_time(launch) : kUsualTime;
      FakeLaunch ran = launch;
      ran.captured = false;
      launches.push_back(ran);
    });
    if (result == CUDA_SUCCESS && launch.captured) launches.push_back(launch);
    return result;
  }
};

namespace {

FakeDriver::State* driver = nullptr;

// Counts the call, fails it if that was asked for, runs it with the lock held.
template <class Body>
CUresult call(const char* function, Body&& body) {
  if (driver == nullptr) return CUDA_ERROR_DEINITIALIZED;
  FakeDriver::State& state = *driver;
  const std::lock_guard lock(state.mutex);
  ++state.call_counts[function];
  ++state.call_counts[""];
  if (state.thread().mode != CU_STREAM_CAPTURE_MODE_RELAXED) ++state.unrelaxed_counts[function];
  for (auto fault = state.faults.begin(); fault != state.faults.end(); ++fault) {
    if (!fault->function.empty() && fault->function != function) continue;
    if (--fault->countdown > 0) continue;
    const CUresult result = fault->result;
    state.faults.erase(fault);
    return result;
  }
  return body(state);
}

#define FAKE(member, parameters, ...)                                                          \
  api.member = [] parameters -> CUresult {                                                     \
    return call(#member, [&]([[maybe_unused]] FakeDriver::State & s) -> CUresult __VA_ARGS__); \
  }
#define REFUSE_IF(expression) \
  if (const CUresult refused = (expression); refused != CUDA_SUCCESS) return refused

void fill_device_calls(DriverApi& api) {
  FAKE(cuInit, (unsigned), { return CUDA_SUCCESS; });
  FAKE(cuDriverGetVersion, (int* version), {
    *version = 13000;
    return CUDA_SUCCESS;
  });
  api.cuGetErrorName = [](CUresult, const char** text) -> CUresult {
    *text = "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
  };
  api.cuGetErrorString = [](CUresult, const char** text) -> CUresult {
    *text = "as the test asked";
    return CUDA_SUCCESS;
  };
  FAKE(cuDeviceGet, (CUdevice * device, int ordinal), {
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= s.devices.size())
      return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
  FAKE(cuDeviceGetCount, (int* count), {
    *count = static_cast<int>(s.devices.size());
    return CUDA_SUCCESS;
  });
  FAKE(cuDeviceGetName, (char* name, int length, CUdevice device), {
    std::strncpy(name, s.devices[static_cast<std::size_t>(device)].name.c_str(),
                 static_cast<std::size_t>(length));
    return CUDA_SUCCESS;
  });
  FAKE(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device), {
    const auto& attributes = s.devices[static_cast<std::size_t>(device)].attributes;
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return CUDA_ERROR_INVALID_VALUE;
    *value = found->second;
    return CUDA_SUCCESS;
  });
  FAKE(cuDeviceTotalMem, (std::size_t * bytes, CUdevice device), {
    *bytes = s.devices[static_cast<std::size_t>(device)].total_bytes;
    return CUDA_SUCCESS;
  });
  FAKE(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), {
    std::memset(uuid, device, sizeof(*uuid));
    return CUDA_SUCCESS;
  });
  FAKE(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), {
    REFUSE_IF(s.broken);
    if (s.primary_retains[device]++ == 0) s.primary[device] = s.make_context(device, true);
    *context = s.primary[device];
    return CUDA_SUCCESS;
  });
  FAKE(cuDevicePrimaryCtxRelease, (CUdevice device), {
    if (s.primary_retains[device] == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--s.primary_retains[device] == 0) {
      s.primary[device]->destroyed = true;
      s.alive.erase(s.primary[device]);
    }
    return CUDA_SUCCESS;
  });
  FAKE(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned* flags, int* active), {
    *flags = 0;
    *active = s.primary_retains[device] > 0 ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

void fill_context_calls(DriverApi& api) {
  FAKE(cuCtxGetCurrent, (CUcontext * context), {
    *context = s.current();
    return CUDA_SUCCESS;
  });
  FAKE(cuCtxSetCurrent, (CUcontext context), {
    auto& stack = s.thread().contexts;
    if (!stack.empty()) stack.pop_back();
    if (context != nullptr) stack.push_back(context);
    return CUDA_SUCCESS;
  });
  FAKE(cuCtxPushCurrent, (CUcontext context), {
    // The real driver takes one that was destroyed, too; the next call then fails.
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    s.thread().contexts.push_back(context);
    return CUDA_SUCCESS;
  });
  FAKE(cuCtxPopCurrent, (CUcontext * context), {
    auto& stack = s.thread().contexts;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
  });
  FAKE(cuCtxGetDevice, (CUdevice * device), {
    if (s.current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *device = s.current()->device;
    return CUDA_SUCCESS;
  });
  FAKE(cuCtxGetId, (CUcontext context, unsigned long long* id), {
    if (context == nullptr) context = s.current();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *id = context->id;
    return CUDA_SUCCESS;
  });
  FAKE(cuCtxCreate, (CUcontext * context, unsigned, CUdevice device), {
    REFUSE_IF(s.broken);
    *context = s.make_context(device, false);
    s.thread().contexts.push_back(*context);
    return CUDA_SUCCESS;
  });
  FAKE(cuCtxDestroy, (CUcontext context), {
    if (context == nullptr || context->destroyed || context->primary)
      return CUDA_ERROR_INVALID_CONTEXT;
    context->destroyed = true;
    s.alive.erase(context);
    auto& stack = s.thread().contexts;
    if (!stack.empty() && stack.back() == context) stack.pop_back();
    return CUDA_SUCCESS;
  });
  FAKE(cuCtxGetStreamPriorityRange, (int* least, int* greatest), {
    REFUSE_IF(s.current_health());
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
  });
  FAKE(cuCtxGetDevResource, (CUcontext context, CUdevResource * resource, CUdevResourceType), {
    if (context == nullptr || context->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
    resource->type = CU_DEV_RESOURCE_TYPE_SM;
    resource->sm.smCount =
        context->sm_count != 0
            ? static_cast<unsigned>(context->sm_count)
            : static_cast<unsigned>(s.devices[static_cast<std::size_t>(context->device)]
                                        .attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]);
    return CUDA_SUCCESS;
  });
  FAKE(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), {
    std::swap(*mode, s.thread().mode);
    return CUDA_SUCCESS;
  });
}

void fill_stream_calls(DriverApi& api) {
  FAKE(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority), {
    REFUSE_IF(s.current_health());
    *stream = s.make(s.streams);
    (*stream)->context = s.current();
    (*stream)->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
    (*stream)->priority = priority;
    return CUDA_SUCCESS;
  });
  FAKE(cuStreamDestroy, (CUstream stream), {
    if (!s.is_alive(stream)) return CUDA_ERROR_INVALID_HANDLE;
    s.alive.erase(stream);
    return CUDA_SUCCESS;
  });
  FAKE(cuStreamGetCtx, (CUstream handle, CUcontext * context), {
    CUstream stream = s.stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *context = stream->context;
    return CUDA_SUCCESS;
  });
  FAKE(cuStreamSynchronize, (CUstream handle), {
    CUstream stream = s.stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    REFUSE_IF(s.health(stream->context));
    if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE) {
      stream->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return CUDA_SUCCESS;
  });
  FAKE(cuStreamQuery, (CUstream handle), {
    CUstream stream = s.stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return s.health(stream->context);
  });
  FAKE(cuStreamWaitEvent, (CUstream handle, CUevent event, unsigned), {
    if (!s.is_alive(event)) return CUDA_ERROR_INVALID_HANDLE;
    return s.enqueue(handle,
                     [event](CUstream on) { on->time_us = std::max(on->time_us, event->time_us); });
  });
  FAKE(cuStreamIsCapturing, (CUstream handle, CUstreamCaptureStatus * status), {
    CUstream stream = s.stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (reinterpret_cast<std::uintptr_t>(handle) <= 1 &&
        s.blocking_stream_captures(stream->context)) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    *status = stream->capture;
    return CUDA_SUCCESS;
  });
  FAKE(cuStreamBeginCapture, (CUstream handle, CUstreamCaptureMode mode), {
    if (reinterpret_cast<std::uintptr_t>(handle) <= 1) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUstream stream = s.stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_INVALID_VALUE;
    stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    stream->mode = mode;
    stream->captured_by = std::this_thread::get_id();
    stream->graph = s.make(s.graphs);
    return CUDA_SUCCESS;
  });
  FAKE(cuStreamEndCapture, (CUstream handle, CUgraph * graph), {
    CUstream stream = s.stream_of(handle);
    *graph = nullptr;
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_INVALID_VALUE;
    if (stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        stream->captured_by != std::this_thread::get_id()) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    const bool invalid = stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if (invalid) {
      s.alive.erase(stream->graph);
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    *graph = stream->graph;
    return CUDA_SUCCESS;
  });
  FAKE(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long), {
    REFUSE_IF(s.current_health());
    if (!s.is_alive(graph)) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(s.unsafe_call());
    *exec = s.make(s.execs);
    (*exec)->work = graph->work;
    (*exec)->context = s.current();
    return CUDA_SUCCESS;
  });
  FAKE(cuGraphUpload, (CUgraphExec exec, CUstream),
       { return s.is_alive(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
  FAKE(cuGraphLaunch, (CUgraphExec exec, CUstream handle), {
    if (!s.is_alive(exec)) return CUDA_ERROR_INVALID_VALUE;
    return s.enqueue(handle, [exec](CUstream on) {
      for (const auto& work : exec->work) work(on);
    });
  });
  FAKE(cuGraphDestroy, (CUgraph graph),
       { return s.alive.erase(graph) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
  FAKE(cuGraphExecDestroy, (CUgraphExec exec),
       { return s.alive.erase(exec) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
  FAKE(cuEventCreate, (CUevent * event, unsigned flags), {
    REFUSE_IF(s.current_health());
    *event = s.make(s.events);
    (*event)->context = s.current();
    (*event)->timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    return CUDA_SUCCESS;
  });
  FAKE(cuEventRecord, (CUevent event, CUstream handle), {
    if (!s.is_alive(event)) return CUDA_ERROR_INVALID_HANDLE;
    return s.enqueue(handle, [event](CUstream on) {
      event->recorded = true;
      event->time_us = on->time_us;
    });
  });
  FAKE(cuEventSynchronize, (CUevent event), {
    if (!s.is_alive(event)) return CUDA_ERROR_INVALID_HANDLE;
    return s.health(event->context);
  });
  FAKE(cuEventQuery, (CUevent event), {
    if (!s.is_alive(event)) return CUDA_ERROR_INVALID_HANDLE;
    return s.health(event->context);
  });
  FAKE(cuEventElapsedTime, (float* milliseconds, CUevent start, CUevent end), {
    if (!s.is_alive(start) || !s.is_alive(end) || !start->timing || !end->timing ||
        !start->recorded || !end->recorded) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    *milliseconds = static_cast<float>((end->time_us - start->time_us) / 1e3);
    return CUDA_SUCCESS;
  });
  FAKE(cuEventDestroy, (CUevent event),
       { return s.alive.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; });
}

void fill_module_calls(DriverApi& api) {
  FAKE(cuModuleLoadData, (CUmodule * module, const void* image), {
    REFUSE_IF(s.current_health());
    REFUSE_IF(s.unsafe_call());
    if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (s.refuses && s.refuses(image)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *module = s.make(s.modules);
    (*module)->context = s.current();
    return CUDA_SUCCESS;
  });
  FAKE(cuModuleUnload, (CUmodule module), {
    REFUSE_IF(s.unsafe_call());
    if (s.alive.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
    module->unloaded = true;
    return CUDA_SUCCESS;
  });
  FAKE(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name), {
    if (!s.is_alive(module)) return CUDA_ERROR_INVALID_HANDLE;
    REFUSE_IF(s.unsafe_call());
    for (const auto& made : s.functions) {
      if (made->module == module && made->name == name) {
        *function = made.get();
        return CUDA_SUCCESS;
      }
    }
    s.functions.push_back(std::make_unique<CUfunc_st>());
    *function = s.functions.back().get();
    (*function)->module = module;
    (*function)->name = name;
    return CUDA_SUCCESS;
  });
  FAKE(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value), {
    REFUSE_IF(s.health(function->module->context));
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
      const auto& device = s.devices[static_cast<std::size_t>(function->module->context->device)];
      if (value < 0 ||
          value > device.attributes.at(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      function->max_dynamic_smem = std::max(value, 48 << 10);
    }
    return CUDA_SUCCESS;
  });
  FAKE(cuFuncGetAttribute, (int* value, CUfunction_attribute attribute, CUfunction function), {
    for (const std::string& name : {function->name, std::string()}) {
      if (const auto found = s.function_attributes.find({name, attribute});
          found != s.function_attributes.end()) {
        *value = found->second;
        return CUDA_SUCCESS;
      }
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
  FAKE(cuFuncLoad, (CUfunction function), {
    REFUSE_IF(s.unsafe_call());
    return s.health(function->module->context);
  });
  FAKE(cuOccupancyMaxActiveBlocksPerMultiprocessor,
       (int* blocks, CUfunction function, int block_size, std::size_t smem), {
         const auto& attributes =
             s.devices[static_cast<std::size_t>(function->module->context->device)].attributes;
         const int by_threads = attributes.at(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) /
                                std::max(block_size, 1);
         const int taken = static_cast<int>(smem) +
                           attributes.at(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
         *blocks = std::min(
             by_threads,
             attributes.at(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) / taken);
         return CUDA_SUCCESS;
       });
  FAKE(cuLaunchKernel,
       (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
        unsigned block_y, unsigned block_z, unsigned smem, CUstream stream, void** params, void**),
       {
         const CUlaunchConfig config = {grid_x,  grid_y, grid_z, block_x, block_y,
                                        block_z, smem,   stream, nullptr, 0};
         return s.launch(config, function, params);
       });
  FAKE(cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction function, void** params, void**),
       { return s.launch(*config, function, params); });
}

void* at(CUdeviceptr pointer) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer));
}

template <class T>
CUresult set_memory(FakeDriver::State& s, CUdeviceptr to, T value, std::size_t count,
                    CUstream stream) {
  if (!s.holds(to, count * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
  return s.enqueue(stream, [=](CUstream) { std::fill_n(static_cast<T*>(at(to)), count, value); });
}

void fill_memory_calls(DriverApi& api) {
  FAKE(cuMemAlloc, (CUdeviceptr * pointer, std::size_t bytes), {
    REFUSE_IF(s.current_health());
    REFUSE_IF(s.unsafe_call());
    return s.allocate(pointer, bytes, s.current()->device);
  });
  FAKE(cuMemFree, (CUdeviceptr pointer), {
    REFUSE_IF(s.unsafe_call());
    return s.release(pointer);
  });
  FAKE(cuMemAllocAsync, (CUdeviceptr * pointer, std::size_t bytes, CUstream handle), {
    CUstream stream = s.stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    REFUSE_IF(s.health(stream->context));
    return s.allocate(pointer, bytes, stream->context->device);
  });
  FAKE(cuMemFreeAsync, (CUdeviceptr pointer, CUstream), { return s.release(pointer); });
  FAKE(cuMemGetInfo, (std::size_t * free, std::size_t * total), {
    REFUSE_IF(s.current_health());
    const FakeDevice& device = s.devices[static_cast<std::size_t>(s.current()->device)];
    *free = device.free_bytes;
    *total = device.total_bytes;
    return CUDA_SUCCESS;
  });
  FAKE(cuMemcpyHtoDAsync, (CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream), {
    if (!s.holds(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return s.enqueue(stream, [=](CUstream) { std::memcpy(at(to), from, bytes); });
  });
  FAKE(cuMemcpyDtoHAsync, (void* to, CUdeviceptr from, std::size_t bytes, CUstream stream), {
    if (!s.holds(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return s.enqueue(stream, [=](CUstream) { std::memcpy(to, at(from), bytes); });
  });
  FAKE(cuMemcpyDtoDAsync, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream), {
    if (!s.holds(to, bytes) || !s.holds(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return s.enqueue(stream, [=](CUstream) { std::memmove(at(to), at(from), bytes); });
  });
  FAKE(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream),
       { return set_memory(s, to, value, count, stream); });
  FAKE(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream),
       { return set_memory(s, to, value, count, stream); });
  FAKE(cuMemsetD32Async, (CUdeviceptr to, unsigned value, std::size_t count, CUstream stream),
       { return set_memory(s, to, value, count, stream); });
  FAKE(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps* properties), {
    REFUSE_IF(s.broken);
    *pool = s.make(s.pools);
    (*pool)->device = properties->location.id;
    return CUDA_SUCCESS;
  });
  FAKE(cuMemPoolDestroy, (CUmemoryPool pool),
       { return s.alive.erase(pool) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
  FAKE(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute, void*),
       { return s.is_alive(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
  FAKE(cuMemPoolTrimTo, (CUmemoryPool pool, std::size_t),
       { return s.is_alive(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
  FAKE(cuMemAllocFromPoolAsync,
       (CUdeviceptr * pointer, std::size_t bytes, CUmemoryPool pool, CUstream handle), {
         if (!s.is_alive(pool) || s.stream_of(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
         REFUSE_IF(s.health(s.stream_of(handle)->context));
         return s.allocate(pointer, bytes, pool->device);
       });
  FAKE(cuTensorMapEncodeTiled,
       (CUtensorMap * map, CUtensorMapDataType, std::uint32_t rank, void* address,
        const std::uint64_t*, const std::uint64_t*, const std::uint32_t*, const std::uint32_t*,
        CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill),
       {
         // The address in a word of its own, as the real one has it.
         std::memset(map, 0, sizeof(*map));
         map->opaque[0] = reinterpret_cast<std::uint64_t>(address);
         map->opaque[1] = rank;
         return CUDA_SUCCESS;
       });
}

FakeDevice h200() {
  FakeDevice device;
  device.attributes = {
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
  };
  return device;
}

}  // namespace

FakeDriver::FakeDriver(int devices) : state_(std::make_unique<State>()) {
  for (int i = 0; i < devices; ++i) state_->devices.push_back(h200());
  fill_device_calls(state_->api);
  fill_context_calls(state_->api);
  fill_stream_calls(state_->api);
  fill_module_calls(state_->api);
  fill_memory_calls(state_->api);
  set_function_attribute("", CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024);
  set_function_attribute("", CU_FUNC_ATTRIBUTE_NUM_REGS, 128);
  set_function_attribute("", CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 0);
  set_function_attribute("", CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 0);
  driver = state_.get();
}

FakeDriver::~FakeDriver() {
  driver = nullptr;
  while (!state_->allocations.empty()) state_->release(state_->allocations.begin()->first);
}

const DriverApi& FakeDriver::api() const noexcept { return state_->api; }

FakeDevice& FakeDriver::device(int ordinal) {
  return state_->devices[static_cast<std::size_t>(ordinal)];
}

void FakeDriver::fail_call(const std::string& function, std::int64_t nth, CUresult result) {
  const std::lock_guard lock(state_->mutex);
  state_->faults.push_back({function, nth, result});
}

void FakeDriver::clear_faults() {
  const std::lock_guard lock(state_->mutex);
  state_->faults.clear();
}

void FakeDriver::break_context(CUcontext context, CUresult result) {
  const std::lock_guard lock(state_->mutex);
  (context != nullptr ? context->broken : state_->broken) = result;
}

std::int64_t FakeDriver::calls(const std::string& function) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->call_counts.find(function);
  return found == state_->call_counts.end() ? 0 : found->second;
}

std::int64_t FakeDriver::unrelaxed_calls(const std::string& function) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->unrelaxed_counts.find(function);
  return found == state_->unrelaxed_counts.end() ? 0 : found->second;
}

void FakeDriver::limit_context(CUcontext context, int sm_count) {
  const std::lock_guard lock(state_->mutex);
  context->sm_count = sm_count;
}

void FakeDriver::reuse_context_handles() {
  const std::lock_guard lock(state_->mutex);
  state_->reuse_contexts = true;
}

void FakeDriver::set_launch_time(std::function<double(const FakeLaunch&)> time_us) {
  const std::lock_guard lock(state_->mutex);
  state_->launch_time = std::move(time_us);
}

void FakeDriver::set_kernel(std::function<void(const FakeLaunch&, const void*)> body,
                            std::size_t params_bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->kernel = std::move(body);
  state_->params_bytes = params_bytes;
}

std::vector<FakeLaunch> FakeDriver::launches() const {
  const std::lock_guard lock(state_->mutex);
  return state_->launches;
}

void FakeDriver::clear_launches() {
  const std::lock_guard lock(state_->mutex);
  state_->launches.clear();
}

void FakeDriver::refuse_images(std::function<bool(const void*)> refused) {
  const std::lock_guard lock(state_->mutex);
  state_->refuses = std::move(refused);
}
void FakeDriver::set_function_attribute(const std::string& kernel, CUfunction_attribute attribute,
                                        int value) {
  const std::lock_guard lock(state_->mutex);
  state_->function_attributes[{kernel, attribute}] = value;
}

FakeLive FakeDriver::live() const {
  const std::lock_guard lock(state_->mutex);
  const auto count = [&](const auto& pool) {
    return static_cast<std::int64_t>(
        std::count_if(pool.begin(), pool.end(),
                      [&](const auto& handle) { return state_->is_alive(handle.get()); }));
  };
  FakeLive live;
  live.contexts = count(state_->contexts);
  for (const auto& [device, retains] : state_->primary_retains) live.primary_retains += retains;
  live.streams = count(state_->streams);
  live.events = count(state_->events);
  live.modules = count(state_->modules);
  live.graphs = count(state_->graphs);
  live.graph_execs = count(state_->execs);
  live.pools = count(state_->pools);
  live.allocations = static_cast<std::int64_t>(state_->allocations.size());
  for (const auto& [pointer, allocation] : state_->allocations) {
    live.allocated_bytes += static_cast<std::int64_t>(allocation.bytes);
  }
  return live;
}

std::size_t FakeDriver::context_depth() const {
  const std::lock_guard lock(state_->mutex);
  return state_->thread().contexts.size();
}

CUstreamCaptureMode FakeDriver::capture_mode() const {
  const std::lock_guard lock(state_->mutex);
  return state_->thread().mode;
}

}  // namespace scanjit::test
