// Files that are malformed, hostile, damaged or cannot be written; and stores that are moved about.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "cli_world.hpp"
#include "jit/binary_cache.hpp"
#include "ops_samples.hpp"
#include "tuning_samples.hpp"

namespace scanjit::test {
namespace {

using Words = std::vector<std::string>;

TEST_CASE("a malformed shape file exits 2 and names file and field", "[cli]") {
  const CliWorld world;
  const auto [text, words] = GENERATE(table<std::string, std::string>({
      {"", "shapes.json"},
      {"{", "shapes.json"},
      {"[]", "shapes.json"},
      {R"({"schema": "scanjit-shapes/2", "name": "x", "shapes": []})", "schema"},
      {R"({"schema": "scanjit-shapes/1", "name": "x", "shapes": [{"op": "gated_delta_h", "N": "four", "T": 64, "H": 1, "HV": 1}]})",
       "N"},
      {R"({"schema": "scanjit-shapes/1", "name": "x", "shapes": [{"op": "gated_delta_h", "N": 1, "T": 64, "H": 1, "HV": 1, "colour": 3}]})",
       "colour"},
      {R"({"schema": "scanjit-shapes/1", "name": "x", "shapes": [{"op": "attention", "N": 1, "T": 64, "H": 1, "HV": 1}]})",
       ""},
      {std::string(100, '['), "shapes.json"},
  }));
  world.write("shapes.json", text);
  for (const char* command : {"bench", "tune", "verify"}) {
    const Ran ran =
        world.run({command, "gated_delta_h", "--shapes", world.folder.file("shapes.json")});
    if (words.empty()) continue;  // nothing of this op: refused or empty, as the command likes
    check_failure(ran, cli::kExitUsage, words);
  }
}

TEST_CASE("a truncated or hostile safetensors file exits 2", "[cli]") {
  const CliWorld world;
  REQUIRE(world
              .run({"run", "gated_delta_h", "--example", world.folder.file("x.safetensors"),
                    "--shape", "T=20,H=1,HV=2,K=8,V=8,BT=16"})
              .exit == 0);
  const std::string whole = world.read("x.safetensors");
  const auto refused = [&](const std::string& bytes, const char* what) {
    INFO(what);
    world.write("y.safetensors", bytes);
    const Ran ran = world.run(
        {"run", "gated_delta_h", "--in", world.folder.file("y.safetensors"), "--set", "BT=16"});
    check_failure(ran, cli::kExitUsage, "y.safetensors");
  };
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{100},
                                   whole.size() / 2, whole.size() - 1}) {
    refused(whole.substr(0, length), "cut");
  }
  refused(whole + "x", "longer than its header says");
  std::string huge = whole;
  std::fill_n(huge.begin(), 8, '\xff');
  refused(huge, "a header of 2^64 bytes");
  std::string shape = whole;
  shape.replace(shape.find("\"shape\":[") + 9, 1, "9");
  refused(shape, "a shape that does not fit its bytes");
}

TEST_CASE("a file that is not there exits 2; a directory in its place does too", "[cli]") {
  const CliWorld world;
  check_failure(world.run({"run", "gated_delta_h", "--in", world.folder.file("none")}),
                cli::kExitUsage, "none");
  check_failure(world.run({"run", "gated_delta_h", "--in", world.folder.path()}), cli::kExitUsage,
                world.folder.path());
  check_failure(world.run({"cache", "merge", world.folder.file("none")}), cli::kExitUsage, "none");
  check_failure(world.run({"prewarm", "--tuned", world.folder.file("none"), "--out",
                           world.folder.file("pack")}),
                cli::kExitUsage, "none");
}

