// Commands that need a GPU: without one, and against a driver library that has none behind it, with
// made-up machine code from a pack. What kernels compute is not tested here: these compute nothing.
#include <sys/stat.h>

#include <filesystem>

#include "packed_world.hpp"
#include "tuning/record.hpp"

namespace scanjit::test {
namespace {

using Words = std::vector<std::string>;

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
  const Ran told = world.spawn_without_gpu({"bench", "gated_delta_h"});
  CHECK(told.err.find("libcuda") == told.err.rfind("libcuda"));  // once
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
  CHECK(world.read("b.csv").find("gated_delta_h,2,64,1,2,64,64,0,64,bf16") != std::string::npos);
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

TEST_CASE("a pack that is none is warned of", "[cli]") {
  const PackedWorld world;
  std::filesystem::create_directories(world.folder.file("empty"));
  const Ran ran = world.gpu({"bench", "gated_delta_h", "--shape", kShape, "--configs", "picks",
                             "--pack", world.folder.file("empty")});
  INFO(ran.err);
  CHECK(ran.exit == 0);
  CHECK(ran.err.find("neither bin nor tuned") != std::string::npos);
}

TEST_CASE("verify skips what does not fit into this machine", "[cli]") {
  const PackedWorld world;
  const Ran ran = world.gpu({"verify", "gated_delta_h", "--gates", "slow", "--shape",
                             "N=1,T=8000000000,H=1,HV=2,K=64,V=64"});
  INFO(ran.out << ran.err);
  CHECK(ran.exit == 0);
  CHECK(ran.out.find("SKIPPED") != std::string::npos);
  CHECK(ran.out.find("this machine has") != std::string::npos);
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
