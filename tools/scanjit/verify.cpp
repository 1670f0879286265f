// scanjit verify: results on this GPU against the f64 oracle, and every config against every other.
//
// A case is PASSED, FAILED, SKIPPED (with a reason) or MISTRUSTED: passed, but the reference is
// mostly zeros, so that agreement proves little.

#include <algorithm>
#include <limits>
#include <memory>
#include <ostream>

#include "commands.hpp"
#include "device_case.hpp"
#include "gpu.hpp"
#include "host_memory.hpp"
#include "judge.hpp"
#include "name_values.hpp"
#include "ops/gated_delta_h.hpp"
#include "ops/registry.hpp"
#include "reference/cases.hpp"
#include "verify.hpp"

namespace scanjit::cli {
namespace {

struct Case {
  std::string name;
  std::vector<std::string> repeat;  ///< arguments behind "scanjit verify OP"
  GatedDeltaHProblem problem;
  reference::GeneratorOptions generator;
  bool ht_in_place = false, v_new_in_place = false, host_cu_seqlens = false;
  int misalign_elements = 0;
};

struct Outcome {
  const char* status = "PASSED";  ///< PASSED, FAILED, SKIPPED, MISTRUSTED
  std::string reason;
  Config config;    ///< the one that was held against the oracle
  int configs = 0;  ///< that ran
  Verdict verdict;
};

// Outputs that hold NaN wherever nothing is written in place.
TensorProblem poisoned(const Case& one, reference::GatedDeltaHInputs inputs) {
  TensorProblem problem;
  problem.inputs = std::move(inputs);
  problem.ht_in_place = one.ht_in_place;
  problem.v_new_in_place = one.v_new_in_place;
  problem.host_cu_seqlens = one.host_cu_seqlens;
  problem.misalign_elements = one.misalign_elements;
  const Result<reference::GatedDeltaHSizes> sizes = reference::sizes_of(problem.inputs.problem);
  if (!sizes.ok()) return problem;  // the inputs could not have been generated
  problem.h.assign(static_cast<std::size_t>(sizes->h), 0xFFFF);
  problem.v_new.assign(static_cast<std::size_t>(sizes->v_new), 0xFFFF);
  problem.ht.assign(static_cast<std::size_t>(sizes->ht), std::numeric_limits<float>::quiet_NaN());
  if (problem.v_new_in_place) problem.v_new = problem.inputs.u;
  if (problem.ht_in_place) problem.ht = problem.inputs.h0;
  return problem;
}

Result<std::vector<Case>> make_cases(const VerifyOptions& options) {
  std::vector<Case> cases;
  SCANJIT_ASSIGN_OR_RETURN(std::vector<tuning::Shape> shapes,
                           load_shapes(options.shapes, options.op));
  for (const std::string& word : split(options.gates, ',')) SCANJIT_TRY(parse_gates(word).status());
  for (const tuning::Shape& shape : shapes) {
    for (const std::string& word : split(options.gates, ',')) {
      Case one;
      SCANJIT_ASSIGN_OR_RETURN(one.problem, ops::problem_of<ops::GatedDeltaH>(shape));
      SCANJIT_ASSIGN_OR_RETURN(one.generator.gates, parse_gates(word));
      one.generator.seed = options.seed;
      one.name = shape_argument(shape) + " gates=" + word + " seed=" + std::to_string(options.seed);
      one.repeat = {"--shape", shape_argument(shape),       "--gates", word,
                    "--seed",  std::to_string(options.seed)};
      cases.push_back(std::move(one));
    }
  }
  for (std::int64_t i = 0; i < options.random; ++i) {
    const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(i);
    const reference::GatedDeltaHCase drawn = reference::random_case(seed, options.max_tokens);
    Case one;
    one.problem = drawn.problem;
    one.generator = drawn.generator;
    one.ht_in_place = drawn.ht_in_place;
    one.v_new_in_place = drawn.v_new_in_place;
    one.host_cu_seqlens = drawn.host_cu_seqlens;
    one.misalign_elements = drawn.misalign_elements;
    one.name = reference::to_string(drawn);
    one.repeat = {"--random", "1", "--seed", std::to_string(seed)};
    if (options.max_tokens != 4096)
      one.repeat.insert(one.repeat.end(), {"--max-tokens", std::to_string(options.max_tokens)});
    cases.push_back(std::move(one));
  }
  return cases;
}

// Runs one plan from freshly poisoned outputs.
Result<DeviceCase::Outputs> launch(Gpu& gpu, const Plan& plan, DeviceCase& device) {
  SCANJIT_TRY(device.reset());
  SCANJIT_TRY(plan.launch(device.args(), device.workspace(), gpu.stream.get()));
  return device.outputs();
}

Result<Outcome> examine(Gpu& gpu, const VerifyOptions& options, const Case& one) {
  Outcome outcome;
  const auto skip = [&](const std::string& reason) {
    outcome.status = "SKIPPED";
    outcome.reason = reason;
    return outcome;
  };
  const auto fail = [&](const std::string& reason) {
    outcome.status = "FAILED";
    outcome.reason = reason;
    return outcome;
  };
  if (const Status fits = check_fits_host(one.problem, HostUse::kOracle); !fits.ok())
    return skip(fits.message());
  const Result<Plan> pick = gpu.engine.plan(one.problem);
  if (!pick.ok()) {
    if (pick.status().code() == ErrorCode::kUnsupported) return skip(pick.status().message());
    return pick.status();
  }
  outcome.config = pick->why().config;
  SCANJIT_ASSIGN_OR_RETURN(reference::GatedDeltaHInputs inputs,
                           reference::generate(one.problem, one.generator));
  const TensorProblem problem = poisoned(one, std::move(inputs));
  SCANJIT_ASSIGN_OR_RETURN(const std::int64_t workspace, workspace_bound(one.problem));
  Result<DeviceCase> device = DeviceCase::create(gpu.api(), problem, workspace, gpu.stream.get());
  if (!device.ok()) {
    if (device.status().code() == ErrorCode::kOutOfMemory)
      return skip("does not fit into device memory");
    return device.status();
  }
  SCANJIT_ASSIGN_OR_RETURN(const DeviceCase::Outputs first, launch(gpu, *pick, *device));
  SCANJIT_ASSIGN_OR_RETURN(const std::string damage, device->damage());
  ++outcome.configs;
  SCANJIT_ASSIGN_OR_RETURN(const Judge judge, Judge::make(problem, one.generator.gates));
  outcome.verdict = judge.judge(first);
  if (!outcome.verdict.failure.empty()) return fail(outcome.verdict.failure);
  if (!damage.empty()) return fail(damage);
  SCANJIT_ASSIGN_OR_RETURN(const DeviceCase::Outputs again, launch(gpu, *pick, *device));
  if (const std::string text = again.difference(first); !text.empty())
    return fail("two runs of one config: " + text);

  if (options.all_configs) {
    SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::GatedDeltaH::make(one.problem));
    std::vector<Config> others;
    std::vector<jit::KernelSource> sources;
    for (const Config& config : op->space().all()) {
      if (config == outcome.config || !op->legal(config, gpu.limits).ok()) continue;
      others.push_back(config);
      for (const ops::Stage& stage : op->stages(config, gpu.limits))
        sources.push_back(stage.source);
    }
    // On all cores; what does not compile is told by its plan.
    const engine::Internals& internals = engine::internals(gpu.engine);
    static_cast<void>(internals.provider->get_all(sources, internals.facts.arch));
    for (const Config& config : others) {
      SCANJIT_ASSIGN_OR_RETURN(const Plan plan, gpu.engine.plan_with(one.problem, config));
      SCANJIT_ASSIGN_OR_RETURN(const DeviceCase::Outputs other, launch(gpu, plan, *device));
      ++outcome.configs;
      if (const std::string text = other.difference(first); !text.empty()) {
        return fail(to_string(config) + " against " + to_string(outcome.config) + ": " + text);
      }
      SCANJIT_ASSIGN_OR_RETURN(const std::string broken, device->damage());
      if (!broken.empty()) return fail(to_string(config) + ": " + broken);
    }
  }
  if (outcome.verdict.mistrusted) {
    outcome.status = "MISTRUSTED";
    outcome.reason = "the reference is mostly zeros";
  }
  return outcome;
}

// The oracle with a mistake built in, on a problem where each shows: proves that the limits can
// fail.
int run_negative(Session& session, const VerifyOptions& options) {
  GatedDeltaHProblem problem;
  problem.B = 2;
  problem.T = 1000;  // ends in a partial chunk
  problem.H = 2;
  problem.HV = 4;
  problem.K = problem.V = 64;
  problem.has_g = problem.has_h0 = problem.has_ht = true;
  // The state's own rounding shows where the gates forget slowly, the wrong gate where they forget
  // fast.
  struct Control {
    reference::GateSet gates;
    std::size_t mistake;
  };
  constexpr Control kControls[] = {{reference::GateSet::kSlow, 0},
                                   {reference::GateSet::kStrong, 1},
                                   {reference::GateSet::kStrong, 2}};
  Json list = Json::array();
  bool all_caught = true;
  for (const Control& control : kControls) {
    Case one;
    one.problem = problem;
    one.generator.gates = control.gates;
    one.generator.seed = options.seed;
    Result<reference::GatedDeltaHInputs> inputs = reference::generate(problem, one.generator);
    if (!inputs.ok()) return session.fail(inputs.status());
    const TensorProblem tensors = poisoned(one, std::move(*inputs));
    const Result<Judge> judge = Judge::make(tensors, control.gates);
    if (!judge.ok()) return session.fail(judge.status());
    const auto controls = judge->negative_controls();
    if (!controls.ok()) return session.fail(controls.status());
    const auto& [name, failure] = (*controls)[control.mistake];
    const bool caught = !failure.empty();
    all_caught = all_caught && caught;
    list.push_back({{"mistake", name},
                    {"gates", reference::to_string(control.gates)},
                    {"caught", caught},
                    {"failure", failure}});
    if (!session.json) {
      session.out << (caught ? "PASSED  caught: " : "FAILED  not caught: ") << name << ", "
                  << reference::to_string(control.gates) << " gates"
                  << (caught ? ": " + failure : "") << std::endl;
    }
  }
  if (session.json)
    session.print_json("scanjit-verify-negative/1",
                       {{"op", options.op}, {"passed", all_caught}, {"controls", std::move(list)}});
  if (all_caught) return kExitOk;
  session.err << "repeat: " << shell_line(session.arguments) << std::endl;
  return kExitFailed;
}

int run_verify(Session& session, const VerifyOptions& options) {
  if (const Status status = check_op(options.op); !status.ok())
    return session.fail(kExitUsage, status);
  if (is_abc(options.op)) return verify_abc(session, options);
  if (options.op != ops::kGatedDeltaH.name) {
    return session.fail(kExitUsage, unsupported("verify has no oracle of " + options.op +
                                                "; its tests on a GPU hold it against one"));
  }
  if (options.negative) return run_negative(session, options);
  VerifyOptions wanted = options;
  if (wanted.gates.empty()) wanted.gates = "strong,slow,none";
  if (!options.shapes.any() && options.random == 0) wanted.random = 20;
  const Result<std::vector<Case>> cases = make_cases(wanted);
  if (!cases.ok()) return session.fail(kExitUsage, cases.status());
  Result<Gpu> gpu = open_gpu(session, options.engine);
  if (!gpu.ok()) return session.fail(gpu.status());

  VerifyReport report(session, options, gpu->internals.facts.name, cases->size());
  for (const Case& one : *cases) {
    const Result<Outcome> outcome = examine(*gpu, options, one);
    if (!outcome.ok() && outcome.status().code() == ErrorCode::kDeviceLost)
      return session.fail(kExitFailed, outcome.status().with_context(one.name));
    VerifyLine line;
    line.name = one.name;
    line.repeat = one.repeat;
    if (outcome.ok()) {
      line.status = outcome->status;
      line.reason = outcome->reason;
      line.config = outcome->config;
      line.configs = outcome->configs;
      line.worst = outcome->verdict.pure.worst();
      line.errors = errors_json(outcome->verdict);
    } else {
      line.status = "FAILED";
      line.reason = outcome.status().to_string();
      line.errors = errors_json(Verdict{});
    }
    report.add(line);
  }
  return report.finish();
}

}  // namespace

