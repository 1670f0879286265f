// ABC's templates: each architecture that we name compiles all of them, aligned and not, and spills
// stay where they are known to be.

#include <algorithm>

#include "cuda/device_facts.hpp"
#include "fixture.hpp"
#include "jit/kernel_provider.hpp"
#include "ops/abc_backward.hpp"
#include "ops/abc_forward.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;
using namespace scanjit::test;

namespace {

struct Form {
  DType dtype;
  std::int64_t M;
  bool aligned;
  Config config;
  // Bytes that the keys' kernel stores to local memory, and any other.
  int keys_spill, other_spill;
};

// Of both directions, what forward saves computed again.
std::vector<KernelSource> kernels(const Form& form) {
  AbcProblem sizes;
  sizes.dtype = form.dtype;
  sizes.T = 1024;
  sizes.H = 4;
  sizes.M = form.M;
  sizes.aligned16 = form.aligned;
  sizes.numerics = "any";
  AbcForwardProblem forward;
  AbcBackwardProblem backward;
  static_cast<AbcProblem&>(forward) = static_cast<AbcProblem&>(backward) = sizes;
  std::vector<KernelSource> list = (*ops::AbcForward::make(forward))->kernels(form.config, {});
  for (KernelSource& source : (*ops::AbcBackward::make(backward))->kernels(form.config, {})) {
    if (std::find(list.begin(), list.end(), source) == list.end())
      list.push_back(std::move(source));
  }
  return list;
}

}  // namespace

TEST_CASE("ABC's kernels compile for every architecture that we name", "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  KernelProviderOptions options;
  options.environment = read_environment();
  const auto provider = KernelProvider::create(options, os::posix_file_system());
  REQUIRE(provider.ok());
  const Form usual{DType::kBf16, 64, true, {384, 64, 2, 8, 2}, 600, 32},
      alone{DType::kBf16, 64, true, {256, 64, 3, 8, 2}, 0, 0},
      longer{DType::kF16, 64, true, {64, 64, 2, 8, 4}, 0, 0},
      shorter{DType::kBf16, 64, true, {768, 64, 3, 8, 1}, 300, 32},
      serial{DType::kBf16, 64, true, {64, 64, 2, 8, 0}, 600, 32},
      odd{DType::kF16, 85, false, {384, 64, 3, 8, 1}, 128, 64};
  for (const auto& [major, minor] : {std::pair{9, 0}, {8, 0}, {8, 9}, {10, 0}, {12, 0}}) {
    // Other forms once; they are the same source everywhere.
    for (const Form& form : {usual, alone, longer, shorter, serial, odd}) {
      if (major != 9 && !(form.config == usual.config)) continue;
      const std::vector<KernelSource> sources = kernels(form);
      CHECK(sources.size() == (form.config.segment_chunks == 0 ? 8 : 7));
      const auto binaries = (*provider)->get_all(sources, cuda::arch_name(major, minor));
      for (std::size_t i = 0; i < binaries.size(); ++i) {
        INFO(sources[i].entry << " " << to_string(form.config) << " M " << form.M << " cc " << major
                              << "." << minor << ": " << binaries[i].status().to_string());
        REQUIRE(binaries[i].ok());
        const KernelResources& resources = binaries[i]->resources;
        // As many registers as the launch bounds leave.
        CHECK(resources.registers <= (sources[i].min_blocks == 2 ? 128 : 255));
        if (major == 9) {
          const bool keys = sources[i].entry == "abc_backward_keys";
          CHECK(resources.spill_stores <= (keys ? form.keys_spill : form.other_spill));
        }
      }
    }
  }
}
