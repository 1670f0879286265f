#include "gpu/kda_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "engine/internals.hpp"
#include "gpu/memory.hpp"
#include "ops/kda_forward.hpp"
#include "reference/half.hpp"

namespace scanjit::test {
namespace {

constexpr unsigned char kPoison = 0xFF;  // NaN in every float type

std::int64_t total(const std::vector<std::int64_t>& lengths) {
  std::int64_t tokens = 0;
  for (const std::int64_t length : lengths) tokens += length;
  return tokens;
}

std::size_t at(std::int64_t value) { return static_cast<std::size_t>(value); }

// [states, rows, columns] with rows and columns exchanged.
std::vector<float> transposed(const std::vector<float>& from, std::int64_t rows,
                              std::int64_t columns) {
  std::vector<float> to(from.size());
  const std::int64_t states = static_cast<std::int64_t>(from.size()) / (rows * columns);
  for (std::int64_t s = 0; s < states; ++s) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c)
        to[at((s * columns + c) * rows + r)] = from[at((s * rows + r) * columns + c)];
    }
  }
  return to;
}

// Tensors by name, alive until the run is over.
class Tensors {
 public:
  Tensors(Gpu& gpu, const KdaOptions& options) : gpu_(gpu), options_(options) {}

  Result<void*> place(const std::string& name, std::int64_t bytes, int offset_bytes = 0) {
    SCANJIT_ASSIGN_OR_RETURN(GuardedBuffer buffer,
                             GuardedBuffer::make(gpu_, bytes, Guard::kBytes, offset_bytes));
    if (bytes > 0) SCANJIT_TRY(buffer.fill(kPoison));
    return all_.insert_or_assign(name, std::move(buffer)).first->second.as<void>();
  }
  template <class T>
  Result<const void*> input(const std::string& name, const std::vector<T>& values,
                            int offset_bytes = 0) {
    SCANJIT_ASSIGN_OR_RETURN(
        const void* address,
        place(name, static_cast<std::int64_t>(values.size() * sizeof(T)), offset_bytes));
    if (!values.empty()) SCANJIT_TRY(all_.at(name).upload(values));
    return address;
  }
  /// Rows of `row` elements, `pad` poisoned elements apart.
  template <class T>
  Result<const void*> rows(const std::string& name, const std::vector<T>& values,
                           std::int64_t row) {
    const std::int64_t count = static_cast<std::int64_t>(values.size()) / row,
                       stride = row + options_.pad;
    std::vector<T> padded(at(count * stride));
    std::memset(padded.data(), kPoison, padded.size() * sizeof(T));
    for (std::int64_t r = 0; r < count; ++r)
      std::copy_n(values.begin() + r * row, row, padded.begin() + r * stride);
    return input(name, padded, options_.offset_elements * static_cast<int>(sizeof(T)));
  }
  Result<const void*> floats(const std::string& name, const std::vector<float>& values,
                             std::int64_t row, bool bf16) {
    if (!bf16) return rows(name, values, row);
    std::vector<std::uint16_t> halves(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      halves[i] = reference::double_to_half(DType::kBf16, static_cast<double>(values[i]));
    return rows(name, halves, row);
  }
  [[nodiscard]] const GuardedBuffer& buffer(const std::string& name) const { return all_.at(name); }
  [[nodiscard]] std::string damage() const {
    std::string text;
    for (const auto& [name, buffer] : all_) {
      if (const Status status = buffer.damage(); !status.ok())
        text += name + ": " + status.message() + "; ";
    }
    return text;
  }

 private:
  Gpu& gpu_;
  const KdaOptions& options_;
  std::map<std::string, GuardedBuffer> all_;
};

}  // namespace

KdaForwardProblem problem_of(const reference::KdaInputs& in, const KdaOptions& options) {
  KdaForwardProblem p;
  const auto N = static_cast<std::int64_t>(in.lengths.size());
  p.packed = options.packed;
  p.B = options.packed ? 1 : N;
  p.T = options.packed ? total(in.lengths) : in.lengths.front();
  p.sequences = options.packed ? N : 0;
  p.H = in.H;
  p.HV = in.HV;
  p.K = in.K;
  p.V = in.V;
  p.gate = static_cast<KdaGate>(static_cast<int>(in.gate));
  p.lower_bound = static_cast<float>(in.lower_bound);
  p.has_A_log = !in.A_log.empty();
  p.has_dt_bias = !in.dt_bias.empty();
  const bool scalar = in.gate == reference::KdaGate::kScalar;
  p.g_dtype = options.g_bf16 && !scalar ? DType::kBf16 : DType::kF32;
  p.beta_dtype = options.beta_bf16 ? DType::kBf16 : DType::kF32;
  p.normalize_qk = in.normalize_qk;
  p.beta_sigmoid = in.beta_sigmoid;
  p.scale = static_cast<float>(in.scale);
  p.has_h0 = !in.h0.empty();
  p.has_ht = true;
  p.layout = options.layout;
  if (!options.checkpoint_offsets.empty())
    p.checkpoints = static_cast<std::int64_t>(options.checkpoint_offsets.front().size());
  p.has_h0_indices = !options.h0_indices.empty();
  p.has_ht_indices = !options.ht_indices.empty();
  if (p.has_h0_indices) p.h0_slots = options.slots;
  if (p.has_ht_indices) p.ht_slots = options.slots;
  if (options.pad != 0) {
    p.q_stride = p.k_stride = in.H * in.K + options.pad;
    p.v_stride = p.o_stride = in.HV * in.V + options.pad;
    p.g_stride = in.HV * (scalar ? 1 : in.K) + options.pad;
    p.beta_stride = in.HV + options.pad;
  }
  p.aligned16 = options.offset_elements == 0;
  p.numerics = options.numerics;
  p.workspace_limit = options.workspace_limit;
  return p;
}

