// From source to binary by way of memory, cache, packs and NVRTC.

#include "jit/kernel_provider.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <thread>

#include "core/hash.hpp"
#include "fixture.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"
#include "support/temporary_directory.hpp"

using namespace scanjit;
using namespace scanjit::jit;
using namespace scanjit::test;

namespace {

std::unique_ptr<KernelProvider> provider_at(const std::string& cache,
                                            const std::vector<std::string>& packs = {},
                                            int jobs = 2) {
  KernelProviderOptions options;
  options.environment = read_environment();
  options.cache_dir = cache;
  options.pack_dirs = packs;
  options.compile_jobs = jobs;
  options.process_wait_ms = 600'000;  // how fast this machine compiles is not what is tested
  return KernelProvider::create_with(options, fixture_templates(), os::posix_file_system());
}

std::string only_file(const std::string& dir) {
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator(dir + "/bin")) {
    REQUIRE(path.empty());
    path = entry.path().string();
  }
  return path;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

TEST_CASE("a kernel is compiled once, then comes from memory, then from the cache", "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  const TemporaryDirectory folder;
  const std::string cache = folder.file("cache");
  const auto first = provider_at(cache);
  const auto compiled = first->get(scale_kernel(), "sm_90a");
  REQUIRE(compiled.ok());
  CHECK(compiled->from == "compiled");
  CHECK(compiled->nvrtc == *first->toolchain());
  CHECK(compiled->binary_id.find(*first->source_id(scale_kernel(), "sm_90a") + "-") == 0);
  CHECK(first->get(scale_kernel(), "sm_90a")->from == "memory");
  CHECK(first->counters().compiles == 1);

  const auto second = provider_at(cache);
  const auto stored = second->get(scale_kernel(), "sm_90a");
  REQUIRE(stored.ok());
  CHECK(stored->from == "cache");
  CHECK(*stored->cubin == *compiled->cubin);
  CHECK(stored->resources == compiled->resources);
  CHECK(stored->binary_id == compiled->binary_id);
  CHECK(second->counters().compiles == 0);
  CHECK(second->counters().binary_hits == 1);
  CHECK(second->get(scale_kernel(), "sm_80")->from == "compiled");
}

TEST_CASE("a damaged cubin in the cache is set aside and made again in the same call",
          "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  const TemporaryDirectory folder;
  REQUIRE(provider_at(folder.path())->get(scale_kernel(), "sm_90a").ok());
  const std::string path = only_file(folder.path());
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(300);
    file.put('!');
  }
  const auto provider = provider_at(folder.path());
  const auto again = provider->get(scale_kernel(), "sm_90a");
  REQUIRE(again.ok());
  CHECK(again->from == "compiled");
  CHECK(provider->counters().corrupt_files == 1);
  CHECK(provider_at(folder.path())->get(scale_kernel(), "sm_90a")->from == "cache");
}

TEST_CASE("a change to a template, even in a header, is another source", "[templates]") {
  std::vector<TemplateFile> files = *fixture_templates().closure("scale/scale.cu");
  const auto id_of = [&] {
    return *KernelProvider::create_with({}, TemplateStore::from_files(files),
                                        os::posix_file_system())
                ->source_id(scale_kernel(), "sm_90a");
  };
  const std::string before = id_of();
  CHECK(id_of() == before);
  files.back().text += " ";
  CHECK(id_of() != before);
}

