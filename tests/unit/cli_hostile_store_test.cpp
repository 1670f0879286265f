// A store directory in which somebody has put what does not belong there: no command hangs, follows
// it, prints its bytes raw or takes it away.

#include <sys/stat.h>

#include <filesystem>

#include "cli_world.hpp"
#include "os/posix_file_system.hpp"
#include "tuning_samples.hpp"

namespace scanjit::test {
namespace {

namespace fs = std::filesystem;
using tuning::samples::h200;

/// A cache of two good entries, and beside them everything else that can have a name.
struct HostileStore : CliWorld {
  std::string cache = folder.file("cache");
  std::string tuned = cache + "/tuned/" + h200().directory();
  std::string bin = cache + "/bin";

  HostileStore() {
    const tuning::TunedFile good{
        h200(),
        {},
        {tuning::samples::record(), tuning::samples::record(tuning::samples::key(1, 1))}};
    REQUIRE(tuning::import_into_store(os::posix_file_system(), cache, good).ok());
    REQUIRE(os::posix_file_system().make_directories(bin).ok());
    for (const auto& [where, end] : {std::pair(tuned, ".json"), std::pair(bin, ".cubin")}) {
      const auto path = [&, where = where, end = end](const std::string& name) {
        return where + "/" + name + end;
      };
      REQUIRE(::mkfifo(path("fifo").c_str(), 0600) == 0);
      fs::create_directory(path("folder"));
      fs::create_symlink("/etc/passwd", path("link"));
      fs::create_symlink("/dev/zero", path("endless"));
      fs::create_symlink(path("loop"), path("loop"));
      std::ofstream(path("esc\033[2J\r\xff")) << "\033[2J\xff{";
      std::ofstream(path("empty"));
      std::ofstream(path("huge")) << std::string(5 << 20, '[');
    }
    std::ofstream(cache + "/tuned/stray") << "no folder";
    fs::create_directory(cache + "/tuned/cc00");
  }

  /// What must still be there, and be what it was, whatever was called.
  void check_left_alone() const {
    for (const auto& [where, end] : {std::pair(tuned, ".json"), std::pair(bin, ".cubin")}) {
      CHECK(fs::is_fifo(where + "/fifo" + end));
      CHECK(fs::is_directory(where + "/folder" + end));
      CHECK(fs::is_symlink(where + "/link" + end));
      CHECK(fs::is_symlink(where + "/loop" + end));
    }
    CHECK(fs::exists("/etc/passwd"));
    CHECK(fs::exists(cache + "/tuned/stray"));
  }
};

TEST_CASE("commands on a store with hostile files end, say so and follow nothing", "[cli]") {
  const HostileStore world;
  for (const char* command : {"ls", "show", "verify", "gc"}) {
    for (const bool json : {false, true}) {
      std::vector<std::string> arguments = {"cache", command, world.cache};
      if (json) arguments.emplace_back("--json");
      const Ran ran = world.run(arguments);
      INFO(command << (json ? " --json" : "") << "\n" << ran.out << ran.err);
      CHECK(ran.exit == (std::string(command) == "verify" ? cli::kExitFailed : cli::kExitOk));
      CHECK(ran.out.find('\033') == std::string::npos);
      CHECK(ran.err.find('\033') == std::string::npos);
      CHECK(ran.out.find("root:") == std::string::npos);
      if (json) CHECK(ran.json().is_object());
      world.check_left_alone();
    }
  }
  // Sixteen that are damaged, in name or content.
  const Ran verify = world.run({"cache", "verify", world.cache, "--json"});
  CHECK(verify.json()["damaged"].size() >= 14);
}

TEST_CASE("what is exported from a store with hostile files is the good entries", "[cli]") {
  const HostileStore world;
  const Ran ran = world.run({"cache", "export", world.cache, "--gpu", h200().directory()});
  INFO(ran.err);
  CHECK(ran.exit == cli::kExitOk);
  const auto file = tuning::tuned_file_from_json(ran.out, tuning::Checksum::kWithout);
  INFO(file.status().message());
  REQUIRE(file.ok());
  CHECK(file->entries.size() == 2);
}

TEST_CASE("hostile tuned files are neither imported nor merged", "[cli]") {
  const CliWorld world;
  const tuning::TunedFile good{h200(), {}, {tuning::samples::record()}};
  const std::string text = to_json(good, tuning::Checksum::kWithout);
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string changed = text;
    const std::size_t at = changed.find(what);
    REQUIRE(at != std::string::npos);
    return changed.replace(at, what.size(), instead);
  };
  world.write("good", text);
  world.write("path", with("\"gated_delta_h\"", "\"../../../etc/cron.d/x\""));
  world.write("nul", with("\"gated_delta_h\"", "\"a\\u0000b\""));
  world.write("code", with("\"bv\":64", "\"bv\":\"64; }\""));
  world.write("negative", with("\"bv\":64", "\"bv\":-64"));
  world.write("deep", std::string(1 << 20, '['));
  world.write("empty", "");
  world.write("binary", std::string(4096, '\0'));
  REQUIRE(::mkfifo(world.folder.file("fifo").c_str(), 0600) == 0);
  fs::create_directory(world.folder.file("directory"));
  fs::create_symlink("/dev/zero", world.folder.file("endless"));
  for (const char* name : {"path", "nul", "code", "negative", "deep", "empty", "binary", "fifo",
                           "directory", "endless", "missing"}) {
    INFO(name);
    const std::string path = world.folder.file(name);
    check_failure(world.run({"cache", "import", path, "--into", world.folder.file("into")}),
                  cli::kExitUsage, name);
    check_failure(world.run({"cache", "merge", world.folder.file("good"), path}), cli::kExitUsage,
                  name);
    CHECK_FALSE(fs::exists(world.folder.file("into")));
  }
  CHECK(
      world.run({"cache", "import", world.folder.file("good"), "--into", world.folder.file("into")})
          .exit == cli::kExitOk);
}

}  // namespace
}  // namespace scanjit::test
