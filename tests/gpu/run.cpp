#include "gpu/run.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/internals.hpp"
#include "reference/compare.hpp"

namespace scanjit::test {
namespace {

template <class T>
std::int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<std::int64_t>(values.size() * sizeof(T));
}

Status upload_indices(GuardedBuffer& buffer, const std::vector<std::int64_t>& values,
                      IndexType type) {
  if (type == IndexType::kInt64) return buffer.upload(values);
  std::vector<std::int32_t> narrow;
  for (const std::int64_t value : values) narrow.push_back(static_cast<std::int32_t>(value));
  return buffer.upload(narrow);
}

Result<GuardedBuffer> index_buffer(Gpu& gpu, const std::vector<std::int64_t>& values,
                                   IndexType type, Guard guard) {
  const std::int64_t size = type == IndexType::kInt64 ? 8 : 4;
  SCANJIT_ASSIGN_OR_RETURN(
      GuardedBuffer buffer,
      GuardedBuffer::make(gpu, static_cast<std::int64_t>(values.size()) * size, guard));
  SCANJIT_TRY(upload_indices(buffer, values, type));
  return buffer;
}

template <class T>
Result<GuardedBuffer> input_buffer(Gpu& gpu, const std::vector<T>& values,
                                   const RunOptions& options, Guard guard) {
  SCANJIT_ASSIGN_OR_RETURN(
      GuardedBuffer buffer,
      GuardedBuffer::make(gpu, bytes_of(values), guard,
                          options.misalign_elements * static_cast<int>(sizeof(T)) % 16));
  SCANJIT_TRY(buffer.upload(values));
  return buffer;
}

Result<GuardedBuffer> output_buffer(Gpu& gpu, std::int64_t elements, int size,
                                    const RunOptions& options) {
  return GuardedBuffer::make(gpu, elements * size, options.outputs,
                             options.misalign_elements * size % 16);
}

}  // namespace

RunOptions options_of(const reference::GatedDeltaHCase& random_case,
                      const reference::GatedDeltaHInputs& inputs) {
  RunOptions options;
  options.ht_in_place = random_case.ht_in_place;
  options.v_new_in_place = random_case.v_new_in_place;
  options.misalign_elements = random_case.misalign_elements;
  if (random_case.host_cu_seqlens) options.host_cu_seqlens = inputs.cu_seqlens;
  return options;
}

