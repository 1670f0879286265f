#include "command_line.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <ostream>

#include "checks.hpp"
#include "commands.hpp"
#include "engine/internals.hpp"
#include "flags.hpp"
#include "terminal.hpp"

namespace scanjit::cli {
namespace {

constexpr const char* kAbout =
    "scanjit compiles linear-attention state scans for your GPU at run time, times the candidates "
    "per\n"
    "width and keeps the winners.";
constexpr const char* kFooter =
    "First steps:\n"
    "  scanjit doctor                                        what this machine has and lacks\n"
    "  scanjit run gated_delta_h --example x.safetensors     makes an input file\n"
    "  scanjit run gated_delta_h --in x.safetensors --out y.safetensors --check\n"
    "  scanjit tune gated_delta_h --model qwen3.5-4b --tp 1  tunes what serving that model meets\n"
    "\n"
    "Data goes to standard output, progress and log to standard error. Exit status: 0 ok, 1 a "
    "check\n"
    "failed, 2 usage or a bad input file, 3 the environment (no GPU, unwritable output).\n"
    "'scanjit COMMAND --help' shows a command's flags and an example.";

constexpr std::size_t kHelpWidth = 100, kHelpColumn = 34;

// CLI11's own help, with descriptions wrapped and without the names of checks and of flags that
// exclude each other: those say themselves what is wrong.
class Help : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    // The parent indents what follows a line end.
    std::string text = wrapped(option->get_description(), kHelpWidth - kHelpColumn, 0);
    if (!option->get_default_str().empty() && option->get_option_text().empty()) {
      text = wrapped(option->get_description() + " (default: " + option->get_default_str() + ")",
                     kHelpWidth - kHelpColumn, 0);
    }
    return text;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string type = option->get_type_name();
    type = type.substr(0, type.find(':'));  // "N:POSITIVE": the check's name
    return type.empty() || option->get_type_size() == 0 ? "" : " " + type;
  }
};

// A word in the command's place that is no command.
std::optional<std::string> unknown_command(const CLI::App& app,
                                           const std::vector<std::string>& arguments) {
  if (arguments.size() < 2 || arguments[1].empty() || arguments[1][0] == '-') return std::nullopt;
  std::string known;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == arguments[1]) return std::nullopt;
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  return "unknown command '" + arguments[1] + "': there are " + known;
}

int parse_and_run(Session& session) {
  CLI::App app(kAbout, "scanjit");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("scanjit ") + engine::version());
  app.require_subcommand(1);
  const std::vector<Command> commands = {add_tune(app, session),   add_prewarm(app, session),
                                         add_run(app, session),    add_bench(app, session),
                                         add_verify(app, session), add_inspect(app, session),
                                         add_cache(app, session),  add_doctor(app, session)};
  const auto help = std::make_shared<Help>();
  help->column_width(kHelpColumn);
  const std::function<void(CLI::App&)> finish = [&](CLI::App& some) {
    some.formatter(help);
    for (CLI::Option* option : some.get_options()) {
      if (option->get_type_size() != 0) option->transform(not_empty());
    }
    for (CLI::App* command : some.get_subcommands({})) finish(*command);
  };
  finish(app);
  try {
    std::vector<std::string> reversed(
        session.arguments.begin() + (session.arguments.empty() ? 0 : 1), session.arguments.end());
    std::reverse(reversed.begin(), reversed.end());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      return app.exit(error, session.out, session.err) == 0 ? kExitOk
                                                            : kExitUsage;  // --help, --version
    }
    const auto& given = session.arguments;
    session.json = session.json || std::find(given.begin(), given.end(), "--json") != given.end();
    if (const auto unknown = unknown_command(app, given))
      return session.fail(kExitUsage, invalid_argument(*unknown));
    std::string command = "scanjit";
    for (const CLI::App* chosen = &app; !chosen->get_subcommands().empty();) {
      chosen = chosen->get_subcommands().front();
      command += " " + chosen->get_name();
    }
    return session.fail(kExitUsage, invalid_argument(std::string(error.what()) + " (see '" +
                                                     command + " --help')"));
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run(session);
  }
  return session.fail(kExitUsage, invalid_argument("no command was given (see 'scanjit --help')"));
}

}  // namespace

int run_command_line(Session& session) {
  try {
    return parse_and_run(session);
  } catch (const std::bad_alloc&) {
    return session.fail(
        Status(ErrorCode::kOutOfMemory, "this machine has not enough memory for that"));
  } catch (const std::exception& exception) {
    return session.fail(internal_error(std::string("unexpected: ") + exception.what()));
  }
}

}  // namespace scanjit::cli
