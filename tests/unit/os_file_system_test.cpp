#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "os/memory_file_system.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"
#include "support/temporary_directory.hpp"

using scanjit::ErrorCode;
using scanjit::os::FileSystem;
using scanjit::os::FileType;
using scanjit::os::MemoryFileSystem;
using scanjit::os::posix_file_system;
using scanjit::test::TemporaryDirectory;

namespace {

/// What every implementation must do, in an empty folder: the fake and the machine agree.
void check_contract(FileSystem& files, const std::string& root) {
  constexpr std::int64_t kLimit = 1 << 20;
  const std::string folder = root + "/a/b";
  const std::string path = folder + "/file";

  CHECK(files.read_file(path, kLimit).status().code() == ErrorCode::kNotFound);
  CHECK(files.publish(path, "x").code() == ErrorCode::kNotFound);
  REQUIRE(files.make_directories(folder).ok());
  REQUIRE(files.make_directories(folder).ok());
  REQUIRE(files.make_directories(folder + "/").ok());
  CHECK(files.info(folder)->type == FileType::kDirectory);
  CHECK(files.info(folder)->mode == 0700);
  CHECK(files.info(folder)->owner == files.user_id());

  const std::string bytes("zero \0 and \xff", 12);
  REQUIRE(files.publish(path, bytes).ok());
  CHECK(*files.read_file(path, kLimit) == bytes);
  CHECK(files.info(path)->size == 12);
  CHECK(files.info(path)->mode == 0600);
  CHECK(files.info(path)->type == FileType::kRegular);
  REQUIRE(files.publish(path, "").ok());
  CHECK(files.read_file(path, 0)->empty());

  REQUIRE(files.publish(path, "12345").ok());
  CHECK(*files.read_file(path, 5) == "12345");
  CHECK(files.read_file(path, 4).status().code() == ErrorCode::kCorrupt);
  CHECK(files.read_file(folder, kLimit).status().code() == ErrorCode::kCorrupt);

  CHECK(files.create(path).status().code() == ErrorCode::kIoError);
  CHECK(files.make_directories(path).code() == ErrorCode::kIoError);
  CHECK_FALSE(files.make_directories(path + "/below").ok());
  CHECK(files.list_directory(path).status().code() == ErrorCode::kNotFound);

  REQUIRE(files.publish(folder + "/other", "2").ok());
  CHECK(*files.list_directory(folder) == std::vector<std::string>{"file", "other"});
  CHECK(*files.list_directory(root + "/a") == std::vector<std::string>{"b"});
  REQUIRE(files.rename(folder + "/other", path).ok());
  CHECK(*files.read_file(path, kLimit) == "2");
  CHECK(files.rename(folder + "/other", path).code() == ErrorCode::kNotFound);
  CHECK_FALSE(files.exists(folder + "/other"));
  CHECK(files.exists(path));

  const std::int64_t before = files.info(path)->modified_ns;
  REQUIRE(files.touch(path).ok());
  CHECK(files.info(path)->modified_ns >= before);
  CHECK(files.touch(folder + "/none").code() == ErrorCode::kNotFound);

  CHECK(files.remove_directory(folder).code() == ErrorCode::kIoError);
  CHECK_FALSE(files.remove_file(folder).ok());
  REQUIRE(files.remove_file(path).ok());
  CHECK(files.remove_file(path).code() == ErrorCode::kNotFound);
  REQUIRE(files.rename(folder, root + "/c").ok());
  CHECK(files.list_directory(root + "/c")->empty());
  REQUIRE(files.remove_directory(root + "/c").ok());
  CHECK(*files.free_bytes(root) > 0);
  CHECK(files.resolve(root + "/a/../a/.").value() == files.resolve(root).value() + "/a");
}

}  // namespace

TEST_CASE("The machine's file system and the one in memory keep one contract", "[os]") {
  const TemporaryDirectory folder;
  check_contract(posix_file_system(), folder.path());
  MemoryFileSystem memory;
  REQUIRE(memory.make_directories("/root").ok());
  check_contract(memory, "/root");
}

TEST_CASE("Errors carry the path and the system's words", "[os]") {
  const auto missing = posix_file_system().read_file("/no/such/file", 10);
  CHECK(missing.status().details().path == "/no/such/file");
  CHECK(missing.status().message() == "cannot open /no/such/file: No such file or directory");
}

TEST_CASE("A FIFO is refused and not waited for", "[os]") {
  const TemporaryDirectory folder;
  REQUIRE(::mkfifo(folder.file("fifo").c_str(), 0600) == 0);
  CHECK(posix_file_system().read_file(folder.file("fifo"), 10).status().code() ==
        ErrorCode::kCorrupt);
}

TEST_CASE("A file whose size says 0 is read to its end", "[os]") {
  const auto status = posix_file_system().read_file("/proc/self/status", 1 << 20);
  REQUIRE(status.ok());
  CHECK(status->find("Pid:") != std::string::npos);
  CHECK(posix_file_system().read_file("/proc/self/status", 8).status().code() ==
        ErrorCode::kCorrupt);
}

TEST_CASE("Links are followed by info and not by link_info", "[os]") {
  const TemporaryDirectory folder;
  std::filesystem::create_symlink(folder.path(), folder.file("link"));
  CHECK(posix_file_system().info(folder.file("link"))->type == FileType::kDirectory);
  CHECK(posix_file_system().link_info(folder.file("link"))->type == FileType::kSymlink);
  CHECK(posix_file_system().link_info(folder.file("link/"))->type == FileType::kSymlink);
  MemoryFileSystem memory;
  memory.put("/target/file", "x");
  memory.put_symlink("/link", "/target");
  CHECK(memory.info("/link")->type == FileType::kDirectory);
  CHECK(memory.link_info("/link")->type == FileType::kSymlink);
  CHECK(*memory.read_file("/link/file", 9) == "x");
}

TEST_CASE("Paths are joined and taken apart", "[os]") {
  using scanjit::os::base_name;
  using scanjit::os::join_path;
  using scanjit::os::parent_path;
  CHECK(join_path("/a", "b") == "/a/b");
  CHECK(join_path("/a/", "b") == "/a/b");
  CHECK(join_path("/", "b") == "/b");
  CHECK(join_path("", "b") == "b");
  CHECK(parent_path("/a/b") == "/a");
  CHECK(parent_path("/a/b//") == "/a");
  CHECK(parent_path("/a//b") == "/a");
  CHECK(parent_path("/a") == "/");
  CHECK(parent_path("/") == "/");
  CHECK(parent_path("a") == ".");
  CHECK(parent_path("") == ".");
  CHECK(base_name("/a/b") == "b");
  CHECK(base_name("b") == "b");
}
