#pragma once
// A command-line world with a pack, for what needs a GPU and is tested against the fake driver.

#include <sys/stat.h>

#include <filesystem>

#include "cli_world.hpp"
#include "jit/binary_cache.hpp"
#include "jit/kernel_provider.hpp"
#include "ops_abc_samples.hpp"
#include "ops_samples.hpp"
#include "os/posix_file_system.hpp"

namespace scanjit::test {

/// The problem of `PackedWorld`, as --shape spells it.
inline constexpr const char* kShape = "N=2,T=64,H=1,HV=2,K=64,V=64";

/// One small problem, and a pack of machine code for every config of it that is legal on an H200:
/// made up, for a driver that loads anything and computes nothing.
class PackedWorld : public CliWorld {
 public:
  PackedWorld() {
    problem.B = 2;
    problem.T = 64;
    problem.H = 1;
    problem.HV = 2;
    problem.K = problem.V = 64;
    problem.has_g = problem.has_h0 = problem.has_ht = true;
    stock(problem);
  }
  /// Machine code for every config of a problem that is legal on an H200, into the pack.
  template <class Problem>
  void stock(const Problem& wanted) const {
    const auto provider = jit::KernelProvider::create({}, os::posix_file_system());
    REQUIRE(provider.ok());
    std::filesystem::create_directories(pack() + "/bin");
    REQUIRE(chmod(pack().c_str(), 0700) == 0);
    REQUIRE(chmod((pack() + "/bin").c_str(), 0700) == 0);
    const auto op = made(wanted);
    REQUIRE(op != nullptr);
    for (const Config& config : op->space().all()) {
      if (!op->legal(config, h200()).ok()) continue;
      for (const jit::KernelSource& source : op->kernels(config, h200())) {
        jit::StoredBinary binary;
        binary.source_id = *(*provider)->source_id(source, "sm_90a");
        binary.binary_id = jit::make_binary_id(binary.source_id, "13.0.88 made up");
        binary.entry = source.entry;
        binary.arch = "sm_90a";
        binary.nvrtc = "13.0.88";
        binary.cubin = "no machine code";
        write("pack/bin/" + binary.binary_id + ".cubin", jit::encode_binary(binary));
      }
    }
  }
  [[nodiscard]] std::string pack() const { return folder.file("pack"); }
  /// Runs it with the pack.
  [[nodiscard]] Ran gpu(std::vector<std::string> arguments, const std::string& input = {},
                        std::vector<std::string> variables = {}) const {
    arguments.insert(arguments.end(), {"--pack", pack()});
    return spawn(std::move(arguments), input, std::move(variables));
  }
  GatedDeltaHProblem problem;
};

}  // namespace scanjit::test
