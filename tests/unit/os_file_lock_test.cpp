#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "os/memory_file_system.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"
#include "support/temporary_directory.hpp"

using scanjit::ErrorCode;
using scanjit::os::FileLock;
using scanjit::os::FileSystem;
using scanjit::os::MemoryFileSystem;
using scanjit::os::posix_file_system;
using scanjit::test::TemporaryDirectory;

namespace {

/// What a child process finds: 0 the lock is free, 1 it is held, 2 there is no locking.
int try_in_child(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = posix_file_system().try_lock(path);
    ::_exit(!lock.ok() ? 2 : lock->has_value() ? 0 : 1);
  }
  int raw = 0;
  if (child < 0 || ::waitpid(child, &raw, 0) != child || !WIFEXITED(raw)) return -1;
  return WEXITSTATUS(raw);
}

void check_exclusion(FileSystem& files, const std::string& path) {
  auto first = files.try_lock(path);
  REQUIRE(first.ok());
  REQUIRE(first->has_value());
  const auto second = files.try_lock(path);
  REQUIRE(second.ok());
  CHECK_FALSE(second->has_value());
  (*first)->release();
  const auto third = files.try_lock(path);
  REQUIRE(third.ok());
  CHECK(third->has_value());
}

}  // namespace

TEST_CASE("A lock keeps other threads out and comes free with its holder", "[os]") {
  const TemporaryDirectory folder;
  check_exclusion(posix_file_system(), folder.file("lock"));
  MemoryFileSystem memory;
  check_exclusion(memory, "/lock");
}

TEST_CASE("A lock keeps other processes out", "[os]") {
  const TemporaryDirectory folder;
  const std::string path = folder.file("lock");
  {
    const auto lock = posix_file_system().try_lock(path);
    REQUIRE(lock.ok());
    REQUIRE(lock->has_value());
    CHECK(try_in_child(path) == 1);
  }
  CHECK(try_in_child(path) == 0);
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("A lock comes free when its process is killed", "[os]") {
  const TemporaryDirectory folder;
  const std::string path = folder.file("lock");
  int ready[2] = {-1, -1};
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = posix_file_system().try_lock(path);
    const char answer = lock.ok() && lock->has_value() ? 'y' : 'n';
    if (::write(ready[1], &answer, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char answer = 0;
  REQUIRE(::read(ready[0], &answer, 1) == 1);
  REQUIRE(answer == 'y');
  const auto held = posix_file_system().try_lock(path);
  REQUIRE(held.ok());
  CHECK_FALSE(held->has_value());
  REQUIRE(::kill(child, SIGKILL) == 0);
  int raw = 0;
  REQUIRE(::waitpid(child, &raw, 0) == child);
  const auto free = posix_file_system().try_lock(path);
  REQUIRE(free.ok());
  CHECK(free->has_value());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("A released lock is free although a forked child still has the descriptor", "[os]") {
  const TemporaryDirectory folder;
  const std::string path = folder.file("lock");
  auto lock = posix_file_system().try_lock(path);
  REQUIRE(lock.ok());
  REQUIRE(lock->has_value());
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  REQUIRE(child > 0);
  (*lock)->release();
  const auto again = posix_file_system().try_lock(path);
  ::kill(child, SIGKILL);
  int raw = 0;
  ::waitpid(child, &raw, 0);
  REQUIRE(again.ok());
  CHECK(again->has_value());
}

TEST_CASE("Never two holders among many threads", "[os]") {
  const TemporaryDirectory folder;
  const std::string path = folder.file("lock");
  std::atomic<int> holders = 0;
  std::atomic<int> most = 0;
  std::atomic<int> successes = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) {
        const auto lock = posix_file_system().try_lock(path);
        if (!lock.ok() || !lock->has_value()) continue;
        const int now = ++holders;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        ++successes;
        --holders;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(most == 1);
  CHECK(successes > 0);
}

TEST_CASE("Where there is no locking the answer says so and is not 'held'", "[os]") {
  MemoryFileSystem memory;
  for (const int error : {ENOLCK, EIO, EROFS, ENOSPC}) {
    memory.fail_call(1, error);
    CHECK(memory.try_lock("/lock").status().code() == ErrorCode::kUnsupported);
  }
  CHECK(posix_file_system().try_lock("/no/such/folder/lock").status().code() ==
        ErrorCode::kUnsupported);
  CHECK(posix_file_system().try_lock("/proc/lock").status().code() == ErrorCode::kUnsupported);
}
