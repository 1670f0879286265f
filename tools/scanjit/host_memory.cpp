#include "host_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "terminal.hpp"

namespace scanjit::cli {

double host_bytes(const reference::GatedDeltaHSizes& s, HostUse use) {
  const auto bytes = [](std::initializer_list<std::int64_t> halves,
                        std::initializer_list<std::int64_t> floats) {
    double sum = 0;
    for (const std::int64_t elements : halves) sum += 2 * static_cast<double>(elements);
    for (const std::int64_t elements : floats) sum += 4 * static_cast<double>(elements);
    return sum;
  };
  const double inputs = bytes({s.k, s.w, s.u}, {s.g, s.gk, s.h0});
  const double outputs = bytes({s.h, s.v_new}, {s.ht});
  if (use == HostUse::kInputs) return 2 * inputs;
  const double run = 2 * inputs + 3 * outputs;
  if (use == HostUse::kRun) return run;
  // Both oracles' outputs and the kernel's decoded, as doubles.
  constexpr double kDoubles = 3 * 8;
  return run + kDoubles * (static_cast<double>(s.h) + static_cast<double>(s.v_new) +
                           static_cast<double>(s.ht));
}

double machine_bytes() {
  double bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  // The limit of a container, by either version of control groups; "max" is no number.
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    double limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

Status check_fits_host(const GatedDeltaHProblem& problem, HostUse use) {
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHSizes sizes, reference::sizes_of(problem));
  const double needed = host_bytes(sizes, use), there = machine_bytes();
  if (needed <= there) return {};
  return Status(ErrorCode::kOutOfMemory, "the problem's tensors take " + byte_text(needed) +
                                             " on the host, this machine has " + byte_text(there));
}

}  // namespace scanjit::cli