Result<DeviceTensors> DeviceTensors::make(Gpu& gpu, const reference::GatedDeltaHInputs& in,
                                          const RunOptions& options) {
  const GatedDeltaHProblem& p = in.problem;
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHSizes sizes, reference::sizes_of(p));
  DeviceTensors t;
  t.inputs_ = &in;
  SCANJIT_ASSIGN_OR_RETURN(t.k, input_buffer(gpu, in.k, options, options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(t.w, input_buffer(gpu, in.w, options, options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(
      t.u,
      input_buffer(gpu, in.u, options, options.v_new_in_place ? options.outputs : options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(t.g, input_buffer(gpu, in.g, options, options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(t.gk, input_buffer(gpu, in.gk, options, options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(
      t.h0,
      input_buffer(gpu, in.h0, options, options.ht_in_place ? options.outputs : options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(t.h0_indices,
                           index_buffer(gpu, in.h0_indices, p.index_type, options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(t.ht_indices,
                           index_buffer(gpu, in.ht_indices, p.index_type, options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(t.cu_seqlens,
                           index_buffer(gpu, in.cu_seqlens, p.cu_seqlens_type, options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(t.chunk_offsets,
                           index_buffer(gpu, in.chunk_offsets, p.cu_seqlens_type, options.inputs));
  SCANJIT_ASSIGN_OR_RETURN(t.h, output_buffer(gpu, sizes.h, 2, options));
  SCANJIT_ASSIGN_OR_RETURN(
      t.v_new, output_buffer(gpu, options.v_new_in_place ? 0 : sizes.v_new, 2, options));
  SCANJIT_ASSIGN_OR_RETURN(t.ht,
                           output_buffer(gpu, options.ht_in_place ? 0 : sizes.ht, 4, options));
  SCANJIT_ASSIGN_OR_RETURN(t.status, GuardedBuffer::make(gpu, 4, options.outputs));

  GatedDeltaHArgs& args = t.args_;
  args.k = t.k.as();
  args.w = t.w.as();
  args.u = t.u.as();
  args.g = t.g.as<float>();
  args.gk = t.gk.as<float>();
  args.h0 = t.h0.as<float>();
  args.h0_indices = t.h0_indices.as();
  args.cu_seqlens = t.cu_seqlens.as();
  args.chunk_offsets = t.chunk_offsets.as();
  // In place means the same indices too, by address.
  args.ht_indices = options.ht_in_place ? t.h0_indices.as() : t.ht_indices.as();
  args.h = t.h.as();
  args.v_new = options.v_new_in_place ? t.u.as() : t.v_new.as();
  args.ht = options.ht_in_place ? t.h0.as<float>() : t.ht.as<float>();
  args.status = t.status.as<std::uint32_t>();
  args.host_cu_seqlens = options.host_cu_seqlens.empty() ? nullptr : options.host_cu_seqlens.data();
  SCANJIT_TRY(t.poison_outputs());
  return t;
}

Status DeviceTensors::poison_outputs() {
  SCANJIT_TRY(h.fill(0xFF));
  SCANJIT_TRY(v_new.fill(0xFF));
  SCANJIT_TRY(ht.fill(0xFF));
  SCANJIT_TRY(status.fill(0));
  if (args_.v_new == args_.u && args_.u != nullptr) SCANJIT_TRY(u.upload(inputs_->u));
  if (args_.ht == args_.h0 && args_.h0 != nullptr) SCANJIT_TRY(h0.upload(inputs_->h0));
  return {};
}

Status DeviceTensors::damage() const {
  const std::pair<const char*, const GuardedBuffer*> buffers[] = {{"k", &k},
                                                                  {"w", &w},
                                                                  {"u", &u},
                                                                  {"g", &g},
                                                                  {"gk", &gk},
                                                                  {"h0", &h0},
                                                                  {"h0_indices", &h0_indices},
                                                                  {"cu_seqlens", &cu_seqlens},
                                                                  {"chunk_offsets", &chunk_offsets},
                                                                  {"ht_indices", &ht_indices},
                                                                  {"h", &h},
                                                                  {"v_new", &v_new},
                                                                  {"ht", &ht},
                                                                  {"status", &status}};
  for (const auto& [name, buffer] : buffers) {
    const Status status_of = buffer->damage();
    if (!status_of.ok()) return status_of.with_context(name);
  }
  return {};
}

Result<Plan> plan_for(Gpu& gpu, const GatedDeltaHProblem& problem,
                      const std::optional<Config>& config) {
  SCANJIT_ASSIGN_OR_RETURN(Engine * engine, gpu.engine());
  return config ? engine->plan_with(problem, *config) : engine->plan(problem);
}

namespace {

/// Calls `launch(workspace)` with so many bytes that are guarded and full of NaN, and waits.
template <class Launch>
Status with_workspace(Gpu& gpu, std::int64_t bytes, Launch launch) {
  SCANJIT_ASSIGN_OR_RETURN(
      GuardedBuffer workspace,
      GuardedBuffer::make(gpu, (bytes + 255) / 256 * 256 + 256, Guard::kBytes));
  SCANJIT_TRY(workspace.fill(0xFF));
  Workspace given;
  if (bytes > 0) {
    given.data = reinterpret_cast<void*>((static_cast<std::uintptr_t>(workspace.address()) + 255) /
                                         256 * 256);
    given.bytes = bytes;
  }
  SCANJIT_TRY(launch(given));
  SCANJIT_TRY(gpu.synchronize());
  const Status damage = workspace.damage();
  return damage.ok() ? damage : damage.with_context("workspace");
}

}  // namespace

Status launch_and_wait(Gpu& gpu, const Plan& plan, const GatedDeltaHArgs& args) {
  return with_workspace(gpu, plan.workspace_bytes(), [&](const Workspace& workspace) {
    return plan.launch(args, workspace, gpu.stream());
  });
}

Result<std::vector<engine::LaunchStage>> perturbed(Gpu& gpu, const ops::GatedDeltaH& op,
                                                   const Config& config) {
  SCANJIT_ASSIGN_OR_RETURN(Engine * engine, gpu.engine());
  engine::Internals& internals = engine::internals(*engine);
  SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, cuda::identify(gpu.api(), gpu.context()));
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals.limits(context));
  std::vector<engine::LaunchStage> launches;
  int perturbed = 0;
  for (ops::Stage& stage : op.stages(config, limits)) {
    for (jit::Constant& constant : stage.source.constants) {
      if (constant.name != "PERTURB") continue;
      constant.value = 1;
      ++perturbed;
    }
    SCANJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const engine::LoadedKernel> loaded,
                             internals.parts.loader->load(gpu.api(), context, *internals.provider,
                                                          stage.source, gpu.facts().arch));
    SCANJIT_ASSIGN_OR_RETURN(launches.emplace_back(),
                             engine::make_launch(gpu.api(), stage, loaded->function));
  }
  if (perturbed == 0) return not_found("no kernel of the scan has a constant PERTURB");
  return launches;
}

Result<RunResult> run(Gpu& gpu, const reference::GatedDeltaHInputs& inputs,
                      const RunOptions& options) {
  SCANJIT_ASSIGN_OR_RETURN(const Plan plan, plan_for(gpu, inputs.problem, options.config));
  const std::lock_guard<std::mutex> guard(gpu.lock());
  SCANJIT_ASSIGN_OR_RETURN(const DeviceTensors tensors, DeviceTensors::make(gpu, inputs, options));
  const GuardedBuffer& v_new = options.v_new_in_place ? tensors.u : tensors.v_new;
  const GuardedBuffer& ht = options.ht_in_place ? tensors.h0 : tensors.ht;
  RunResult result;
  result.config = plan.why().config;
  SCANJIT_ASSIGN_OR_RETURN(result.h_before, tensors.h.download_as<std::uint16_t>());
  SCANJIT_ASSIGN_OR_RETURN(result.v_new_before, v_new.download_as<std::uint16_t>());
  SCANJIT_ASSIGN_OR_RETURN(result.ht_before, ht.download_as<float>());
  if (options.perturb) {
    SCANJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const ops::GatedDeltaH> op,
                             ops::GatedDeltaH::make(inputs.problem));
    SCANJIT_ASSIGN_OR_RETURN(const std::vector<engine::LaunchStage> launches,
                             perturbed(gpu, *op, result.config));
    SCANJIT_TRY(with_workspace(gpu, plan.workspace_bytes(), [&](const Workspace& workspace) {
      return engine::enqueue(gpu.api(), *op, launches,
                             ops::GatedDeltaH::addresses(tensors.args(), workspace), gpu.stream());
    }));
  } else {
    SCANJIT_TRY(launch_and_wait(gpu, plan, tensors.args()));
  }
  SCANJIT_ASSIGN_OR_RETURN(result.h, tensors.h.download_as<std::uint16_t>());
  SCANJIT_ASSIGN_OR_RETURN(result.v_new, v_new.download_as<std::uint16_t>());
  SCANJIT_ASSIGN_OR_RETURN(result.ht, ht.download_as<float>());
  SCANJIT_TRY(tensors.status.download(&result.status, 4));
  const Status damage = tensors.damage();
  if (damage.code() == ErrorCode::kInternal)
    result.damage = damage.message();
  else if (!damage.ok())
    return damage;
  return result;
}

Result<std::vector<Config>> legal_configs(Gpu& gpu, const GatedDeltaHProblem& problem) {
  SCANJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const ops::GatedDeltaH> op,
                           ops::GatedDeltaH::make(problem));
  const ops::DeviceLimits limits = engine::limits_of(gpu.facts());
  std::vector<Config> legal;
  for (const Config& config : op->space().all()) {
    if (op->legal(config, limits).ok()) legal.push_back(config);
  }
  if (legal.empty()) return unsupported("no config of the space is legal here");
  return legal;
}

Result<std::vector<Config>> varied_configs(Gpu& gpu, const GatedDeltaHProblem& problem,
                                           std::size_t of_each) {
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<Config> legal, legal_configs(gpu, problem));
  SCANJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const ops::GatedDeltaH> op,
                           ops::GatedDeltaH::make(problem));
  const ops::DeviceLimits limits = engine::limits_of(gpu.facts());
  std::map<std::string, std::vector<Config>> by_kernel;
  for (const Config& config : legal)
    by_kernel[op->stages(config, limits).back().source.entry].push_back(config);
  std::vector<Config> some;
  for (const auto& [entry, configs] : by_kernel) {
    // Evenly spread, from the middle of their share: one is the middle one.
    for (std::size_t i = 0; i < std::min(of_each, configs.size()); ++i)
      some.push_back(
          configs[configs.size() * (2 * i + 1) / (2 * std::min(of_each, configs.size()))]);
  }
  SCANJIT_TRY(compile_all(gpu, problem, some));
  return some;
}

Status compile_all(Gpu& gpu, const GatedDeltaHProblem& problem,
                   const std::vector<Config>& configs) {
  SCANJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const ops::GatedDeltaH> op,
                           ops::GatedDeltaH::make(problem));
  SCANJIT_ASSIGN_OR_RETURN(Engine * engine, gpu.engine());
  engine::Internals& internals = engine::internals(*engine);
  const ops::DeviceLimits limits = engine::limits_of(gpu.facts());
  std::vector<jit::KernelSource> sources;
  for (const Config& config : configs) {
    for (const ops::Stage& stage : op->stages(config, limits)) sources.push_back(stage.source);
  }
  for (const Result<jit::Binary>& binary : internals.provider->get_all(sources, gpu.facts().arch)) {
    if (!binary.ok()) return binary.status();
  }
  return {};
}

std::string bit_difference(const RunResult& a, const RunResult& b) {
  std::string text;
  const auto add = [&](const char* name, std::int64_t count, std::size_t of) {
    if (count != 0)
      text += std::string(name) + " differs in " + std::to_string(count) + " of " +
              std::to_string(of) + " elements; ";
  };
  add("h", differing(a.h, b.h), a.h.size());
  add("v_new", differing(a.v_new, b.v_new), a.v_new.size());
  add("ht", differing(a.ht, b.ht), a.ht.size());
  if (a.status != b.status)
    text += "status " + std::to_string(a.status) + " and " + std::to_string(b.status) + "; ";
  return text;
}

Result<Oracles> oracles_of(const reference::GatedDeltaHInputs& inputs, int threads) {
  Oracles oracles;
  reference::OracleOptions options;
  options.threads = threads;
  SCANJIT_ASSIGN_OR_RETURN(oracles.pure, reference::gated_delta_h(inputs, options));
  options.precision = reference::Precision::kRounding;
  SCANJIT_ASSIGN_OR_RETURN(oracles.rounding, reference::gated_delta_h(inputs, options));
  return oracles;
}

std::string wrong(const reference::GatedDeltaHInputs& inputs, reference::GateSet gates,
                  const RunResult& result, const Oracles& oracles) {
  const GatedDeltaHProblem& p = inputs.problem;
  const Result<reference::GatedDeltaHOutputs> got =
      reference::decode(p, result.h, result.v_new, result.ht, result.status);
  if (!got.ok()) return got.status().to_string();
  std::string text = reference::failures(inputs, gates, *got, oracles.pure, oracles.rounding);
  const auto add = [&](const char* name, const reference::Trespass& trespass) {
    if (trespass.elements == 0) return;
    text += (text.empty() ? "" : "; ") + std::string(name) + ": " +
            std::to_string(trespass.elements) +
            " elements were written that must stay as they were, the first at " +
            std::to_string(trespass.first);
  };
  add("h", reference::trespass_h(p, oracles.pure, result.h_before, result.h));
  add("v_new", reference::trespass_v_new(p, oracles.pure, result.v_new_before, result.v_new));
  add("ht", reference::trespass_ht(p, oracles.pure, result.ht_before, result.ht));
  if (!result.damage.empty()) text += (text.empty() ? "" : "; ") + result.damage;
  return text;
}

}  // namespace scanjit::test
