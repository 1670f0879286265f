#include "gpu/abc_run.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/internals.hpp"
#include "reference/half.hpp"

namespace scanjit::test {
namespace {

template <class Problem>
void fill_problem(const reference::AbcCase& c, const AbcOptions& options, Problem& p) {
  const reference::AbcShape& s = c.shape;
  p.dtype = c.dtype;
  p.B = s.B;
  p.T = s.T;
  p.H = s.H;
  p.K = s.K;
  p.M = s.M;
  p.V = s.V;
  p.has_hk0 = s.has_hk0;
  p.has_hv0 = s.has_hv0;
  p.has_z0 = s.has_z0;
  p.has_saved = options.saved;
  p.aligned16 = options.misalign_elements == 0;
  p.numerics = options.numerics;
}

bool is_half(const std::string& name) {
  return name == "o" || name == "dq" || name == "dk" || name == "dv" || name == "ds";
}

// Buffers by name.
class Buffers {
 public:
  Buffers(Gpu& gpu, int misalign_elements) : gpu_(gpu), misalign_(misalign_elements) {}
  template <class T>
  Result<void*> input(const std::string& name, const std::vector<T>& values) {
    SCANJIT_ASSIGN_OR_RETURN(
        void* at, place(name, static_cast<std::int64_t>(values.size() * sizeof(T)), sizeof(T)));
    if (!values.empty()) SCANJIT_TRY(all_.at(name).upload(values));
    return at;
  }
  Result<void*> output(const std::string& name, std::int64_t bytes, int element) {
    outputs_.push_back(name);
    return place(name, bytes, static_cast<std::size_t>(element));
  }
  /// Full of NaN.
  Result<void*> scratch(const std::string& name, std::int64_t bytes) {
    return place(name, bytes, 0);
  }
  Result<AbcRun> finish() const {
    AbcRun run;
    for (const std::string& name : outputs_) {
      SCANJIT_ASSIGN_OR_RETURN(run.outputs[name], all_.at(name).download_as<unsigned char>());
    }
    for (const auto& [name, buffer] : all_) {
      if (const Status status = buffer.damage(); !status.ok())
        run.damage += name + ": " + status.message() + "; ";
    }
    return run;
  }

