#include "arch_gpu.hpp"

#include "cuda/device_facts.hpp"
#include "engine/internals.hpp"

namespace scanjit::cli {
namespace {

struct Machine {
  int major, minor, sm_count;
  std::int64_t l2_bytes, smem_optin_bytes;
  int memory_bus_bits;
};

// NVIDIA's published figures for A100, RTX 3090, RTX 4090, H200, B200, B300 and RTX 5090.
constexpr Machine kMachines[] = {
    {8, 0, 108, 41943040, 166912, 5120},   {8, 6, 82, 6291456, 101376, 384},
    {8, 9, 128, 75497472, 101376, 384},    {9, 0, 132, 62914560, 232448, 6144},
    {10, 0, 148, 132644864, 232448, 8192}, {10, 3, 148, 132644864, 232448, 8192},
    {12, 0, 170, 100663296, 101376, 512},
};

}  // namespace

Status check_arch(const std::string& arch) {
  std::string known;
  for (const Machine& machine : kMachines) {
    const std::string name = cuda::arch_name(machine.major, machine.minor);
    if (arch == name) return {};
    known += (known.empty() ? "" : ", ") + name;
  }
  return invalid_argument("--arch is '" + arch + "', it must be one of " + known);
}

tuning::GpuFacts gpu_of_arch(const std::string& arch) {
  for (const tuning::ShippedText& text : engine::shipped_configs()) {
    const Result<tuning::TunedFile> file =
        tuning::tuned_file_from_json(text.text, tuning::Checksum::kWithout);
    if (file.ok() && cuda::arch_name(file->gpu.compute_major, file->gpu.compute_minor) == arch)
      return file->gpu;
  }
  tuning::GpuFacts gpu;
  int number = 0;
  for (const char c : arch) {
    if (c >= '0' && c <= '9') number = number * 10 + (c - '0');
  }
  gpu.compute_major = number / 10;
  gpu.compute_minor = number % 10;
  Machine like = kMachines[0];
  for (const Machine& machine : kMachines) {
    const bool same_major = machine.major == gpu.compute_major;
    if (same_major && (machine.minor == gpu.compute_minor || like.major != machine.major))
      like = machine;
  }
  gpu.sm_count = like.sm_count;
  gpu.l2_bytes = like.l2_bytes;
  gpu.smem_optin_bytes = like.smem_optin_bytes;
  gpu.memory_bus_bits = like.memory_bus_bits;
  return gpu;
}

Status legal_somewhere(const ops::OpProblem& problem, const Config& config) {
  const Status here = problem.legal(config, ops::limits_of(gpu_of_arch("sm_90a")));
  if (here.ok()) return here;
  for (const Machine& machine : kMachines) {
    const std::string arch = cuda::arch_name(machine.major, machine.minor);
    if (problem.legal(config, ops::limits_of(gpu_of_arch(arch))).ok()) return {};
  }
  return here;
}

}  // namespace scanjit::cli
