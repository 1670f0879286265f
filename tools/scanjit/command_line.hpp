#pragma once
/// \file
/// The whole program but for what only a process has: parses `session.arguments`, runs the command.

#include "session.hpp"

namespace scanjit::cli {

/// Returns the exit status. The one place where command lines are refused. Throws nothing.
[[nodiscard]] int run_command_line(Session& session);

}  // namespace scanjit::cli
