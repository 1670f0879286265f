#include "gpu/shape_map.hpp"

#include <algorithm>

#include "core/embedded_file.hpp"
#include "gpu/kernels/test_params.h"
#include "reference/gated_delta_h.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit {
extern const EmbeddedFile gpu_test_shapes[];
extern const std::size_t gpu_test_shapes_count;
}  // namespace scanjit

namespace scanjit::test {
namespace {

constexpr const char* kKernels = "kernels/test_kernels.cu";
constexpr std::int64_t kKeyHeads = 16, kWidth = 128, kChunk = 64;
constexpr int kThreads = 256;

std::int64_t blocks_for(const Gpu& gpu, std::int64_t items) {
  return std::clamp<std::int64_t>((items + kThreads - 1) / kThreads, 1,
                                  std::int64_t{8} * gpu.facts().sm_count);
}

template <class T>
Result<GuardedBuffer> uploaded(Gpu& gpu, const std::vector<T>& values) {
  SCANJIT_ASSIGN_OR_RETURN(
      GuardedBuffer buffer,
      GuardedBuffer::make(gpu, static_cast<std::int64_t>(values.size() * sizeof(T)),
                          Guard::kBytes));
  SCANJIT_TRY(buffer.upload(values));
  return buffer;
}

/// The shapes of a file of configs/ that was compiled in; none if it cannot be read.
std::vector<MapShape> shapes_of(const std::string& name) {
  std::vector<MapShape> shapes;
  for (std::size_t i = 0; i < gpu_test_shapes_count; ++i) {
    const EmbeddedFile& file = gpu_test_shapes[i];
    if (file.name != name) continue;
    const Result<tuning::ShapeMap> map =
        tuning::shape_map_from_json({reinterpret_cast<const char*>(file.bytes), file.size});
    if (!map.ok()) return {};
    for (const tuning::Shape& shape : map->shapes) shapes.push_back({shape.HV, shape.N, shape.T});
  }
  return shapes;
}

}  // namespace

std::vector<MapShape> map_shapes() { return shapes_of("shapes/scan_map.json"); }

std::vector<MapShape> held_out_shapes() { return shapes_of("shapes/held_out.json"); }

std::string to_string(const MapShape& shape) {
  return "HV=" + std::to_string(shape.HV) + " N=" + std::to_string(shape.N) +
         " T=" + std::to_string(shape.T);
}

GatedDeltaHProblem map_problem(const MapShape& shape, MapGate gate) {
  GatedDeltaHProblem p;
  p.B = shape.N;
  p.T = shape.T;
  p.H = kKeyHeads;
  p.HV = shape.HV;
  p.K = p.V = kWidth;
  p.BT = kChunk;
  p.has_g = gate == MapGate::kG;
  p.has_gk = gate == MapGate::kGk;
  p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
  return p;
}

std::int64_t tensor_bytes(const GatedDeltaHProblem& problem) {
  const Result<reference::GatedDeltaHSizes> s = reference::sizes_of(problem);
  if (!s.ok()) return -1;
  return 2 * (s->k + s->w + s->u + s->h + s->v_new) + 4 * (s->g + s->gk + s->h0 + s->ht);
}

Result<ChunkBank> ChunkBank::make(Gpu& gpu, std::int64_t group, MapGate gate,
                                  reference::GateSet gates, std::uint64_t seed) {
  GatedDeltaHProblem p;
  p.T = kBankChunks * kChunk;
  p.H = 1;
  p.HV = group;
  p.K = p.V = kWidth;
  p.BT = kChunk;
  p.has_g = gate == MapGate::kG;
  p.has_gk = gate == MapGate::kGk;
  reference::GeneratorOptions options;
  options.gates = gates;
  options.seed = seed;
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHInputs inputs,
                           reference::generate(p, options));
  ChunkBank bank;
  SCANJIT_ASSIGN_OR_RETURN(bank.k_, uploaded(gpu, inputs.k));
  SCANJIT_ASSIGN_OR_RETURN(bank.w_, uploaded(gpu, inputs.w));
  SCANJIT_ASSIGN_OR_RETURN(bank.u_, uploaded(gpu, inputs.u));
  SCANJIT_ASSIGN_OR_RETURN(bank.g_, uploaded(gpu, inputs.g));
  SCANJIT_ASSIGN_OR_RETURN(bank.gk_, uploaded(gpu, inputs.gk));
  return bank;
}

