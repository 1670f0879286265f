#pragma once
/// \file
/// What every subcommand is handed, how it ends, and how it says what went wrong.
///
/// Data goes to `out` and nothing else does; progress, log and errors go to `err`. Exit statuses:
/// 0 ok; 1 a check failed; 2 usage or a bad input file; 3 the environment (no GPU, unwritable
/// output).

#include <iosfwd>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/environment.hpp"
#include "scanjit/engine.hpp"
#include "scanjit/result.hpp"

namespace scanjit::cli {

using Json = nlohmann::ordered_json;  // fields in the documented order

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitEnvironment = 3;

/// One run of the program. Not thread-safe, except `log_sink`.
struct Session {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  Environment environment;
  std::vector<std::string> arguments;  ///< as typed, the program first
  bool err_is_terminal = false;
  bool json = false;     ///< --json: `out` gets one JSON object
  bool verbose = false;  ///< --verbose: the engine's log goes to `err`, all of it

  /// Log lines to `err`: warnings and errors, everything if `verbose`. The session must outlive it.
  [[nodiscard]] std::function<void(LogLevel, const std::string&)> log_sink();

  /// One object on `out`, on one line. `schema` comes first.
  void print_json(const char* schema, Json fields);

  /// Says what went wrong on `err`, with a compile log if there is one and a command that repeats
  /// it
  /// ("": the whole command line); with --json also as {"schema": "scanjit-error/1", ...} on `out`.
  /// Returns `exit`.
  [[nodiscard]] int fail(int exit, const Status& status, const std::string& repeat = {});
  /// The same, with the exit status that the error code stands for.
  [[nodiscard]] int fail(const Status& status, const std::string& repeat = {});
};

/// 2 for what the caller asked (kInvalidArgument, kNotFound, kCorrupt), 1 for what a check or the
/// compiler found (kCompileFailed, kInternal), 3 for everything that the machine lacks or refuses.
[[nodiscard]] int exit_of(ErrorCode code) noexcept;

/// Ok if a file can be put at `path` ("": nothing is to be written): asked before the work, so that
/// an hour of it is not lost. Errors: kIoError.
[[nodiscard]] Status check_writable(const std::string& path);

/// Arguments as a line that a shell reads back as the same arguments.
[[nodiscard]] std::string shell_line(const std::vector<std::string>& arguments);

/// Text without what could end or move a line on a terminal.
[[nodiscard]] std::string printable(std::string text);

/// Text of a JSON value on one line; bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string dump(const Json& value);

}  // namespace scanjit::cli
