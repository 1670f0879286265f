// A libcuda.so without a GPU behind it: the fake driver under the exported names of the real one,
// for programs that are pointed to it by SCANJIT_CUDA_LIBRARY. Small devices, so that memory that
// is asked for by size stays small. In the environment:
//
//   SCANJIT_FAKE_DEVICES=2              how many devices there are (1)
//   SCANJIT_FAKE_HANDS_OUT=BYTES        memory of each device (1 GiB)
//   SCANJIT_FAKE_SLEEPS_MS=5            real time that each launch takes (0)
//
// and, for kernels launched with so many threads and bytes of shared memory, AT=THREADS:SMEM:
//
//   SCANJIT_FAKE_DIES_AT                end the process
//   SCANJIT_FAKE_FAULTS_AT              leave their context broken, as an illegal address does
//   SCANJIT_FAKE_HANGS_AT               never end
//   SCANJIT_FAKE_LIES_AT                write what no other kernel writes
//   SCANJIT_FAKE_REFUSES_AT             are not launched at all

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "gated_delta_h/gated_delta_h_params.h"
#include "support/fake_driver.hpp"

using scanjit::test::FakeDriver;
using scanjit::test::FakeLaunch;

// Calls go through one pointer each. A jump keeps every register and so serves any parameters.
#if !defined(__x86_64__)
#error "the trampolines are written for x86-64"
#endif
#define EXPORT(member, symbol, parameters)                                             \
  extern "C" {                                                                         \
  __attribute__((visibility("hidden"), used)) void* scanjit_fake_##member = nullptr;   \
  }                                                                                    \
  asm(".pushsection .text\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol \
      ":\n  jmp *scanjit_fake_" #member "(%rip)\n.size " #symbol ", .-" #symbol        \
      "\n.popsection\n");
SCANJIT_DRIVER_FUNCTIONS(EXPORT)
SCANJIT_DRIVER_OPTIONAL_FUNCTIONS(EXPORT)

namespace {

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

bool is_at(const char* name, unsigned threads, unsigned smem_bytes) {
  return variable(name, "") == std::to_string(threads) + ":" + std::to_string(smem_bytes);
}

decltype(scanjit::cuda::DriverApi::cuLaunchKernelEx) launch_kernel = nullptr;
scanjit::cuda::CUresult launch_or_refuse(const scanjit::cuda::CUlaunchConfig* config,
                                         scanjit::cuda::CUfunction function, void** params,
                                         void** extra) {
  if (is_at("SCANJIT_FAKE_REFUSES_AT", config->blockDimX, config->sharedMemBytes))
    return scanjit::cuda::CUDA_ERROR_INVALID_VALUE;
  return launch_kernel(config, function, params, extra);
}

double launch_time_us(const FakeLaunch& launch) {
  static const int sleep_ms = std::stoi(variable("SCANJIT_FAKE_SLEEPS_MS", "0"));
  std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
  // Each config has a time of its own, and wide grids take longer.
  const unsigned fingerprint = launch.block[0] * 2654435761U + launch.smem_bytes * 40503U;
  return 10.0 + 0.5 * static_cast<double>(fingerprint % 37) +
         0.01 * static_cast<double>(launch.grid[0]);
}

struct Library {
  FakeDriver driver{std::stoi(variable("SCANJIT_FAKE_DEVICES", "1"))};

  Library() {
    const std::size_t bytes = std::stoull(variable("SCANJIT_FAKE_HANDS_OUT", "1073741824"));
    for (int i = 0; i < std::stoi(variable("SCANJIT_FAKE_DEVICES", "1")); ++i) {
      driver.device(i).total_bytes = bytes;
      driver.device(i).free_bytes = bytes - bytes / 8;
    }
    driver.set_launch_time(launch_time_us);
    driver.set_kernel([this](const FakeLaunch& launch, const void* params) { run(launch, params); },
                      sizeof(scanjit::gated_delta_h::ScanParams));
#define FILL(member, symbol, parameters) \
  scanjit_fake_##member = reinterpret_cast<void*>(driver.api().member);
    SCANJIT_DRIVER_FUNCTIONS(FILL)
    SCANJIT_DRIVER_OPTIONAL_FUNCTIONS(FILL)
#undef FILL
    launch_kernel = driver.api().cuLaunchKernelEx;
    scanjit_fake_cuLaunchKernelEx = reinterpret_cast<void*>(&launch_or_refuse);
  }

  void run(const FakeLaunch& launch, const void* params) {
    const auto asked = [&](const char* name) {
      return is_at(name, launch.block[0], launch.smem_bytes);
    };
    if (asked("SCANJIT_FAKE_DIES_AT")) _exit(99);
    if (asked("SCANJIT_FAKE_FAULTS_AT"))
      driver.break_context(launch.context, scanjit::cuda::CUDA_ERROR_ILLEGAL_ADDRESS);
    while (asked("SCANJIT_FAKE_HANGS_AT")) std::this_thread::sleep_for(std::chrono::hours(1));
    const auto* scan = static_cast<const scanjit::gated_delta_h::ScanParams*>(params);
    if (asked("SCANJIT_FAKE_LIES_AT") && scan->ht != nullptr) scan->ht[0] = 1;
  }
};

// Made when the library is loaded, and never destroyed: threads may call until the process ends.
[[maybe_unused]] const Library& library = *new Library;

}  // namespace
