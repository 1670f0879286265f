#pragma once
/// \file
/// Prewarming without a GPU: from a tuned file, a relocatable directory of entries and machine code
/// that an engine takes as a pack or as its cache.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/environment.hpp"
#include "core/logging.hpp"
#include "ops/op_problem.hpp"
#include "os/file_system.hpp"
#include "tuning/record.hpp"

namespace scanjit::engine {

struct PackOptions {
  std::string out;          ///< absolute; made if missing
  std::string arch;         ///< "sm_90a", that of the tuned file's GPU; "": the same
  tuning::TunedFile tuned;  ///< its GPU gives the limits; entries may be none
  /// What the pack is for; empty: every entry of `tuned`.
  std::vector<std::shared_ptr<const ops::OpProblem>> problems;
  bool picks_only = false;  ///< no alternates, no heuristic
  int compile_jobs = 0;     ///< 0: as many as the machine has cores, at most 16
  Environment environment;
  os::FileSystem* files = nullptr;
  Log log;
  /// After each kernel: how many are done, of how many, and what was done. May be empty.
  std::function<void(std::size_t done, std::size_t total, const std::string& what)> progress;
};

struct PackReport {
  std::size_t entries = 0;  ///< tuned entries written
  std::size_t kernels = 0;  ///< machine code in the pack, compiled now or found there
  std::size_t compiled = 0;
  std::int64_t bytes = 0;  ///< of machine code
  std::vector<std::string>
      failures;  ///< sentences: kernels that did not compile, entries that do not fit
};

/// Errors: kInvalidArgument (not the tuned file's architecture), kUnsupported (no NVRTC), kIoError
/// (directory not writable, or writable by others). A single kernel's failure is reported, not an
/// error, as is an entry with a config that is not legal: that one is left out.
[[nodiscard]] Result<PackReport> write_pack(const PackOptions& options);

}  // namespace scanjit::engine
