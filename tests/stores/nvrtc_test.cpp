// Which NVRTC's machine code serves: the one at hand, another one's out of a pack, another one's
// where the driver refuses ours; with NVRTC hidden, unloaded or loaded.

#include <filesystem>
#include <fstream>

#include "engine_world.hpp"
#include "os/posix_file_system.hpp"
#include "store_world.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

/// Stores a text as every kernel of a problem's default config, as an NVRTC of this version would
/// have made it.
void stock_as(EngineWorld& world, const std::string& directory, const GatedDeltaHProblem& problem,
              const std::string& nvrtc) {
  const auto provider = jit::KernelProvider::create({}, world.files);
  REQUIRE(provider.ok());
  jit::BinaryCache store(world.files, directory, {}, {});
  for (const jit::KernelSource& source :
       made(problem)->kernels(*made(problem)->heuristic(world.limits()), world.limits())) {
    jit::StoredBinary binary;
    binary.source_id = *(*provider)->source_id(source, "sm_90a");
    binary.binary_id = jit::make_binary_id(binary.source_id, nvrtc + " CL-FAKE");
    binary.entry = source.entry;
    binary.arch = "sm_90a";
    binary.nvrtc = nvrtc;
    binary.cubin = "by " + nvrtc;
    store.put(binary);
  }
}

bool is_of(const void* image, const std::string& nvrtc) {
  return std::string(static_cast<const char*>(image)) == "by " + nvrtc;
}

/// An engine on the default config, with the fake NVRTC at hand.
struct Serving : EngineWorld {
  GatedDeltaHProblem problem = small_layer();
  Serving() {
    environment = fake_nvrtc_environment();
    options.tune_mode = TuneMode::kOff;
  }

  /// With binaries of these versions in `directory` and a driver that refuses the one of `refused`,
  /// a plan's kernel was made by `maker`, after so many compilations.
  void check_maker(const std::string& directory, const std::vector<std::string>& versions,
                   const std::string& refused, const std::string& maker, int compiles) {
    CurrentContext context(driver);
    for (const std::string& version : versions) stock_as(*this, directory, problem, version);
    driver.refuse_images([&](const void* image) { return is_of(image, refused); });
    engine::KernelLoader kernels;
    engine::Parts some = parts();
    some.loader = &kernels;
    auto engine = engine::create_engine(options, some);
    const auto plan = engine->plan(problem);
    INFO(plan.status().to_string());
    REQUIRE(plan.ok());
    CHECK(plan->why().binary_nvrtc == maker);
    CHECK(plan->why().text.find("made by NVRTC " + maker) != std::string::npos);
    CHECK(engine->stats().compiles == compiles);
  }
};

}  // namespace

// --- packs --------------------------------------------------------------------------------------

TEST_CASE("child: a pack serves where NVRTC cannot be found", "[.hidden_nvrtc]") {
  const std::string pack = variable("SCANJIT_TEST_PACK");
  const auto provider =
      provider_on(os::posix_file_system(), "", {pack}, [](jit::KernelProviderOptions& o) {
        o.environment.scanjit_nvrtc_library = "/nowhere/libnvrtc.so";
      });
  const auto binary = provider->get(numbered_kernel(1), "sm_90a");
  INFO(binary.status().to_string());
  REQUIRE(binary.ok());
  CHECK(binary->from == "pack:" + pack);
  CHECK(binary->nvrtc == "12.4.1");
  CHECK(cuda::loaded_nvrtc() == nullptr);
  const auto missing = provider->get(numbered_kernel(9), "sm_90a");
  CHECK(missing.status().code() == ErrorCode::kUnsupported);
  CHECK(missing.status().message().find("/nowhere/libnvrtc.so") != std::string::npos);
}

TEST_CASE("child: makes a cache of one kernel", "[.make_cache]") {
  const auto provider = provider_on(os::posix_file_system(), variable("SCANJIT_TEST_CACHE"));
  REQUIRE(provider->get(numbered_kernel(1), "sm_90a").ok());
}

