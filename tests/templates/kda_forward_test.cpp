// The stages of the KDA forward pass: each architecture compiles them, and host and device agree on
// shared memory (the generated source asserts it). Nothing spills but `prepare`, and that little.

#include "ops/kda_forward.hpp"
#include "cuda/device_facts.hpp"
#include "fixture.hpp"
#include "jit/kernel_provider.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;
using namespace scanjit::test;

namespace {

KdaForwardProblem usual(KdaGate gate = KdaGate::kBounded) {
  KdaForwardProblem p;
  p.T = 4096;
  p.H = p.HV = 4;
  p.gate = gate;
  p.has_A_log = p.has_dt_bias = gate == KdaGate::kBounded || gate == KdaGate::kSoftplus;
  if (gate == KdaGate::kScalar) p.g_dtype = p.beta_dtype = DType::kF32;
  p.has_h0 = p.has_ht = true;
  p.numerics = "any";
  return p;
}

// Everything that a template can be asked for at once.
KdaForwardProblem odd() {
  KdaForwardProblem p = usual(KdaGate::kSoftplus);
  p.K = 64;
  p.V = 256;
  p.packed = true;
  p.sequences = 3;
  p.has_h0_indices = p.has_ht_indices = true;
  p.checkpoints = 2;
  p.layout = StateLayout::kKV;
  p.state_dtype = DType::kBf16;
  p.aligned16 = false;
  return p;
}

KdaForwardProblem wide() {
  KdaForwardProblem p = usual(KdaGate::kPrecomputed);
  p.K = 256;
  p.V = 64;
  p.g_dtype = p.beta_dtype = DType::kF32;
  return p;
}

// How many blocks a kernel is built for and how deep the pre-scan's ring is follow from these.
ops::DeviceLimits limits_of(int major, int minor) {
  tuning::GpuFacts gpu;
  gpu.compute_major = major;
  gpu.compute_minor = minor;
  gpu.sm_count = 132;
  const bool small = major == 12 || (major == 8 && minor != 0);
  gpu.smem_optin_bytes = (small ? 99 : major == 8 ? 163 : 227) * 1024;
  return ops::limits_of(gpu);
}

// `prepare` may spill so many bytes.
void check_all(KernelProvider& provider, const KdaForwardProblem& problem,
               const std::vector<Config>& configs, int major, int minor, int prepare_spill) {
  const auto op = ops::KdaForward::make(problem);
  INFO(op.status().to_string());
  REQUIRE(op.ok());
  const std::string arch = cuda::arch_name(major, minor);
  for (const Config& config : configs) {
    const std::vector<KernelSource> kernels = (*op)->kernels(config, limits_of(major, minor));
    const auto binaries = provider.get_all(kernels, arch);
    for (std::size_t i = 0; i < binaries.size(); ++i) {
      INFO(arch << " " << to_string(config) << " " << kernels[i].entry << ": "
                << binaries[i].status().to_string());
      REQUIRE(binaries[i].ok());
      const bool prepare = kernels[i].entry == "kda_prepare";
      CHECK(binaries[i]->resources.spill_loads <= (prepare ? prepare_spill : 0));
      CHECK(binaries[i]->resources.spill_stores <= (prepare ? prepare_spill : 0));
    }
  }
}

}  // namespace

TEST_CASE("the stages of KDA compile for every architecture that we name", "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  KernelProviderOptions options;
  options.environment = read_environment();
  const auto provider = KernelProvider::create(options, os::posix_file_system());
  REQUIRE(provider.ok());
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 0}, {10, 0}, {12, 0}}) {
    // Three blocks a multiprocessor leave each thread some registers too few on sm_90.
    const int spill = major == 9 ? 80 : 0;
    check_all(**provider, usual(), {{64, 128, 1, 4}, {64, 128, 1, 4, 16}}, major, minor, spill);
    check_all(**provider, odd(), {{32, 64, 1, 2, 16}}, major, minor, 0);
  }
  // What an H200 runs, and the other gates and widths.
  check_all(**provider, usual(KdaGate::kScalar), {{64, 128, 2, 4}, {128, 128, 2, 8, 16}}, 9, 0, 80);
  check_all(**provider, odd(), {{64, 64, 3, 4}}, 9, 0, 0);
  // 512 threads leave each 128 registers, a few too few for the recurrences of the diagonal tiles.
  check_all(**provider, wide(), {{64, 256, 1, 4, 16}}, 9, 0, 160);
}
