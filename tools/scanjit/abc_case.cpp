#include "abc_case.hpp"

#include <algorithm>
#include <cstring>

#include "host_memory.hpp"
#include "ops/abc_backward.hpp"
#include "ops/abc_forward.hpp"
#include "ops/registry.hpp"
#include "reference/half.hpp"

namespace scanjit::cli {
namespace {

using ops::AbcOp;

// Numbers of a tensor's elements and its shape.
struct Layout {
  std::vector<std::int64_t> shape;
  bool half = false;
};

Layout layout_of(std::size_t tensor, const reference::AbcShape& p) {
  switch (tensor) {
    case AbcOp::kQ:
    case AbcOp::kK:
    case AbcOp::kDq:
    case AbcOp::kDk: return {{p.B, p.T, p.H, p.K}, true};
    case AbcOp::kV:
    case AbcOp::kO:
    case AbcOp::kDout:
    case AbcOp::kDv: return {{p.B, p.T, p.H, p.V}, true};
    case AbcOp::kS:
    case AbcOp::kDs: return {{p.B, p.T, p.H, p.M}, true};
    case AbcOp::kHk0:
    case AbcOp::kHkt:
    case AbcOp::kDhkt:
    case AbcOp::kDhk0: return {{p.B, p.H, p.K, p.M}, false};
    case AbcOp::kHv0:
    case AbcOp::kHvt:
    case AbcOp::kDhvt:
    case AbcOp::kDhv0: return {{p.B, p.H, p.M, p.V}, false};
    default: return {{p.B, p.H, p.M}, false};
  }
}

std::size_t number_of(const std::string& name) {
  std::size_t i = 0;
  while (i < AbcOp::kTensors && name != AbcOp::name_of(i)) ++i;
  return i;
}

// The inputs of both directions by number.
template <class Use>  // use(number, vector)
void for_each_input(reference::AbcTensors& in, bool backward, Use use) {
  use(AbcOp::kQ, in.q);
  use(AbcOp::kK, in.k);
  use(AbcOp::kV, in.v);
  use(AbcOp::kS, in.s);
  use(AbcOp::kHk0, in.hk0);
  use(AbcOp::kHv0, in.hv0);
  use(AbcOp::kZ0, in.z0);
  if (!backward) return;
  use(AbcOp::kDout, in.dout);
  use(AbcOp::kDhkt, in.dhkt);
  use(AbcOp::kDhvt, in.dhvt);
}

bool is_backward(const std::string& op) { return op == ops::kAbcBackward.name; }

template <class Problem>
void fill_problem(const AbcRequest& request, Problem& p) {
  const reference::AbcShape& s = request.abc_case.shape;
  p.dtype = request.abc_case.dtype;
  p.B = s.B;
  p.T = s.T;
  p.H = s.H;
  p.K = s.K;
  p.M = s.M;
  p.V = s.V;
  p.has_hk0 = s.has_hk0;
  p.has_hv0 = s.has_hv0;
  p.has_z0 = s.has_z0;
  p.numerics = request.numerics;
}

AbcForwardProblem forward_of(const AbcRequest& request) {
  AbcForwardProblem p;
  fill_problem(request, p);
  p.has_hkt = p.has_hvt = p.has_zt = true;
  return p;
}
AbcBackwardProblem backward_of(const AbcRequest& request) {
  AbcBackwardProblem p;
  fill_problem(request, p);
  p.has_dhkt = request.abc_case.has_dhkt;
  p.has_dhvt = request.abc_case.has_dhvt;
  return p;
}

template <class Problem>
Result<Plan> planned(Engine& engine, const Problem& problem, const std::optional<Config>& config) {
  return config ? engine.plan_with(problem, *config) : engine.plan(problem);
}

std::vector<double> numbers(const AbcOutputs& outputs, const std::string& name, DType dtype) {
  const auto found = std::find_if(outputs.begin(), outputs.end(),
                                  [&](const auto& output) { return output.first == name; });
  std::vector<double> values;
  if (found == outputs.end()) return values;
  const std::vector<std::byte>& bytes = found->second;
  const bool half = layout_of(number_of(name), {}).half;
  for (std::size_t i = 0; i < bytes.size(); i += half ? 2 : 4) {
    if (half) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &bytes[i], 2);
      values.push_back(static_cast<double>(reference::half_to_float(dtype, bits)));
    } else {
      float value = 0;
      std::memcpy(&value, &bytes[i], 4);
      values.push_back(static_cast<double>(value));
    }
  }
  return values;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

Result<AbcRequest> request_of(const tuning::Shape& shape) {
  AbcRequest request;
  request.op = shape.op;
  const auto fill = [&](const AbcProblem& p) {
    request.abc_case.dtype = p.dtype;
    request.abc_case.shape = {p.B, p.T, p.H, p.K, p.M, p.V, p.has_hk0, p.has_hv0, p.has_z0};
    request.numerics = p.numerics;
  };
  if (is_backward(shape.op)) {
    SCANJIT_ASSIGN_OR_RETURN(const AbcBackwardProblem p, ops::problem_of<ops::AbcBackward>(shape));
    fill(p);
    request.abc_case.has_dhkt = p.has_dhkt;
    request.abc_case.has_dhvt = p.has_dhvt;
  } else {
    SCANJIT_ASSIGN_OR_RETURN(const AbcForwardProblem p, ops::problem_of<ops::AbcForward>(shape));
    fill(p);
  }
  SCANJIT_TRY(op_of(request).status());
  return request;
}

Result<AbcRequest> read_abc(const std::string& op, const io::Safetensors& file,
                            const NameValues& settings) {
  AbcRequest request;
  request.op = op;
  for (const auto& [name, value] : settings) {
    if (name != "numerics")
      return invalid_argument("--set has no '" + name + "' for " + op + ": it has numerics");
    request.numerics = value;
  }
  const io::TensorView* q = file.find("q");
  const io::TensorView *v = file.find("v"), *s = file.find("s");
  for (const auto& [name, tensor] : {std::pair{"q", q}, {"v", v}, {"s", s}}) {
    if (tensor == nullptr)
      return invalid_argument(std::string("the tensor ") + name + " is missing");
    if (tensor->shape.size() != 4) {
      return invalid_argument(std::string(name) + " has " + std::to_string(tensor->shape.size()) +
                              " dimensions, it must have 4");
    }
  }
  if (q->type != io::TensorType::kBf16 && q->type != io::TensorType::kF16) {
    return invalid_argument(std::string("q is ") + io::to_string(q->type) +
                            ", it must be BF16 or F16");
  }
  reference::AbcCase& c = request.abc_case;
  c.dtype = q->type == io::TensorType::kBf16 ? DType::kBf16 : DType::kF16;
  c.shape = {q->shape[0],
             q->shape[1],
             q->shape[2],
             q->shape[3],
             s->shape[3],
             v->shape[3],
             file.find("hk0") != nullptr,
             file.find("hv0") != nullptr,
             file.find("z0") != nullptr};
  c.has_dhkt = is_backward(op) && file.find("dhkt") != nullptr;
  c.has_dhvt = is_backward(op) && file.find("dhvt") != nullptr;
  SCANJIT_ASSIGN_OR_RETURN(const auto problem, op_of(request));
  Status status;
  for_each_input(request.inputs, is_backward(op), [&](std::size_t number, auto& values) {
    const std::string name = AbcOp::name_of(number);
    const io::TensorView* tensor = file.find(name);
    const bool optional = number == AbcOp::kHk0 || number == AbcOp::kHv0 || number == AbcOp::kZ0 ||
                          number == AbcOp::kDhkt || number == AbcOp::kDhvt;
    if (!status.ok() || (optional && tensor == nullptr)) return;
    if (tensor == nullptr) {
      status = invalid_argument("the tensor " + name + " is missing");
      return;
    }
    const Layout layout = layout_of(number, c.shape);
    const io::TensorType type = layout.half ? q->type : io::TensorType::kF32;
    if (tensor->type != type) {
      status = invalid_argument(name + " is " + io::to_string(tensor->type) + ", it must be " +
                                io::to_string(type));
    } else if (tensor->shape != layout.shape) {
      status = invalid_argument(name + " is " + shape_text(tensor->shape) + ", it must be " +
                                shape_text(layout.shape));
    } else {
      values.resize(tensor->data.size() / sizeof(values[0]));
      if (!values.empty()) std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
    }
  });
  SCANJIT_TRY(status);
  return request;
}

Status generate_inputs(AbcRequest& request) {
  SCANJIT_ASSIGN_OR_RETURN(request.inputs, reference::generate(request.abc_case));
  return {};
}

Status check_fits_host(const AbcRequest& request) {
  SCANJIT_ASSIGN_OR_RETURN(const auto op, op_of(request));
  // Tensors twice, and in f64 with as much again for the oracle's states.
  const double bytes = 16 * static_cast<double>(op->floor_bytes()), machine = machine_bytes();
  if (bytes <= machine) return {};
  return Status(ErrorCode::kOutOfMemory,
                "this takes " + std::to_string(static_cast<std::int64_t>(bytes / 1e9)) +
                    " GB of host memory, the machine has " +
                    std::to_string(static_cast<std::int64_t>(machine / 1e9)) + " GB");
}

Result<std::shared_ptr<const AbcOp>> op_of(const AbcRequest& request) {
  if (is_backward(request.op)) {
    SCANJIT_ASSIGN_OR_RETURN(auto op, ops::AbcBackward::make(backward_of(request)));
    return std::shared_ptr<const AbcOp>(std::move(op));
  }
  SCANJIT_ASSIGN_OR_RETURN(auto op, ops::AbcForward::make(forward_of(request)));
  return std::shared_ptr<const AbcOp>(std::move(op));
}

Result<Plan> plan_of(Engine& engine, const AbcRequest& request,
                     const std::optional<Config>& config) {
  return is_backward(request.op) ? planned(engine, backward_of(request), config)
                                 : planned(engine, forward_of(request), config);
}

Result<AbcDevice> AbcDevice::create(const cuda::DriverApi& api, const AbcRequest& request,
                                    std::int64_t workspace_bytes, cuda::CUstream stream) {
  AbcDevice device(api, request, stream);
  SCANJIT_ASSIGN_OR_RETURN(const auto op, op_of(request));
  Status status;
  reference::AbcTensors inputs = request.inputs;
  for_each_input(inputs, is_backward(request.op), [&](std::size_t number, const auto& values) {
    if (status.ok() && !values.empty())
      status = device.tensors_.add(AbcOp::name_of(number), bytes_of(values), 0, false);
  });
  SCANJIT_TRY(status);
  for (const ops::Tensor& tensor : op->tensors()) {
    if (!tensor.output) continue;
    SCANJIT_TRY(device.tensors_.add(
        tensor.name,
        std::vector<std::byte>(static_cast<std::size_t>(tensor.bytes), std::byte{0xFF}), 0, true));
    device.outputs_.emplace_back(tensor.name, tensor.bytes);
  }
  device.workspace_bytes_ = workspace_bytes;
  if (workspace_bytes > 0) SCANJIT_TRY(device.tensors_.add_workspace(workspace_bytes));
  return device;
}

template <class Args>
Args AbcDevice::arguments() const {
  Args args;
  const auto at = [&](const char* name, auto& field) {
    field = static_cast<std::remove_reference_t<decltype(field)>>(tensors_.address(name));
  };
  at("q", args.q);
  at("k", args.k);
  at("v", args.v);
  at("s", args.s);
  at("hk0", args.hk0);
  at("hv0", args.hv0);
  at("z0", args.z0);
  if constexpr (std::is_same_v<Args, AbcForwardArgs>) {
    at("o", args.o);
    at("hkt", args.hkt);
    at("hvt", args.hvt);
    at("zt", args.zt);
  } else {
    at("dout", args.dout);
    at("dhkt", args.dhkt);
    at("dhvt", args.dhvt);
    at("dq", args.dq);
    at("dk", args.dk);
    at("dv", args.dv);
    at("ds", args.ds);
    at("dhk0", args.dhk0);
    at("dhv0", args.dhv0);
    at("dz0", args.dz0);
  }
  return args;
}

Result<AbcOutputs> AbcDevice::run(const Plan& plan) {
  SCANJIT_TRY(tensors_.reset());
  const Workspace workspace{tensors_.address("workspace"), workspace_bytes_};
  SCANJIT_TRY(is_backward(request_->op)
                  ? plan.launch(arguments<AbcBackwardArgs>(), workspace, stream_)
                  : plan.launch(arguments<AbcForwardArgs>(), workspace, stream_));
  AbcOutputs outputs;
  for (const auto& [name, bytes] : outputs_) {
    SCANJIT_ASSIGN_OR_RETURN(std::vector<std::byte> values,
                             tensors_.read<std::byte>(name, static_cast<std::size_t>(bytes)));
    outputs.emplace_back(name, std::move(values));
  }
  return outputs;
}

std::string difference(const AbcOutputs& a, const AbcOutputs& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const auto& [name, bytes] = a[i];
    const auto at = std::mismatch(bytes.begin(), bytes.end(), b[i].second.begin()).first;
    if (at != bytes.end()) {
      const std::int64_t size = layout_of(number_of(name), {}).half ? 2 : 4;
      return name + " differs at element " + std::to_string((at - bytes.begin()) / size);
    }
  }
  return "";
}

