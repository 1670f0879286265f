#include "gpu/gpu.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/embedded_file.hpp"
#include "cuda/memory.hpp"
#include "cuda/nvrtc.hpp"

namespace scanjit {
extern const EmbeddedFile gpu_test_kernels[];
extern const std::size_t gpu_test_kernels_count;
}  // namespace scanjit

namespace scanjit::test {

Result<Gpu*> Gpu::open() {
  auto* gpu = new Gpu;
  gpu->environment_ = read_environment();
  SCANJIT_ASSIGN_OR_RETURN(gpu->api_, cuda::load_driver(gpu->environment_));
  const cuda::DriverApi& api = *gpu->api_;
  SCANJIT_ASSIGN_OR_RETURN(const CUdevice device, cuda::device_of_ordinal(api, 0));
  SCANJIT_TRY(cuda::check(api, api.cuDevicePrimaryCtxRetain(&gpu->context_, device),
                          "cuDevicePrimaryCtxRetain"));
  SCANJIT_TRY(gpu->make_current());
  SCANJIT_TRY(cuda::check(
      api, api.cuStreamCreateWithPriority(&gpu->stream_, cuda::CU_STREAM_NON_BLOCKING, 0),
      "cuStreamCreateWithPriority"));
  SCANJIT_ASSIGN_OR_RETURN(gpu->facts_, cuda::device_facts(api, device, gpu->context_));
  return gpu;
}

Result<Gpu*> Gpu::get() {
  static const Result<Gpu*> opened = open();
  if (opened.ok()) SCANJIT_TRY(opened.value()->make_current());
  return opened;
}

Status Gpu::make_current() const {
  return cuda::check(*api_, api_->cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

Status Gpu::synchronize() const {
  return cuda::check(*api_, api_->cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

std::int64_t Gpu::free_bytes() const {
  const Result<cuda::MemoryInfo> info = cuda::memory_info(*api_);
  return info.ok() ? info->free_bytes : 0;
}

Result<Engine*> Gpu::engine() {
  const std::lock_guard<std::mutex> guard(making_);
  if (engine_ == nullptr) {
    EngineOptions options;
    options.tune_mode = TuneMode::kOff;
    const char* cache = std::getenv("SCANJIT_GPU_TEST_CACHE");
    options.cache_dir = cache != nullptr && *cache != '\0' ? cache : "none";
    SCANJIT_ASSIGN_OR_RETURN(Engine engine, Engine::create(options));
    engine_ = std::make_unique<Engine>(std::move(engine));
  }
  return engine_.get();
}

Result<CUfunction> Gpu::kernel(const std::string& file, const std::string& name) {
  const std::lock_guard<std::mutex> guard(making_);
  auto module = modules_.find(file);
  if (module == modules_.end()) {
    const EmbeddedFile* source = nullptr;
    std::vector<cuda::NvrtcHeader> headers;
    const auto text = [](const EmbeddedFile& embedded) {
      return std::string(reinterpret_cast<const char*>(embedded.bytes), embedded.size);
    };
    for (std::size_t i = 0; i < gpu_test_kernels_count; ++i) {
      if (gpu_test_kernels[i].name == file)
        source = &gpu_test_kernels[i];
      else
        headers.push_back({gpu_test_kernels[i].name, text(gpu_test_kernels[i])});
    }
    if (source == nullptr) return not_found("there is no test kernel file " + file);
    SCANJIT_ASSIGN_OR_RETURN(const cuda::NvrtcApi* nvrtc, cuda::load_nvrtc(environment_));
    const std::vector<std::string> options = {"--gpu-architecture=" + facts_.arch, "--std=c++20"};
    SCANJIT_ASSIGN_OR_RETURN(
        const cuda::NvrtcOutput output,
        cuda::compile(*nvrtc, file, text(*source), headers, options, cuda::NvrtcTarget::kCubin));
    SCANJIT_ASSIGN_OR_RETURN(cuda::Module loaded, cuda::Module::load(*api_, output.code));
    module = modules_.emplace(file, std::move(loaded)).first;
  }
  return module->second.function(name);
}

Status Gpu::launch_bytes(const std::string& file, const std::string& name, std::int64_t blocks,
                         int threads, void* params, int smem_bytes) {
  SCANJIT_ASSIGN_OR_RETURN(const CUfunction function, kernel(file, name));
  if (smem_bytes > 0) SCANJIT_TRY(cuda::prepare(*api_, function, smem_bytes));
  void* arguments[] = {params};
  return cuda::check(
      *api_,
      api_->cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1,
                           static_cast<unsigned>(threads), 1, 1, static_cast<unsigned>(smem_bytes),
                           stream_, arguments, nullptr),
      name.c_str());
}

std::int64_t number_from_environment(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  return *end == '\0' ? value : otherwise;
}

void report_counts(const std::string& json) {
  std::printf("counts: %s\n", json.c_str());
  std::fflush(stdout);
  const char* path = std::getenv("SCANJIT_GPU_COUNTS");
  if (path == nullptr || *path == '\0') return;
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "%s\n", json.c_str());
    std::fclose(file);
  }
}

}  // namespace scanjit::test
