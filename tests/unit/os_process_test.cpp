#include <csignal>
#include <cstdint>
#include <string>

#include "os/clock.hpp"
#include "os/process.hpp"
#include "support/catch.hpp"

using scanjit::ErrorCode;
using scanjit::os::Process;
using scanjit::os::ProcessOptions;
using scanjit::os::run_process;
using scanjit::os::steady_clock;

namespace {

constexpr std::int64_t kLongMs = 20'000;

ProcessOptions shell(const std::string& script) {
  ProcessOptions options;
  options.argv = {"/bin/sh", "-c", script};
  options.capture_stderr = true;
  return options;
}

}  // namespace

TEST_CASE("A program gets its input and arguments as they are, and its output comes back", "[os]") {
  ProcessOptions options;
  options.argv = {"printf", "%s|", "a b", "$HOME", "'", ""};  // no shell touches them
  const auto printed = run_process(options, "", kLongMs);
  REQUIRE(printed.ok());
  CHECK(printed->output == "a b|$HOME|'||");
  CHECK(printed->exit.success());

  std::string large;
  for (int i = 0; i < 300'000; ++i) large += std::to_string(i) + "\n";  // more than any pipe holds
  options.argv = {"cat"};
  const auto copied = run_process(options, large, kLongMs);
  REQUIRE(copied.ok());
  CHECK(copied->output == large);
}

TEST_CASE("Exit codes, signals and standard error are told apart", "[os]") {
  const auto failed = run_process(shell("echo out; echo err >&2; exit 3"), "", kLongMs);
  REQUIRE(failed.ok());
  CHECK(failed->exit.code == 3);
  CHECK(failed->exit.signal == 0);
  CHECK(failed->output == "out\n");
  CHECK(failed->error_output == "err\n");
  CHECK(to_string(failed->exit) == "exit code 3");

  const auto killed = run_process(shell("kill -SEGV $$"), "", kLongMs);
  REQUIRE(killed.ok());
  CHECK(killed->exit.signal == SIGSEGV);
  CHECK_FALSE(killed->exit.success());
  CHECK(to_string(killed->exit) == "signal 11");
}

TEST_CASE("A program that does not exist is not found", "[os]") {
  ProcessOptions options;
  options.argv = {"/no/such/program"};
  CHECK(run_process(options, "", kLongMs).status().code() == ErrorCode::kNotFound);
  options.argv = {"no-such-program-on-the-path"};
  CHECK(run_process(options, "", kLongMs).status().code() == ErrorCode::kNotFound);
  options.argv = {};
  CHECK(run_process(options, "", kLongMs).status().code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("A program that hangs is killed at its time limit", "[os]") {
  ProcessOptions options;
  options.argv = {"sleep", "100"};
  const std::int64_t start = steady_clock().now_ms();
  const auto result = run_process(options, "", 200);
  const std::int64_t took = steady_clock().now_ms() - start;
  CHECK(result.status().code() == ErrorCode::kTimeout);
  CHECK(took >= 190);
  CHECK(took < 10'000);
  // One that takes no input, and one that has closed its output and hangs.
  CHECK(run_process(options, std::string(4 << 20, 'x'), 200).status().code() ==
        ErrorCode::kTimeout);
  CHECK(run_process(shell("exec >&- 2>&-; exec sleep 100"), "", 200).status().code() ==
        ErrorCode::kTimeout);
}

TEST_CASE("A conversation line by line", "[os]") {
  auto spawned = Process::spawn(shell("while read line; do echo \"got $line\"; done; printf tail"));
  REQUIRE(spawned.ok());
  Process process = std::move(spawned).value();
  CHECK(process.read_line(50).status().code() == ErrorCode::kTimeout);
  REQUIRE(process.write("one\ntw", kLongMs).ok());
  CHECK(process.read_line(kLongMs).value() == "got one");
  CHECK(process.read_line(50).status().code() == ErrorCode::kTimeout);
  REQUIRE(process.write("o\n", kLongMs).ok());
  CHECK(process.read_line(kLongMs).value() == "got two");
  CHECK(process.wait(0).value() == std::nullopt);
  process.close_input();
  CHECK(process.read_line(kLongMs).value() == "tail");
  CHECK(process.read_line(kLongMs).value() == std::nullopt);
  const auto exit = process.wait(kLongMs);
  REQUIRE(exit.ok());
  REQUIRE(exit->has_value());
  CHECK((*exit)->success());
}

TEST_CASE("Writing to a child that is gone is an error and no signal", "[os]") {
  auto spawned = Process::spawn(shell("exit 0"));
  REQUIRE(spawned.ok());
  REQUIRE(spawned->wait(kLongMs).value().has_value());
  CHECK(spawned->write("anyone?\n", kLongMs).code() == ErrorCode::kCancelled);
}

TEST_CASE("A killed child is reaped and says so; a dropped one is killed", "[os]") {
  ProcessOptions options;
  options.argv = {"sleep", "100"};
  auto spawned = Process::spawn(options);
  REQUIRE(spawned.ok());
  spawned->kill();
  const auto exit = spawned->wait(0);
  REQUIRE(exit.ok());
  REQUIRE(exit->has_value());
  CHECK((*exit)->signal == SIGKILL);
  spawned->kill();  // twice does nothing

  int pid = 0;
  {
    auto dropped = Process::spawn(options);
    REQUIRE(dropped.ok());
    pid = dropped->pid();
    CHECK(::kill(pid, 0) == 0);
  }
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE("A child that fills standard error still ends, and the last of it is kept", "[os]") {
  const auto result = run_process(
      shell("i=0; while [ $i -lt 20000 ]; do echo 0123456789 >&2; i=$((i+1)); done; echo last >&2"),
      "", kLongMs);
  REQUIRE(result.ok());
  CHECK(result->error_output.size() <= 65536);
  CHECK(result->error_output.ends_with("last\n"));
}

TEST_CASE("Given variables are added and replace those of the same name", "[os]") {
  ::setenv("SCANJIT_TEST_KEPT", "kept", 1);
  ::setenv("SCANJIT_TEST_CHANGED", "old", 1);
  ProcessOptions options =
      shell("echo $SCANJIT_TEST_KEPT $SCANJIT_TEST_CHANGED $SCANJIT_TEST_ADDED");
  options.environment = {"SCANJIT_TEST_CHANGED=new", "SCANJIT_TEST_ADDED=added"};
  const auto result = run_process(options, "", kLongMs);
  ::unsetenv("SCANJIT_TEST_KEPT");
  ::unsetenv("SCANJIT_TEST_CHANGED");
  REQUIRE(result.ok());
  CHECK(result->output == "kept new added\n");
}

TEST_CASE("A manual clock moves only when told", "[os]") {
  scanjit::os::ManualClock clock;
  CHECK(clock.now_us() == 0);
  clock.advance_us(1500);
  CHECK(clock.now_ms() == 1);
  clock.sleep_ms(2);
  CHECK(clock.now_us() == 3500);
  clock.sleep_us(-5);
  CHECK(clock.now_us() == 3500);
  const std::int64_t before = steady_clock().now_us();
  steady_clock().sleep_ms(5);
  CHECK(steady_clock().now_us() - before >= 5000);
}