double AbcVerdict::worst() const noexcept {
  double worst = 0;
  for (const auto& [name, error] : errors) worst = std::max(worst, error.relative_l2);
  return worst;
}

Result<AbcVerdict> judge_abc(const AbcRequest& request, const AbcOutputs& outputs) {
  const reference::AbcCase& c = request.abc_case;
  const reference::AbcInputs in = reference::inputs_of(c.dtype, request.inputs);
  AbcVerdict verdict;
  const auto judge = [&](const char* name, const std::vector<double>& reference,
                         const std::vector<double>& terms = {}) {
    if (reference.empty()) return;
    const std::vector<double> got = numbers(outputs, name, c.dtype);
    verdict.failure += reference::abc_failure(name, c.dtype, got, reference, terms);
    reference::ErrorSum sum;
    for (std::size_t i = 0; i < std::min(got.size(), reference.size()); ++i)
      sum.add(static_cast<std::int64_t>(i), got[i], reference[i]);
    verdict.errors.emplace_back(name, sum.finish());
  };
  if (is_backward(request.op)) {
    SCANJIT_ASSIGN_OR_RETURN(
        const reference::AbcGradients g,
        reference::abc_backward(c.shape, in, reference::cotangents_of(c.dtype, request.inputs)));
    judge("dq", g.dq);
    judge("dk", g.dk);
    judge("dv", g.dv);
    judge("ds", g.ds, g.ds_terms);
    judge("dhk0", g.dhk0);
    judge("dhv0", g.dhv0);
    judge("dz0", g.dz0, g.dz0_terms);
  } else {
    SCANJIT_ASSIGN_OR_RETURN(const reference::AbcOutputs out, reference::abc_forward(c.shape, in));
    judge("o", out.o);
    judge("hkt", out.hkt);
    judge("hvt", out.hvt);
    judge("zt", out.zt);
  }
  return verdict;
}

