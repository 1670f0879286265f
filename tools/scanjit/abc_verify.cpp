// scanjit verify of abc_forward and abc_backward.

#include "abc_case.hpp"
#include "verify.hpp"

namespace scanjit::cli {
namespace {

struct Case {
  std::string name;
  std::vector<std::string> repeat;  // arguments behind "scanjit verify OP"
  AbcRequest request;
};

Result<std::vector<Case>> make_cases(const VerifyOptions& options) {
  std::vector<Case> cases;
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<tuning::Shape> shapes,
                           load_shapes(options.shapes, options.op));
  for (const tuning::Shape& shape : shapes) {
    Case one;
    SCANJIT_ASSIGN_OR_RETURN(one.request, request_of(shape));
    one.request.abc_case.seed = options.seed;
    one.name = shape_argument(shape) + " seed=" + std::to_string(options.seed);
    one.repeat = {"--shape", shape_argument(shape), "--seed", std::to_string(options.seed)};
    cases.push_back(std::move(one));
  }
  const std::int64_t random = !options.shapes.any() && options.random == 0 ? 20 : options.random;
  for (std::int64_t i = 0; i < random; ++i) {
    const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(i);
    Case one;
    one.request.op = options.op;
    one.request.abc_case = reference::random_abc_case(seed);
    one.name = reference::to_string(one.request.abc_case);
    one.repeat = {"--random", "1", "--seed", std::to_string(seed)};
    cases.push_back(std::move(one));
  }
  return cases;
}

Result<VerifyLine> examine(Gpu& gpu, const VerifyOptions& options, Case& one) {
  VerifyLine line;
  line.name = one.name;
  line.repeat = one.repeat;
  const auto ended = [&](const char* status, const std::string& reason) {
    line.status = status;
    line.reason = reason;
    return line;
  };
  if (const Status fits = check_fits_host(one.request); !fits.ok())
    return ended("SKIPPED", fits.message());
  const Result<Plan> pick = plan_of(gpu.engine, one.request, std::nullopt);
  if (!pick.ok()) {
    if (pick.status().code() == ErrorCode::kUnsupported)
      return ended("SKIPPED", pick.status().message());
    return pick.status();
  }
  line.config = pick->why().config;
  SCANJIT_TRY(generate_inputs(one.request));
  // Room for every config that may run.
  SCANJIT_ASSIGN_OR_RETURN(const auto op, op_of(one.request));
  Result<AbcDevice> device =
      AbcDevice::create(gpu.api(), one.request, op->workspace_bound(), gpu.stream.get());
  if (!device.ok()) {
    if (device.status().code() == ErrorCode::kOutOfMemory)
      return ended("SKIPPED", "does not fit into device memory");
    return device.status();
  }
  SCANJIT_ASSIGN_OR_RETURN(const AbcOutputs first, device->run(*pick));
  SCANJIT_ASSIGN_OR_RETURN(const std::string damage, device->damage());
  ++line.configs;
  SCANJIT_ASSIGN_OR_RETURN(const AbcVerdict verdict, judge_abc(one.request, first));
  line.errors = errors_json(verdict);
  line.worst = verdict.worst();
  if (!verdict.failure.empty()) return ended("FAILED", verdict.failure);
  if (!damage.empty()) return ended("FAILED", damage);
  SCANJIT_ASSIGN_OR_RETURN(const AbcOutputs again, device->run(*pick));
  if (const std::string text = difference(again, first); !text.empty())
    return ended("FAILED", "two runs of one config: " + text);
  if (!options.all_configs) return line;

  std::vector<Config> others;
  std::vector<jit::KernelSource> sources;
  for (const Config& config : op->space().all()) {
    if (config == line.config || !op->same_bits(config, line.config) ||
        !op->legal(config, gpu.limits).ok())
      continue;
    others.push_back(config);
    for (const ops::Stage& stage : op->stages(config, gpu.limits)) sources.push_back(stage.source);
  }
  // On all cores; what does not compile is told by its plan.
  static_cast<void>(gpu.internals.provider->get_all(sources, gpu.internals.facts.arch));
  for (const Config& config : others) {
    SCANJIT_ASSIGN_OR_RETURN(const Plan plan, plan_of(gpu.engine, one.request, config));
    SCANJIT_ASSIGN_OR_RETURN(const AbcOutputs other, device->run(plan));
    ++line.configs;
    if (const std::string text = difference(other, first); !text.empty())
      return ended("FAILED",
                   to_string(config) + " against " + to_string(line.config) + ": " + text);
    SCANJIT_ASSIGN_OR_RETURN(const std::string broken, device->damage());
    if (!broken.empty()) return ended("FAILED", to_string(config) + ": " + broken);
  }
  return line;
}

}  // namespace

int verify_abc(Session& session, const VerifyOptions& options) {
  for (const auto& [flag, given] :
       {std::pair{"--gates", !options.gates.empty()},
        {"--max-tokens", options.max_tokens != VerifyOptions().max_tokens},
        {"--negative", options.negative}}) {
    if (given)
      return session.fail(kExitUsage,
                          invalid_argument(std::string(flag) + " has no effect on " + options.op));
  }
  Result<std::vector<Case>> cases = make_cases(options);
  if (!cases.ok()) return session.fail(kExitUsage, cases.status());
  Result<Gpu> gpu = open_gpu(session, options.engine);
  if (!gpu.ok()) return session.fail(gpu.status());
  VerifyReport report(session, options, gpu->internals.facts.name, cases->size());
  for (Case& one : *cases) {
    const Result<VerifyLine> line = examine(*gpu, options, one);
    one.request.inputs = {};  // one case's at a time
    if (!line.ok() && line.status().code() == ErrorCode::kDeviceLost)
      return session.fail(kExitFailed, line.status().with_context(one.name));
    if (line.ok()) {
      report.add(*line);
      continue;
    }
    VerifyLine failed;
    failed.status = "FAILED";
    failed.name = one.name;
    failed.repeat = one.repeat;
    failed.reason = line.status().to_string();
    report.add(failed);
  }
  return report.finish();
}

}  // namespace scanjit::cli
