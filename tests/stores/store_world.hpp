#pragma once
// What the store tests share: kernels of a made-up template, providers with the fake NVRTC,
// children of this program, and the counts that are kept.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/environment.hpp"
#include "jit/kernel_provider.hpp"
#include "os/file_system.hpp"
#include "os/process.hpp"
#include "support/catch.hpp"
#include "support/temporary_directory.hpp"

namespace scanjit::test {

/// A count of trials and what went wrong in them, as one line of JSON on standard output and, if
/// SCANJIT_COUNTS names a file, at its end. `more`: further fields, `"name":value,...`.
void report_count(const std::string& what, std::int64_t trials, std::int64_t failures,
                  const std::string& more = {});

/// An environment in which the fake NVRTC is the only one.
[[nodiscard]] Environment fake_nvrtc_environment();

/// The fake NVRTC of this process, loaded now.
class FakeNvrtc {
 public:
  FakeNvrtc();
  /// The `nth` call from now (1: the next; 0: none) returns `result`.
  void fail_call(long nth, int result) const { fail_call_(nth, result); }
  [[nodiscard]] long calls() const { return calls_(); }
  [[nodiscard]] long live() const { return live_(); }

 private:
  void (*fail_call_)(long, int) = nullptr;
  long (*calls_)() = nullptr;
  long (*live_)() = nullptr;
};

[[nodiscard]] jit::TemplateStore numbered_templates();
/// The `number`th kernel; each has a source id of its own.
[[nodiscard]] jit::KernelSource numbered_kernel(int number);

/// A provider of numbered kernels. `change` may set further options.
[[nodiscard]] std::unique_ptr<jit::KernelProvider> provider_on(
    os::FileSystem& files, const std::string& cache, const std::vector<std::string>& packs = {},
    const std::function<void(jit::KernelProviderOptions&)>& change = {});

/// The code that NVRTC `version` makes of a numbered kernel, by compiling it in memory alone.
[[nodiscard]] std::string expected_code(int number);
/// The same, as found in a binary.
[[nodiscard]] std::string code_of(const jit::Binary& binary);

/// This program's hidden test cases of `tag` in a process of their own.
[[nodiscard]] os::Process start_child(const std::string& tag,
                                      const std::vector<std::string>& variables);
/// The same, to its end; true if they passed. What they printed is in `output`.
[[nodiscard]] bool run_child(const std::string& tag, const std::vector<std::string>& variables,
                             std::string& output);
/// A variable that the parent set.
[[nodiscard]] std::string variable(const char* name);

}  // namespace scanjit::test
