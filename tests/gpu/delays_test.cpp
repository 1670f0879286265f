// The kernels built with random delays around every barrier (Cfg::PERTURB): an order that only
// happens to hold at full speed breaks here, where the bits of a thousand runs are compared.

#include <algorithm>
#include <string>
#include <vector>

#include "engine/plan.hpp"
#include "gpu/case.hpp"
#include "gpu/run.hpp"
#include "ops/gated_delta_h.hpp"

namespace scanjit::test {
TEST_CASE("Delays around every barrier change no bit", "[gpu][delays]") {
  SCANJIT_TEST_GPU(gpu);
  GatedDeltaHProblem p;
  p.packed = true;
  p.H = 2;
  p.HV = 4;
  p.has_g = p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
  reference::GeneratorOptions generator;
  generator.lengths = {450, 65, 320, 7};
  p.sequences = 4;
  for (const std::int64_t length : generator.lengths) p.T += length;
  const reference::GatedDeltaHInputs inputs = must(reference::generate(p, generator));
  const RunResult wanted = must(run(gpu, inputs, {}));
  const std::shared_ptr<const ops::GatedDeltaH> op = must(ops::GatedDeltaH::make(p));

  // One config in four, of all kinds.
  const std::vector<Config> legal = must(legal_configs(gpu, p));
  std::vector<Config> some;
  for (std::size_t i = 0; i < legal.size(); i += 4) some.push_back(legal[i]);
  const auto configs = static_cast<std::int64_t>(some.size());
  const std::int64_t repeats =
      std::max<std::int64_t>(1, number_from_environment("SCANJIT_GPU_DELAY_RUNS", 1000) / configs);
  const RunOptions options;
  DeviceTensors tensors = must(DeviceTensors::make(gpu, inputs, options));
  std::int64_t runs = 0, different = 0;
  for (const Config& config : some) {
    const std::vector<engine::LaunchStage> kernels = must(perturbed(gpu, *op, config));
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
      must(tensors.poison_outputs());
      must(engine::enqueue(gpu.api(), *op, kernels, ops::GatedDeltaH::addresses(tensors.args(), {}),
                           gpu.stream()));
      must(gpu.synchronize());
      ++runs;
      RunResult got;
      got.h = must(tensors.h.download_as<std::uint16_t>());
      got.v_new = must(tensors.v_new.download_as<std::uint16_t>());
      got.ht = must(tensors.ht.download_as<float>());
      const std::string difference = bit_difference(wanted, got);
      INFO(to_string(config) << ", repeat " << repeat << ": " << difference);
      CHECK(difference.empty());
      if (!difference.empty() && ++different % 3 == 0) break;
    }
  }
  report_counts("{\"what\":\"delays\",\"configs\":" + std::to_string(configs) + ",\"runs\":" +
                std::to_string(runs) + ",\"different\":" + std::to_string(different) + "}");
}

}  // namespace scanjit::test
