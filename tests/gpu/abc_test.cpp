// ABC's kernels on their fixture: every output and gradient against f64, in poisoned scratch, twice
// the same bits.

#include <algorithm>
#include <map>

#include "gpu/case.hpp"
#include "gpu/gpu.hpp"
#include "gpu/memory.hpp"
#include "jit/kernel_provider.hpp"
#include "ops/abc_stages.hpp"
#include "os/posix_file_system.hpp"
#include "reference/abc_cases.hpp"
#include "reference/half.hpp"

namespace scanjit::test {
namespace {

/// Compiles and keeps kernels.
class Kernels {
 public:
  explicit Kernels(Gpu& gpu) : gpu_(gpu) {
    jit::KernelProviderOptions options;
    options.environment = gpu.environment();
    provider_ = must(jit::KernelProvider::create(options, os::posix_file_system()));
  }
  /// Compiles what runs will need, all at once.
  void prepare(const std::vector<ops::AbcStages>& cases) {
    std::vector<jit::KernelSource> sources;
    for (const ops::AbcStages& stages : cases) {
      for (const auto& part : {stages.states(), stages.forward(), stages.backward()}) {
        for (const ops::Stage& stage : part) {
          if (std::find(sources.begin(), sources.end(), stage.source) == sources.end())
            sources.push_back(stage.source);
        }
      }
    }
    for (const auto& binary : provider_->get_all(sources, gpu_.facts().arch)) must(binary.status());
  }
  void run(const std::vector<ops::Stage>& stages, const abc::AbcParams& params) {
    std::vector<jit::KernelSource> sources;
    for (const ops::Stage& stage : stages) sources.push_back(stage.source);
    const auto binaries = provider_->get_all(sources, gpu_.facts().arch);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const jit::Binary binary = must(binaries[i]);
      auto module = modules_.find(binary.binary_id);
      if (module == modules_.end()) {
        module =
            modules_.emplace(binary.binary_id, must(cuda::Module::load(gpu_.api(), *binary.cubin)))
                .first;
      }
      const CUfunction function = must(module->second.function(binary.entry));
      must(cuda::prepare(gpu_.api(), function, sources[i].smem_bytes));
      abc::AbcParams copy = params;
      void* arguments[] = {&copy};
      must(cuda::check(gpu_.api(),
                       gpu_.api().cuLaunchKernel(function, static_cast<unsigned>(stages[i].grid), 1,
                                                 1, static_cast<unsigned>(sources[i].threads), 1, 1,
                                                 static_cast<unsigned>(sources[i].smem_bytes),
                                                 gpu_.stream(), arguments, nullptr),
                       binary.entry.c_str()));
    }
  }

 private:
  Gpu& gpu_;
  std::unique_ptr<jit::KernelProvider> provider_;
  std::map<std::string, cuda::Module> modules_;
};

ops::AbcStages stages_of(const reference::AbcCase& c, int segment_chunks) {
  const reference::AbcShape& p = c.shape;
  const ops::AbcDims dims{c.dtype,
                          p.B,
                          p.T,
                          p.H,
                          static_cast<int>(p.K),
                          static_cast<int>(p.M),
                          static_cast<int>(p.V),
                          p.K % 8 == 0 && p.M % 8 == 0 && p.V % 8 == 0};
  return {dims, {segment_chunks, 2, 4}};
}

/// A case's tensors on the device, between guard bytes, outputs and scratch full of NaN.
class DeviceCase {
 public:
  DeviceCase(Gpu& gpu, const reference::AbcCase& c, const reference::AbcTensors& in,
             int segment_chunks)
      : gpu_(gpu), dtype_(c.dtype) {
    const reference::AbcShape& p = c.shape;
    stages_ = std::make_unique<ops::AbcStages>(stages_of(c, segment_chunks));
    void* saved = place("saved", stages_->saved_bytes());
    params_ = stages_->params(saved, place("workspace", stages_->backward_bytes()));
    const std::int64_t rows = p.B * p.T * p.H, heads = p.B * p.H;
    params_.q = input("q", in.q);
    params_.k = input("k", in.k);
    params_.v = input("v", in.v);
    params_.s = input("s", in.s);
    params_.dout = input("dout", in.dout);
    params_.hk0 = input("hk0", in.hk0);
    params_.hv0 = input("hv0", in.hv0);
    params_.z0 = input("z0", in.z0);
    params_.dhkt = input("dhkt", in.dhkt);
    params_.dhvt = input("dhvt", in.dhvt);
    params_.o = place("o", rows * p.V * 2);
    params_.hkt = floats("hkt", heads * p.K * p.M);
    params_.hvt = floats("hvt", heads * p.M * p.V);
    params_.zt = floats("zt", heads * p.M);
    params_.dq = place("dq", rows * p.K * 2);
    params_.dk = place("dk", rows * p.K * 2);
    params_.dv = place("dv", rows * p.V * 2);
    params_.ds = place("ds", rows * p.M * 2);
    if (p.has_hk0) params_.dhk0 = floats("dhk0", heads * p.K * p.M);
    if (p.has_hv0) params_.dhv0 = floats("dhv0", heads * p.M * p.V);
    if (p.has_z0) params_.dz0 = floats("dz0", heads * p.M);
  }

