// The kernels built with random delays around every barrier (Cfg::PERTURB): an order that only
// happens to hold at full speed breaks here, where the bits of a thousand runs are compared.

#include <algorithm>
#include <string>
#include <vector>

#include "engine/internals.hpp"
#include "engine/plan.hpp"
#include "gpu/case.hpp"
#include "gpu/run.hpp"
#include "ops/gated_delta_h.hpp"

namespace scanjit::test {
namespace {

/// A config's kernel with the delays in it.
struct DelayedKernel {
  engine::LaunchStage launch;
};
Result<DelayedKernel> delayed_kernel(Gpu& gpu, const ops::GatedDeltaH& op, const Config& config) {
  SCANJIT_ASSIGN_OR_RETURN(Engine * engine, gpu.engine());
  engine::Internals& internals = engine::internals(*engine);
  SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, cuda::identify(gpu.api(), gpu.context()));
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals.limits(context));
  std::vector<ops::Stage> stages = op.stages(config, limits);
  if (stages.size() != 1)
    return internal_error("the scan has " + std::to_string(stages.size()) +
                          " stages; this test knows one");
  ops::Stage stage = std::move(stages.front());
  const auto constant = std::find_if(stage.source.constants.begin(), stage.source.constants.end(),
                                     [](const jit::Constant& c) { return c.name == "PERTURB"; });
  if (constant == stage.source.constants.end())
    return not_found("the kernel has no constant PERTURB");
  constant->value = 1;
  SCANJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const engine::LoadedKernel> loaded,
                           internals.parts.loader->load(gpu.api(), context, *internals.provider,
                                                        stage.source, gpu.facts().arch));
  SCANJIT_ASSIGN_OR_RETURN(engine::LaunchStage launch,
                           engine::make_launch(gpu.api(), stage, loaded->function));
  return DelayedKernel{std::move(launch)};
}

}  // namespace

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
  ops::StageParams params;
  void* arguments[] = {params.bytes.data()};
  std::int64_t runs = 0, different = 0;
  for (const Config& config : some) {
    const DelayedKernel kernel = must(delayed_kernel(gpu, *op, config));
    must(engine::fill_launch_params(gpu.api(), *op, kernel.launch,
                                    ops::GatedDeltaH::addresses(tensors.args(), {}), params));
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
      must(tensors.poison_outputs());
      must(cuda::check(gpu.api(),
                       gpu.api().cuLaunchKernel(
                           kernel.launch.function, kernel.launch.grid, 1, 1, kernel.launch.threads,
                           1, 1, kernel.launch.smem_bytes, gpu.stream(), arguments, nullptr),
                       "cuLaunchKernel"));
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
