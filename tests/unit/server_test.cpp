// The embedding server as a program, against the fake driver: what kernels compute is nothing
// there, but captures, packs, threads, picks and counters are as with a real one.
#include "packed_world.hpp"
#include "tuning/tuned_store.hpp"

namespace scanjit::test {
namespace {

// As tests/consumer/server asks for it: packed, states in a pool of 4 threads' slots.
GatedDeltaHProblem request(std::int64_t sequences, std::int64_t tokens) {
  GatedDeltaHProblem p;
  p.packed = true;
  p.sequences = sequences;
  p.T = sequences * tokens;
  p.max_tokens = tokens;
  p.H = 4;
  p.HV = 8;
  p.K = p.V = 64;
  p.has_g = p.has_h0 = p.has_ht = p.has_h0_indices = p.has_ht_indices = true;
  p.h0_slots = p.ht_slots = 4 * 64;
  return p;
}

// A pack of tuned entries alone, each with a config that the heuristic would not choose.
void write_other_picks(const std::string& directory) {
  tuning::TunedFile file;
  file.gpu = h200_facts();
  for (const GatedDeltaHProblem& problem : {request(1, 4096), request(64, 16), request(8, 256)}) {
    const auto op = made(problem);
    tuning::Record record;
    record.key = op->key_query().under(file.buckets(problem.HV, problem.V));
    record.measured_at = {{problem.sequences, problem.max_tokens}};
    record.default_config = *op->heuristic(h200());
    for (const Config& config : op->space().all()) {
      if (config != record.default_config && op->legal(config, h200()).ok()) record.config = config;
    }
    record.us = {10, 9, 11, 9};
    record.default_us = 12;
    record.toolchain = {"13.0.88", "", "0.1.0"};
    file.entries.push_back(record);
  }
  std::filesystem::create_directories(directory);
  const auto written = tuning::import_into_store(os::posix_file_system(), directory, file);
  INFO(written.status().message());
  REQUIRE(written.ok());
  REQUIRE(*written == 3);
}

TEST_CASE("a server probes under capture, serves, is prewarmed, and has its tuned files exchanged",
          "[server]") {
  const PackedWorld world;
  world.stock(request(1, 16));
  const std::string flip = world.folder.file("flip");
  write_other_picks(flip);
  os::ProcessOptions options = world.process({});
  options.argv = {SCANJIT_SERVER, "--replay",   "--requests", "5",
                  "--pack",       world.pack(), "--flip",     flip};
  const auto ran = os::run_process(options, "", 300'000);
  REQUIRE(ran.ok());
  INFO(ran->output << ran->error_output);
  CHECK(ran->exit.success());
  const auto says = [&](const char* words) {
    INFO(words);
    CHECK(ran->output.find(words) != std::string::npos);
  };
  says("the probe's capture met no plan and was done again");  // cold, and only there
  CHECK(ran->output.find("capture met no plan") == ran->output.rfind("capture met no plan"));
  says("# TYPE scanjit_launches_total counter\nscanjit_launches_total 21\n");
  says("scanjit_compiles_total 0\n");
  says("server_first_token_seconds{kind=\"probe\"} ");
  says("server_token_seconds{kind=\"wide\"} ");
  says(", heuristic");
  says(", exact");
  says("all bits agree");
}

TEST_CASE("a server without a GPU says so and ends well", "[server]") {
  const CliWorld world;
  os::ProcessOptions options = world.process({}, {}, "/nowhere/libcuda.so.1");
  options.argv = {SCANJIT_SERVER};
  const auto ran = os::run_process(options, "", 60'000);
  REQUIRE(ran.ok());
  CHECK(ran->exit.success());
  CHECK(ran->output.rfind("skipped: no CUDA driver", 0) == 0);
}

}  // namespace
}  // namespace scanjit::test
