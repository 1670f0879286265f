#include "fixture.hpp"

#include <fstream>
#include <iostream>

#include "fixture/scale/scale_params.h"
#include "os/posix_file_system.hpp"
#include "os/process.hpp"
#include "support/catch.hpp"

namespace scanjit::test {

const cuda::NvrtcApi* nvrtc_or_skip() {
  const auto nvrtc = cuda::load_nvrtc(read_environment());
  if (nvrtc.ok()) return *nvrtc;
  std::cout << "skipped: " << nvrtc.status().message() << "\n";
  return nullptr;
}

jit::TemplateStore fixture_templates() {
  auto store = jit::TemplateStore::from_directory(SCANJIT_FIXTURE_DIR, os::posix_file_system());
  REQUIRE(store.ok());
  return std::move(store).value();
}

jit::KernelSource scale_kernel(int bv, int stages, int warps, bool add_one) {
  using Type = jit::Constant::Type;
  jit::KernelSource kernel;
  kernel.template_file = "scale/scale.cu";
  kernel.entry = "scale";
  kernel.traits = "ScaleTraits";
  kernel.params_type = "scanjit::scale::ScaleParams";
  kernel.constants = {{"BV", Type::kInt, bv},
                      {"STAGES", Type::kInt, stages},
                      {"WARPS", Type::kInt, warps},
                      {"ADD_ONE", Type::kBool, add_one ? 1 : 0}};
  kernel.threads = warps * 32;
  kernel.smem_bytes = scale::scale_smem_bytes(bv, stages);
  return kernel;
}

bool is_mapped(const std::string& part_of_path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(part_of_path) != std::string::npos) return true;
  }
  return false;
}

bool run_child(const std::string& tag, const std::vector<std::string>& variables,
               std::string& output) {
  os::ProcessOptions options;
  options.argv = {"/proc/self/exe", tag};
  options.environment = variables;
  options.capture_stderr = true;
  constexpr std::int64_t kTimeoutMs = 120000;
  const auto child = os::run_process(options, "", kTimeoutMs);
  REQUIRE(child.ok());
  output = child->output + child->error_output;
  // A filter that names no test must not pass for one that did.
  return child->exit.success() && output.find("All tests passed") != std::string::npos;
}

}  // namespace scanjit::test
