// A few small launches of every kind for compute-sanitizer, under which each takes a hundred times
// as long: tools/gpu_check.sh runs one case with memcheck and one with racecheck. The latter has the
// kernels' build for tests, since racecheck does not see that an arrival of one lane at a barrier in
// shared memory comes after what the warp's other lanes did before a __syncwarp.

#include <string>
#include <vector>

#include "gpu/case.hpp"
#include "gpu/run.hpp"
#include "reference/cases.hpp"

namespace scanjit::test {

namespace {

void small_launches(Gpu& gpu, bool perturb) {
  std::int64_t launches = 0;
  const auto check = [&](const reference::GatedDeltaHInputs& inputs, RunOptions options) {
    options.perturb = perturb;
    const RunResult result = must(run(gpu, inputs, options));
    ++launches;
    INFO(result.damage);
    CHECK(result.damage.empty());
    return result;
  };
  SECTION("the main widths") {
    GatedDeltaHProblem p;
    p.packed = true;
    p.sequences = 2;
    p.T = 150;
    p.H = p.HV = 1;
    p.has_g = p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
    reference::GeneratorOptions generator;
    generator.lengths = {140, 10};
    const reference::GatedDeltaHInputs inputs = must(reference::generate(p, generator));
    const RunResult wanted = check(inputs, {});
    // Every kernel costs the tool a second to look at: one config in eight, and some of every
    // kernel.
    std::vector<Config> configs = must(varied_configs(gpu, p));
    const std::vector<Config> legal = must(legal_configs(gpu, p));
    for (std::size_t i = 0; i < legal.size(); i += 8) configs.push_back(legal[i]);
    must(compile_all(gpu, p, configs));
    for (const Config& config : configs) {
      RunOptions options;
      options.config = config;
      CHECK(bit_difference(wanted, check(inputs, options)).empty());
    }
  }
  SECTION("random problems") {
    for (std::uint64_t seed = 500; seed < 512; ++seed) {
      const reference::GatedDeltaHCase random_case = reference::random_case(seed, 160);
      INFO(reference::to_string(random_case));
      const reference::GatedDeltaHInputs inputs =
          must(reference::generate(random_case.problem, random_case.generator));
      check(inputs, options_of(random_case, inputs));
    }
  }
  report_counts("{\"what\":\"sanitizer\",\"launches\":" + std::to_string(launches) + "}");
}

}  // namespace

TEST_CASE("Small launches of every kind", "[gpu][sanitizer]") {
  SCANJIT_TEST_GPU(gpu);
  small_launches(gpu, false);
}

TEST_CASE("Small launches of every kind, built for a race checker", "[gpu][racecheck]") {
  SCANJIT_TEST_GPU(gpu);
  small_launches(gpu, true);
}

}  // namespace scanjit::test