TEST_CASE("a pack serves from where it was moved to, NVRTC hidden or another one", "[nvrtc]") {
  const FakeNvrtc nvrtc;  // 13.0.88
  const TemporaryDirectory folder;
  std::string output;
  const bool prepared = run_child(
      "[.make_cache]",
      {"SCANJIT_TEST_CACHE=" + folder.file("made"), "SCANJIT_FAKE_NVRTC_VERSION=12.4.1"}, output);
  INFO(output);
  REQUIRE(prepared);
  std::filesystem::create_directories(folder.file("elsewhere"));
  const std::string pack = folder.file("elsewhere/pack");
  std::filesystem::rename(folder.file("made"), pack);
  // Read-only, as in an image.
  for (const char* part : {"/bin", ""})
    std::filesystem::permissions(pack + part, std::filesystem::perms(0555));

  const bool passed = run_child("[.hidden_nvrtc]", {"SCANJIT_TEST_PACK=" + pack}, output);
  INFO(output);
  CHECK(passed);

  const auto provider = provider_on(os::posix_file_system(), folder.file("cache"), {pack});
  const auto binary = provider->get(numbered_kernel(1), "sm_90a");
  REQUIRE(binary.ok());
  CHECK(binary->from == "pack:" + pack);
  CHECK(binary->nvrtc == "12.4.1");
  CHECK(provider->counters().compiles == 0);
  std::filesystem::permissions(pack, std::filesystem::perms(0755));
  std::filesystem::permissions(pack + "/bin", std::filesystem::perms(0755));
}

TEST_CASE("of a pack's binaries that of the NVRTC at hand serves, and why() names its maker",
          "[nvrtc]") {
  const FakeNvrtc nvrtc;
  Serving().check_maker("/pack", {"12.4.1"}, "none", "12.4.1", 0);
  Serving().check_maker("/pack", {"12.4.1", "13.0.88", "13.2.0"}, "none", "13.0.88", 0);
  Serving().check_maker("/pack", {"12.4.1", "13.2.0"}, "none", "13.2.0", 0);
}

// --- what the driver refuses --------------------------------------------------------------------

TEST_CASE("child: an older NVRTC's binary serves an older driver, and NVRTC stays unloaded",
          "[.refused_child]") {
  Serving().check_maker("/cache", {"12.4.1", "13.0.88"}, "13.0.88", "12.4.1", 0);
  CHECK(cuda::loaded_nvrtc() == nullptr);
}

TEST_CASE("an older NVRTC's binary serves where the driver refuses the newest", "[nvrtc]") {
  std::string output;
  const bool passed = run_child("[.refused_child]", {}, output);
  INFO(output);
  CHECK(passed);
  // The same while the refused NVRTC is loaded.
  const FakeNvrtc nvrtc;
  Serving().check_maker("/cache", {"12.4.1", "13.0.88"}, "13.0.88", "12.4.1", 0);
}

TEST_CASE("a stored binary that the driver refuses is compiled anew by another NVRTC", "[nvrtc]") {
  const FakeNvrtc nvrtc;
  Serving().check_maker("/pack", {"13.2.0"}, "13.2.0", "13.0.88", 1);
}

TEST_CASE("what the driver refuses is not compiled again and again", "[nvrtc]") {
  const FakeNvrtc nvrtc;
  Serving world;
  CurrentContext context(world.driver);
  world.driver.refuse_images([](const void*) { return true; });
  auto engine = world.engine();
  for (int i = 0; i < 5; ++i) {
    const Status status = engine->plan(world.problem).status();
    CHECK(status.code() == ErrorCode::kUnsupported);
    CHECK(status.message().find("the driver refuses") != std::string::npos);
    CHECK(status.message().find("NVRTC 13.0.88") != std::string::npos);
    CHECK(status.message().find("SCANJIT_NVRTC_LIBRARY") != std::string::npos);
  }
  CHECK(engine->stats().compiles == 1);
  // Nor by the next process, which finds the file and learns from the driver.
  engine::KernelLoader loader;
  engine::Parts parts = world.parts();
  parts.loader = &loader;
  auto next = engine::create_engine(world.options, parts);
  CHECK(next->plan(world.problem).status().code() == ErrorCode::kUnsupported);
  CHECK(next->stats().compiles == 0);
  // With a new driver the file serves.
  world.driver.refuse_images({});
  auto third = world.engine();
  CHECK(third->plan(world.problem)->why().binary_from == "cache");
}
