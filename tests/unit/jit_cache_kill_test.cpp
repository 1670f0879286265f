// A writer that is killed while it publishes leaves whole files or none.

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "jit/binary_cache.hpp"
#include "os/posix_file_system.hpp"
#include "os/process.hpp"
#include "support/catch.hpp"
#include "support/seed.hpp"
#include "support/temporary_directory.hpp"

using namespace scanjit;
using namespace scanjit::jit;

namespace {

StoredBinary numbered(int number) {
  StoredBinary binary;
  binary.source_id = make_source_id("killed", "digest", {}, "sm_90a");
  binary.binary_id = make_binary_id(binary.source_id, std::to_string(number));
  binary.entry = "scale";
  binary.cubin.assign(1 << 20, static_cast<char>('a' + number % 26));
  return binary;
}

constexpr int kNumbers = 4;

}  // namespace

TEST_CASE("child: publishes binaries until it is killed", "[.jit_child_writer]") {
  const char* folder = std::getenv("SCANJIT_TEST_CACHE");
  REQUIRE(folder != nullptr);
  BinaryCache cache(os::posix_file_system(), folder, {}, {});
  for (int i = 0;; ++i) cache.put(numbered(i % kNumbers));
}

TEST_CASE("killing a writer at any time never leaves a damaged binary under its name",
          "[jit][fault]") {
  const test::TemporaryDirectory folder;
  const unsigned seed = test::test_seed(3);
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int seen = 0;
  for (int round = 0; round < 12; ++round) {
    os::ProcessOptions options;
    options.argv = {"/proc/self/exe", "[.jit_child_writer]"};
    options.environment = {"SCANJIT_TEST_CACHE=" + folder.path()};
    auto child = os::Process::spawn(options);
    REQUIRE(child.ok());
    // Once it writes, however long this machine takes to start it.
    const std::string bin = folder.path() + "/bin";
    for (int i = 0; i < 1000 && os::posix_file_system().names_in(bin)->empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    child->kill();

    BinaryCache cache(os::posix_file_system(), folder.path(), {}, {});
    for (int i = 0; i < kNumbers; ++i) {
      const StoredBinary expected = numbered(i);
      const auto found = cache.find(expected.source_id, expected.binary_id, "scale");
      if (found) CHECK(found->binary == expected);
      seen += found ? 1 : 0;
    }
    CHECK(cache.counters().corrupt_files == 0);
  }
  CHECK(seen > 0);
}
