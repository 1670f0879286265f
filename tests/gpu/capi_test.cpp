// The C interface on the device: what it launches is what the C++ interface launches, bit for bit.

#include <cstdlib>
#include <memory>
#include <string>

#include "gpu/case.hpp"
#include "gpu/run.hpp"
#include "reference/generators.hpp"
#include "scanjit/scanjit.h"

namespace scanjit::test {
namespace {

// Fails with the sentence of a C error.
void must_be_ok(scanjit_code code, scanjit_error* error) {
  const std::string text = scanjit_error_message(error);
  scanjit_error_free(error);
  INFO(text);
  REQUIRE(code == SCANJIT_OK);
}

}  // namespace

TEST_CASE("The C interface launches the same op, with the same bits", "[gpu][c_interface]") {
  SCANJIT_TEST_GPU(gpu);
  GatedDeltaHProblem p;
  p.B = 3;
  p.T = 200;
  p.H = 2;
  p.HV = 4;
  p.K = p.V = 64;
  p.has_g = p.has_h0 = p.has_ht = true;
  reference::GeneratorOptions generator;
  generator.seed = 77;
  const reference::GatedDeltaHInputs inputs = must(reference::generate(p, generator));
  const RunOptions run_options;
  const RunResult expected = must(run(gpu, inputs, run_options));

  scanjit_error* error = nullptr;
  scanjit_engine_options options;
  scanjit_engine_options_init(&options, sizeof options);
  options.tune_mode = SCANJIT_TUNE_OFF;
  const char* cache = std::getenv("SCANJIT_GPU_TEST_CACHE");
  options.cache_dir = cache != nullptr ? cache : "none";
  scanjit_engine* made_engine = nullptr;
  must_be_ok(scanjit_engine_create(&options, &made_engine, &error), error);
  const std::unique_ptr<scanjit_engine, void (*)(scanjit_engine*)> engine(made_engine,
                                                                          scanjit_engine_free);
  scanjit_gated_delta_h_problem problem;
  scanjit_gated_delta_h_problem_init(&problem, sizeof problem);
  problem.B = p.B;
  problem.T = p.T;
  problem.H = p.H;
  problem.HV = p.HV;
  problem.K = p.K;
  problem.V = p.V;
  problem.has_g = problem.has_h0 = problem.has_ht = 1;
  scanjit_plan* made_plan = nullptr;
  must_be_ok(scanjit_gated_delta_h_plan(engine.get(), &problem, &made_plan, &error), error);
  const std::unique_ptr<scanjit_plan, void (*)(scanjit_plan*)> plan(made_plan, scanjit_plan_free);
  REQUIRE(scanjit_plan_workspace_bytes(plan.get()) == 0);  // dense: no stage needs any

  DeviceTensors tensors = must(DeviceTensors::make(gpu, inputs, run_options));
  scanjit_gated_delta_h_args args;
  scanjit_gated_delta_h_args_init(&args, sizeof args);
  args.k = tensors.args().k;
  args.w = tensors.args().w;
  args.u = tensors.args().u;
  args.g = tensors.args().g;
  args.h0 = tensors.args().h0;
  args.h = tensors.args().h;
  args.v_new = tensors.args().v_new;
  args.ht = tensors.args().ht;
  args.status = tensors.args().status;
  must_be_ok(scanjit_gated_delta_h_launch(plan.get(), &args, nullptr, 0, gpu.stream(), &error),
             error);
  must(gpu.synchronize());
  CHECK(must(tensors.h.download_as<std::uint16_t>()) == expected.h);
  CHECK(must(tensors.v_new.download_as<std::uint16_t>()) == expected.v_new);
  CHECK(must(tensors.ht.download_as<float>()) == expected.ht);
  must(tensors.damage());

  // In one step as well, and without a tensor refused with its name.
  must_be_ok(scanjit_gated_delta_h(engine.get(), &problem, &args, nullptr, 0, gpu.stream(), &error),
             error);
  must(gpu.synchronize());
  args.w = nullptr;
  CHECK(scanjit_gated_delta_h_launch(plan.get(), &args, nullptr, 0, gpu.stream(), &error) ==
        SCANJIT_INVALID_ARGUMENT);
  CHECK(std::string(scanjit_error_message(error)).find("w is null") != std::string::npos);
  scanjit_error_free(error);
}

}  // namespace scanjit::test
