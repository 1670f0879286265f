#include "os/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "os/clock.hpp"

extern char** environ;

namespace scanjit::os {
namespace {

constexpr std::size_t kMaxOutputBytes = std::size_t{64} << 20;
constexpr std::size_t kKeptErrorBytes = std::size_t{64} << 10;
constexpr std::int64_t kKillWaitMs = 10'000;
constexpr std::int64_t kFirstPauseUs = 200;
constexpr std::int64_t kLongestPauseUs = 20'000;

void close_fd(int& fd) noexcept {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

std::string error_text(int error_number) { return std::generic_category().message(error_number); }

/// A point in time until which to wait.
class Deadline {
 public:
  explicit Deadline(std::int64_t timeout_ms) noexcept
      : end_ms_(timeout_ms < 0 ? kNever : steady_clock().now_ms() + timeout_ms) {}
  /// For poll(): -1 for ever, else what is left, at least 0.
  [[nodiscard]] int left_ms() const noexcept {
    if (end_ms_ == kNever) return -1;
    const std::int64_t left = end_ms_ - steady_clock().now_ms();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
  }
  [[nodiscard]] bool passed() const noexcept { return left_ms() == 0; }

 private:
  static constexpr std::int64_t kNever = -1;
  std::int64_t end_ms_;
};

/// posix_spawn's two objects, destroyed on every way out.
class SpawnPlan {
 public:
  SpawnPlan() noexcept {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
};

std::vector<std::string> merged_environment(const std::vector<std::string>& own) {
  std::vector<std::string> merged = own;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool replaced = std::any_of(
        own.begin(), own.end(), [&](const std::string& other) { return other.starts_with(name); });
    if (!replaced) merged.emplace_back(text);
  }
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  list.reserve(texts.size() + 1);
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

struct Process::State {
  int pid = -1;
  int input = -1;  // a socket, so that writing to a dead child raises no SIGPIPE
  int output = -1;
  int error = -1;
  std::string name;
  std::string output_pending;
  std::string error_kept;
  std::optional<ExitStatus> exit;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    kill_and_reap();
    close_fd(input);
    close_fd(output);
    close_fd(error);
  }

  /// One look whether the child has ended. False, with errno, if there is no such child.
  bool reap() noexcept {
    if (exit) return true;
    int raw = 0;
    const pid_t ended = ::waitpid(pid, &raw, WNOHANG);
    if (ended == pid) {
      exit = WIFSIGNALED(raw) ? ExitStatus{.code = 0, .signal = WTERMSIG(raw)}
                              : ExitStatus{.code = WEXITSTATUS(raw), .signal = 0};
    }
    return ended >= 0 || errno == EINTR;
  }

  void kill_and_reap() noexcept {
    if (pid < 0 || exit) return;
    ::kill(pid, SIGKILL);
    // A process inside a hung driver call takes the signal late or never.
    const Deadline deadline(kKillWaitMs);
    std::int64_t pause_us = kFirstPauseUs;
    while (reap() && !exit && !deadline.passed()) {
      steady_clock().sleep_us(pause_us);
      pause_us = std::min(pause_us * 2, kLongestPauseUs);
    }
  }

  /// Reads once from a pipe that has something, and closes it at its end.
  template <class Keep>
  static void take(int& fd, const Keep& keep) {
    std::array<char, 65536> buffer;
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got > 0) {
      keep(std::string_view(buffer.data(), static_cast<std::size_t>(got)));
    } else if (got == 0 || errno != EINTR) {
      close_fd(fd);
    }
  }

  void take_error() {
    take(error, [&](std::string_view bytes) {
      error_kept.append(bytes);
      if (error_kept.size() > kKeptErrorBytes)
        error_kept.erase(0, error_kept.size() - kKeptErrorBytes);
    });
  }

  /// What standard error holds now.
  void drain_error() {
    pollfd polled{error, POLLIN, 0};
    while (error >= 0 && ::poll(&polled, 1, 0) > 0) take_error();
  }

  /// Waits until one of `events` happens on the child's pipes, and takes what came. Input can be
  /// written if the answer is true.
  bool pump(bool want_write, const Deadline& deadline) {
    std::array<pollfd, 3> polled = {pollfd{output, POLLIN, 0}, pollfd{error, POLLIN, 0},
                                    pollfd{want_write ? input : -1, POLLOUT, 0}};
    if (::poll(polled.data(), polled.size(), deadline.left_ms()) <= 0) return false;
    if (polled[0].revents != 0) {
      take(output, [&](std::string_view bytes) { output_pending.append(bytes); });
    }
    if (polled[1].revents != 0) take_error();
    return polled[2].revents != 0;
  }
};

std::string to_string(const ExitStatus& status) {
  return status.signal == 0 ? "exit code " + std::to_string(status.code)
                            : "signal " + std::to_string(status.signal);
}

Process::Process(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Process::Process(Process&& other) noexcept = default;
Process& Process::operator=(Process&& other) noexcept = default;
Process::~Process() = default;

int Process::pid() const noexcept { return state_->pid; }

Result<Process> Process::spawn(const ProcessOptions& options) {
  if (options.argv.empty() || options.argv[0].empty()) {
    return invalid_argument("a process needs the name of a program");
  }
  auto state = std::make_unique<State>();
  state->name = options.argv[0];
  const auto failed = [&](const char* what, int error_number) {
    return io_error("cannot start " + state->name + ": " + what + ": " + error_text(error_number),
                    state->name);
  };
  // All ends are closed on exec; the child gets its three by dup2.
  std::array<int, 2> input_pair = {-1, -1};
  std::array<int, 2> output_pair = {-1, -1};
  std::array<int, 2> error_pair = {-1, -1};
  struct CloseChildEnds {
    std::array<int*, 3> ends;
    ~CloseChildEnds() {
      for (int* end : ends) close_fd(*end);
    }
  } const closer{{&input_pair[1], &output_pair[1], &error_pair[1]}};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input_pair.data()) != 0)
    return failed("socketpair", errno);
  state->input = input_pair[0];
  if (::pipe2(output_pair.data(), O_CLOEXEC) != 0) return failed("pipe2", errno);
  state->output = output_pair[0];
  if (options.capture_stderr) {
    if (::pipe2(error_pair.data(), O_CLOEXEC) != 0) return failed("pipe2", errno);
    state->error = error_pair[0];
  }

