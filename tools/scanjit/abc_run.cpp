// scanjit run of abc_forward and abc_backward.

#include <algorithm>
#include <ostream>

#include "abc_case.hpp"
#include "arch_gpu.hpp"
#include "checks.hpp"
#include "run_report.hpp"
#include "shape_source.hpp"
#include "terminal.hpp"

namespace scanjit::cli {
namespace {

int make_example(Session& session, const RunOptions& options) {
  const Result<tuning::Shape> shape =
      parse_shape(options.op, options.shape.empty() ? "N=2,T=200,H=2,K=64,V=64" : options.shape);
  if (!shape.ok()) return session.fail(kExitUsage, shape.status());
  Result<AbcRequest> request = request_of(*shape);
  if (!request.ok()) return session.fail(kExitUsage, request.status());
  request->abc_case.seed = options.seed;
  if (const Status status = check_fits_host(*request); !status.ok()) return session.fail(status);
  if (const Status status = check_writable(options.example); !status.ok())
    return session.fail(kExitEnvironment, status);
  if (const Status status = generate_inputs(*request); !status.ok()) return session.fail(status);
  const TensorFile file = input_tensors(*request);
  if (const Status status = io::write_safetensors(options.example, file.tensors); !status.ok())
    return session.fail(kExitEnvironment, status);
  report_example(session, options, *shape, file);
  return kExitOk;
}

// Names of --want, all of them outputs of the request.
Result<std::vector<std::string>> wanted_outputs(const RunOptions& options,
                                                const AbcRequest& request) {
  std::vector<std::string> wanted, known;
  SCANJIT_ASSIGN_OR_RETURN(const auto op, op_of(request));
  for (const ops::Tensor& tensor : op->tensors())
    if (tensor.output) known.emplace_back(tensor.name);
  for (std::string& name : wanted_names(options)) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string all;
      for (const std::string& one : known) all += (all.empty() ? "" : ", ") + one;
      return invalid_argument("--want '" + name + "' is no output here: there are " + all);
    }
    wanted.push_back(std::move(name));
  }
  return wanted;
}

Result<AbcRequest> read_request(Session& session, const RunOptions& options) {
  NameValues settings;
  if (!options.set.empty()) {
    SCANJIT_ASSIGN_OR_RETURN(settings, parse_name_values(options.set));
  }
  SCANJIT_ASSIGN_OR_RETURN(const io::Safetensors file, io::Safetensors::read(options.in));
  for (const io::TensorView& tensor : file.tensors()) {
    bool known = false;
    for (std::size_t i = 0; i < ops::AbcOp::kO; ++i)
      known = known || tensor.name == ops::AbcOp::name_of(i);
    if (!known)
      session.err << "scanjit: warning: the tensor '" << printable(tensor.name) << "' is not used"
                  << std::endl;
  }
  Result<AbcRequest> request = read_abc(options.op, file, settings);
  if (!request.ok()) return request.status().with_context(options.in);
  return request;
}

}  // namespace

int run_abc(Session& session, const RunOptions& options) {
  if (options.gates_given)
    return session.fail(kExitUsage, invalid_argument("--gates: " + options.op + " has no gates"));
  if (!options.example.empty()) return make_example(session, options);
  if (const Status status = check_input(options); !status.ok())
    return session.fail(kExitUsage, status);
  const Result<std::optional<Config>> asked_config = forced_config(options);
  if (!asked_config.ok()) return session.fail(kExitUsage, asked_config.status());
  const std::optional<Config>& forced = *asked_config;
  const Result<AbcRequest> request = read_request(session, options);
  if (!request.ok()) {
    const bool too_large = request.status().code() == ErrorCode::kOutOfMemory;
    return session.fail(too_large ? kExitEnvironment : kExitUsage, request.status());
  }
  const Result<std::vector<std::string>> wanted = wanted_outputs(options, *request);
  if (!wanted.ok()) return session.fail(kExitUsage, wanted.status());
  if (forced) {
    const auto op = op_of(*request);
    if (!op.ok()) return session.fail(kExitUsage, op.status());
    if (const Status legal = legal_somewhere(**op, *forced); !legal.ok())
      return session.fail(kExitUsage, legal);
  }
  if (options.check) {
    if (const Status status = check_fits_host(*request); !status.ok())
      return session.fail(status.with_context("--check"));
  }
  if (!options.out.empty()) {
    if (const Status status = check_writable(options.out); !status.ok())
      return session.fail(kExitEnvironment, status);
  }

  Result<Gpu> gpu = open_gpu(session, options.engine);
  if (!gpu.ok()) return session.fail(gpu.status());
  const Result<Plan> plan = plan_of(gpu->engine, *request, forced);
  if (!plan.ok()) {
    const bool asked = plan.status().code() == ErrorCode::kUnsupported;
    return session.fail(asked ? kExitUsage : exit_of(plan.status().code()), plan.status());
  }
  Result<AbcDevice> device =
      AbcDevice::create(gpu->api(), *request, plan->workspace_bytes(), gpu->stream.get());
  if (!device.ok()) return session.fail(device.status());
  const Result<AbcOutputs> outputs = device->run(*plan);
  if (!outputs.ok()) return session.fail(outputs.status());

  AbcVerdict verdict;
  if (options.check) {
    Result<AbcVerdict> judged = judge_abc(*request, *outputs);
    if (!judged.ok()) return session.fail(judged.status());
    verdict = *std::move(judged);
    const Result<std::string> damage = device->damage();
    if (!damage.ok()) return session.fail(damage.status());
    verdict.failure += *damage;
  }
  const TensorFile file = output_tensors(*request, *outputs, *wanted);
  if (!options.out.empty()) {
    if (const Status status = io::write_safetensors(options.out, file.tensors); !status.ok())
      return session.fail(kExitEnvironment, status);
  }
  const Why& why = plan->why();
  if (session.json) {
    Json fields = run_fields(options, gpu->internals.facts.name, why, file);
    if (options.check) {
      fields["check"] = {{"passed", verdict.failure.empty()},
                         {"failure", verdict.failure},
                         {"errors", errors_json(verdict)}};
    }
    session.print_json("scanjit-run/1", std::move(fields));
  } else {
    print_run(session, options, why, file);
    if (options.check) {
      for (const auto& [name, error] : verdict.errors)
        session.out << "error    " << name << ": " << figures(error.relative_l2 * 1e3)
                    << "e-3 from the f64 oracle\n";
      session.out << (verdict.failure.empty() ? "PASSED" : "FAILED: " + verdict.failure) << '\n';
    }
    session.out.flush();
  }
  if (verdict.failure.empty()) return kExitOk;
  session.err << "repeat: " << shell_line(session.arguments) << std::endl;
  return kExitFailed;
}

}  // namespace scanjit::cli
