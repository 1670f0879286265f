// A libcuda.so without a GPU behind it: the fake driver under the exported names of the real one,
// for programs that are pointed to it by SCANJIT_CUDA_LIBRARY. Small devices, so that memory that
// is asked for by size stays small. In the environment:
//
//   SCANJIT_FAKE_DEVICES=2              how many devices there are (1)
//   SCANJIT_FAKE_DIES_AT=THREADS:SMEM   a kernel launched so ends the process, as a fault would
//   SCANJIT_FAKE_HANDS_OUT=BYTES        memory of each device (1 GiB)

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "support/fake_driver.hpp"

using scanjit::test::FakeDriver;
using scanjit::test::FakeLaunch;

// Calls go through one pointer each. A jump keeps every register and so serves any parameters.
#if !defined(__x86_64__)
#error "the trampolines are written for x86-64"
#endif
#define EXPORT(member, symbol, parameters)                                           \
  extern "C" {                                                                       \
  __attribute__((visibility("hidden"), used)) void* scanjit_fake_##member = nullptr; \
  }                                                                                  \
  asm(".text\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol            \
      ":\n  jmp *scanjit_fake_" #member "(%rip)\n.size " #symbol ", .-" #symbol "\n");
SCANJIT_DRIVER_FUNCTIONS(EXPORT)
SCANJIT_DRIVER_OPTIONAL_FUNCTIONS(EXPORT)

namespace {

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

double launch_time_us(const FakeLaunch& launch) {
  const std::string here =
      std::to_string(launch.block[0]) + ":" + std::to_string(launch.smem_bytes);
  if (here == variable("SCANJIT_FAKE_DIES_AT", "")) _exit(99);
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
#define FILL(member, symbol, parameters) \
  scanjit_fake_##member = reinterpret_cast<void*>(driver.api().member);
    SCANJIT_DRIVER_FUNCTIONS(FILL)
    SCANJIT_DRIVER_OPTIONAL_FUNCTIONS(FILL)
#undef FILL
  }
};

// Made when the library is loaded, and never destroyed: threads may call until the process ends.
[[maybe_unused]] const Library& library = *new Library;

}  // namespace
