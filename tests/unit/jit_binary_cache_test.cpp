// The cache directory and packs: round trip, damage, trust, crashes, failing systems.

#include "jit/binary_cache.hpp"

#include <cerrno>

#include "os/memory_file_system.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;

namespace {

StoredBinary binary_of(const std::string& source, const std::string& nvrtc) {
  StoredBinary binary;
  binary.source_id = make_source_id(source, "digest", {}, "sm_90a");
  binary.binary_id = make_binary_id(binary.source_id, nvrtc);
  binary.entry = "scale";
  binary.arch = "sm_90a";
  binary.nvrtc = nvrtc;
  binary.cubin = "machine code of " + source + " by " + nvrtc;
  return binary;
}

std::string path_of(const std::string& dir, const StoredBinary& binary) {
  return dir + "/bin/" + binary.binary_id + ".cubin";
}

void put_pack(os::MemoryFileSystem& files, const std::string& dir, const StoredBinary& binary) {
  files.put(path_of(dir, binary), encode_binary(binary));
  files.set_mode(dir, 0755);
  files.set_mode(dir + "/bin", 0755);
}

struct Warnings {
  std::vector<std::string> lines;
  Log log{[this](LogLevel, const std::string& line) { lines.push_back(line); }};
};

}  // namespace

TEST_CASE("what is put into the cache is found again, by another process too", "[jit]") {
  os::MemoryFileSystem files;
  const StoredBinary binary = binary_of("a", "13.0.88");
  BinaryCache(files, "/cache", {}, {}).put(binary);
  files.crash(os::CrashKeeps::kSyncedOnly);
  BinaryCache cache(files, "/cache", {}, {});
  const auto found = cache.find(binary.source_id, binary.binary_id, "scale");
  REQUIRE(found);
  CHECK(found->binary == binary);
  CHECK(found->from == "cache");
  CHECK_FALSE(cache.find(binary.source_id, make_binary_id(binary.source_id, "12.4"), "scale"));
  CHECK_FALSE(cache.find(binary_of("b", "x").source_id, "", "scale"));
}

TEST_CASE("without NVRTC any binary of the source serves, the newest compiler's first", "[jit]") {
  os::MemoryFileSystem files;
  BinaryCache cache(files, "/cache", {}, {});
  for (const char* nvrtc : {"12.9.1", "13.0.88", "12.10.2"}) cache.put(binary_of("a", nvrtc));
  const std::string id = binary_of("a", "").source_id;
  REQUIRE(cache.find(id, "", "scale"));
  CHECK(cache.find(id, "", "scale")->binary.nvrtc == "13.0.88");
}

TEST_CASE("with NVRTC a pack serves another NVRTC's binary, the cache does not", "[jit]") {
  os::MemoryFileSystem files;
  const StoredBinary old = binary_of("a", "12.4.1");
  const std::string wanted = make_binary_id(old.source_id, "13.0.88");
  BinaryCache(files, "/cache", {}, {}).put(old);
  CHECK_FALSE(BinaryCache(files, "/cache", {}, {}).find(old.source_id, wanted, "scale"));
  put_pack(files, "/pack", old);
  BinaryCache cache(files, "/cache", {"/none", "/pack"}, {});
  const auto found = cache.find(old.source_id, wanted, "scale");
  REQUIRE(found);
  CHECK(found->from == "pack:/pack");
  CHECK(cache.find(old.source_id, old.binary_id, "scale")->from == "cache");
}

TEST_CASE("a damaged file is set aside in the cache and passed over in a pack", "[jit][fault]") {
  os::MemoryFileSystem files;
  Warnings warnings;
  const StoredBinary binary = binary_of("a", "13.0.88");
  std::string bytes = encode_binary(binary);
  bytes[bytes.size() / 2] ^= 1;
  put_pack(files, "/pack", binary);
  files.put(path_of("/pack", binary), bytes);
  BinaryCache cache(files, "/cache", {"/pack"}, warnings.log);
  cache.put(binary);
  files.put(path_of("/cache", binary), bytes);

  CHECK_FALSE(cache.find(binary.source_id, binary.binary_id, "scale"));
  CHECK(cache.counters().corrupt_files >= 2);
  CHECK_FALSE(files.exists(path_of("/cache", binary)));
  CHECK(files.exists(path_of("/pack", binary)));
  const auto names = files.list_directory("/cache/bin");
  REQUIRE(names->size() == 1);
  CHECK(names->front().find(".cubin.corrupt-") != std::string::npos);
  CHECK(warnings.lines.size() == 2);

  cache.put(binary);
  CHECK(cache.find(binary.source_id, binary.binary_id, "scale"));
}

