// The gated-delta state scan's template: each architecture compiles it without spilling, and at the
// width that it is meant for every config of the space is other machine code.

#include <map>

#include "cuda/device_facts.hpp"
#include "fixture.hpp"
#include "jit/kernel_provider.hpp"
#include "ops/gated_delta_h.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;
using namespace scanjit::test;

namespace {

// One sequence of 1,024 tokens with everything that a Gated DeltaNet layer gives and takes.
GatedDeltaHProblem layer() {
  GatedDeltaHProblem problem;
  problem.B = 16;
  problem.T = 1024;
  problem.H = 16;
  problem.HV = 32;
  problem.has_g = problem.has_h0 = problem.has_ht = true;
  return problem;
}

ops::DeviceLimits limits_of_cc(int major, int minor) {
  tuning::GpuFacts gpu;
  gpu.compute_major = major;
  gpu.compute_minor = minor;
  gpu.sm_count = 100;
  const bool datacenter = minor == 0 && major < 12;
  gpu.smem_optin_bytes = !datacenter ? 101376 : major == 8 ? 166912 : 232448;
  return ops::limits_of(gpu);
}

std::unique_ptr<KernelProvider> embedded_templates() {
  KernelProviderOptions options;
  options.environment = read_environment();
  auto provider = KernelProvider::create(options, os::posix_file_system());
  REQUIRE(provider.ok());
  return std::move(provider).value();
}

}  // namespace

TEST_CASE("the scan compiles for every architecture that we name, without spills", "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  const auto provider = embedded_templates();
  GatedDeltaHProblem odd = layer();  // the general path
  odd.B = 1;
  odd.packed = true;
  odd.sequences = 100;
  odd.K = 96;
  odd.V = 200;
  odd.BT = 16;
  odd.dtype = DType::kF16;
  odd.has_gk = true;
  odd.aligned16 = false;
  odd.layout = StateLayout::kVK;
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 0}, {10, 0}, {12, 0}}) {
    for (const GatedDeltaHProblem& problem : {layer(), odd}) {
      const auto op = ops::GatedDeltaH::make(problem);
      REQUIRE(op.ok());
      const auto config = (*op)->heuristic(limits_of_cc(major, minor));
      REQUIRE(config.ok());
      for (const auto& binary :
           provider->get_all((*op)->kernels(*config, limits_of_cc(major, minor)),
                             cuda::arch_name(major, minor))) {
        INFO("cc " << major << "." << minor << " " << to_string(*config) << ": "
                   << binary.status().to_string());
        REQUIRE(binary.ok());
        CHECK(binary->resources.spill_loads == 0);
        CHECK(binary->resources.spill_stores == 0);
      }
    }
  }
}

TEST_CASE("at K = V = 128 an H200 has at least 16 configs, each other machine code",
          "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  const auto provider = embedded_templates();
  const auto op = ops::GatedDeltaH::make(layer());
  REQUIRE(op.ok());
  const auto configs = ops::candidates(**op, limits_of_cc(9, 0));
  REQUIRE(configs.ok());
  CHECK(configs->size() >= 16);
  std::vector<KernelSource> kernels;
  for (const Config& config : *configs) {
    const auto stages = (*op)->stages(config, limits_of_cc(9, 0));
    REQUIRE(stages.size() == 1);
    kernels.push_back(stages[0].source);
  }
  const auto binaries = provider->get_all(kernels, "sm_90a");
  std::map<std::string, Config> texts;
  for (std::size_t i = 0; i < binaries.size(); ++i) {
    const Config& config = (*configs)[i];
    INFO(to_string(config) << ": " << binaries[i].status().to_string());
    REQUIRE(binaries[i].ok());
    CHECK(binaries[i]->resources.spill_loads == 0);
    CHECK(binaries[i]->resources.spill_stores == 0);
    const auto text = text_section(*binaries[i]->cubin, binaries[i]->entry);
    REQUIRE(text.ok());
    const auto [other, is_new] = texts.emplace(*text, config);
    if (!is_new) FAIL_CHECK("the same machine code as " << to_string(other->second));
  }
}