Command add_verify(CLI::App& parent, Session& session) {
  auto options = std::make_shared<VerifyOptions>();
  options->engine.tune_mode = TuneMode::kReplay;
  CLI::App* app = parent.add_subcommand(
      "verify", "Hold results on this GPU against the f64 oracle, and configs against each other");
  add_session_flags(*app, session);
  add_op(*app, options->op)->required();
  std::vector<CLI::Option*> of_cases = add_shape_flags(*app, options->shapes);
  CLI::Option* random =
      app->add_option("--random", options->random,
                      "So many random odd problems with every option (default, without shapes: 20)")
          ->type_name("N")
          ->transform(whole_number(1, 1'000'000));
  app->add_option("--seed", options->seed,
                  "Seed of the inputs; random problem i is that of seed + i")
      ->type_name("N")
      ->transform(whole_number(0))
      ->capture_default_str();
  CLI::Option* max_tokens =
      app->add_option("--max-tokens", options->max_tokens, "Most tokens of a random problem")
          ->type_name("N")
          ->transform(whole_number(1, 1 << 20))
          ->capture_default_str();
  CLI::Option* gates =
      app->add_option(
             "--gates", options->gates,
             "Gate sets for shapes of gated_delta_h: strong, slow, none (default: all three)")
          ->type_name("SETS");
  CLI::Option* all_configs = app->add_flag("--all-configs", options->all_configs,
                                           "Run every legal config and compare bit for bit");
  CLI::Option* negative =
      app->add_flag("--negative", options->negative,
                    "Show that known mistakes are caught by the limits; needs no GPU");
  of_cases.insert(of_cases.end(), {random, max_tokens, gates, all_configs});
  for (CLI::Option* option : of_cases) negative->excludes(option);
  add_device_flag(*app, options->engine);
  add_store_flags(*app, options->engine);
  app->footer(
      "Example: 200 random problems, then every config on the shapes of the map\n"
      "  scanjit verify gated_delta_h --random 200 --seed 7\n"
      "  scanjit verify gated_delta_h --shapes scan_map --gates strong --all-configs\n"
      "  scanjit verify abc_backward --random 50 --all-configs\n"
      "Outputs start as NaN, guard bytes lie around every tensor, inputs must come out unchanged. "
      "Each failed\n"
      "case prints the command that repeats it alone.");
  return {app, [options](Session& s) { return run_verify(s, *options); }};
}

}  // namespace scanjit::cli