TEST_CASE("a file under another's name is damage", "[jit][fault]") {
  os::MemoryFileSystem files;
  const StoredBinary a = binary_of("a", "13.0.88"), b = binary_of("b", "13.0.88");
  BinaryCache cache(files, "/cache", {}, {});
  cache.put(a);
  files.put(path_of("/cache", a), encode_binary(b));
  CHECK_FALSE(cache.find(a.source_id, a.binary_id, "scale"));
  CHECK(cache.counters().corrupt_files == 1);
  cache.put(a);
  CHECK_FALSE(cache.find(a.source_id, a.binary_id, "another_entry"));
}

TEST_CASE("a directory that others can write to is not used", "[jit]") {
  const StoredBinary binary = binary_of("a", "13.0.88");
  for (const char* writable : {"/cache", "/cache/bin"}) {
    os::MemoryFileSystem files;
    Warnings warnings;
    BinaryCache(files, "/cache", {}, {}).put(binary);
    files.set_mode(writable, 0777);
    BinaryCache cache(files, "/cache", {}, warnings.log);
    CHECK_FALSE(cache.find(binary.source_id, binary.binary_id, "scale"));
    cache.put(binary);
    CHECK(warnings.lines.size() == 1);
    CHECK(cache.counters().write_errors == 1);
  }
  os::MemoryFileSystem files;
  put_pack(files, "/pack", binary);
  files.set_owner("/pack/bin", 4242);
  CHECK_FALSE(BinaryCache(files, "", {"/pack"}, {}).find(binary.source_id, "", "scale"));
  files.set_owner("/pack/bin", 0);
  CHECK(BinaryCache(files, "", {"/pack"}, {}).find(binary.source_id, "", "scale"));
}

TEST_CASE("a crash at any step of writing leaves the whole file or none", "[jit][fault]") {
  const StoredBinary binary = binary_of("a", "13.0.88");
  for (const auto keeps : {os::CrashKeeps::kSyncedOnly, os::CrashKeeps::kNames}) {
    for (std::int64_t n = 1; n < 40; ++n) {
      os::MemoryFileSystem files;
      BinaryCache cache(files, "/cache", {}, {});
      files.fail_call(n, EIO, true);  // killed here: nothing later happens either
      cache.put(binary);
      files.clear_fault();
      files.crash(keeps);
      BinaryCache after(files, "/cache", {}, {});
      const auto found = after.find(binary.source_id, binary.binary_id, "scale");
      if (found) CHECK(found->binary == binary);
      CHECK(after.counters().corrupt_files == 0);
      after.put(binary);
      CHECK(after.find(binary.source_id, binary.binary_id, "scale"));
    }
  }
}

TEST_CASE("whatever call fails, a look-up is a hit or a miss and writing goes on without",
          "[jit][fault]") {
  const StoredBinary binary = binary_of("a", "13.0.88");
  int misses = 0;
  for (const int error : {EIO, EACCES, ENOSPC, EROFS}) {
    for (std::int64_t n = 1; n < 30; ++n) {
      os::MemoryFileSystem files;
      BinaryCache(files, "/cache", {}, {}).put(binary);
      BinaryCache cache(files, "/cache", {}, {});
      files.fail_call(n, error);
      const auto found = cache.find(binary.source_id, binary.binary_id, "scale");
      if (found) CHECK(found->binary == binary);
      misses += found ? 0 : 1;
    }
  }
  CHECK(misses > 0);

  os::MemoryFileSystem files;
  Warnings warnings;
  BinaryCache full(files, "/cache", {}, warnings.log);
  files.fail_call(1, ENOSPC, true);
  full.put(binary);
  full.put(binary);
  CHECK(full.counters().write_errors == 2);
  CHECK(warnings.lines.size() == 1);
}

TEST_CASE("no directory is no error", "[jit]") {
  os::MemoryFileSystem files;
  BinaryCache cache(files, "", {}, {});
  const StoredBinary binary = binary_of("a", "13.0.88");
  cache.put(binary);
  CHECK_FALSE(cache.find(binary.source_id, binary.binary_id, "scale"));
  CHECK(cache.counters().write_errors == 0);
}