TEST_CASE("calls of one source at the same time share one compilation",
          "[templates][concurrency]") {
  if (nvrtc_or_skip() == nullptr) return;
  const auto provider = provider_at("");
  std::vector<std::thread> threads;
  std::atomic<int> same{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto binary = provider->get(scale_kernel(), "sm_90a");
      same += binary.ok() && !binary->cubin->empty() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(same == 8);
  CHECK(provider->counters().compiles == 1);
  CHECK(provider->counters().memory_hits == 7);
}

TEST_CASE("a failed compilation is told to all who waited and not remembered",
          "[templates][concurrency]") {
  if (nvrtc_or_skip() == nullptr) return;
  const auto provider = provider_at("");
  KernelSource wrong = scale_kernel();
  wrong.smem_bytes += 16;
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      failed += provider->get(wrong, "sm_90a").status().code() == ErrorCode::kCompileFailed ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 4);
  const std::int64_t errors = provider->counters().compile_errors;
  CHECK(errors >= 1);
  CHECK_FALSE(provider->get(wrong, "sm_90a").ok());
  CHECK(provider->counters().compile_errors == errors + 1);
}

TEST_CASE("many kernels come in order, bounded, and stop when asked", "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  const auto provider = provider_at("");
  std::vector<KernelSource> kernels;
  for (int i = 1; i <= 4; ++i) kernels.push_back(scale_kernel(32 * i));
  kernels.push_back(scale_kernel(32));
  kernels.push_back(scale_kernel(48));
  const auto binaries = provider->get_all(kernels, "sm_90a");
  REQUIRE(binaries.size() == 6);
  for (std::size_t i = 0; i < 5; ++i) {
    REQUIRE(binaries[i].ok());
    CHECK(binaries[i]->source_id == *provider->source_id(kernels[i], "sm_90a"));
  }
  CHECK(binaries[5].status().code() == ErrorCode::kCompileFailed);
  CHECK(provider->counters().compiles == 4);

  std::atomic<int> asked{0};
  const auto stopped =
      provider_at("", {}, 1)->get_all(kernels, "sm_90a", [&] { return ++asked > 1; });
  CHECK(stopped[0].ok());
  for (std::size_t i = 1; i < stopped.size(); ++i)
    CHECK(stopped[i].status().code() == ErrorCode::kCancelled);
}

TEST_CASE("a binary that the driver refused is not given again, nor compiled again",
          "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  const TemporaryDirectory folder;
  const auto provider = provider_at(folder.path());
  const auto refused = provider->get(scale_kernel(), "sm_90a");
  REQUIRE(refused.ok());
  for (int i = 0; i < 2; ++i) {
    const Status status = provider->get_instead(*refused, scale_kernel(), "sm_90a").status();
    CHECK(status.code() == ErrorCode::kUnsupported);
    CHECK(status.message().find(*provider->toolchain()) != std::string::npos);
    CHECK(provider->get(scale_kernel(), "sm_90a").status().code() == ErrorCode::kUnsupported);
  }
  CHECK(provider->counters().compiles == 1);
  CHECK(provider->get(scale_kernel(96), "sm_90a").ok());
}

// --- among processes ----------------------------------------------------------------------------

TEST_CASE("child: gets two kernels from a cold cache", "[.cold_cache]") {
  const auto provider = provider_at(variable("SCANJIT_TEST_CACHE"));
  for (const int bv : {64, 96}) {
    const auto binary = provider->get(scale_kernel(bv), "sm_90a");
    INFO(binary.status().to_string());
    REQUIRE(binary.ok());
    std::cout << "code " << bv << " " << sha256_hex(*binary->cubin) << "\n";
  }
  CHECK(provider->counters().corrupt_files == 0);
  std::cout << "compiles " << provider->counters().compiles << std::endl;
}