Result<KdaRun> run(Gpu& gpu, const reference::KdaInputs& in, const KdaOptions& options) {
  const KdaForwardProblem p = problem_of(in, options);
  SCANJIT_ASSIGN_OR_RETURN(Engine * engine, gpu.engine());
  SCANJIT_ASSIGN_OR_RETURN(
      const Plan plan, options.config ? engine->plan_with(p, *options.config) : engine->plan(p));
  const auto N = static_cast<std::int64_t>(in.lengths.size());
  const std::int64_t tokens = total(in.lengths), state = in.HV * in.K * in.V;
  const bool vk = options.layout == StateLayout::kVK;
  Tensors tensors(gpu, options);
  KdaForwardArgs args;
  SCANJIT_ASSIGN_OR_RETURN(args.q, tensors.rows("q", in.q, in.H * in.K));
  SCANJIT_ASSIGN_OR_RETURN(args.k, tensors.rows("k", in.k, in.H * in.K));
  SCANJIT_ASSIGN_OR_RETURN(args.v, tensors.rows("v", in.v, in.HV * in.V));
  SCANJIT_ASSIGN_OR_RETURN(
      args.g, tensors.floats("g", in.g, p.gate == KdaGate::kScalar ? in.HV : in.HV * in.K,
                             p.g_dtype == DType::kBf16));
  SCANJIT_ASSIGN_OR_RETURN(args.beta, tensors.floats("beta", in.beta, in.HV, options.beta_bf16));
  const auto plain = [&](const std::string& name, const auto& values) {
    return tensors.input(name, values);
  };
  if (p.has_A_log) {
    SCANJIT_ASSIGN_OR_RETURN(const void* address, plain("A_log", in.A_log));
    args.A_log = static_cast<const float*>(address);
  }
  if (p.has_dt_bias) {
    SCANJIT_ASSIGN_OR_RETURN(const void* address, plain("dt_bias", in.dt_bias));
    args.dt_bias = static_cast<const float*>(address);
  }
  if (p.has_h0) {
    std::vector<float> h0 = in.h0;
    if (p.has_h0_indices) {
      h0.assign(at(options.slots * state), std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t n = 0; n < N; ++n) {
        const std::int64_t slot = options.h0_indices[at(n)];
        if (slot >= 0 && slot < options.slots)
          std::copy_n(in.h0.begin() + n * state, state, h0.begin() + slot * state);
      }
      SCANJIT_ASSIGN_OR_RETURN(args.h0_indices, plain("h0_indices", options.h0_indices));
    }
    SCANJIT_ASSIGN_OR_RETURN(args.h0, plain("h0", vk ? transposed(h0, in.K, in.V) : h0));
  }
  if (p.packed) {
    std::vector<std::int64_t> offsets{0};
    for (const std::int64_t length : in.lengths) offsets.push_back(offsets.back() + length);
    SCANJIT_ASSIGN_OR_RETURN(
        args.cu_seqlens,
        plain("cu_seqlens", options.cu_seqlens.empty() ? offsets : options.cu_seqlens));
  }
  if (p.has_ht_indices) {
    SCANJIT_ASSIGN_OR_RETURN(args.ht_indices, plain("ht_indices", options.ht_indices));
  }
  if (p.checkpoints > 0) {
    std::vector<std::int32_t> flat;
    for (const auto& of_one : options.checkpoint_offsets)
      flat.insert(flat.end(), of_one.begin(), of_one.end());
    SCANJIT_ASSIGN_OR_RETURN(const void* address, plain("checkpoint_offsets", flat));
    args.checkpoint_offsets = static_cast<const std::int32_t*>(address);
    SCANJIT_ASSIGN_OR_RETURN(args.checkpoints,
                             tensors.place("checkpoints", N * p.checkpoints * state * 4));
  }
  const std::int64_t o_row = in.HV * in.V, o_stride = o_row + options.pad;
  SCANJIT_ASSIGN_OR_RETURN(args.o,
                           tensors.place("o", tokens * o_stride * 2, options.offset_elements * 2));
  SCANJIT_ASSIGN_OR_RETURN(args.ht,
                           tensors.place("ht", (p.has_ht_indices ? options.slots : N) * state * 4));
  SCANJIT_ASSIGN_OR_RETURN(const void* status,
                           tensors.input("status", std::vector<std::uint32_t>{0}));
  args.status = static_cast<std::uint32_t*>(const_cast<void*>(status));

  KdaRun result;
  result.config = plan.why().config;
  result.workspace_bytes = plan.workspace_bytes();
  // GuardedBuffer aligns to 16 bytes only.
  SCANJIT_ASSIGN_OR_RETURN(void* around, tensors.place("workspace", result.workspace_bytes + 256));
  Workspace workspace{
      reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(around) + 255) / 256 * 256),
      result.workspace_bytes};
  SCANJIT_TRY(plan.launch(args, workspace, gpu.stream()));
  SCANJIT_TRY(gpu.synchronize());

  SCANJIT_ASSIGN_OR_RETURN(const auto o, tensors.buffer("o").download_as<std::uint16_t>());
  for (std::int64_t t = 0; t < tokens; ++t) {
    result.o.insert(result.o.end(), o.begin() + t * o_stride, o.begin() + t * o_stride + o_row);
    for (std::int64_t i = o_row; i < o_stride; ++i) {
      if (o[at(t * o_stride + i)] != 0xFFFF)
        result.damage = "o: written between rows, at token " + std::to_string(t) + "; ";
    }
  }
  const auto states = [&](const std::string& name) -> Result<std::vector<float>> {
    SCANJIT_ASSIGN_OR_RETURN(auto values, tensors.buffer(name).download_as<float>());
    return vk ? transposed(values, in.V, in.K) : values;
  };
  SCANJIT_ASSIGN_OR_RETURN(result.ht, states("ht"));
  if (p.checkpoints > 0) {
    SCANJIT_ASSIGN_OR_RETURN(result.checkpoints, states("checkpoints"));
  }
  SCANJIT_ASSIGN_OR_RETURN(const auto word, tensors.buffer("status").download_as<std::uint32_t>());
  result.status = word.front();
  result.damage += tensors.damage();
  return result;
}