  void run(Kernels& kernels) {
    kernels.run(stages_->states(), params_);
    kernels.run(stages_->forward(), params_);
    kernels.run(stages_->backward(), params_);
    must(gpu_.synchronize());
    for (const auto& [name, buffer] : buffers_) {
      INFO(name);
      must(buffer.damage());
    }
  }
  [[nodiscard]] std::vector<double> numbers(const std::string& name, bool half) const {
    const auto buffer = buffers_.find(name);
    if (buffer == buffers_.end()) return {};
    std::vector<double> out;
    if (half) {
      for (const std::uint16_t bits : must(buffer->second.download_as<std::uint16_t>()))
        out.push_back(static_cast<double>(reference::half_to_float(dtype_, bits)));
    } else {
      const std::vector<float> values = must(buffer->second.download_as<float>());
      out.assign(values.begin(), values.end());
    }
    return out;
  }
  [[nodiscard]] std::vector<unsigned char> bytes() const {
    std::vector<unsigned char> out;
    for (const char* name : {"o", "hkt", "hvt", "zt", "dq", "dk", "dv", "ds", "dhk0", "dhv0"}) {
      const auto buffer = buffers_.find(name);
      if (buffer == buffers_.end()) continue;
      const auto part = must(buffer->second.download_as<unsigned char>());
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }

 private:
  void* place(const std::string& name, std::int64_t bytes) {
    GuardedBuffer buffer = must(GuardedBuffer::make(gpu_, bytes, Guard::kBytes));
    if (bytes > 0) must(buffer.fill(0xff));
    return buffers_.insert_or_assign(name, std::move(buffer)).first->second.as<void>();
  }
  float* floats(const std::string& name, std::int64_t elements) {
    return static_cast<float*>(place(name, elements * 4));
  }
  template <class T>
  const T* input(const std::string& name, const std::vector<T>& values) {
    void* at = place(name, static_cast<std::int64_t>(values.size() * sizeof(T)));
    if (!values.empty()) must(buffers_.at(name).upload(values));
    return static_cast<const T*>(at);
  }

  Gpu& gpu_;
  DType dtype_;
  std::unique_ptr<ops::AbcStages> stages_;
  std::map<std::string, GuardedBuffer> buffers_;
  abc::AbcParams params_{};
};

std::string failures(const DeviceCase& device, const reference::AbcCase& c,
                     const reference::AbcTensors& tensors) {
  const reference::AbcInputs in = reference::inputs_of(c.dtype, tensors);
  const auto out = must(reference::abc_forward(c.shape, in));
  const auto gradients =
      must(reference::abc_backward(c.shape, in, reference::cotangents_of(c.dtype, tensors)));
  std::string all;
  const auto judge = [&](const char* name, bool half, const std::vector<double>& reference,
                         const std::vector<double>& terms = {}) {
    all += reference::abc_failure(name, c.dtype, device.numbers(name, half), reference, terms);
  };
  judge("o", true, out.o);
  judge("hkt", false, out.hkt);
  judge("hvt", false, out.hvt);
  judge("zt", false, out.zt);
  judge("dq", true, gradients.dq);
  judge("dk", true, gradients.dk);
  judge("dv", true, gradients.dv);
  judge("ds", true, gradients.ds, gradients.ds_terms);
  judge("dhk0", false, gradients.dhk0);
  judge("dhv0", false, gradients.dhv0);
  judge("dz0", false, gradients.dz0, gradients.dz0_terms);
  return all;
}

void check(Gpu& gpu, Kernels& kernels, const reference::AbcCase& c, int segment_chunks) {
  INFO(to_string(c) << " segment_chunks=" << segment_chunks);
  const reference::AbcTensors tensors = must(reference::generate(c));
  DeviceCase device(gpu, c, tensors, segment_chunks);
  device.run(kernels);
  const std::string broken = failures(device, c, tensors);
  if (!broken.empty()) FAIL_CHECK(broken);
  const std::vector<unsigned char> bytes = device.bytes();
  device.run(kernels);
  CHECK(bytes == device.bytes());
}

/// Neighbouring cases by segments of one and of two chunks.
void check_all(Gpu& gpu, const std::vector<reference::AbcCase>& cases) {
  Kernels kernels(gpu);
  const auto segment_chunks = [](std::size_t i) { return 1 + static_cast<int>(i % 2); };
  std::vector<ops::AbcStages> stages;
  for (std::size_t i = 0; i < cases.size(); ++i)
    stages.push_back(stages_of(cases[i], segment_chunks(i)));
  kernels.prepare(stages);
  for (std::size_t i = 0; i < cases.size(); ++i) check(gpu, kernels, cases[i], segment_chunks(i));
}

}  // namespace

TEST_CASE("ABC keeps to its fixture's limits", "[gpu][abc_fixture]") {
  SCANJIT_TEST_GPU(gpu);
  check_all(gpu, reference::abc_fixture());
}

TEST_CASE("ABC keeps to its limits on random shapes", "[gpu][abc_random]") {
  SCANJIT_TEST_GPU(gpu);
  const auto count = static_cast<std::uint64_t>(
      number_from_environment("SCANJIT_GPU_ABC_CASES", reference::kAbcRandomCases));
  std::vector<reference::AbcCase> cases;
  for (std::uint64_t seed = 0; seed < count; ++seed)
    cases.push_back(reference::random_abc_case(seed));
  check_all(gpu, cases);
}

}  // namespace scanjit::test
