#include "jit/compiler.hpp"

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "jit/specialiser.hpp"

namespace scanjit::jit {
namespace {

// "sm_" and two or three digits, perhaps an 'a' or 'f': real architectures only, so that NVRTC
// makes machine code and not PTX that the driver would compile again.
bool is_real_arch(std::string_view arch) {
  if (!arch.starts_with("sm_")) return false;
  arch.remove_prefix(3);
  if (arch.ends_with("a") || arch.ends_with("f")) arch.remove_suffix(1);
  return (arch.size() == 2 || arch.size() == 3) &&
         std::all_of(arch.begin(), arch.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// From 12.9 on NVRTC has a cache of its own in the driver's folder. A hit there brings machine code
// without the assembler's statistics, and our cache keeps the code anyway.
bool has_own_cache(const cuda::NvrtcApi& nvrtc) {
  return nvrtc.major > 12 || (nvrtc.major == 12 && nvrtc.minor >= 9);
}

Result<cuda::NvrtcOutput> run_nvrtc(const cuda::NvrtcApi& nvrtc, const TemplateStore& templates,
                                    const KernelSource& kernel, const std::string& arch,
                                    cuda::NvrtcTarget target) {
  SCANJIT_ASSIGN_OR_RETURN(const std::string source, generate_source(kernel));
  SCANJIT_ASSIGN_OR_RETURN(std::vector<std::string> options, compile_options(arch));
  if (has_own_cache(nvrtc)) options.emplace_back("--no-cache");
  SCANJIT_ASSIGN_OR_RETURN(std::vector<TemplateFile> files,
                           templates.closure(kernel.template_file));
  std::vector<cuda::NvrtcHeader> headers;
  headers.reserve(files.size());
  for (TemplateFile& file : files) headers.push_back({std::move(file.name), std::move(file.text)});
  return cuda::compile(nvrtc, kernel.entry + ".cu", source, headers, options, target);
}

}  // namespace

Result<std::vector<std::string>> compile_options(const std::string& arch) {
  if (!is_real_arch(arch)) {
    return invalid_argument("architecture is \"" + arch +
                            "\", must be a real one such as sm_80, sm_90a or sm_120");
  }
  // No fused multiply-add but where a template writes one, so that every config rounds alike. No
  // precompiled headers: that is NVRTC's default.
  return std::vector<std::string>{"--gpu-architecture=" + arch, "--std=c++20", "--fmad=false",
                                  "--device-as-default-execution-space", "--ptxas-options=-v"};
}

class Compiler::Place {
 public:
  explicit Place(Compiler& compiler) : compiler_(compiler) {
    std::unique_lock lock(compiler_.mutex_);
    compiler_.freed_.wait(lock, [&] { return compiler_.running_ < compiler_.jobs_; });
    ++compiler_.running_;
    compiler_.peak_ = std::max(compiler_.peak_, compiler_.running_);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    {
      const std::lock_guard lock(compiler_.mutex_);
      --compiler_.running_;
    }
    compiler_.freed_.notify_one();
  }

 private:
  Compiler& compiler_;
};

Compiler::Compiler(int jobs) : jobs_(jobs) {
  constexpr int kMostByDefault = 16;
  if (jobs_ <= 0)
    jobs_ = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostByDefault);
}

Result<CompiledKernel> Compiler::compile(const cuda::NvrtcApi& nvrtc,
                                         const TemplateStore& templates, const KernelSource& kernel,
                                         const std::string& arch) {
  const Place place(*this);
  SCANJIT_ASSIGN_OR_RETURN(cuda::NvrtcOutput output,
                           run_nvrtc(nvrtc, templates, kernel, arch, cuda::NvrtcTarget::kCubin));
  CompiledKernel compiled;
  SCANJIT_ASSIGN_OR_RETURN(compiled.resources, parse_resources(output.log, kernel.entry));
  SCANJIT_ASSIGN_OR_RETURN(const std::string text, text_section(output.code, kernel.entry));
  compiled.resources.code_bytes = static_cast<std::int64_t>(text.size());
  compiled.cubin = std::move(output.code);
  compiled.log = std::move(output.log);
  return compiled;
}

Result<std::string> Compiler::ptx(const cuda::NvrtcApi& nvrtc, const TemplateStore& templates,
                                  const KernelSource& kernel, const std::string& arch) {
  const Place place(*this);
  SCANJIT_ASSIGN_OR_RETURN(cuda::NvrtcOutput output,
                           run_nvrtc(nvrtc, templates, kernel, arch, cuda::NvrtcTarget::kPtx));
  return std::move(output.code);
}

int Compiler::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace scanjit::jit
