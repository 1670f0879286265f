#pragma once
/// \file
/// What `scanjit run` was asked.

#include <cstdint>
#include <string>
#include <vector>

#include "scanjit/engine.hpp"
#include "session.hpp"

namespace scanjit::cli {

struct RunOptions {
  std::string op, in, out, config, example, shape, gates = "slow";
  std::vector<std::string> set, want;
  std::uint64_t seed = 0;
  bool check = false, gates_given = false;
  EngineOptions engine;
};

/// The same of abc_forward and abc_backward. Returns the exit status.
[[nodiscard]] int run_abc(Session& session, const RunOptions& options);

}  // namespace scanjit::cli
