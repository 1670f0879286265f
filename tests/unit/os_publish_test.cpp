#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "os/memory_file_system.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"
#include "support/temporary_directory.hpp"

using scanjit::Status;
using scanjit::os::CrashKeeps;
using scanjit::os::is_temporary_name;
using scanjit::os::MemoryFileSystem;
using scanjit::os::posix_file_system;
using scanjit::test::TemporaryDirectory;

namespace {

constexpr std::int64_t kLimit = 1 << 20;
const std::string kPath = "/cache/bin/kernel.cubin";
const std::string kOld(1000, 'o');
const std::string kNew(3000, 'n');

std::size_t count_temporary(const std::vector<std::string>& names) {
  std::size_t count = 0;
  for (const std::string& name : names) count += is_temporary_name(name) ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("A publication that fails names the file that was asked for", "[os]") {
  for (std::int64_t step = 1;; ++step) {
    MemoryFileSystem files;
    files.put(kPath, kOld);
    files.fail_call(step, EROFS);
    const Status status = files.publish(kPath, kNew);
    if (status.ok()) break;
    INFO(status.message());
    CHECK(status.message().find(".tmp-") == std::string::npos);
    CHECK(status.details().path.find(".tmp-") == std::string::npos);
    CHECK(status.message().find("/cache/bin") != std::string::npos);
  }
}

TEST_CASE(
    "A publication that fails at any step leaves the old file or the new, and nothing beside it",
    "[os]") {
  for (const int error : {ENOSPC, EIO, EROFS, EDQUOT}) {
    bool succeeded = false;
    for (std::int64_t step = 1; !succeeded; ++step) {
      CAPTURE(error, step);
      REQUIRE(step < 20);
      MemoryFileSystem files;
      files.put(kPath, kOld);
      files.fail_call(step, error);
      const Status status = files.publish(kPath, kNew);
      files.clear_fault();
      const std::string content = *files.read_file(kPath, kLimit);
      CHECK((content == kOld || content == kNew));
      if (status.ok()) CHECK(content == kNew);
      CHECK(count_temporary(*files.list_directory("/cache/bin")) == 0);
      succeeded = status.ok();
      if (!succeeded) CHECK(files.publish(kPath, kNew).ok());
      CHECK(*files.read_file(kPath, kLimit) == kNew);
    }
  }
}

TEST_CASE("A crash at any step leaves the old file or the new, whole", "[os]") {
  for (const CrashKeeps keeps : {CrashKeeps::kSyncedOnly, CrashKeeps::kNames}) {
    for (const bool has_old : {true, false}) {
      bool succeeded = false;
      for (std::int64_t step = 1; !succeeded; ++step) {
        CAPTURE(static_cast<int>(keeps), has_old, step);
        REQUIRE(step < 20);
        MemoryFileSystem files;
        files.put("/cache/bin/other", "x");
        if (has_old) files.put(kPath, kOld);
        files.fail_call(step, EIO, true);  // nothing works any more, the clean-up neither
        succeeded = files.publish(kPath, kNew).ok();
        files.clear_fault();
        files.crash(keeps);
        const auto content = files.read_file(kPath, kLimit);
        if (!content.ok()) {
          CHECK_FALSE(has_old);
          CHECK_FALSE(succeeded);
        } else {
          CHECK((*content == kNew || (has_old && *content == kOld)));
          if (succeeded) CHECK(*content == kNew);
        }
        CHECK(*files.read_file("/cache/bin/other", kLimit) == "x");
      }
    }
  }
}

TEST_CASE("The fake tells a publication without syncs from one with them", "[os]") {
  // A negative control of the test above: write and rename alone.
  MemoryFileSystem files;
  files.put(kPath, kOld);
  auto writer = files.create("/cache/bin/temporary");
  REQUIRE(writer.ok());
  REQUIRE((*writer)->write(kNew).ok());
  REQUIRE((*writer)->close().ok());
  REQUIRE(files.rename("/cache/bin/temporary", kPath).ok());
  files.crash(CrashKeeps::kNames);
  const std::string content = *files.read_file(kPath, kLimit);
  CHECK(content != kOld);
  CHECK(content != kNew);
}

TEST_CASE("Readers beside writers see one whole version", "[os]") {
  const TemporaryDirectory folder;
  const std::string path = folder.file("entry");
  constexpr std::size_t kSize = 100'000;
  auto& files = posix_file_system();
  REQUIRE(files.publish(path, std::string(kSize, 'a')).ok());
  std::atomic<bool> stop = false;
  std::atomic<int> bad = 0;
  std::atomic<int> reads = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        const auto bytes = files.read_file(path, kLimit);
        if (!bytes.ok() || bytes->size() != kSize ||
            bytes->find_first_not_of((*bytes)[0]) != std::string::npos)
          ++bad;
        ++reads;
      }
    });
  }
  std::vector<std::thread> writers;
  for (int i = 0; i < 2; ++i) {
    writers.emplace_back([&, letter = static_cast<char>('b' + i)] {
      for (int n = 0; n < 50; ++n) {
        if (!files.publish(path, std::string(kSize, letter)).ok()) ++bad;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(bad == 0);
  CHECK(reads > 0);
  CHECK(*files.list_directory(folder.path()) == std::vector<std::string>{"entry"});
}

TEST_CASE("A writer killed at any time leaves a whole file", "[os]") {
  const TemporaryDirectory folder;
  const std::string path = folder.file("entry");
  constexpr std::size_t kSize = 200'000;
  auto& files = posix_file_system();
  REQUIRE(files.publish(path, std::string(kSize, 'a')).ok());
  for (int round = 0; round < 15; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (char letter = 'b';; letter = letter == 'z' ? 'b' : static_cast<char>(letter + 1)) {
        static_cast<void>(files.publish(path, std::string(kSize, letter)));
      }
    }
    REQUIRE(child > 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + 2 * round));
    ::kill(child, SIGKILL);
    int raw = 0;
    ::waitpid(child, &raw, 0);
    const auto bytes = files.read_file(path, kLimit);
    REQUIRE(bytes.ok());
    CHECK(bytes->size() == kSize);
    CHECK(bytes->find_first_not_of((*bytes)[0]) == std::string::npos);
  }
  // What is left over is recognisable, so that a clean-up can take it.
  const auto names = files.list_directory(folder.path());
  REQUIRE(names.ok());
  for (const std::string& name : *names) {
    CHECK((name == "entry" || is_temporary_name(name)));
  }
}

TEST_CASE("A full disk is an error of the machine's file system too, and leaves nothing", "[os]") {
  const TemporaryDirectory folder;
  const std::string path = folder.file("entry");
  REQUIRE(posix_file_system().publish(path, kOld).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    // The limit on a file's size stands in for the full disk: write gives EFBIG after a short
    // write.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1500, 1500};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(9);
    ::_exit(posix_file_system().publish(path, kNew).ok() ? 1 : 0);
  }
  int raw = 0;
  REQUIRE(::waitpid(child, &raw, 0) == child);
  REQUIRE(WIFEXITED(raw));
  CHECK(WEXITSTATUS(raw) == 0);
  CHECK(*posix_file_system().read_file(path, kLimit) == kOld);
  CHECK(*posix_file_system().list_directory(folder.path()) == std::vector<std::string>{"entry"});
}