TEST_CASE("an output that cannot be written exits 3 before any work", "[cli]") {
  const CliWorld world;
  REQUIRE(world
              .run({"run", "gated_delta_h", "--example", world.folder.file("x.safetensors"),
                    "--shape", "T=20,H=1,HV=2,K=8,V=8,BT=16"})
              .exit == 0);
  const std::string nowhere = world.folder.file("no/such/folder/y");
  check_failure(world.run({"run", "gated_delta_h", "--example", nowhere}), cli::kExitEnvironment,
                "no/such/folder");
  check_failure(world.run({"run", "gated_delta_h", "--in", world.folder.file("x.safetensors"),
                           "--set", "BT=16", "--out", nowhere}),
                cli::kExitEnvironment, "no/such/folder");
  check_failure(world.run({"tune", "--shapes", "small", "--out", nowhere}), cli::kExitEnvironment,
                "no/such/folder");
  check_failure(world.run({"bench", "gated_delta_h", "--svg", nowhere}), cli::kExitEnvironment,
                "no/such/folder");
  check_failure(world.run({"bench", "gated_delta_h", "--svg", world.folder.path()}),
                cli::kExitEnvironment, "directory");
  world.write("file", "");
  check_failure(world.run({"prewarm", "--arch", "sm_90a", "--shapes", "small", "--out",
                           world.folder.file("file/pack")}),
                cli::kExitEnvironment, "file");
  // Found when it is written: the device is full.
  if (std::filesystem::exists("/dev/full")) {
    os::ProcessOptions options;
    options.argv = {"sh", "-c", std::string(SCANJIT_PROGRAM) + " --version > /dev/full"};
    const auto output = os::run_process(options, "", 10'000);
    REQUIRE(output.ok());
    CHECK(output->exit.code == cli::kExitEnvironment);
  }
}

// A cache with two entries and a cubin.
class Stocked : public CliWorld {
 public:
  Stocked() {
    std::filesystem::create_directories(cache() + "/bin");
    std::filesystem::permissions(cache(), std::filesystem::perms::owner_all);
    tuning::TunedFile file;
    file.gpu = tuning::samples::h200();
    file.entries = {tuning::samples::record(tuning::samples::key(1, 16)),
                    tuning::samples::record(tuning::samples::key(16, 16))};
    write("tuned.json", tuning::to_json(file, tuning::Checksum::kWithout));
    REQUIRE(run({"cache", "import", folder.file("tuned.json")}).exit == 0);
    jit::StoredBinary binary;
    binary.source_id = std::string(40, 'a');
    binary.binary_id = jit::make_binary_id(binary.source_id, "13.0");
    binary.entry = "gated_delta_h";
    binary.arch = "sm_90a";
    binary.nvrtc = "13.0.88";
    binary.cubin = "machine code";
    cubin = cache() + "/bin/" + binary.binary_id + ".cubin";
    write("cache/bin/" + binary.binary_id + ".cubin", jit::encode_binary(binary));
  }
  [[nodiscard]] std::string cache() const { return folder.file("cache"); }
  [[nodiscard]] std::string entry() const {
    for (const auto& file : std::filesystem::recursive_directory_iterator(cache() + "/tuned")) {
      if (file.path().filename().string().rfind("gated_delta_h-", 0) == 0)
        return file.path().string();
    }
    return "";
  }
  std::string cubin;
};

TEST_CASE("a cache is listed, shown, verified and exported as it was imported", "[cli]") {
  const Stocked world;
  const Ran path = world.run({"cache", "path"});
  CHECK(path.out == world.cache() + "\n");
  const auto listed = world.run({"cache", "ls", "--json"}).json();
  CHECK(listed["schema"] == "scanjit-cache-ls/1");
  CHECK(listed["binaries"].size() == 1);
  CHECK(world.run({"cache", "ls"}).out.find("1 cubins") != std::string::npos);
  const auto shown = world.run({"cache", "show", "--json"}).json();
  CHECK(shown["entries"].size() == 2);
  CHECK(world.run({"cache", "show", world.cubin}).out.find("sm_90a") != std::string::npos);
  const Ran verified = world.run({"cache", "verify"});
  INFO(verified.out);
  CHECK(verified.exit == 0);

  REQUIRE(world.run({"cache", "export", "--out", world.folder.file("out.json")}).exit == 0);
  const auto original =
      tuning::tuned_file_from_json(world.read("tuned.json"), tuning::Checksum::kWithout);
  const auto exported =
      tuning::tuned_file_from_json(world.read("out.json"), tuning::Checksum::kWithout);
  REQUIRE(exported.ok());
  CHECK(exported->entries.size() == original->entries.size());
  CHECK(exported->gpu == original->gpu);
  CHECK(world
            .run({"cache", "merge", world.folder.file("out.json"), world.folder.file("tuned.json"),
                  "--out", world.folder.file("merged.json")})
            .exit == 0);
  CHECK(tuning::tuned_file_from_json(world.read("merged.json"), tuning::Checksum::kWithout)
            ->entries == exported->entries);

  // What is shipped can be read by all; a link or a device is never replaced by a file.
  namespace fs = std::filesystem;
  constexpr fs::perms kRead = fs::perms::group_read | fs::perms::others_read;
  CHECK((fs::status(world.folder.file("merged.json")).permissions() & kRead) == kRead);
  fs::create_symlink("elsewhere.json", world.folder.file("link.json"));
  const Ran linked = world.run({"cache", "export", "--out", world.folder.file("link.json")});
  CHECK(linked.exit == 2);
  CHECK(linked.err.find("link.json") != std::string::npos);
  CHECK(fs::is_symlink(fs::symlink_status(world.folder.file("link.json"))));
}

TEST_CASE("verify exits 1 for one changed byte of an entry or a cubin, and names the file",
          "[cli]") {
  const Stocked world;
  const bool tuned = GENERATE(true, false);
  const std::string path = tuned ? world.entry() : world.cubin;
  REQUIRE_FALSE(path.empty());
  std::string bytes;
  {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  for (const std::size_t at : {bytes.size() / 3, bytes.size() / 2, bytes.size() - 2}) {
    std::string bent = bytes;
    bent[at] = static_cast<char>(bent[at] ^ 1);
    std::ofstream(path, std::ios::binary) << bent;
    const Ran ran = world.run({"cache", "verify"});
    CHECK(ran.exit == cli::kExitFailed);
    CHECK(ran.out.find("DAMAGED  " + path) != std::string::npos);
    CHECK(ran.err.find("repeat: ") != std::string::npos);
    CHECK(world.run({"cache", "verify", "--json"}).json()["damaged"].size() == 1);
    CHECK(world.run({"cache", "verify", path}).exit == cli::kExitFailed);
  }
}

TEST_CASE("verify complains of a cache that others can write to", "[cli]") {
  const Stocked world;
  REQUIRE(chmod(world.cache().c_str(), 0777) == 0);
  CHECK(world.run({"cache", "verify"}).exit == cli::kExitFailed);
}

TEST_CASE("verify complains of folders and files that others can write to or own", "[cli]") {
  const Stocked world;
  const std::string gpu = std::filesystem::path(world.entry()).parent_path().string();
  for (const std::string& path :
       {world.cache() + "/bin", world.cache() + "/tuned", gpu, world.cubin, world.entry()}) {
    struct stat before {};
    REQUIRE(stat(path.c_str(), &before) == 0);
    const auto complains = [&](const char* what) {
      const Ran ran = world.run({"cache", "verify"});
      INFO(path << " " << what << "\n" << ran.out);
      CHECK(ran.exit == cli::kExitFailed);
      CHECK(ran.out.find("DAMAGED  " + path) != std::string::npos);
    };
    REQUIRE(chmod(path.c_str(), before.st_mode | 0022) == 0);
    complains("can be written to");
    REQUIRE(chmod(path.c_str(), before.st_mode) == 0);
    if (geteuid() == 0) {
      REQUIRE(chown(path.c_str(), 12345, before.st_gid) == 0);
      complains("is another user's");
      REQUIRE(chown(path.c_str(), before.st_uid, before.st_gid) == 0);
    }
  }
  CHECK(world.run({"cache", "verify"}).exit == 0);
}

TEST_CASE("a pack is not written where others can write", "[cli]") {
  const CliWorld world;
  const std::string pack = world.folder.file("pack");
  const bool whole = GENERATE(true, false);
  std::filesystem::create_directories(pack + "/bin");
  REQUIRE(chmod((whole ? pack : pack + "/bin").c_str(), 0777) == 0);
  REQUIRE(chmod((whole ? pack + "/bin" : pack).c_str(), 0700) == 0);
  check_failure(world.run({"prewarm", "--arch", "sm_90a", "--shape", "N=1", "--out", pack}),
                cli::kExitEnvironment, "others can write into it");
  CHECK_FALSE(std::filesystem::exists(pack + "/tuned"));
}

// A tuned file of one entry of this build's own key, with a config that no block can have.
std::string tuned_with(const Config& config, const Config& alternate) {
  const auto op = made(layer(1, 1024));
  tuning::TunedFile file;
  file.gpu = h200_facts();
  tuning::Record record = tuning::samples::record();
  record.key = op->key_query().under(file.buckets(32, 128));
  record.measured_at = {{1, 1024}};
  record.config = config;
  record.default_config = *op->heuristic(h200());
  record.alternates = {{alternate, 60, 0.4}};
  record.rejected.clear();
  file.entries = {record};
  return tuning::to_json(file, tuning::Checksum::kWithout);
}

TEST_CASE("a tuned file with an illegal config is refused wherever it comes in", "[cli]") {
  const CliWorld world;
  const Config good{64, 64, 2, 4}, not_in_the_space{17, 64, 2, 4}, too_large{128, 128, 6, 8};
  world.write("good.json", tuned_with(good, {16, 64, 2, 1}));
  REQUIRE(world.run({"cache", "import", world.folder.file("good.json")}).exit == 0);
  for (const auto& [name, text] : {std::pair{"space", tuned_with(not_in_the_space, good)},
                                   std::pair{"device", tuned_with(too_large, good)},
                                   std::pair{"alternate", tuned_with(good, too_large)}}) {
    INFO(name);
    world.write("bad.json", text);
    const std::string bad = world.folder.file("bad.json");
    for (const Words& arguments :
         {Words{"cache", "import", bad}, Words{"cache", "merge", bad},
          Words{"cache", "merge", world.folder.file("good.json"), bad},
          Words{"prewarm", "--tuned", bad, "--out", world.folder.file("pack")}}) {
      check_failure(world.run(arguments), cli::kExitUsage, "bad.json: ");
    }
    CHECK(world.run({"cache", "verify", bad}).exit == cli::kExitFailed);
  }
}

TEST_CASE("gc leaves alone what a link leads to", "[cli]") {
  const Stocked world;
  std::filesystem::create_directories(world.folder.file("elsewhere"));
  world.write("elsewhere/x.cubin", "xxxx");
  world.write("elsewhere/x.cubin.corrupt-1", "xxxx");
  std::filesystem::remove_all(world.cache() + "/bin");
  std::filesystem::create_directory_symlink(world.folder.file("elsewhere"), world.cache() + "/bin");
  const auto json = world.run({"cache", "gc", "--max-bytes", "0", "--json"}).json();
  CHECK(json["kept_bytes"] == 0);
  CHECK(world.read("elsewhere/x.cubin") == "xxxx");
  CHECK(world.read("elsewhere/x.cubin.corrupt-1") == "xxxx");
  CHECK(world.run({"cache", "verify"}).exit == cli::kExitFailed);  // and no engine reads it
}

TEST_CASE("export takes the GPU model by name, and no folder without entries for one", "[cli]") {
  const Stocked world;
  std::filesystem::create_directories(world.cache() + "/tuned/lost+found");
  world.write("cache/tuned/notes.txt", "mine");
  const std::string gpu = tuning::samples::h200().directory();
  for (const Words& words : {Words{}, Words{"--gpu", "NVIDIA H200"}, Words{"--gpu", gpu}}) {
    Words arguments = {"cache", "export"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const Ran ran = world.run(arguments);
    INFO(ran.err);
    CHECK(ran.exit == 0);
    CHECK(tuning::tuned_file_from_json(ran.out, tuning::Checksum::kWithout).ok());
  }
  check_failure(world.run({"cache", "export", "--gpu", "Voodoo"}), cli::kExitUsage, "NVIDIA H200");
}

TEST_CASE("every cache command under --json prints one object, also when it fails", "[cli]") {
  const Stocked world;
  world.write("bad.json", "{");
  const std::string bad = "BAD";  // stands for that file, which lies elsewhere each time
  const auto [arguments, exit] = GENERATE_COPY(table<Words, int>({
      {{"path"}, 0},
      {{"path", "--cache-dir", "none"}, cli::kExitEnvironment},
      {{"ls"}, 0},
      {{"ls", "--cache-dir", "none"}, cli::kExitEnvironment},
      {{"ls", "/nowhere"}, cli::kExitUsage},
      {{"show"}, 0},
      {{"show", "--key", "HV=32"}, 0},
      {{"show", "--key", "no such key"}, cli::kExitUsage},
      {{"show", bad}, cli::kExitUsage},
      {{"verify"}, 0},
      {{"verify", bad}, cli::kExitFailed},
      {{"verify", "/nowhere"}, cli::kExitUsage},
      {{"merge", bad}, cli::kExitUsage},
      {{"import", bad}, cli::kExitUsage},
      {{"export", "--gpu", "Voodoo"}, cli::kExitUsage},
      {{"gc"}, 0},
      {{"gc", "--cache-dir", "none"}, cli::kExitEnvironment},
  }));
  Words whole = arguments;
  std::replace(whole.begin(), whole.end(), bad, world.folder.file("bad.json"));
  whole.insert(whole.begin(), "cache");
  whole.emplace_back("--json");
  const Ran ran = world.run(whole);
  INFO(ran.out << ran.err);
  CHECK(ran.exit == exit);
  REQUIRE(ran.json().is_object());
  if (exit > cli::kExitFailed) CHECK(ran.json()["schema"] == "scanjit-error/1");
  if (exit > cli::kExitFailed) CHECK(ran.json()["exit"] == exit);
}

TEST_CASE("gc removes what was set aside, then cubins before entries", "[cli]") {
  const Stocked world;
  world.write("cache/bin/x.cubin.corrupt-1", "xxxx");
  CHECK(world.run({"cache", "gc", "--json"}).json()["removed_files"] == 1);
  CHECK(std::filesystem::exists(world.cubin));
  std::int64_t entries = 0;
  const auto listed = world.run({"cache", "ls", "--json"}).json();
  for (const auto& item : listed["tuned"]) {
    if (item.contains("key"))
      entries += item["bytes"].get<std::int64_t>();  // not the width buckets
  }
  CHECK(world.run({"cache", "gc", "--max-bytes", std::to_string(entries)}).exit == 0);
  CHECK_FALSE(std::filesystem::exists(world.cubin));
  CHECK(world.run({"cache", "show", "--json"}).json()["entries"].size() == 2);
  CHECK(world.run({"cache", "gc", "--max-bytes", "0"}).exit == 0);
  CHECK(world.run({"cache", "show", "--json"}).json()["entries"].empty());
}

TEST_CASE("files of different GPU models do not merge", "[cli]") {
  const Stocked world;
  tuning::TunedFile other;
  other.gpu = tuning::samples::h100();
  world.write("h100.json", tuning::to_json(other, tuning::Checksum::kWithout));
  check_failure(world.run({"cache", "merge", world.folder.file("tuned.json"),
                           world.folder.file("h100.json")}),
                cli::kExitUsage, "different GPU models");
}

}  // namespace
}  // namespace scanjit::test
