#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "os/memory_file_system.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"
#include "support/temporary_directory.hpp"

using scanjit::ErrorCode;
using scanjit::Status;
using scanjit::os::MemoryFileSystem;
using scanjit::os::posix_file_system;
using scanjit::os::TrustedOwner;
using scanjit::test::TemporaryDirectory;

namespace {

constexpr std::uint32_t kStranger = 1001;

void check_refused(const Status& status, const std::string& word) {
  CHECK(status.code() == ErrorCode::kUnsupported);
  CHECK(status.message().find(word) != std::string::npos);
}

}  // namespace

TEST_CASE("A directory of ours that we made is trusted", "[os]") {
  MemoryFileSystem files;
  REQUIRE(files.make_directories("/home/user/.cache/scanjit").ok());
  CHECK(files.check_trusted_directory("/home/user/.cache/scanjit").ok());
  CHECK(files.check_trusted_directory("/home/user/.cache/scanjit/").ok());
  files.set_mode("/home/user/.cache/scanjit", 0755);  // others may look
  CHECK(files.check_trusted_directory("/home/user/.cache/scanjit").ok());
}

TEST_CASE("A directory into which somebody else could put code is refused", "[os]") {
  MemoryFileSystem files;
  REQUIRE(files.make_directories("/home/cache").ok());
  for (const std::uint32_t mode : {0720U, 0702U, 0777U, 01777U, 0770U}) {
    CAPTURE(mode);
    files.set_mode("/home/cache", mode);
    check_refused(files.check_trusted_directory("/home/cache"), "chmod 700");
    check_refused(files.check_trusted_directory("/home/cache", TrustedOwner::kSelfOrRoot),
                  "chmod 700");
  }
  files.set_mode("/home/cache", 0700);
  files.set_owner("/home/cache", kStranger);
  check_refused(files.check_trusted_directory("/home/cache"), "1001");
  check_refused(files.check_trusted_directory("/home/cache", TrustedOwner::kSelfOrRoot), "1001");
  files.set_owner("/home/cache", 0);
  check_refused(files.check_trusted_directory("/home/cache"), "belongs to user 0");
  CHECK(files.check_trusted_directory("/home/cache", TrustedOwner::kSelfOrRoot).ok());
}

TEST_CASE("A link, a file and nothing at all are refused", "[os]") {
  MemoryFileSystem files;
  files.put("/home/target/file", "x");
  files.put_symlink("/home/link", "/home/target");
  check_refused(files.check_trusted_directory("/home/link"), "symbolic link");
  check_refused(files.check_trusted_directory("/home/target/file"), "not a directory");
  CHECK(files.check_trusted_directory("/home/none").code() == ErrorCode::kNotFound);
  // A link further up is the user's own business; what it leads to is looked at.
  files.put("/home/target/cache/file", "x");
  CHECK(files.check_trusted_directory("/home/link/cache").ok());
  files.set_mode("/home/target", 0777);
  check_refused(files.check_trusted_directory("/home/link/cache"), "/home/target");
}

TEST_CASE("A folder above that everybody can write to is refused unless sticky", "[os]") {
  MemoryFileSystem files;
  REQUIRE(files.make_directories("/tmp/user/cache").ok());
  files.set_mode("/tmp", 01777);
  CHECK(files.check_trusted_directory("/tmp/user/cache").ok());
  files.set_mode("/tmp", 0777);
  check_refused(files.check_trusted_directory("/tmp/user/cache"), "/tmp");
}

TEST_CASE("The machine's file system answers the same questions", "[os]") {
  const TemporaryDirectory folder;
  auto& files = posix_file_system();
  CHECK(files.check_trusted_directory(folder.path()).ok());
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  check_refused(files.check_trusted_directory(folder.path()), "0777");
  REQUIRE(files.make_directories(folder.file("inside")).ok());
  check_refused(files.check_trusted_directory(folder.file("inside")), "0777");
  REQUIRE(::chmod(folder.path().c_str(), 0700) == 0);
  std::filesystem::create_directory_symlink(folder.file("inside"), folder.file("link"));
  check_refused(files.check_trusted_directory(folder.file("link")), "symbolic link");
  check_refused(files.check_trusted_directory(folder.file("link/")), "symbolic link");
}

TEST_CASE("A failing question is an error, never trust", "[os]") {
  bool trusted = false;
  for (std::int64_t step = 1; !trusted; ++step) {
    REQUIRE(step < 20);
    MemoryFileSystem files;
    REQUIRE(files.make_directories("/a/b/c").ok());
    files.set_mode("/a", 0777);
    CHECK_FALSE(files.check_trusted_directory("/a/b/c").ok());
    files.set_mode("/a", 0700);
    files.fail_call(step, EIO);
    trusted = files.check_trusted_directory("/a/b/c").ok();
    if (trusted) CHECK(step > 3);
  }
}