 private:
  Result<void*> place(const std::string& name, std::int64_t bytes, std::size_t element) {
    SCANJIT_ASSIGN_OR_RETURN(GuardedBuffer buffer,
                             GuardedBuffer::make(gpu_, bytes, Guard::kBytes,
                                                 misalign_ * static_cast<int>(element) % 16));
    if (bytes > 0) SCANJIT_TRY(buffer.fill(0xff));
    return all_.insert_or_assign(name, std::move(buffer)).first->second.as<void>();
  }
  Gpu& gpu_;
  int misalign_;
  std::map<std::string, GuardedBuffer> all_;
  std::vector<std::string> outputs_;
};

template <class Problem, class Args>
Result<Config> launch(Gpu& gpu, Buffers& buffers, const std::string& workspace_name,
                      const Problem& problem, const Args& args,
                      const std::optional<Config>& config) {
  SCANJIT_ASSIGN_OR_RETURN(Engine * engine, gpu.engine());
  SCANJIT_ASSIGN_OR_RETURN(const Plan plan,
                           config ? engine->plan_with(problem, *config) : engine->plan(problem));
  Workspace workspace;
  workspace.bytes = plan.workspace_bytes();
  SCANJIT_ASSIGN_OR_RETURN(workspace.data, buffers.scratch(workspace_name, workspace.bytes));
  SCANJIT_TRY(plan.launch(args, workspace, gpu.stream()));
  SCANJIT_TRY(gpu.synchronize());
  return plan.why().config;
}

}  // namespace

AbcForwardProblem abc_forward_of(const reference::AbcCase& c, const AbcOptions& options) {
  AbcForwardProblem p;
  fill_problem(c, options, p);
  p.has_hkt = p.has_hvt = p.has_zt = true;
  return p;
}

AbcBackwardProblem abc_backward_of(const reference::AbcCase& c, const AbcOptions& options) {
  AbcBackwardProblem p;
  fill_problem(c, options, p);
  p.has_dhkt = c.has_dhkt;
  p.has_dhvt = c.has_dhvt;
  return p;
}

Result<AbcRun> run(Gpu& gpu, const reference::AbcCase& c, const reference::AbcTensors& in,
                   const AbcOptions& options) {
  const reference::AbcShape& s = c.shape;
  const std::int64_t rows = s.B * s.T * s.H, heads = s.B * s.H;
  Buffers buffers(gpu, options.misalign_elements);
  const AbcForwardProblem forward = abc_forward_of(c, options);
  const AbcBackwardProblem backward = abc_backward_of(c, options);
  AbcForwardArgs to;
  AbcBackwardArgs back;
  const auto input = [&](const char* name, const auto& values, auto& field) -> Status {
    SCANJIT_ASSIGN_OR_RETURN(void* at, buffers.input(name, values));
    field = static_cast<std::remove_reference_t<decltype(field)>>(at);
    return {};
  };
  const auto halves = [&](const char* name, std::int64_t columns, void*& field) -> Status {
    SCANJIT_ASSIGN_OR_RETURN(field, buffers.output(name, rows * columns * 2, 2));
    return {};
  };
  const auto floats = [&](const char* name, bool exists, std::int64_t elements,
                          float*& field) -> Status {
    if (!exists) return {};
    SCANJIT_ASSIGN_OR_RETURN(void* at, buffers.output(name, heads * elements * 4, 4));
    field = static_cast<float*>(at);
    return {};
  };
  SCANJIT_TRY(input("q", in.q, to.q));
  SCANJIT_TRY(input("k", in.k, to.k));
  SCANJIT_TRY(input("v", in.v, to.v));
  SCANJIT_TRY(input("s", in.s, to.s));
  SCANJIT_TRY(input("hk0", in.hk0, to.hk0));
  SCANJIT_TRY(input("hv0", in.hv0, to.hv0));
  SCANJIT_TRY(input("z0", in.z0, to.z0));
  static_cast<AbcInputs&>(back) = to;
  SCANJIT_TRY(input("dout", in.dout, back.dout));
  SCANJIT_TRY(input("dhkt", in.dhkt, back.dhkt));
  SCANJIT_TRY(input("dhvt", in.dhvt, back.dhvt));
  SCANJIT_TRY(halves("o", s.V, to.o));
  SCANJIT_TRY(floats("hkt", true, s.K * s.M, to.hkt));
  SCANJIT_TRY(floats("hvt", true, s.M * s.V, to.hvt));
  SCANJIT_TRY(floats("zt", true, s.M, to.zt));
  SCANJIT_TRY(halves("dq", s.K, back.dq));
  SCANJIT_TRY(halves("dk", s.K, back.dk));
  SCANJIT_TRY(halves("dv", s.V, back.dv));
  SCANJIT_TRY(halves("ds", s.M, back.ds));
  SCANJIT_TRY(floats("dhk0", s.has_hk0, s.K * s.M, back.dhk0));
  SCANJIT_TRY(floats("dhv0", s.has_hv0, s.M * s.V, back.dhv0));
  SCANJIT_TRY(floats("dz0", s.has_z0, s.M, back.dz0));
  if (options.saved) {
    SCANJIT_ASSIGN_OR_RETURN(const std::int64_t bytes, abc_saved_bytes(forward));
    SCANJIT_ASSIGN_OR_RETURN(to.saved, buffers.scratch("saved", bytes));
    back.saved = to.saved;
  }
  SCANJIT_ASSIGN_OR_RETURN(
      const Config one, launch(gpu, buffers, "forward's workspace", forward, to, options.forward));
  SCANJIT_ASSIGN_OR_RETURN(const Config two, launch(gpu, buffers, "backward's workspace", backward,
                                                    back, options.backward));
  SCANJIT_ASSIGN_OR_RETURN(AbcRun result, buffers.finish());
  result.forward = one;
  result.backward = two;
  return result;
}

Status compile_abc(Gpu& gpu, const std::vector<std::pair<reference::AbcCase, AbcOptions>>& cases) {
  SCANJIT_ASSIGN_OR_RETURN(Engine * engine, gpu.engine());
  const engine::Internals& internals = engine::internals(*engine);
  const ops::DeviceLimits limits = engine::limits_of(gpu.facts());
  std::vector<jit::KernelSource> sources;
  const auto add = [&](const ops::AbcOp& op, const std::optional<Config>& named) -> Status {
    Config config;
    if (named) {
      config = *named;
    } else {
      SCANJIT_ASSIGN_OR_RETURN(config, op.heuristic(limits));
    }
    for (jit::KernelSource& source : op.kernels(config, limits)) {
      if (std::find(sources.begin(), sources.end(), source) == sources.end())
        sources.push_back(std::move(source));
    }
    return {};
  };
  for (const auto& [c, options] : cases) {
    SCANJIT_ASSIGN_OR_RETURN(const auto forward, ops::AbcForward::make(abc_forward_of(c, options)));
    SCANJIT_ASSIGN_OR_RETURN(const auto backward,
                             ops::AbcBackward::make(abc_backward_of(c, options)));
    SCANJIT_TRY(add(*forward, options.forward));
    SCANJIT_TRY(add(*backward, options.backward));
  }
  for (const Result<jit::Binary>& binary : internals.provider->get_all(sources, gpu.facts().arch))
    SCANJIT_TRY(binary.status());
  return {};
}

std::vector<double> abc_numbers(const AbcRun& run, const std::string& name, DType dtype) {
  const auto found = run.outputs.find(name);
  if (found == run.outputs.end()) return {};
  const std::vector<unsigned char>& bytes = found->second;
  std::vector<double> out;
  if (is_half(name)) {
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &bytes[i], 2);
      out.push_back(static_cast<double>(reference::half_to_float(dtype, bits)));
    }
  } else {
    for (std::size_t i = 0; i < bytes.size(); i += 4) {
      float value = 0;
      std::memcpy(&value, &bytes[i], 4);
      out.push_back(static_cast<double>(value));
    }
  }
  return out;
}

