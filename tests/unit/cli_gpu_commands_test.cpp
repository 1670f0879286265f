// Commands that need a GPU: without one, and against a driver library that has none behind it, with
// made-up machine code from a pack. What kernels compute is not tested here: these compute nothing.
#include <sys/stat.h>

#include <filesystem>

#include "cli_world.hpp"
#include "jit/binary_cache.hpp"
#include "jit/kernel_provider.hpp"
#include "ops_samples.hpp"
#include "os/posix_file_system.hpp"
#include "tuning/journal.hpp"
#include "tuning/record.hpp"

namespace scanjit::test {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kShape = "N=2,T=64,H=1,HV=2,K=64,V=64";

class PackedWorld : public CliWorld {
 public:
  PackedWorld() {
    problem.B = 2;
    problem.T = 64;
    problem.H = 1;
    problem.HV = 2;
    problem.K = problem.V = 64;
    problem.has_g = problem.has_h0 = problem.has_ht = true;
    const auto provider = jit::KernelProvider::create({}, os::posix_file_system());
    REQUIRE(provider.ok());
    std::filesystem::create_directories(pack() + "/bin");
    REQUIRE(chmod(pack().c_str(), 0700) == 0);
    REQUIRE(chmod((pack() + "/bin").c_str(), 0700) == 0);
    const auto op = made(problem);
    REQUIRE(op != nullptr);
    for (const Config& config : op->space().all()) {
      if (!op->legal(config, h200()).ok()) continue;
      for (const jit::KernelSource& source : op->kernels(config, h200())) {
        jit::StoredBinary binary;
        binary.source_id = *(*provider)->source_id(source, "sm_90a");
        binary.binary_id = jit::make_binary_id(binary.source_id, "13.0.88 made up");
        binary.entry = source.entry;
        binary.arch = "sm_90a";
        binary.nvrtc = "13.0.88";
        binary.cubin = "no machine code";
        write("pack/bin/" + binary.binary_id + ".cubin", jit::encode_binary(binary));
      }
    }
  }
  [[nodiscard]] std::string pack() const { return folder.file("pack"); }
  /// Runs it with the pack.
  [[nodiscard]] Ran gpu(Words arguments, const std::string& input = {},
                        std::vector<std::string> variables = {}) const {
    arguments.insert(arguments.end(), {"--pack", pack()});
    return spawn(std::move(arguments), input, std::move(variables));
  }
  GatedDeltaHProblem problem;
};

TEST_CASE("without a GPU what needs one exits 3 and says where it looked", "[cli]") {
  const CliWorld world;
  REQUIRE(world
              .run({"run", "gated_delta_h", "--example", world.folder.file("x.safetensors"),
                    "--shape", "T=20,H=1,HV=2,K=8,V=8,BT=16"})
              .exit == 0);
  for (const Words& arguments : {Words{"tune", "--shapes", "small"},
                                 Words{"bench", "gated_delta_h"}, Words{"verify", "gated_delta_h"},
                                 Words{"run", "gated_delta_h", "--in",
                                       world.folder.file("x.safetensors"), "--set", "BT=16"}}) {
    INFO(arguments[0]);
    check_failure(world.spawn_without_gpu(arguments), cli::kExitEnvironment,
                  "/nowhere/libcuda.so.1");
  }
  const Ran doctor = world.spawn_without_gpu({"doctor"});
  CHECK(doctor.exit == cli::kExitEnvironment);
  CHECK(doctor.out.find("missing  driver") != std::string::npos);
  CHECK(doctor.out.find("-> ") != std::string::npos);
  Ran json = world.spawn_without_gpu({"doctor", "--json"});
  CHECK(json.exit == cli::kExitEnvironment);
  CHECK(json.json()["schema"] == "scanjit-doctor/1");
  CHECK(json.json()["usable_gpu"] == false);
}

TEST_CASE("what needs no GPU works without one", "[cli]") {
  const CliWorld world;
  const Ran source = world.spawn_without_gpu(
      {"inspect", "gated_delta_h", "--source", "--config", "bv=64,bk=64,stages=2,warps=4"});
  CHECK(source.exit == 0);
  CHECK(source.out.find("BV = 64") != std::string::npos);
  CHECK(world.spawn_without_gpu({"cache", "verify"}).exit == 0);
  const Ran negative = world.spawn_without_gpu({"verify", "gated_delta_h", "--negative", "--json"});
  CHECK(negative.exit == 0);
  CHECK(negative.json()["controls"].size() == 3);
  CHECK(negative.json()["passed"] == true);
}

TEST_CASE("doctor sees the devices and their limits", "[cli]") {
  const CliWorld world;
  const Ran ran = world.spawn({"doctor", "--json"}, {}, {"SCANJIT_FAKE_DEVICES=2"});
  INFO(ran.err);
  CHECK(ran.exit == 0);
  const auto json = ran.json();
  CHECK(json["usable_gpu"] == true);
  REQUIRE(json["devices"].size() == 2);
  CHECK(json["devices"][0]["arch"] == "sm_90a");
  CHECK(json["devices"][1]["sm_count"] == 132);
}

TEST_CASE("bench times every config and writes the file, the table and the pictures", "[cli]") {
  const PackedWorld world;
  const auto file = [&](const char* name) { return world.folder.file(name); };
  const Ran ran =
      world.gpu({"bench", "gated_delta_h", "--shape", kShape, "--json", "--out", file("b.json"),
                 "--csv", file("b.csv"), "--svg", file("b.svg"), "--html", file("b.html")});
  INFO(ran.err);
  REQUIRE(ran.exit == 0);
  const auto json = ran.json();
  CHECK(json["schema"] == "scanjit-bench/1");
  for (const char* field : {"gpu", "driver", "nvrtc", "commit", "command", "l2", "rows"}) {
    INFO(field);
    CHECK(json.contains(field));
  }
  REQUIRE(json["rows"].size() == 1);
  const auto& row = json["rows"][0];
  CHECK(row["configs"].size() >= 16);
  CHECK(row["samples"].size() == 7);
  CHECK(row["us"].get<double>() > 0);
  CHECK(row["floor_us"].get<double>() > 0);
  CHECK(row["source"] == "heuristic");
  CHECK(nlohmann::json::parse(world.read("b.json")) == json);
  CHECK(world.read("b.csv").find("gated_delta_h,2,64,1,2,64,64,64,bf16") != std::string::npos);
  CHECK(world.read("b.svg").rfind("<svg", 0) == 0);
  CHECK(world.read("b.html").rfind("<!doctype html>", 0) == 0);

  // The file's own times as a peer's: shown, marked as measured before.
  auto peers = json;
  peers["rows"][0]["peer"] = {{"name", "somebody"}, {"us", 99.5}};
  world.write("peers.json", peers.dump());
  const auto again = world
                         .gpu({"bench", "gated_delta_h", "--shape", kShape, "--configs", "picks",
                               "--json", "--peer-json", file("peers.json")})
                         .json();
  CHECK(again["rows"][0]["peer"]["us"] == 99.5);
  CHECK(again["rows"][0]["peer"]["measured"] == "before");
  CHECK_FALSE(again["rows"][0].contains("configs"));
}

TEST_CASE("bench sweeps a field and shows each width in a column", "[cli]") {
  const PackedWorld world;
  const Ran ran = world.gpu({"bench", "gated_delta_h", "--shape", kShape, "--sweep", "N=1,2"});
  INFO(ran.err);
  CHECK(ran.exit == 0);
  CHECK(ran.out.find("HV 2 N 1 T 64 us") != std::string::npos);
  CHECK(ran.out.find("HV 2 N 2 T 64 us") != std::string::npos);
  CHECK(ran.out.find("served ") != std::string::npos);
  CHECK(ran.out.find("best ") != std::string::npos);
}

TEST_CASE("bench --serve prepares a shape a line and answers an empty line with one block",
          "[cli]") {
  const PackedWorld world;
  const Ran ran =
      world.gpu({"bench", "gated_delta_h", "--serve"},
                "\n" + std::string(kShape) + "\n\n\nN=nonsense\n\nN=1,T=64,H=1,HV=2,K=64,V=64\n\n");
  INFO(ran.out << ran.err);
  CHECK(ran.exit == 0);
  std::vector<nlohmann::json> lines;
  std::istringstream out(ran.out);
  for (std::string line; std::getline(out, line);)
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
  REQUIRE(lines.size() == 8);
  CHECK(lines[0].contains("error"));  // nothing is prepared yet
  CHECK(lines[1]["ready"]["N"] == 2);
  for (const char* field :
       {"config", "source", "kernel_revision", "l2", "timed_tokens", "floor_us", "provenance"})
    CHECK(lines[1].contains(field));
  CHECK(lines[2]["us"].get<double>() > 0);
  CHECK(lines[3]["us"] == lines[2]["us"]);
  CHECK(lines[4].contains("error"));
  CHECK(lines[5].contains("error"));  // what was prepared is gone
  CHECK(lines[6]["ready"]["N"] == 1);
  CHECK(lines[7]["us"].get<double>() > 0);
}

TEST_CASE("tune stores each winner at once, resumes, and exports what it tuned", "[cli]") {
  const PackedWorld world;
  const Words tune = {"tune",
                      "--shape",
                      kShape,
                      "--shape",
                      "N=1,T=64,H=1,HV=2,K=64,V=64",
                      "--json",
                      "--out",
                      world.folder.file("t.json")};
  const Ran first = world.gpu(tune);
  INFO(first.out << first.err);
  REQUIRE(first.exit == 0);
  const auto json = first.json();
  CHECK(json["schema"] == "scanjit-tune/1");
  CHECK(json["tuned"] == 2);
  CHECK(json["failed"] == 0);
  REQUIRE(json["keys"].size() == 2);
  for (const char* field :
       {"key", "state", "config", "us", "default_us", "gain", "noise", "regret", "measured_at"})
    CHECK(json["keys"][0].contains(field));
  // The driver's times are those of the library's own formula: the best one wins.
  CHECK(json["keys"][0]["us"].get<double>() <= json["keys"][0]["default_us"].get<double>());

  const auto file = tuning::tuned_file_from_json(world.read("t.json"), tuning::Checksum::kWithout);
  INFO(file.status().message());
  REQUIRE(file.ok());
  CHECK(file->entries.size() == 2);
  CHECK_FALSE(file->width_buckets.empty());
  CHECK(world.run({"cache", "verify"}).exit == 0);
  CHECK(world.run({"cache", "show", "--json"}).json()["entries"].size() == 2);

  Words again = tune;
  again.emplace_back("--resume");
  const auto resumed = world.gpu(again).json();
  CHECK(resumed["resumed"] == 2);
  CHECK(resumed["tuned"] == 0);
  // And the engine serves it: as an exact pick.
  const auto bench =
      world.gpu({"bench", "gated_delta_h", "--shape", kShape, "--configs", "picks", "--json"})
          .json();
  CHECK(bench["rows"][0]["source"] == "exact");
}

TEST_CASE("tune takes the keys of a journal, and no others", "[cli]") {
  const PackedWorld world;
  const auto entry_of = [](const GatedDeltaHProblem& problem, std::int64_t sms) {
    const tuning::KeyQuery query = made(problem)->key_query();
    return tuning::JournalEntry{
        query.under({problem.HV, problem.V,
                     tuning::default_width_starts(problem.HV, problem.V, static_cast<int>(sms))}),
        {query.sequences, problem.T},
        3};
  };
  GatedDeltaHProblem one = world.problem, two = world.problem;
  two.B = 1;
  tuning::JournalEntry old = entry_of(two, 132);
  old.key.kernel_revision += 1;
  old.key.H = 7;
  world.write("journal.json",
              tuning::journal_to_json({entry_of(one, 132), entry_of(two, 132), old}));
  const Ran ran =
      world.gpu({"tune", "--from-journal", world.folder.file("journal.json"), "--json"});
  INFO(ran.out << ran.err);
  REQUIRE(ran.exit == 0);
  const auto json = ran.json();
  CHECK(json["tuned"] == 2);
  REQUIRE(json["keys"].size() == 2);
  CHECK(json["keys"][0]["key"] == entry_of(one, 132).key.text());
  CHECK(json["keys"][1]["key"] == entry_of(two, 132).key.text());
  CHECK(ran.err.find("passed over") != std::string::npos);

  world.write("broken.json", "{}");
  check_failure(world.gpu({"tune", "--from-journal", world.folder.file("broken.json")}),
                cli::kExitUsage, "broken.json");
  check_failure(world.gpu({"tune", "--from-journal", world.folder.file("none.json")}),
                cli::kExitUsage, "none.json");
}

TEST_CASE("shards divide the keys among them, and several devices share them", "[cli]") {
  const PackedWorld world;
  const Words shapes = {"tune",  "--shape", kShape, "--shape", "N=1,T=64,H=1,HV=2,K=64,V=64",
                        "--json"};
  std::size_t keys = 0;
  for (const char* shard : {"0/2", "1/2"}) {
    Words arguments = shapes;
    arguments.insert(arguments.end(), {"--shard", shard});
    keys += world.gpu(arguments).json()["keys"].size();
  }
  CHECK(keys == 2);
  Words both = shapes;
  both.insert(both.end(), {"--devices", "all"});
  const Ran ran = world.gpu(both, {}, {"SCANJIT_FAKE_DEVICES=2"});
  INFO(ran.err);
  CHECK(ran.exit == 0);
  CHECK(ran.json()["tuned"] == 2);
  CHECK(ran.json()["devices"].size() == 2);
  check_failure(world.gpu({"tune", "--shape", kShape, "--devices", "3"}), cli::kExitUsage,
                "a device is '3'");
}

TEST_CASE("a config that takes its process down is left out and recorded", "[cli]") {
  const PackedWorld world;
  // Some config that is not the default.
  const auto op = made(world.problem);
  const Config victim{16, 32, 2, 2};
  REQUIRE(op->legal(victim, h200()).ok());
  const auto stage = op->stages(victim, h200()).back();
  const Ran ran = world.gpu({"tune", "--shape", kShape, "--json"}, {},
                            {"SCANJIT_FAKE_DIES_AT=" + std::to_string(stage.source.threads) + ":" +
                             std::to_string(stage.source.smem_bytes)});
  INFO(ran.out << ran.err);
  CHECK(ran.exit == 0);
  const auto entries = world.run({"cache", "show", "--json"}).json()["entries"];
  REQUIRE(entries.size() == 1);
  REQUIRE_FALSE(entries[0]["rejected"].empty());
  CHECK(entries[0]["rejected"][0]["reason"] == "device_fault");
  CHECK(entries[0]["rejected"][0]["config"]["bv"] == victim.bv);
}

TEST_CASE("tune with nowhere to put its winners exits 3 at once", "[cli]") {
  const PackedWorld world;
  check_failure(world.gpu({"tune", "--shape", kShape, "--cache-dir", "none"}),
                cli::kExitEnvironment, "nowhere to go");
}

TEST_CASE("verify fails results that are wrong and prints how to repeat each", "[cli]") {
  const PackedWorld world;
  const Ran ran = world.gpu({"verify", "gated_delta_h", "--shape", kShape, "--gates", "slow"});
  INFO(ran.out << ran.err);
  CHECK(ran.exit == cli::kExitFailed);
  CHECK(ran.out.find("FAILED  N=2") != std::string::npos);
  CHECK(ran.err.find("repeat: ") != std::string::npos);
  CHECK(ran.err.find("--gates slow") != std::string::npos);
  const auto json =
      world.gpu({"verify", "gated_delta_h", "--shape", kShape, "--gates", "slow", "--json"}).json();
  CHECK(json["schema"] == "scanjit-verify/1");
  CHECK(json["failed"] == 1);
  CHECK(json["cases"][0]["status"] == "FAILED");
}

TEST_CASE("run writes the outputs that are wanted, and --check fails wrong ones", "[cli]") {
  const PackedWorld world;
  const std::string in = world.folder.file("x.safetensors"),
                    out = world.folder.file("y.safetensors");
  REQUIRE(world.run({"run", "gated_delta_h", "--example", in, "--shape", kShape}).exit == 0);
  const Ran ran = world.gpu(
      {"run", "gated_delta_h", "--in", in, "--out", out, "--want", "h,v_new,ht,status", "--json"});
  INFO(ran.err);
  REQUIRE(ran.exit == 0);
  const auto json = ran.json();
  CHECK(json["schema"] == "scanjit-run/1");
  CHECK(json["status"] == 0);
  CHECK(json["outputs"].size() == 4);
  CHECK(json["outputs"][0]["shape"] == nlohmann::json({2, 1, 2, 64, 64}));
  CHECK(std::filesystem::exists(out));
  const Ran checked = world.gpu({"run", "gated_delta_h", "--in", in, "--check"});
  CHECK(checked.exit == cli::kExitFailed);
  CHECK(checked.out.find("FAILED") != std::string::npos);
  const Ran config =
      world.gpu({"run", "gated_delta_h", "--in", in, "--config", "bv=17,bk=64,stages=2,warps=4"});
  check_failure(config, cli::kExitUsage, "17");
}

}  // namespace
}  // namespace scanjit::test
