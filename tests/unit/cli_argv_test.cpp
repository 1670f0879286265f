// Exit statuses and sentences of command lines that are refused.
#include <filesystem>

#include "cli_world.hpp"

namespace scanjit::test {
namespace {

using Words = std::vector<std::string>;

TEST_CASE("a command line that is refused exits 2 and says why", "[cli]") {
  const CliWorld world;
  const auto [arguments, words] = GENERATE(table<Words, std::string>({
      {Words(), "subcommand is required"},
      {{"frobnicate"}, "unknown command 'frobnicate'"},
      {{"run"}, "OP is required"},
      {{"run", "attention"}, "unknown op 'attention': scanjit has gated_delta_h"},
      {{"bench", "attention"}, "unknown op 'attention'"},
      {{"tune", "attention", "--shapes", "small"}, "unknown op 'attention'"},
      {{"verify", "attention"}, "unknown op 'attention'"},
      {{"inspect", "attention"}, "unknown op 'attention'"},
      {{"run", "gated_delta_h"}, "no input file"},
      {{"run", "gated_delta_h", "--frob"}, "--frob"},
      {{"tune", "gated_delta_h"}, "nothing to tune"},
      {{"tune", "--model", "gpt-2"}, "unknown model 'gpt-2'"},
      {{"tune", "--model", "qwen3.5-4b", "--tp", "5"}, "tp"},
      {{"tune", "--shapes", "small", "--shard", "4/4"}, "from 0 to 3"},
      {{"tune", "--shapes", "small", "--shard", "half"}, "INDEX/COUNT"},
      {{"bench", "gated_delta_h", "--shapes", "nowhere"}, "no built-in map of that name"},
      {{"bench", "gated_delta_h", "--shape", "N=four"}, "'four', it must be a whole number"},
      {{"bench", "gated_delta_h", "--shape", "Q=4"}, "a shape has no 'Q'"},
      {{"bench", "gated_delta_h", "--shape", "N=4,N=8"}, "'N' is given twice"},
      {{"bench", "gated_delta_h", "--shape", "BT=48"}, "48"},
      {{"bench", "gated_delta_h", "--shape", "K=257"}, "257"},
      {{"bench", "gated_delta_h", "--shape", "H=3,HV=4"}, "multiple"},
      {{"bench", "gated_delta_h", "--configs", "some"}, "must be all or picks"},
      {{"bench", "gated_delta_h", "--config", "bv=64"}, "is not whole"},
      {{"bench", "gated_delta_h", "--l2", "hot"}, "must be warm or cold"},
      {{"bench", "gated_delta_h", "--rounds", "3"}, "--rounds"},
      {{"bench", "gated_delta_h", "--sweep", "N"}, "NAME=VALUE,VALUE"},
      {{"inspect", "gated_delta_h", "--arch", "sm_90a; rm"}, "sm_90a; rm"},
      {{"inspect", "gated_delta_h", "--config", "bv=7,bk=64,stages=2,warps=4"}, "7"},
      {{"inspect", "gated_delta_h", "--source", "--ptx"}, "--ptx"},
      {{"verify", "gated_delta_h", "--shape", "N=1", "--gates", "wild"}, "strong, slow or none"},
      {{"prewarm"}, "--out is required"},
      {{"prewarm", "--arch", "pentium", "--out", "pack"}, "pentium"},
      {{"prewarm", "--arch", "sm_10", "--out", "pack"}, "sm_80, sm_86, sm_89, sm_90a"},
      {{"inspect", "gated_delta_h", "--arch", "sm_10"}, "sm_80, sm_86, sm_89, sm_90a"},
      {{"inspect", "gated_delta_h", "--arch", "sm_90"}, "sm_90a"},
      {{"prewarm", "--arch", "sm_100a", "--out", "pack", "--tuned",
        SCANJIT_SOURCE_DIR "/configs/NVIDIA_H200.json"},
       "is for sm_90a: leave --arch out"},
      // A flag that would have no effect.
      {{"bench", "gated_delta_h", "--tp", "2"}, "--model"},
      {{"run", "gated_delta_h", "--example", "x", "--set", "BT=16"}, "--set"},
      {{"run", "gated_delta_h", "--example", "x", "--in", "y"}, "--in"},
      {{"run", "gated_delta_h", "--example", "x", "--check"}, "--check"},
      {{"verify", "gated_delta_h", "--negative", "--random", "5"}, "--random"},
      {{"verify", "gated_delta_h", "--negative", "--shapes", "small"}, "--shapes"},
      {{"bench", "gated_delta_h", "--serve", "--shapes", "small"}, "--shapes"},
      {{"bench", "gated_delta_h", "--serve", "--csv", "x"}, "--csv"},
      {{"tune", "--shapes", "small", "--find-buckets", "--out", "x"}, "--out"},
      {{"tune", "--shapes", "small", "--find-buckets", "--resume"}, "--resume"},
      {{"cache", "import", "x", "--into", "y", "--cache-dir", "z"}, "--cache-dir"},
      // What no number is.
      {{"tune", "--shapes", "small", "--budget", "nan"}, "must be a number from 0 to"},
      {{"tune", "--shapes", "small", "--budget", "inf"}, "must be a number from 0 to"},
      {{"tune", "--shapes", "small", "--budget", "-1"}, "must be a number from 0 to"},
      {{"bench", "gated_delta_h", "--block-ms", "nan"}, "must be a number from 0.1 to 10000"},
      {{"bench", "gated_delta_h", "--rounds", "0x10"}, "'0x10', it must be a whole number"},
      {{"bench", "gated_delta_h", "--rounds", "5.5"}, "'5.5', it must be a whole number"},
      {{"verify", "gated_delta_h", "--seed", "-1"}, "whole number of at least 0"},
      {{"cache", "gc", "--max-bytes", "1e9"}, "whole number of at least 0"},
      {{"bench", "gated_delta_h", "--rounds", "5", "--rounds", "7"}, "--rounds"},
      // What a GPU is not needed to refuse.
      {{"tune", "--shapes", "small", "--devices", "gpu0"}, "a device is 'gpu0'"},
      {{"bench", "gated_delta_h", "--config", "bv=64,bk=64,stages=2,warps=3"}, "config space"},
      {{"bench", "gated_delta_h", "--config", "bv=64,bk=64,stages=2,warps=2"}, "warps must be"},
      {{"verify", "gated_delta_h", "--random", "1", "--gates", "wild"}, "strong, slow or none"},
      {{"bench", "gated_delta_h", "--pack", "/nowhere"}, "no directory /nowhere"},
      {{"cache", "ls", "/nowhere"}, "/nowhere"},
      {{"cache", "show", "/nowhere"}, "/nowhere"},
      {{"cache", "verify", "/nowhere"}, "/nowhere"},
      {{"cache", "export", "/nowhere"}, "/nowhere"},
      {{"cache", "gc", "/nowhere"}, "/nowhere"},
      {{"cache", "gc", "/dev/null"}, "no directory"},
      {{"cache"}, "subcommand is required"},
      {{"cache", "show", "--key", "nothing like it"}, "no such entry"},
      {{"cache", "gc", "--max-bytes", "-5"}, "--max-bytes"},
  }));
  check_failure(world.run(arguments), cli::kExitUsage, words);
}

TEST_CASE("an empty value is a mistake, not an absent flag", "[cli]") {
  const CliWorld world;
  const Words arguments = GENERATE(values<Words>({
      {"bench", "gated_delta_h", "--shapes", ""},
      {"bench", "gated_delta_h", "--shape", ""},
      {"bench", "gated_delta_h", "--config", ""},
      {"bench", "gated_delta_h", "--out", ""},
      {"bench", "gated_delta_h", "--cache-dir", ""},
      {"bench", "gated_delta_h", "--pack", ""},
      {"tune", "--model", ""},
      {"tune", "--shapes", "small", "--shard", ""},
      {"tune", "--shapes", "small", "--devices", ""},
      {"prewarm", "--out", "pack", "--tuned", ""},
      {"prewarm", "--out", "pack", "--arch", ""},
      {"prewarm", "--out", ""},
      {"run", "gated_delta_h", "--in", ""},
      {"run", "gated_delta_h", "--example", ""},
      {"cache", "import", "x", "--into", ""},
      {"cache", "ls", ""},
      {"cache", "show", "--key", ""},
      {"cache", "export", "--gpu", ""},
  }));
  check_failure(world.run(arguments), cli::kExitUsage, "the value is empty");
}

TEST_CASE("what is refused is told in a line that can be read", "[cli]") {
  const CliWorld world;
  for (const Words& arguments : {Words{"cache", "gc", "--max-bytes", "-5"},
                                 Words{"bench", "gated_delta_h", "--device", "-1"},
                                 Words{"tune", "--shapes", "small", "--budget", "1e400"}}) {
    const Ran ran = world.run(arguments);
    INFO(ran.err);
    CHECK(ran.exit == cli::kExitUsage);
    CHECK(ran.err.find('\n') < 250);
  }
}

TEST_CASE("a shape larger than the machine is refused before anything is allocated", "[cli]") {
  const CliWorld world;
  const std::string out = world.folder.file("x.safetensors");
  for (const char* shape : {"N=1,T=8000000000,H=1,HV=1", "N=1000000,T=1000000,H=16,HV=32",
                            "N=100000000,T=1,H=1,HV=8"}) {
    const Ran ran = world.run({"run", "gated_delta_h", "--example", out, "--shape", shape});
    check_failure(ran, cli::kExitEnvironment, "this machine has");
    CHECK(world.read("x.safetensors").empty());
  }
}

TEST_CASE("a relative cache directory is the same directory in every command", "[cli]") {
  const CliWorld world;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(world.folder.path());
  const std::string here = std::filesystem::current_path().string();
  const std::string path = world.run({"cache", "path", "--cache-dir", "some/cache/"}).out;
  const auto doctor = world.run({"doctor", "--cache-dir", "./some/cache", "--json"}).json();
  const auto listed =
      world.run({"cache", "ls", "--cache-dir", "some/../some/cache", "--json"}).json();
  std::filesystem::current_path(before);
  CHECK(path == here + "/some/cache\n");
  CHECK(doctor["cache"]["path"] == here + "/some/cache");
  CHECK(listed["directory"] == here + "/some/cache");
}

TEST_CASE("a refusal under --json is one object with the command that repeats it", "[cli]") {
  const CliWorld world;
  for (const Words& arguments :
       {Words{"bench", "attention", "--json"}, Words{"frobnicate", "--json"}}) {
    const Ran ran = world.run(arguments);
    const auto json = ran.json();
    REQUIRE(json.is_object());
    CHECK(json["schema"] == "scanjit-error/1");
    CHECK(json["code"] == "invalid_argument");
    CHECK(json["exit"] == ran.exit);
    CHECK(json["repeat"] == "scanjit " + arguments[0] + " " + arguments[1] +
                                (arguments.size() > 2 ? " " + arguments[2] : ""));
  }
}

TEST_CASE("terminal codes of an argument do not reach the terminal", "[cli]") {
  const CliWorld world;
  const Ran ran = world.run({"run", "\033[2Jevil\r"});
  CHECK(ran.exit == cli::kExitUsage);
  CHECK(ran.err.find('\033') == std::string::npos);
  CHECK(ran.err.find('\r') == std::string::npos);
}

}  // namespace
}  // namespace scanjit::test
