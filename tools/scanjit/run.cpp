// scanjit run: one op on the tensors of a safetensors file.

#include <memory>
#include <ostream>

#include "arch_gpu.hpp"
#include "commands.hpp"
#include "device_case.hpp"
#include "flags.hpp"
#include "gpu.hpp"
#include "host_memory.hpp"
#include "judge.hpp"
#include "name_values.hpp"
#include "ops/gated_delta_h.hpp"
#include "ops/registry.hpp"
#include "os/posix_file_system.hpp"
#include "reference/generators.hpp"
#include "run_report.hpp"
#include "tensor_problem.hpp"
#include "terminal.hpp"

namespace scanjit::cli {
namespace {

int make_example(Session& session, const RunOptions& options) {
  const Result<tuning::Shape> shape =
      parse_shape(options.op, options.shape.empty() ? "N=2,T=200,H=2,HV=4" : options.shape);
  if (!shape.ok()) return session.fail(kExitUsage, shape.status());
  const Result<GatedDeltaHProblem> problem = ops::problem_of<ops::GatedDeltaH>(*shape);
  if (!problem.ok()) return session.fail(kExitUsage, problem.status());
  reference::GeneratorOptions generator;
  const Result<reference::GateSet> gates = parse_gates(options.gates);
  if (!gates.ok()) return session.fail(kExitUsage, gates.status());
  generator.gates = *gates;
  generator.seed = options.seed;
  if (const Status status = check_fits_host(*problem, HostUse::kInputs); !status.ok())
    return session.fail(status);
  if (const Status status = check_writable(options.example); !status.ok())
    return session.fail(kExitEnvironment, status);
  const Result<reference::GatedDeltaHInputs> inputs = reference::generate(*problem, generator);
  if (!inputs.ok()) return session.fail(inputs.status());
  const TensorFile file = input_tensors(*inputs);
  const Status written = io::write_safetensors(options.example, file.tensors);
  if (!written.ok()) return session.fail(kExitEnvironment, written);
  report_example(session, options, *shape, file);
  return kExitOk;
}

bool is_known(const std::string& name) {
  for (const char* known : {"k", "w", "u", "g", "gk", "h0", "h0_indices", "cu_seqlens",
                            "chunk_offsets", "ht_indices", "h", "v_new", "ht"}) {
    if (name == known) return true;
  }
  return false;
}

int run_run(Session& session, const RunOptions& options) {
  if (const Status status = check_op(options.op); !status.ok())
    return session.fail(kExitUsage, status);
  if (is_abc(options.op)) return run_abc(session, options);
  if (options.op != ops::kGatedDeltaH.name)
    return session.fail(kExitUsage, unsupported("run knows no files of " + options.op));
  if (!options.example.empty()) return make_example(session, options);
  if (const Status status = check_input(options); !status.ok())
    return session.fail(kExitUsage, status);
  Result<NameValues> settings = NameValues();
  if (!options.set.empty()) settings = parse_name_values(options.set);
  if (!settings.ok()) return session.fail(kExitUsage, settings.status());
  const std::vector<std::string> wanted = wanted_names(options);
  const Result<std::optional<Config>> asked_config = forced_config(options);
  if (!asked_config.ok()) return session.fail(kExitUsage, asked_config.status());
  const std::optional<Config>& forced = *asked_config;
  const Result<reference::GateSet> gates = parse_gates(options.gates);
  if (!gates.ok()) return session.fail(kExitUsage, gates.status());

  Result<TensorProblem> problem = internal_error("");
  {
    const Result<io::Safetensors> file = io::Safetensors::read(options.in);
    if (!file.ok()) {
      const ErrorCode code = file.status().code();
      return session.fail(code == ErrorCode::kOutOfMemory ? kExitEnvironment : kExitUsage,
                          file.status());
    }
    for (const io::TensorView& tensor : file->tensors()) {
      if (!is_known(tensor.name))
        session.err << "scanjit: warning: the tensor '" << printable(tensor.name) << "' is not used"
                    << std::endl;
    }
    problem = read_problem(*file, *settings, wanted);
  }
  if (!problem.ok()) {
    const bool too_large = problem.status().code() == ErrorCode::kOutOfMemory;
    return session.fail(too_large ? kExitEnvironment : kExitUsage,
                        problem.status().with_context(options.in));
  }
  if (forced) {
    const auto op = ops::GatedDeltaH::make(problem->inputs.problem);
    if (!op.ok()) return session.fail(kExitUsage, op.status().with_context(options.in));
    if (const Status legal = legal_somewhere(**op, *forced); !legal.ok())
      return session.fail(kExitUsage, legal);
  }
  if (options.check) {
    if (const Status status = check_fits_host(problem->inputs.problem, HostUse::kOracle);
        !status.ok()) {
      return session.fail(status.with_context("--check"));
    }
  }
  if (!options.out.empty()) {
    if (const Status status = check_writable(options.out); !status.ok())
      return session.fail(kExitEnvironment, status);
  }

  Result<Gpu> gpu = open_gpu(session, options.engine);
  if (!gpu.ok()) return session.fail(gpu.status());
  const GatedDeltaHProblem& p = problem->inputs.problem;
  const Result<Plan> plan = forced ? gpu->engine.plan_with(p, *forced) : gpu->engine.plan(p);
  if (!plan.ok()) {
    // What the shapes or the config ask for and no GPU of this kind can do is the caller's.
    const bool asked = plan.status().code() == ErrorCode::kUnsupported;
    return session.fail(asked ? kExitUsage : exit_of(plan.status().code()), plan.status());
  }
  Result<DeviceCase> device =
      DeviceCase::create(gpu->api(), *problem, plan->workspace_bytes(), gpu->stream.get());
  if (!device.ok()) return session.fail(device.status());
  if (const Status status = plan->launch(device->args(), device->workspace(), gpu->stream.get());
      !status.ok()) {
    return session.fail(status);
  }
  Result<DeviceCase::Outputs> outputs = device->outputs();
  if (!outputs.ok()) return session.fail(outputs.status());

  std::string failure;
  Verdict verdict;
  if (options.check) {
    const Result<Judge> judge = Judge::make(*problem, *gates);
    if (!judge.ok()) return session.fail(judge.status());
    verdict = judge->judge(*outputs);
    failure = verdict.failure;
    const Result<std::string> damage = device->damage();
    if (!damage.ok()) return session.fail(damage.status());
    if (!damage->empty()) failure += (failure.empty() ? "" : "; ") + *damage;
  }
  problem->h = std::move(outputs->h);
  problem->v_new = std::move(outputs->v_new);
  problem->ht = std::move(outputs->ht);
  const TensorFile file = output_tensors(*problem, wanted, outputs->status);
  if (!options.out.empty()) {
    const Status written = io::write_safetensors(options.out, file.tensors);
    if (!written.ok()) return session.fail(kExitEnvironment, written);
  }
  const Why& why = plan->why();
  if (session.json) {
    Json fields = run_fields(options, gpu->internals.facts.name, why, file);
    fields["status"] = outputs->status;
    if (options.check) {
      fields["check"] = {{"passed", failure.empty()},
                         {"gates", options.gates},
                         {"failure", failure},
                         {"errors", errors_json(verdict)},
                         {"mistrusted", verdict.mistrusted}};
    }
    session.print_json("scanjit-run/1", std::move(fields));
  } else {
    print_run(session, options, why, file);
    if (outputs->status != 0) {
      session.out << "status   " << outputs->status << ":"
                  << (outputs->status & 1U ? " bad lengths" : "")
                  << (outputs->status & 2U ? " bad h0_indices" : "")
                  << (outputs->status & 4U ? " bad ht_indices" : "") << '\n';
    }
    if (options.check) {
      const auto line = [&](const char* name, const reference::TensorError& pure,
                            const reference::TensorError& rounding) {
        if (pure.elements == 0) return;
        session.out << "error    " << name << ": " << figures(pure.relative_l2 * 1e3)
                    << "e-3 from the f64 oracle, " << figures(rounding.relative_l2 * 1e3)
                    << "e-3 from the rounding oracle\n";
      };
      line("h", verdict.pure.h, verdict.rounding.h);
      line("v_new", verdict.pure.v_new, verdict.rounding.v_new);
      line("ht", verdict.pure.ht, verdict.rounding.ht);
      session.out << (failure.empty() ? verdict.mistrusted
                                            ? "MISTRUSTED: the reference is mostly zeros"
                                            : "PASSED"
                                      : "FAILED: " + failure)
                  << '\n';
    }
    session.out.flush();
  }
  if (failure.empty()) return kExitOk;
  session.err << "repeat: " << shell_line(session.arguments) << std::endl;
  return kExitFailed;
}

}  // namespace

Command add_run(CLI::App& parent, Session& session) {
  auto options = std::make_shared<RunOptions>();
  options->engine.tune_mode = TuneMode::kReplay;  // one run does not wait for timing
  CLI::App* app = parent.add_subcommand("run", "Run an op on the tensors of a safetensors file");
  add_session_flags(*app, session);
  add_op(*app, options->op)->required();
  std::vector<CLI::Option*> of_runs;
  of_runs.push_back(
      app->add_option(
             "-i,--in", options->in,
             "Input file. Tensors: k [B,T,H,K], w [B,T,HV,K], u [B,T,HV,V] in BF16 or F16; "
             "optional g [B,T,HV], gk [B,T,HV,K], "
             "h0 [N,HV,K,V] in F32; cu_seqlens [N+1], chunk_offsets, h0_indices, ht_indices "
             "[N] in I32 or I64. "
             "h, v_new or ht in the file is what that output holds before the call")
          ->type_name("FILE"));
  of_runs.push_back(app->add_option("-o,--out", options->out,
                                    "File to write the outputs to (default: none is written)")
                        ->type_name("FILE"));
  of_runs.push_back(
      app->add_option(
             "--set", options->set,
             "Options: BT=64, gate_base=2 or e, layout=kv or vk, max_tokens=N, aligned=true or "
             "false, "
             "stride.NAME=N (the token "
             "stride of k, w, u, g, gk, v_new, or the distance between states of h0, ht, in "
             "elements), "
             "chunk_capacity=N, "
             "ht_slots=N, in_place=ht+v_new, host_lengths=true, numerics=default. May be repeated")
          ->type_name("NAME=VALUE"));
  of_runs.push_back(
      app->add_option("--want", options->want,
                      "Outputs to compute: h, v_new, ht, status (default: h,v_new,ht)")
          ->type_name("NAMES"));
  of_runs.push_back(
      app->add_option("--config", options->config,
                      "Config, as bv=64,bk=128,stages=2,warps=4 (default: the tuned one)")
          ->type_name("CONFIG"));
  of_runs.push_back(
      app->add_flag("--check", options->check,
                    "Compare with the f64 oracle; exit status 1 if an error is above its limit"));
  CLI::Option* gates =
      app->add_option("--gates", options->gates,
                      "Which limits --check uses, and the gates of --example: strong, slow or none "
                      "(gated_delta_h)")
          ->type_name("SET")
          ->capture_default_str();
  CLI::Option* example =
      app->add_option("--example", options->example, "Write an input file and stop; needs no GPU")
          ->type_name("FILE");
  app->add_option("--shape", options->shape, "Shape of the example (default: N=2,T=200,H=2,HV=4)")
      ->type_name("NAME=VALUE,...")
      ->needs(example);
  app->add_option("--seed", options->seed, "Seed of the example")
      ->type_name("N")
      ->transform(whole_number(0))
      ->needs(example);
  for (CLI::Option* option : of_runs) example->excludes(option);
  add_device_flag(*app, options->engine);
  add_store_flags(*app, options->engine);
  app->footer(
      "Example: make an input file, run on it, hold the result against the oracle\n"
      "  scanjit run gated_delta_h --example x.safetensors --shape N=2,T=200,H=2,HV=4\n"
      "  scanjit run gated_delta_h --in x.safetensors --out y.safetensors --want ht,v_new --check\n"
      "  scanjit run gated_delta_h --in x.safetensors --out y.safetensors --set layout=vk BT=32 "
      "stride.k=320\n"
      "ABC reads q, k, v, s and optional hk0, hv0, z0 (backward also dout and optional dhkt, "
      "dhvt), "
      "as in\nscanjit/abc.hpp; its only setting is numerics.");
  return {app, [options, gates](Session& s) {
            options->gates_given = gates->count() > 0;
            return run_run(s, *options);
          }};
}

}  // namespace scanjit::cli
