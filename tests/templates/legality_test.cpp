// The op's legality rule against the template's own assertions: what is legal compiles without
// spilling, and what breaks an assertion of the template is illegal.

#include <cstdlib>
#include <random>

#include "core/environment.hpp"
#include "fixture.hpp"
#include "jit/kernel_provider.hpp"
#include "ops/gated_delta_h.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"
#include "support/seed.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

ops::DeviceLimits h200() {
  return ops::limits_of({{"NVIDIA H200"}, 9, 0, 132, 60 << 20, 232448, 6144});
}

GatedDeltaHProblem random_problem(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
  };
  GatedDeltaHProblem problem;
  problem.T = 1024;
  problem.H = 2;
  problem.HV = 4;
  problem.K = pick({16, 40, 64, 96, 128, 200, 256});
  problem.V = pick({16, 24, 64, 128, 200});
  problem.BT = pick({16, 32, 64});
  problem.has_g = pick({0, 1});
  problem.has_gk = pick({0, 1});
  problem.has_h0 = pick({0, 1});
  problem.has_ht = pick({0, 1});
  problem.has_h = pick({0, 1});
  problem.aligned16 = pick({0, 1});
  problem.layout = pick({0, 1}) == 0 ? StateLayout::kKV : StateLayout::kVK;
  return problem;
}

}  // namespace

TEST_CASE("whatever config is legal compiles without spills", "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  jit::KernelProviderOptions options;
  options.environment = read_environment();
  const auto provider = jit::KernelProvider::create(options, os::posix_file_system());
  REQUIRE(provider.ok());
  const unsigned seed = test_seed(2);
  INFO("seed " << seed);
  std::mt19937 random(seed);
  constexpr std::size_t kCases = 20;
  std::vector<std::string> names;
  std::vector<int> most_spilled;
  std::vector<jit::KernelSource> sources;
  while (sources.size() < kCases) {
    const GatedDeltaHProblem problem = random_problem(random);
    const auto op = ops::GatedDeltaH::make(problem);
    REQUIRE(op.ok());
    const std::vector<Config> space = (*op)->space().all();
    const Config config = space[random() % space.size()];
    if (!(*op)->legal(config, h200()).ok()) continue;
    sources.push_back((*op)->stages(config, h200()).back().source);
    // The one corner that cannot do without: see GatedDeltaH::legal.
    const bool aligned = (*op)->key_query().key.alignment == 16;
    most_spilled.push_back(!aligned && problem.BT == 16 && problem.K > 128 ? 64 : 0);
    names.push_back(to_string(config) + " K=" + std::to_string(problem.K) +
                    " V=" + std::to_string(problem.V) + " BT=" + std::to_string(problem.BT) +
                    " aligned16=" + std::to_string(problem.aligned16) +
                    " gk=" + std::to_string(problem.has_gk));
  }
  const auto binaries = (*provider)->get_all(sources, "sm_90a");
  for (std::size_t i = 0; i < binaries.size(); ++i) {
    INFO(names[i] << ": " << binaries[i].status().to_string());
    REQUIRE(binaries[i].ok());
    CHECK(binaries[i]->resources.spill_loads <= most_spilled[i]);
    CHECK(binaries[i]->resources.spill_stores <= most_spilled[i]);
  }
}

TEST_CASE("what breaks a rule of the template is illegal, and the template says which",
          "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  jit::KernelProviderOptions options;
  options.environment = read_environment();
  const auto provider = jit::KernelProvider::create(options, os::posix_file_system());
  REQUIRE(provider.ok());
  struct Row {
    Config config;
    std::int64_t BT;
    const char* sentence;
  };
  const Row rows[] = {{{32, 32, 2, 8}, 64, "BK must give each warp"},
                      {{16, 64, 2, 4}, 16, "BT must give each warp"},
                      {{64, 64, 2, 6}, 64, "WARPS must be a multiple of BV/16"},
                      {{64, 64, 1, 4}, 64, "STAGES must be at least 2"}};
  for (const Row& row : rows) {
    GatedDeltaHProblem problem;
    problem.T = 1024;
    problem.H = problem.HV = 2;
    problem.BT = row.BT;
    const auto op = ops::GatedDeltaH::make(problem);
    REQUIRE(op.ok());
    CHECK_FALSE((*op)->legal(row.config, h200()).ok());
    const auto binary = (*provider)->get((*op)->stages(row.config, h200()).back().source, "sm_90a");
    REQUIRE_FALSE(binary.ok());
    INFO(binary.status().details().compile_log);
    CHECK(binary.status().details().compile_log.find(row.sentence) != std::string::npos);
  }
}