Result<std::string> abc_failures(const AbcRun& run, const reference::AbcCase& c,
                                 const reference::AbcTensors& tensors) {
  const reference::AbcInputs in = reference::inputs_of(c.dtype, tensors);
  SCANJIT_ASSIGN_OR_RETURN(const auto out, reference::abc_forward(c.shape, in));
  SCANJIT_ASSIGN_OR_RETURN(
      const auto gradients,
      reference::abc_backward(c.shape, in, reference::cotangents_of(c.dtype, tensors)));
  std::string all;
  const auto judge = [&](const char* name, const std::vector<double>& reference,
                         const std::vector<double>& terms = {}) {
    all += reference::abc_failure(name, c.dtype, abc_numbers(run, name, c.dtype), reference, terms);
  };
  judge("o", out.o);
  judge("hkt", out.hkt);
  judge("hvt", out.hvt);
  judge("zt", out.zt);
  judge("dq", gradients.dq);
  judge("dk", gradients.dk);
  judge("dv", gradients.dv);
  judge("ds", gradients.ds, gradients.ds_terms);
  judge("dhk0", gradients.dhk0);
  judge("dhv0", gradients.dhv0);
  judge("dz0", gradients.dz0, gradients.dz0_terms);
  return all;
}

std::string abc_difference(const AbcBits& a, const AbcBits& b) {
  if (a.size() != b.size()) return "other outputs";
  std::string text;
  for (const auto& [name, bits] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second != bits) text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace scanjit::test