Result<MapTensors> MapTensors::make(Gpu& gpu, const GatedDeltaHProblem& problem,
                                    const ChunkBank& bank, std::uint64_t seed) {
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHSizes s, reference::sizes_of(problem));
  MapTensors t;
  t.gpu_ = &gpu;
  t.problem_ = problem;
  const auto make = [&](std::int64_t elements, std::int64_t size) {
    return GuardedBuffer::make(gpu, elements * size, Guard::kBytes);
  };
  SCANJIT_ASSIGN_OR_RETURN(t.k, make(s.k, 2));
  SCANJIT_ASSIGN_OR_RETURN(t.w, make(s.w, 2));
  SCANJIT_ASSIGN_OR_RETURN(t.u, make(s.u, 2));
  SCANJIT_ASSIGN_OR_RETURN(t.g, make(s.g, 4));
  SCANJIT_ASSIGN_OR_RETURN(t.gk, make(s.gk, 4));
  SCANJIT_ASSIGN_OR_RETURN(t.h0, make(s.h0, 4));
  SCANJIT_ASSIGN_OR_RETURN(t.h, make(s.h, 2));
  SCANJIT_ASSIGN_OR_RETURN(t.v_new, make(s.v_new, 2));
  SCANJIT_ASSIGN_OR_RETURN(t.ht, make(s.ht, 4));
  SCANJIT_ASSIGN_OR_RETURN(t.sums_, make(3, 8));

  FillParams fill{};
  fill.bank_k = bank.k_.as<unsigned short>();
  fill.bank_w = bank.w_.as<unsigned short>();
  fill.bank_u = bank.u_.as<unsigned short>();
  fill.bank_g = bank.g_.as<float>();
  fill.bank_gk = bank.gk_.as<float>();
  fill.k = t.k.as<unsigned short>();
  fill.w = t.w.as<unsigned short>();
  fill.u = t.u.as<unsigned short>();
  fill.g = t.g.as<float>();
  fill.gk = t.gk.as<float>();
  fill.B = problem.B;
  fill.T = problem.T;
  fill.H = static_cast<int>(problem.H);
  fill.HV = static_cast<int>(problem.HV);
  fill.K = static_cast<int>(problem.K);
  fill.V = static_cast<int>(problem.V);
  fill.BT = static_cast<int>(problem.BT);
  fill.bank_chunks = kBankChunks;
  fill.seed = seed;
  SCANJIT_TRY(gpu.launch(kKernels, "fill_from_bank", std::min<std::int64_t>(s.tokens, 1 << 20),
                         kThreads, fill));
  UniformParams uniform{};
  uniform.values = t.h0.as<float>();
  uniform.count = s.h0;
  uniform.scale = 0.1732F;  // the variance of 0.1 x normal
  uniform.seed = seed;
  SCANJIT_TRY(gpu.launch(kKernels, "fill_uniform", blocks_for(gpu, s.h0), kThreads, uniform));
  SCANJIT_TRY(gpu.synchronize());

  t.args_.k = t.k.as();
  t.args_.w = t.w.as();
  t.args_.u = t.u.as();
  t.args_.g = t.g.as<float>();
  t.args_.gk = t.gk.as<float>();
  t.args_.h0 = t.h0.as<float>();
  t.args_.h = t.h.as();
  t.args_.v_new = t.v_new.as();
  t.args_.ht = t.ht.as<float>();
  SCANJIT_TRY(t.poison_outputs());
  return t;
}

Status MapTensors::poison_outputs() {
  SCANJIT_TRY(h.fill(0xFF));
  SCANJIT_TRY(v_new.fill(0xFF));
  return ht.fill(0xFF);
}

Status MapTensors::damage() const {
  for (const GuardedBuffer* buffer : {&k, &w, &u, &g, &gk, &h0, &h, &v_new, &ht})
    SCANJIT_TRY(buffer->damage());
  return {};
}

Result<MapTensors::Hashes> MapTensors::hashes() {
  SCANJIT_TRY(sums_.fill(0));
  int place = 0;
  for (const GuardedBuffer* buffer : {&h, &v_new, &ht}) {
    HashParams params{};
    params.bytes = buffer->as<unsigned char>();
    params.count = buffer->bytes();
    params.sum = sums_.as<unsigned long long>() + place++;
    SCANJIT_TRY(gpu_->launch(kKernels, "hash_bytes", blocks_for(*gpu_, params.count / 16), kThreads,
                             params));
  }
  std::uint64_t sums[3] = {};
  SCANJIT_TRY(sums_.download(sums, sizeof sums));
  return Hashes{sums[0], sums[1], sums[2]};
}

}  // namespace scanjit::test