TEST_CASE("cold processes share what each of them compiles", "[templates][concurrency]") {
  if (nvrtc_or_skip() == nullptr) return;
  constexpr int kProcesses = 4;
  const TemporaryDirectory folder;
  std::vector<std::thread> threads;
  std::vector<std::string> outputs(kProcesses);
  std::atomic<int> passed{0};
  for (std::string& output : outputs) {
    threads.emplace_back([&] {
      passed += run_child("[.cold_cache]", {"SCANJIT_TEST_CACHE=" + folder.path()}, output) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(passed == kProcesses);
  std::set<std::string> codes;
  int compiles = 0;
  for (const std::string& output : outputs) {
    std::istringstream lines(output);
    for (std::string word; lines >> word;) {
      std::string value;
      if (word == "compiles" && lines >> value) compiles += std::stoi(value);
      if (word == "code" && std::getline(lines, value)) codes.insert(value);
    }
  }
  CHECK(codes.size() == 2);
  CHECK(compiles == 2);
}

// --- without NVRTC, in a process of its own
// ---------------------------------------------------------

TEST_CASE("child: a pack serves where NVRTC cannot be found", "[.hidden_nvrtc]") {
  const std::string pack = variable("SCANJIT_TEST_PACK");
  const auto provider = provider_at("", {pack});
  const auto binary = provider->get(scale_kernel(), "sm_90a");
  INFO(binary.status().to_string());
  REQUIRE(binary.ok());
  CHECK(binary->from == "pack:" + pack);
  CHECK_FALSE(is_mapped("libnvrtc"));
  const auto missing = provider->get(scale_kernel(96), "sm_90a");
  CHECK(missing.status().code() == ErrorCode::kUnsupported);
  CHECK(missing.status().message().find("/nowhere/libnvrtc.so") != std::string::npos);
}

TEST_CASE("a pack made elsewhere serves without NVRTC, wherever it is moved to", "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  const TemporaryDirectory folder;
  REQUIRE(provider_at(folder.file("cache"))->get(scale_kernel(), "sm_90a").ok());
  std::filesystem::rename(folder.file("cache"), folder.file("pack"));
  std::string output;
  const bool passed = run_child(
      "[.hidden_nvrtc]",
      {"SCANJIT_NVRTC_LIBRARY=/nowhere/libnvrtc.so", "SCANJIT_TEST_PACK=" + folder.file("pack")},
      output);
  INFO(output);
  CHECK(passed);
}

TEST_CASE("child: a stored binary is used without loading the NVRTC that is there",
          "[.idle_nvrtc]") {
  const auto provider = provider_at(variable("SCANJIT_TEST_CACHE"));
  REQUIRE(provider->get(scale_kernel(), "sm_90a").ok());
  CHECK_FALSE(is_mapped("libnvrtc"));
  REQUIRE(provider->get(scale_kernel(96), "sm_90a").ok());
  CHECK(is_mapped("libnvrtc"));
}

TEST_CASE("NVRTC stays unloaded as long as binaries are stored", "[templates]") {
  if (nvrtc_or_skip() == nullptr) return;
  const TemporaryDirectory folder;
  REQUIRE(provider_at(folder.file("cache"))->get(scale_kernel(), "sm_90a").ok());
  std::string output;
  const bool passed =
      run_child("[.idle_nvrtc]", {"SCANJIT_TEST_CACHE=" + folder.file("cache")}, output);
  INFO(output);
  CHECK(passed);
}

TEST_CASE("child: NVRTC of a folder that no loader knows compiles with the builtins beside it",
          "[.moved_nvrtc]") {
  const auto nvrtc = cuda::load_nvrtc(read_environment());
  INFO(nvrtc.status().to_string());
  REQUIRE(nvrtc.ok());
  const std::string folder = variable("SCANJIT_TEST_FOLDER");
  CHECK((*nvrtc)->library.find(folder) == 0);
  CHECK((*nvrtc)->builtins.find(folder) == 0);
}

TEST_CASE("builtins are found beside the NVRTC that was named", "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  const TemporaryDirectory folder;
  for (const std::string& library : {nvrtc->library, nvrtc->builtins}) {
    std::filesystem::create_symlink(std::filesystem::canonical(library),
                                    folder.file(os::base_name(library)));
  }
  std::string output;
  const bool passed =
      run_child("[.moved_nvrtc]",
                {"SCANJIT_NVRTC_LIBRARY=" + folder.file(os::base_name(nvrtc->library)),
                 "SCANJIT_TEST_FOLDER=" + folder.path()},
                output);
  INFO(output);
  CHECK(passed);
}
