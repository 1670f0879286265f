#pragma once
/// \file
/// The subcommands. Each registers its flags under `parent` and says what to run once they are
/// parsed. The session outlives the parser; flags that every command has are stored in it.

#include <functional>

#include "session.hpp"

namespace CLI {
class App;
}

namespace scanjit::cli {

struct Command {
  CLI::App* app = nullptr;
  std::function<int(Session&)> run;  ///< returns the exit status
};

[[nodiscard]] Command add_tune(CLI::App& parent, Session& session);
[[nodiscard]] Command add_prewarm(CLI::App& parent, Session& session);
[[nodiscard]] Command add_run(CLI::App& parent, Session& session);
[[nodiscard]] Command add_bench(CLI::App& parent, Session& session);
[[nodiscard]] Command add_verify(CLI::App& parent, Session& session);
[[nodiscard]] Command add_inspect(CLI::App& parent, Session& session);
[[nodiscard]] Command add_cache(CLI::App& parent, Session& session);
[[nodiscard]] Command add_doctor(CLI::App& parent, Session& session);

}  // namespace scanjit::cli