Json errors_json(const AbcVerdict& verdict) {
  Json json = Json::object();
  for (const auto& [name, error] : verdict.errors)
    json[name] = {{"pure", error.relative_l2}, {"non_finite", error.non_finite}};
  return json;
}

TensorFile input_tensors(const AbcRequest& request) {
  TensorFile file;
  const io::TensorType half =
      request.abc_case.dtype == DType::kBf16 ? io::TensorType::kBf16 : io::TensorType::kF16;
  reference::AbcTensors inputs = request.inputs;
  const reference::AbcShape& p = request.abc_case.shape;
  for_each_input(inputs, is_backward(request.op), [&](std::size_t number, const auto& values) {
    const bool absent = (number == AbcOp::kHk0 && !p.has_hk0) ||
                        (number == AbcOp::kHv0 && !p.has_hv0) ||
                        (number == AbcOp::kZ0 && !p.has_z0) ||
                        (number == AbcOp::kDhkt && !request.abc_case.has_dhkt) ||
                        (number == AbcOp::kDhvt && !request.abc_case.has_dhvt);
    if (absent) return;
    const Layout layout = layout_of(number, p);
    file.add(AbcOp::name_of(number), layout.half ? half : io::TensorType::kF32, layout.shape,
             bytes_of(values));
  });
  return file;
}

TensorFile output_tensors(const AbcRequest& request, const AbcOutputs& outputs,
                          const std::vector<std::string>& wanted) {
  TensorFile file;
  const io::TensorType half =
      request.abc_case.dtype == DType::kBf16 ? io::TensorType::kBf16 : io::TensorType::kF16;
  for (const auto& [name, bytes] : outputs) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    const Layout layout = layout_of(number_of(name), request.abc_case.shape);
    file.add(name, layout.half ? half : io::TensorType::kF32, layout.shape, bytes);
  }
  return file;
}

}  // namespace scanjit::cli
