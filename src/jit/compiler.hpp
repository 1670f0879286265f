#pragma once
/// \file
/// NVRTC to machine code, and what the machine code takes.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/nvrtc.hpp"
#include "jit/kernel_source.hpp"
#include "jit/template_store.hpp"

namespace scanjit::jit {

/// What one kernel takes, of a thread unless said otherwise.
struct KernelResources {
  int registers = 0;
  int smem_static = 0;   ///< bytes of a block that the code declares itself
  int spill_loads = 0;   ///< bytes
  int spill_stores = 0;  ///< bytes
  int stack = 0;         ///< bytes
  std::int64_t code_bytes = 0;  ///< machine code of the kernel

  friend bool operator==(const KernelResources&, const KernelResources&) = default;
};

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

  /// Waits for a free place, then compiles. Thread-safe. Errors: kCompileFailed (log in the details, its
  /// first error in the sentence), kInvalidArgument, kNotFound (template), kOutOfMemory.
  [[nodiscard]] Result<CompiledKernel> compile(const cuda::NvrtcApi& nvrtc, const TemplateStore& templates,
                                               const KernelSource& kernel, const std::string& arch);
  /// The same source as PTX, for people to read.
  [[nodiscard]] Result<std::string> ptx(const cuda::NvrtcApi& nvrtc, const TemplateStore& templates,
                                        const KernelSource& kernel, const std::string& arch);
  [[nodiscard]] int jobs() const noexcept { return jobs_; }
  /// The most compilations that ever ran at once.
  [[nodiscard]] int peak() const;

 private:
  class Place;
  int jobs_;
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  int running_ = 0;
  int peak_ = 0;
};

/// Registers, spills and so on of `entry` from NVRTC's log of `--ptxas-options=-v`.
/// Errors: kInternal if the log says nothing of `entry`.
[[nodiscard]] Result<KernelResources> parse_resources(const std::string& log, const std::string& entry);

/// The machine code of `entry` (ELF section .text.<entry>) in a cubin: two cubins run the same
/// instructions if these bytes are equal. Errors: kCorrupt, kNotFound. Safe on any bytes.
[[nodiscard]] Result<std::string> text_section(const std::string& cubin, const std::string& entry);

}  // namespace scanjit::jit
