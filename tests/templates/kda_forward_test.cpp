// The stages of the KDA forward pass: each architecture compiles them, without spilling, and host
// and device agree on shared memory (the generated source asserts it).

#include "fixture.hpp"
#include "jit/kernel_provider.hpp"
#include "kda_forward/kda_forward_params.h"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;
using namespace scanjit::test;

namespace {

namespace params = scanjit::kda_forward;

Constant integer(const char* name, int value) { return {name, Constant::Type::kInt, value}; }
Constant boolean(const char* name, bool value) {
  return {name, Constant::Type::kBool, value ? 1 : 0};
}

struct Shape {
  int K = 128, V = 128;
  bool packed = false, aligned = true;
};

KernelSource prepare(const Shape& s, int gate, bool any_range, bool wide) {
  KernelSource source;
  source.template_file = "kda_forward/prepare.cu";
  source.entry = "kda_prepare";
  source.traits = "KdaPrepareTraits";
  source.params_type = "scanjit::kda_forward::PrepareParams";
  const bool raw = gate == params::kGateBounded || gate == params::kGateSoftplus;
  source.constants = {integer("K", s.K),
                      integer("V", s.V),
                      integer("GATE", gate),
                      boolean("RANGE_ANY", any_range),
                      boolean("NORMALIZE", true),
                      boolean("BETA_SIGMOID", !wide),
                      boolean("GATE_F32", wide),
                      boolean("BETA_F32", wide),
                      boolean("HAS_A_LOG", raw),
                      boolean("HAS_DT_BIAS", raw),
                      boolean("PACKED", s.packed),
                      boolean("INDEX64", s.packed),
                      boolean("ALIGNED", s.aligned),
                      integer("PREFETCH", 64)};
  source.threads = params::prepare_threads(s.K);
  source.smem_bytes = params::prepare_smem_bytes(s.K, s.V, any_range);
  return source;
}

KernelSource scan(const Shape& s, int bv, int stages, bool prescan, bool split, bool options) {
  KernelSource source;
  source.template_file = "kda_forward/scan.cu";
  source.entry = "kda_scan";
  source.traits = "KdaScanTraits";
  source.params_type = "scanjit::kda_forward::ScanParams";
  source.constants = {integer("K", s.K),
                      integer("V", s.V),
                      integer("BV", bv),
                      integer("STAGES", stages),
                      boolean("PRESCAN", prescan),
                      boolean("SPLIT", split),
                      boolean("HAS_H0", !split),
                      boolean("HAS_HT", true),
                      boolean("HAS_H0_INDICES", options),
                      boolean("HAS_HT_INDICES", options),
                      boolean("HAS_CHECKPOINTS", options),
                      boolean("POOL_INDEX64", options),
                      boolean("LAYOUT_VK", !options),
                      boolean("STATE_BF16", options),
                      boolean("PACKED", s.packed),
                      boolean("INDEX64", s.packed),
                      boolean("ALIGNED", s.aligned),
                      boolean("WARP_PRODUCTS", false),
                      boolean("PERTURB", false)};
  source.threads = bv * 2;
  source.smem_bytes = params::scan_smem_bytes(s.K, bv, stages, prescan);
  return source;
}

KernelSource merge(const Shape& s) {
  KernelSource source;
  source.template_file = "kda_forward/merge.cu";
  source.entry = "kda_merge";
  source.traits = "KdaMergeTraits";
  source.params_type = "scanjit::kda_forward::MergeParams";
  source.constants = {integer("K", s.K),
                      integer("V", s.V),
                      boolean("HAS_H0", true),
                      boolean("HAS_H0_INDICES", s.packed),
                      boolean("POOL_INDEX64", s.packed),
                      boolean("LAYOUT_VK", true),
                      boolean("STATE_BF16", false),
                      boolean("PACKED", s.packed),
                      boolean("INDEX64", s.packed)};
  source.threads = 2 * s.K;
  source.smem_bytes = params::merge_smem_bytes(s.K);
  return source;
}

KernelSource offsets() {
  KernelSource source;
  source.template_file = "kda_forward/offsets.cu";
  source.entry = "kda_offsets";
  source.traits = "KdaOffsetsTraits";
  source.params_type = "scanjit::kda_forward::OffsetsParams";
  source.constants = {boolean("INDEX64", true)};
  source.threads = params::kOffsetsThreads;
  return source;
}

// Spills are allowed up to `spill_bytes`.
void check_all(KernelProvider& provider, const std::vector<KernelSource>& kernels, const char* arch,
               int spill_bytes = 0) {
  const auto binaries = provider.get_all(kernels, arch);
  for (std::size_t i = 0; i < binaries.size(); ++i) {
    INFO(arch << " " << kernels[i].entry << " " << i << ": " << binaries[i].status().to_string());
    REQUIRE(binaries[i].ok());
    CHECK(binaries[i]->resources.spill_loads <= spill_bytes);
    CHECK(binaries[i]->resources.spill_stores <= spill_bytes);
  }
}

}  // namespace

TEST_CASE("the stages of KDA compile for every architecture that we name, without spills",
          "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  KernelProviderOptions options;
  options.environment = read_environment();
  const auto provider = KernelProvider::create(options, os::posix_file_system());
  REQUIRE(provider.ok());
  const Shape usual, odd{64, 256, true, false}, wide{256, 64, false, true};
  for (const char* arch : {"sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"}) {
    check_all(**provider,
              {prepare(usual, params::kGateBounded, false, false),
               prepare(odd, params::kGateSoftplus, true, false),
               scan(usual, 64, 1, false, false, false), scan(odd, 32, 1, false, true, true),
               scan(usual, 64, 1, true, false, false), merge(usual), merge(odd), offsets()},
              arch);
  }
  // What an H200 runs, and the other gates and widths.
  check_all(
      **provider,
      {prepare(usual, params::kGateScalar, false, true), scan(usual, 64, 2, false, false, true),
       scan(usual, 128, 2, false, true, false), scan(usual, 64, 4, true, false, false),
       scan(usual, 128, 4, true, false, false), scan(odd, 64, 3, false, true, true), merge(wide)},
      "sm_90a");
  // 512 threads leave each 128 registers, a few too few for the recurrences of the diagonal tiles.
  check_all(**provider, {prepare(wide, params::kGatePrecomputed, true, true)}, "sm_90a", 160);
}
