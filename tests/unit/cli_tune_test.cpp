// scanjit tune against the fake driver: what is stored, resumed, divided among processes, and what
// becomes of candidates that misbehave.
#include <chrono>
#include <map>
#include <thread>

#include "ops_samples.hpp"
#include "packed_world.hpp"
#include "tuning/journal.hpp"
#include "tuning/record.hpp"

namespace scanjit::test {
namespace {

using Words = std::vector<std::string>;

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

// A candidate that is not the default, and how the fake driver is told of its launches.
struct Victim {
  Config config;
  std::string at;
};
// So many, no two of which are launched alike.
std::vector<Victim> victims(const PackedWorld& world, std::size_t count) {
  const auto op = made(world.problem);
  const auto candidates = ops::candidates(*op, h200());
  REQUIRE(candidates.ok());
  const auto at = [&](const Config& config) {
    const auto source = op->stages(config, h200()).back().source;
    return std::to_string(source.threads) + ":" + std::to_string(source.smem_bytes);
  };
  std::map<std::string, int> times;
  for (const Config& config : *candidates) ++times[at(config)];
  std::vector<Victim> found;
  for (const Config& config : *candidates) {
    if (config != candidates->front() && times[at(config)] == 1 && found.size() < count)
      found.push_back({config, at(config)});
  }
  REQUIRE(found.size() == count);
  return found;
}

TEST_CASE("bad candidates are told apart, left out and recorded, and the rest are timed", "[cli]") {
  const PackedWorld world;
  const std::vector<Victim> all = victims(world, 5);
  const Victim &dies = all[0], &faults = all[1], &hangs = all[2], &lies = all[3], &refused = all[4];
  const Ran ran =
      world.gpu({"tune", "--shape", kShape, "--json", "--patience", "20"}, {},
                {"SCANJIT_FAKE_DIES_AT=" + dies.at, "SCANJIT_FAKE_FAULTS_AT=" + faults.at,
                 "SCANJIT_FAKE_HANGS_AT=" + hangs.at, "SCANJIT_FAKE_LIES_AT=" + lies.at,
                 "SCANJIT_FAKE_REFUSES_AT=" + refused.at});
  INFO(ran.out << ran.err);
  REQUIRE(ran.exit == 0);
  const auto entries = world.run({"cache", "show", "--json"}).json()["entries"];
  REQUIRE(entries.size() == 1);
  std::map<Config, std::string> reasons;
  for (const auto& one : entries[0]["rejected"]) {
    const auto& c = one["config"];
    reasons[{c["bv"], c["bk"], c["stages"], c["warps"]}] = one["reason"];
    CHECK_FALSE(one["detail"].get<std::string>().empty());
  }
  CHECK(reasons[dies.config] == "device_fault");
  CHECK(reasons[faults.config] == "device_fault");
  CHECK(reasons[hangs.config] == "timeout");
  CHECK(reasons[lies.config] == "wrong_bits");
  CHECK(reasons[refused.config] == "launch_failed");
  CHECK(ran.json()["keys"][0]["rejected"] == entries[0]["rejected"].size());
  // The others were timed: the winner is the fastest of them.
  CHECK(entries[0]["alternates"].size() >= 1);
  const Config pick{entries[0]["config"]["bv"], entries[0]["config"]["bk"],
                    entries[0]["config"]["stages"], entries[0]["config"]["warps"]};
  CHECK(reasons.count(pick) == 0);
}

TEST_CASE("a candidate that does not compile is recorded with the compiler's words",
          "[cli][nvrtc]") {
  PackedWorld world;
  world.nvrtc.clear();  // this machine's
  const auto doctor = world.run({"doctor", "--json"}).json();
  if (!doctor.contains("nvrtc")) {
    WARN("skipped: there is no NVRTC");
    return;
  }
  // Templates that compile in no time, and not at all for one width.
  std::filesystem::create_directories(world.folder.file("templates"));
  std::filesystem::copy(SCANJIT_SOURCE_DIR "/kernel_templates", world.folder.file("templates"),
                        std::filesystem::copy_options::recursive);
  world.write("templates/gated_delta_h/gated_delta_h.cu", R"(
#pragma once
#include "gated_delta_h/gated_delta_h_params.h"
namespace scanjit::dev {
template <class Cfg>
struct GatedDeltaHTraits {
  static_assert(Cfg::BV != 32, "no code for BV 32");
  static constexpr int kThreads = Cfg::WARPS * 32;
  static constexpr int kSmemBytes = gated_delta_h::scan_smem_bytes(
      {Cfg::K, Cfg::BT, Cfg::BV, Cfg::BK, Cfg::STAGES, Cfg::WARPS, Cfg::HAS_G, Cfg::HAS_GK, Cfg::HAS_H, Cfg::HAS_V_NEW});
};
template <class Cfg>
__device__ void gated_delta_h(const gated_delta_h::ScanParams&) {}
}
)");
  const Ran ran = world.spawn({"tune", "--shape", kShape, "--json"}, {},
                              {"SCANJIT_TEMPLATE_DIR=" + world.folder.file("templates")});
  INFO(ran.out << ran.err);
  REQUIRE(ran.exit == 0);
  const auto entries = world.run({"cache", "show", "--json"}).json()["entries"];
  REQUIRE(entries.size() == 1);
  REQUIRE_FALSE(entries[0]["rejected"].empty());
  for (const auto& one : entries[0]["rejected"]) {
    CHECK(one["config"]["bv"] == 32);
    CHECK(one["reason"] == "compile_failed");
  }
  CHECK(entries[0]["config"]["bv"] != 32);
}

TEST_CASE("a tune that is killed half way goes on where it was", "[cli]") {
  const PackedWorld world;
  Words tune = {"tune", "--json", "--resume"};
  for (const char* n : {"1", "2", "4", "8"})
    tune.insert(tune.end(), {"--shape", std::string("N=") + n + ",T=64,H=1,HV=2,K=64,V=64"});
  const auto entries = [&] {
    const auto json = world.run({"cache", "show", "--json"}).json();
    return json.contains("entries") ? json["entries"].size() : 0;
  };
  {
    os::ProcessOptions options = world.process(tune, {"SCANJIT_FAKE_SLEEPS_MS=1"});
    options.argv.insert(options.argv.end(), {"--pack", world.pack()});
    auto process = os::Process::spawn(options);
    REQUIRE(process.ok());
    for (int i = 0; i < 600 && entries() == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    process->kill();
  }
  const std::size_t before = entries();
  REQUIRE(before >= 1);
  REQUIRE(before < 4);
  CHECK(world.run({"cache", "verify"}).exit == 0);
  const Ran ran = world.gpu(tune);
  INFO(ran.err);
  CHECK(ran.exit == 0);
  CHECK(ran.json()["resumed"] == before);
  CHECK(ran.json()["tuned"] == 4 - before);
  CHECK(entries() == 4);
}

TEST_CASE("shards on several machines, merged, are what one run gives", "[cli]") {
  const PackedWorld world;
  Words shapes = {"tune"};
  for (const char* n : {"1", "2", "4", "8", "16"})
    shapes.insert(shapes.end(), {"--shape", std::string("N=") + n + ",T=64,H=1,HV=2,K=64,V=64"});
  const auto tuned = [&](const std::string& name, const Words& more) {
    Words arguments = shapes;
    arguments.insert(arguments.end(), {"--out", world.folder.file(name + ".json"), "--cache-dir",
                                       world.folder.file("cache-" + name)});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ran ran = world.gpu(arguments);
    INFO(ran.err);
    REQUIRE(ran.exit == 0);
  };
  tuned("whole", {});
  tuned("a", {"--shard", "0/2"});
  tuned("b", {"--shard", "1/2"});
  // In any order of the files.
  REQUIRE(world
              .run({"cache", "merge", world.folder.file("b.json"), world.folder.file("a.json"),
                    "--out", world.folder.file("merged.json")})
              .exit == 0);
  const auto file = [&](const char* name) {
    auto read = tuning::tuned_file_from_json(world.read(name), tuning::Checksum::kWithout);
    REQUIRE(read.ok());
    return *read;
  };
  CHECK(file("whole.json").entries.size() == 5);
  CHECK(file("merged.json") == file("whole.json"));
}

TEST_CASE("tune with nowhere to put its winners exits 3 at once", "[cli]") {
  const PackedWorld world;
  check_failure(world.gpu({"tune", "--shape", kShape, "--cache-dir", "none"}),
                cli::kExitEnvironment, "nowhere to go");
}

}  // namespace
}  // namespace scanjit::test