Status compile_all(Gpu& gpu, const std::vector<KdaWanted>& wanted) {
  SCANJIT_ASSIGN_OR_RETURN(Engine * engine, gpu.engine());
  engine::Internals& internals = engine::internals(*engine);
  const ops::DeviceLimits limits = engine::limits_of(gpu.facts());
  std::vector<jit::KernelSource> sources;
  for (const KdaWanted& one : wanted) {
    SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::KdaForward::make(one.problem));
    Config config;
    if (one.config) {
      config = *one.config;
    } else {
      SCANJIT_ASSIGN_OR_RETURN(config, op->heuristic(limits));
    }
    for (const ops::Stage& stage : op->stages(config, limits)) {
      if (std::find(sources.begin(), sources.end(), stage.source) == sources.end())
        sources.push_back(stage.source);
    }
  }
  for (const auto& binary : internals.provider->get_all(sources, gpu.facts().arch))
    SCANJIT_TRY(binary.status());
  return {};
}

Result<std::vector<Config>> legal_configs(Gpu& gpu, const KdaForwardProblem& problem) {
  SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::KdaForward::make(problem));
  const ops::DeviceLimits limits = engine::limits_of(gpu.facts());
  std::vector<Config> configs = op->space().all();
  std::erase_if(configs, [&](const Config& config) { return !op->legal(config, limits).ok(); });
  return configs;
}

namespace {

template <class A, class B>
double relative(std::size_t count, A a, B b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < count; ++i) {
    difference += (a(i) - b(i)) * (a(i) - b(i));
    norm += b(i) * b(i);
  }
  if (std::isnan(difference)) return difference;
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

auto halves(const std::vector<std::uint16_t>& values) {
  return
      [&values](std::size_t i) { return static_cast<double>(reference::bf16_to_float(values[i])); };
}
auto floats(const std::vector<float>& values) {
  return [&values](std::size_t i) { return static_cast<double>(values[i]); };
}
auto doubles(const std::vector<double>& values) {
  return [&values](std::size_t i) { return values[i]; };
}

}  // namespace

KdaErrors errors_of(const KdaRun& run, const reference::KdaOutputs& oracle) {
  return {relative(oracle.o.size(), halves(run.o), doubles(oracle.o)),
          relative(oracle.ht.size(), floats(run.ht), doubles(oracle.ht))};
}

KdaErrors errors_of(const KdaRun& run, const KdaRun& other) {
  return {relative(other.o.size(), halves(run.o), halves(other.o)),
          relative(other.ht.size(), floats(run.ht), floats(other.ht))};
}

std::string bit_difference(const KdaRun& a, const KdaRun& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0);
  };
  if (!same(a.o, b.o)) return "o differs";
  if (!same(a.ht, b.ht)) return "ht differs";
  if (!a.checkpoints.empty() && !b.checkpoints.empty() && !same(a.checkpoints, b.checkpoints))
    return "checkpoints differ";
  if (a.status != b.status) return "status differs";
  return "";
}

}  // namespace scanjit::test