  SpawnPlan plan;
  ::posix_spawn_file_actions_adddup2(&plan.actions, input_pair[1], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&plan.actions, output_pair[1], STDOUT_FILENO);
  if (options.capture_stderr)
    ::posix_spawn_file_actions_adddup2(&plan.actions, error_pair[1], STDERR_FILENO);
  // A host that ignores SIGPIPE or blocks signals must not hand that down.
  sigset_t signals;
  ::sigemptyset(&signals);
  ::posix_spawnattr_setsigmask(&plan.attributes, &signals);
  ::sigaddset(&signals, SIGPIPE);
  ::posix_spawnattr_setsigdefault(&plan.attributes, &signals);
  ::posix_spawnattr_setflags(&plan.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = merged_environment(options.environment);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, options.argv[0].c_str(), &plan.actions, &plan.attributes,
                                   pointers(arguments).data(), pointers(environment).data());
  if (error == ENOENT || error == ENOTDIR) {
    return not_found("cannot start " + state->name + ": there is no such program", state->name);
  }
  if (error != 0) return failed("posix_spawn", error);
  state->pid = pid;
  return Process(std::move(state));
}

Status Process::write(std::string_view bytes, std::int64_t timeout_ms) {
  const Deadline deadline(timeout_ms);
  while (!bytes.empty()) {
    if (state_->input < 0)
      return {ErrorCode::kCancelled, "the input of " + state_->name + " is closed"};
    const ssize_t sent =
        ::send(state_->input, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EPIPE || errno == ECONNRESET) {
      return {ErrorCode::kCancelled, state_->name + " reads no more of its input"};
    }
    if (errno != EAGAIN && errno != EINTR) {
      return io_error("cannot write to " + state_->name + ": " + error_text(errno));
    }
    // Its output is taken meanwhile: a child that waits for room there would never read.
    if (!state_->pump(true, deadline) && deadline.passed()) {
      return {ErrorCode::kTimeout, state_->name + " did not take its input within " +
                                       std::to_string(timeout_ms) + " ms"};
    }
  }
  return {};
}

void Process::close_input() noexcept { close_fd(state_->input); }

Result<std::optional<std::string>> Process::read_line(std::int64_t timeout_ms) {
  const Deadline deadline(timeout_ms);
  std::string& pending = state_->output_pending;
  std::size_t searched = 0;
  for (;;) {
    const std::size_t end = pending.find('\n', searched);
    if (end != std::string::npos) {
      std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      return std::optional<std::string>(std::move(line));
    }
    searched = pending.size();
    if (pending.size() > kMaxOutputBytes) {
      return corrupt(state_->name + " printed a line of more than " +
                     std::to_string(kMaxOutputBytes) + " bytes");
    }
    if (state_->output < 0) {
      if (pending.empty()) return std::optional<std::string>();
      return std::optional<std::string>(std::exchange(pending, {}));
    }
    const std::size_t before = pending.size();
    state_->pump(false, deadline);
    if (pending.size() == before && state_->output >= 0 && deadline.passed()) {
      return Status(ErrorCode::kTimeout,
                    state_->name + " printed no line within " + std::to_string(timeout_ms) + " ms");
    }
  }
}

Result<std::optional<ExitStatus>> Process::wait(std::int64_t timeout_ms) {
  const Deadline deadline(timeout_ms);
  std::int64_t pause_us = kFirstPauseUs;
  for (;;) {
    if (!state_->reap()) {
      // Somebody else reaped it (a host that ignores SIGCHLD): how it ended is lost.
      const int error_number = errno;
      state_->exit = ExitStatus{.code = -1, .signal = 0};
      return io_error("cannot wait for " + state_->name + ": " + error_text(error_number));
    }
    if (state_->exit) return std::optional<ExitStatus>(state_->exit);
    if (deadline.passed()) return std::optional<ExitStatus>();
    // A child that waits for room in this pipe would never end.
    state_->drain_error();
    steady_clock().sleep_us(pause_us);
    pause_us = std::min(pause_us * 2, kLongestPauseUs);
  }
}

void Process::kill() noexcept { state_->kill_and_reap(); }

std::string Process::error_output() {
  state_->drain_error();
  return state_->error_kept;
}

Result<ProcessOutput> run_process(const ProcessOptions& options, std::string_view input,
                                  std::int64_t timeout_ms) {
  const Deadline deadline(timeout_ms);
  SCANJIT_ASSIGN_OR_RETURN(Process process, Process::spawn(options));
  const auto too_long = [&] {
    return Status(ErrorCode::kTimeout, options.argv[0] + " did not end within " +
                                           std::to_string(timeout_ms) + " ms and was killed");
  };
  const Status written = process.write(input, deadline.left_ms());
  if (written.code() == ErrorCode::kTimeout) return too_long();
  if (!written.ok() && written.code() != ErrorCode::kCancelled) return written;
  process.close_input();
  Process::State& state = *process.state_;
  while (state.output >= 0) {
    state.pump(false, deadline);
    if (state.output_pending.size() > kMaxOutputBytes) {
      return corrupt(options.argv[0] + " printed more than " + std::to_string(kMaxOutputBytes) +
                     " bytes");
    }
    if (state.output >= 0 && deadline.passed()) return too_long();
  }
  SCANJIT_ASSIGN_OR_RETURN(const std::optional<ExitStatus> exit, process.wait(deadline.left_ms()));
  if (!exit) return too_long();
  return ProcessOutput{*exit, std::move(state.output_pending), process.error_output()};
}

}  // namespace scanjit::os
