#pragma once
/// \file
/// From a kernel's source to machine code with NVRTC.

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/nvrtc.hpp"
#include "jit/cubin.hpp"
#include "jit/kernel_source.hpp"
#include "jit/template_store.hpp"

namespace scanjit::jit {

struct CompiledKernel {
  std::string cubin;
  KernelResources resources;
  std::string log;  ///< warnings and the assembler's statistics
};

/// Options of every compilation for `arch` ("sm_90a"). Part of a binary's identity.
/// Errors: kInvalidArgument if `arch` is no architecture's name.
[[nodiscard]] Result<std::vector<std::string>> compile_options(const std::string& arch);

/// At most `jobs` compilations at once, whoever asks for them.
class Compiler {
 public:
  /// `jobs` 0: as many as the machine has cores, at most 16.
  explicit Compiler(int jobs);

  /// Waits for a free place, then compiles. Thread-safe. Errors: kCompileFailed (log in the
  /// details, its first error in the sentence), kInvalidArgument, kNotFound (template),
  /// kOutOfMemory.
  [[nodiscard]] Result<CompiledKernel> compile(const cuda::NvrtcApi& nvrtc,
                                               const TemplateStore& templates,
                                               const KernelSource& kernel, const std::string& arch);
  /// The same source as PTX, for people to read.
  [[nodiscard]] Result<std::string> ptx(const cuda::NvrtcApi& nvrtc, const TemplateStore& templates,
                                        const KernelSource& kernel, const std::string& arch);
  [[nodiscard]] int jobs() const noexcept { return jobs_; }
  /// The most compilations that ever ran at once.
  [[nodiscard]] int peak() const;

 private:
  class Place;  // one of `jobs`, held while compiling
  int jobs_;
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  int running_ = 0;
  int peak_ = 0;
};

}  // namespace scanjit::jit
