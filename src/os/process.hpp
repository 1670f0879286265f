#pragma once
/// \file
/// Child processes: started without a shell, talked to over pipes, never waited for without a
/// limit.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"

namespace scanjit::os {

struct ProcessOptions {
  /// The program (looked for on PATH if it has no '/') and its arguments.
  std::vector<std::string> argv;
  /// "NAME=value", beside this process's own variables or in place of those of the same name.
  std::vector<std::string> environment;
  /// Its standard error: kept and readable here, or this process's own.
  bool capture_stderr = false;
};

struct ExitStatus {
  int code = 0;    ///< of exit(), if signal is 0
  int signal = 0;  ///< that ended it
  [[nodiscard]] bool success() const noexcept { return code == 0 && signal == 0; }
};
[[nodiscard]] std::string to_string(const ExitStatus& status);  ///< "exit code 3", "signal 9"

struct ProcessOutput {
  ExitStatus exit;
  std::string output;
  std::string error_output;
};

/// A child. The destructor kills and reaps it. Movable; one thread at a time.
/// `timeout_ms`: 0 does not wait, negative waits for ever.
class Process {
 public:
  /// Errors: kNotFound (no such program), kIoError.
  [[nodiscard]] static Result<Process> spawn(const ProcessOptions& options);

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  /// Bytes to its standard input. kCancelled: it reads no more; kTimeout.
  [[nodiscard]] Status write(std::string_view bytes, std::int64_t timeout_ms);
  void close_input() noexcept;

  /// The next line of its standard output, without its end; a last line may lack one. Empty: end of
  /// output. kTimeout: no whole line yet, ask again. kCorrupt: a line of more than 64 MiB.
  [[nodiscard]] Result<std::optional<std::string>> read_line(std::int64_t timeout_ms);

  /// Its exit status, if it has ended in that time.
  [[nodiscard]] Result<std::optional<ExitStatus>> wait(std::int64_t timeout_ms);
  void
  kill() noexcept;  ///< SIGKILL, and reap; one that hangs in the kernel is left after 10 seconds

  /// The last 64 KiB of standard error so far, if captured.
  [[nodiscard]] std::string error_output();
  [[nodiscard]] int pid() const noexcept;

 private:
  friend Result<ProcessOutput> run_process(const ProcessOptions& options, std::string_view input,
                                           std::int64_t timeout_ms);
  struct State;
  explicit Process(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// Runs a program to its end: gives it `input`, takes all its output. kTimeout (it is killed),
/// kCorrupt (more than 64 MiB of output), and as `Process::spawn`.
[[nodiscard]] Result<ProcessOutput> run_process(const ProcessOptions& options,
                                                std::string_view input, std::int64_t timeout_ms);

}  // namespace scanjit::os
