#pragma once
// The fixture template's kernels, and what every test here starts with.

#include <string>

#include "cuda/nvrtc.hpp"
#include "jit/kernel_source.hpp"
#include "jit/template_store.hpp"

namespace scanjit::test {

/// The process's NVRTC; null where there is none, and then "skipped: REASON" is printed.
[[nodiscard]] const cuda::NvrtcApi* nvrtc_or_skip();

/// The templates below tests/templates/fixture.
[[nodiscard]] jit::TemplateStore fixture_templates();

[[nodiscard]] jit::KernelSource scale_kernel(int bv = 64, int stages = 2, int warps = 2,
                                             bool add_one = false);

/// Whether a library of this name is mapped into the process.
[[nodiscard]] bool is_mapped(const std::string& part_of_path);

/// Runs the hidden test cases of `tag` in a process of their own, with `variables` ("NAME=value")
/// in its environment; true if they passed. Their output is in `output`.
[[nodiscard]] bool run_child(const std::string& tag, const std::vector<std::string>& variables,
                             std::string& output);

}  // namespace scanjit::test
