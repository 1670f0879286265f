// ABC's templates: each architecture that we name compiles all of them, aligned and not.

#include "abc/abc_params.h"
#include "cuda/device_facts.hpp"
#include "fixture.hpp"
#include "jit/kernel_provider.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;
using namespace scanjit::test;

namespace {

struct Form {
  DType dtype;
  int slot_steps, segment_chunks, stages;
  bool exact, aligned;
};

Constant integer(const char* name, std::int64_t value) {
  return {name, Constant::Type::kInt, value};
}
Constant boolean(const char* name, bool value) {
  return {name, Constant::Type::kBool, value ? 1 : 0};
}

std::vector<KernelSource> kernels(const Form& form) {
  const auto kernel = [&](const char* file, const char* entry, const char* traits, bool own_s) {
    KernelSource source;
    source.template_file = file;
    source.entry = entry;
    source.traits = traits;
    source.params_type = "scanjit::abc::AbcParams";
    source.constants = {integer("DTYPE", static_cast<int>(form.dtype)),
                        integer("SLOT_STEPS", form.slot_steps),
                        boolean("EXACT", form.exact),
                        integer("SEGMENT_CHUNKS", form.segment_chunks),
                        integer("STAGES", form.stages),
                        boolean("ALIGNED", form.aligned)};
    const bool scan = std::string(file) == "abc/abc_scan.cu";
    const bool summary = std::string(file) == "abc/abc_summary.cu";
    source.threads = scan ? abc::kScanThreads : abc::kThreads;
    source.min_blocks = scan || form.slot_steps > 4 ? 1 : 2;
    source.smem_bytes =
        scan      ? 0
        : summary ? abc::summary_smem_bytes(form.slot_steps, form.segment_chunks, form.stages)
                  : abc::chunk_smem_bytes(form.slot_steps, form.segment_chunks, form.stages, own_s);
    return source;
  };
  std::vector<KernelSource> all = {
      kernel("abc/abc_scan.cu", "abc_scan", "AbcScanTraits", false),
      kernel("abc/abc_scan.cu", "abc_scan_back", "AbcScanTraits", false),
      kernel("abc/abc_forward.cu", "abc_forward", "AbcForwardTraits", false),
      kernel("abc/abc_backward.cu", "abc_backward_rows", "AbcBackwardRowsTraits", false),
      kernel("abc/abc_backward.cu", "abc_backward_keys", "AbcBackwardKeysTraits", true)};
  for (const bool backward : {false, true}) {
    all.push_back(kernel("abc/abc_summary.cu", "abc_summary", "AbcSummaryTraits", false));
    all.back().constants.push_back(boolean("BACKWARD", backward));
    all.back().constants.push_back(integer("SLABS", 4));
  }
  return all;
}

}  // namespace

TEST_CASE("ABC's kernels compile for every architecture that we name", "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  KernelProviderOptions options;
  options.environment = read_environment();
  const auto provider = KernelProvider::create(options, os::posix_file_system());
  REQUIRE(provider.ok());
  const Form usual{DType::kBf16, 4, 2, 2, true, true}, odd{DType::kF16, 6, 1, 3, false, false};
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 0}, {10, 0}, {12, 0}}) {
    // The general path once; it is the same source everywhere.
    for (const Form& form : {usual, odd}) {
      if (!form.aligned && major != 9) continue;
      for (const auto& binary :
           (*provider)->get_all(kernels(form), cuda::arch_name(major, minor))) {
        INFO("cc " << major << "." << minor << ": " << binary.status().to_string());
        REQUIRE(binary.ok());
        // As many registers as the launch bounds leave.
        CHECK(binary->resources.registers <= (form.slot_steps > 4 ? 255 : 128));
      }
    }
  }
}
