#include "gpu/runtime.hpp"

#include <cstdlib>

#include "engine/internals.hpp"
#include "engine/shortlists.hpp"

namespace scanjit::test {

Result<Engine> engine_of(Gpu& gpu, EngineOptions options) {
  const char* cache = std::getenv("SCANJIT_GPU_TEST_CACHE");
  // Kernels are shared between cases by a pack, since tuned entries are not to be.
  if (cache != nullptr && *cache != '\0') options.pack_dirs.emplace_back(cache);
  if (options.cache_dir.empty()) options.cache_dir = "none";
  SCANJIT_ASSIGN_OR_RETURN(engine::Parts parts, engine::process_parts());
  parts.shipped.clear();
  SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::GatedDeltaH::make(small_scan(1, 64)));
  SCANJIT_ASSIGN_OR_RETURN(std::vector<Config> configs, legal_configs(gpu, small_scan(1, 64)));
  constexpr std::size_t kListed = 3;
  for (std::size_t i = 0; i < kListed; ++i) configs[i] = configs[i * (configs.size() / kListed)];
  configs.resize(kListed);
  const tuning::ShapeKey key = op->key_query().key;
  parts.shortlists =
      engine::Shortlists({{key.kernel, key.kernel_revision, gpu.facts().arch, "any", configs}})
          .to_json();
  return engine::create_engine(options, std::move(parts));
}

GatedDeltaHProblem small_scan(std::int64_t N, std::int64_t T, std::int64_t HV, std::int64_t K) {
  GatedDeltaHProblem p;
  p.B = N;
  p.T = T;
  p.H = 1;
  p.HV = HV;
  p.K = K;
  p.V = 64;
  p.has_g = p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
  return p;
}

reference::GatedDeltaHInputs inputs_for(const GatedDeltaHProblem& problem) {
  reference::GeneratorOptions options;
  options.seed = 7;
  return must(reference::generate(problem, options));
}

Result<PlainTensors> PlainTensors::make(const cuda::DriverApi& api,
                                        const reference::GatedDeltaHInputs& in, CUstream stream) {
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHSizes sizes,
                           reference::sizes_of(in.problem));
  PlainTensors t;
  const auto input = [&](cuda::DeviceBuffer& buffer, const auto& from) -> Status {
    const auto bytes = static_cast<std::int64_t>(from.size() * sizeof(from[0]));
    SCANJIT_ASSIGN_OR_RETURN(buffer, cuda::DeviceBuffer::allocate(api, bytes));
    return buffer.upload(from.data(), bytes, 0, stream);
  };
  SCANJIT_TRY(input(t.k_, in.k));
  SCANJIT_TRY(input(t.w_, in.w));
  SCANJIT_TRY(input(t.u_, in.u));
  SCANJIT_TRY(input(t.g_, in.g));
  SCANJIT_TRY(input(t.h0_, in.h0));
  SCANJIT_ASSIGN_OR_RETURN(t.h_, cuda::DeviceBuffer::allocate(api, 2 * sizes.h));
  SCANJIT_ASSIGN_OR_RETURN(t.v_new_, cuda::DeviceBuffer::allocate(api, 2 * sizes.v_new));
  SCANJIT_ASSIGN_OR_RETURN(t.ht_, cuda::DeviceBuffer::allocate(api, 4 * sizes.ht));
  SCANJIT_TRY(t.poison(stream));
  t.args_.k = t.k_.data();
  t.args_.w = t.w_.data();
  t.args_.u = t.u_.data();
  t.args_.g = static_cast<const float*>(t.g_.data());
  t.args_.h0 = static_cast<const float*>(t.h0_.data());
  t.args_.h = t.h_.data();
  t.args_.v_new = t.v_new_.data();
  t.args_.ht = static_cast<float*>(t.ht_.data());
  return t;
}

Status PlainTensors::poison(CUstream stream) {
  SCANJIT_TRY(h_.fill(0xFF, stream));
  SCANJIT_TRY(v_new_.fill(0xFF, stream));
  return ht_.fill(0xFF, stream);
}

Result<RunResult> PlainTensors::outputs(CUstream stream) const {
  RunResult result;
  const auto take = [&](auto& to, const cuda::DeviceBuffer& from) {
    to.resize(static_cast<std::size_t>(from.bytes()) / sizeof(to[0]));
    return from.download(to.data(), from.bytes(), 0, stream);
  };
  SCANJIT_TRY(take(result.h, h_));
  SCANJIT_TRY(take(result.v_new, v_new_));
  SCANJIT_TRY(take(result.ht, ht_));
  return result;
}

}  // namespace scanjit::test
