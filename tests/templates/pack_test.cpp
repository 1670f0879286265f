// A pack written without a GPU, and an engine that lives off it.

#include "engine/pack.hpp"
#include "core/environment.hpp"
#include "engine/first_use.hpp"
#include "engine/internals.hpp"
#include "fixture.hpp"
#include "ops/gated_delta_h.hpp"
#include "os/memory_file_system.hpp"
#include "support/catch.hpp"
#include "support/fake_driver.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

GatedDeltaHProblem layer() {
  GatedDeltaHProblem problem;
  problem.packed = true;
  problem.sequences = 100;
  problem.T = 6400;
  problem.H = 1;
  problem.HV = 2;
  problem.K = 64;
  problem.V = 64;
  problem.has_g = true;
  return problem;
}

}  // namespace

TEST_CASE("a pack of one entry serves an engine that has neither compiler nor cache",
          "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  FakeDriver driver;
  const auto facts = cuda::device_facts(driver.api(), 0, nullptr);
  REQUIRE(facts.ok());
  const auto op = ops::GatedDeltaH::make(layer());
  REQUIRE(op.ok());

  engine::PackOptions options;
  options.tuned.gpu = engine::gpu_facts(*facts);
  const ops::DeviceLimits limits = ops::limits_of(options.tuned.gpu);
  tuning::Record record;
  record.key = (*op)->key_query().under(options.tuned.buckets(layer().HV, layer().V));
  REQUIRE(record.key.normalise().ok());
  record.measured_at = {{100, 64}};
  record.default_config = *(*op)->heuristic(limits);
  for (const Config& config : (*op)->space().all()) {
    if (config != record.default_config && (*op)->legal(config, limits).ok())
      record.config = config;
  }
  record.us = {10, 9, 11, 9};
  record.default_us = 12;
  record.toolchain = {"13.0.88", "", "0.1.0"};
  options.tuned.entries = {record};
  options.out = "/pack";
  options.picks_only = true;
  options.environment = read_environment();
  os::MemoryFileSystem files;
  options.files = &files;
  std::size_t steps = 0;
  options.progress = [&](std::size_t done, std::size_t total, const std::string&) {
    CHECK(done == ++steps);
    CHECK(total == 2);
  };
  const auto report = engine::write_pack(options);
  INFO(report.status().to_string());
  REQUIRE(report.ok());
  CHECK(report->entries == 1);
  CHECK(report->kernels == 2);  // the scan and the chunk offsets
  CHECK(report->compiled == 2);
  CHECK(report->failures.empty());
  CHECK(steps == 2);

  // Once more: everything is there already.
  steps = 0;
  const auto again = engine::write_pack(options);
  REQUIRE(again.ok());
  CHECK(again->compiled == 0);
  CHECK(again->kernels == 2);

  engine::KernelLoader loader;
  engine::VainTries vain_tries;
  engine::Parts parts;
  parts.api = &driver.api();
  parts.files = &files;
  parts.clock = &os::steady_clock();
  parts.loader = &loader;
  parts.vain_tries = &vain_tries;
  parts.shortlists = engine::Shortlists().to_json();
  EngineOptions engine_options;
  engine_options.cache_dir = "none";
  engine_options.pack_dirs = {"/pack"};
  engine_options.tune_mode = TuneMode::kStrict;
  auto engine = engine::create_engine(engine_options, parts);
  REQUIRE(engine.ok());
  const auto plan = engine->plan(layer());
  INFO(plan.status().to_string());
  REQUIRE(plan.ok());
  CHECK(plan->why().config == record.config);
  CHECK(plan->why().source == PickSource::kExact);
  CHECK(plan->why().layer == "pack:/pack");
  CHECK(plan->why().binary_from == "pack:/pack");
  CHECK(engine->stats().compiles == 0);
}
