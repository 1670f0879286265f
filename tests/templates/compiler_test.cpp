// Templates through NVRTC, without a GPU.

#include "jit/compiler.hpp"

#include <set>
#include <thread>

#include "fixture.hpp"
#include "os/file_system.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;
using namespace scanjit::test;

TEST_CASE("a template compiles to machine code of every architecture that we name", "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  Compiler compiler(0);
  const TemplateStore templates = fixture_templates();
  for (const char* arch : {"sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"}) {
    INFO(arch);
    const auto compiled = compiler.compile(*nvrtc, templates, scale_kernel(), arch);
    INFO(compiled.status().to_string() << "\n" << compiled.status().details().compile_log);
    REQUIRE(compiled.ok());
    CHECK(compiled->resources.registers > 0);
    CHECK(compiled->resources.spill_loads == 0);
    CHECK(compiled->resources.spill_stores == 0);
    CHECK(compiled->resources.stack == 0);
    CHECK(compiled->resources.code_bytes > 0);
    CHECK(compiled->cubin.compare(0, 4,
                                  "\x7f"
                                  "ELF") == 0);
  }
}

TEST_CASE("each constant changes the machine code, and nothing else does", "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  Compiler compiler(0);
  const TemplateStore templates = fixture_templates();
  const auto text_of = [&](const KernelSource& kernel) {
    const auto compiled = compiler.compile(*nvrtc, templates, kernel, "sm_90a");
    REQUIRE(compiled.ok());
    const auto text = text_section(compiled->cubin, "scale");
    REQUIRE(text.ok());
    return *text;
  };
  std::set<std::string> texts;
  for (const KernelSource& kernel :
       {scale_kernel(64, 2, 2), scale_kernel(128, 2, 2), scale_kernel(64, 3, 2),
        scale_kernel(64, 2, 1), scale_kernel(64, 2, 2, true)}) {
    CHECK(texts.insert(text_of(kernel)).second);
  }
  CHECK(texts.count(text_of(scale_kernel(64, 2, 2))) == 1);
  KernelSource unused = scale_kernel(64, 2, 2);
  unused.constants.push_back({"NOT_READ", Constant::Type::kInt, 7});
  CHECK(texts.count(text_of(unused)) == 1);
}

TEST_CASE(
    "host and device that disagree on shared memory or threads do not compile, and the sentence "
    "says so",
    "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  Compiler compiler(0);
  KernelSource kernel = scale_kernel();
  kernel.smem_bytes += 16;
  auto compiled = compiler.compile(*nvrtc, fixture_templates(), kernel, "sm_90a");
  REQUIRE(compiled.status().code() == ErrorCode::kCompileFailed);
  const std::string sentence =
      "bytes of shared memory: the host computed 528, ScaleTraits::kSmemBytes differs";
  CHECK(compiled.status().message().find(sentence) != std::string::npos);
  CHECK(compiled.status().details().compile_log.find(sentence) != std::string::npos);

  kernel = scale_kernel();
  kernel.threads = 32;
  compiled = compiler.compile(*nvrtc, fixture_templates(), kernel, "sm_90a");
  CHECK(compiled.status().message().find("threads of a block: the host computed 32") !=
        std::string::npos);

  compiled = compiler.compile(*nvrtc, fixture_templates(), scale_kernel(48), "sm_90a");
  CHECK(compiled.status().message().find("BV must be a multiple of a warp's threads") !=
        std::string::npos);
}

TEST_CASE("the compiler's log reaches the error", "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  Compiler compiler(0);
  std::vector<TemplateFile> files = *fixture_templates().closure("scale/scale.cu");
  files[0].text += "\nint broken = no_such_name;\n";
  const auto compiled =
      compiler.compile(*nvrtc, TemplateStore::from_files(files), scale_kernel(), "sm_90a");
  REQUIRE(compiled.status().code() == ErrorCode::kCompileFailed);
  CHECK(compiled.status().details().compile_log.find("no_such_name") != std::string::npos);
  CHECK(compiled.status().message().find("scale/scale.cu") != std::string::npos);
  CHECK(compiled.status().message().find("no_such_name") != std::string::npos);
}

TEST_CASE("templates see no header of the toolkit or the system", "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  Compiler compiler(0);
  std::vector<TemplateFile> files = *fixture_templates().closure("scale/scale.cu");
  files[0].text +=
      "\n#if __has_include(<cuda_fp16.h>) || __has_include(<cstdint>) || "
      "__has_include(<stdio.h>)\n#error \"a header is visible\"\n#endif\n";
  const auto compiled =
      compiler.compile(*nvrtc, TemplateStore::from_files(files), scale_kernel(), "sm_90a");
  INFO(compiled.status().to_string());
  CHECK(compiled.ok());
}

TEST_CASE("architectures that are none, virtual or unknown are refused", "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  Compiler compiler(0);
  for (const char* arch : {"", "compute_90", "sm_9", "sm_90 --maxrregcount=32", "90a", "sm_90ab"}) {
    CHECK(compiler.compile(*nvrtc, fixture_templates(), scale_kernel(), arch).status().code() ==
          ErrorCode::kInvalidArgument);
  }
  CHECK(compiler.compile(*nvrtc, fixture_templates(), scale_kernel(), "sm_99").status().code() ==
        ErrorCode::kCompileFailed);
}

TEST_CASE("PTX is there for people to read", "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  Compiler compiler(0);
  const auto ptx = compiler.ptx(*nvrtc, fixture_templates(), scale_kernel(), "sm_90a");
  REQUIRE(ptx.ok());
  CHECK(ptx->find(".entry scale") != std::string::npos);
  CHECK(ptx->find(".target sm_90a") != std::string::npos);
}

TEST_CASE("no more compilations run at once than there are jobs", "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  const TemplateStore templates = fixture_templates();
  for (const int jobs : {1, 2}) {
    Compiler compiler(jobs);
    std::vector<std::thread> threads;
    std::atomic<int> compiled{0};
    for (int i = 1; i <= 6; ++i) {
      threads.emplace_back([&, i] {
        compiled +=
            compiler.compile(*nvrtc, templates, scale_kernel(32 * i), "sm_90a").ok() ? 1 : 0;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(compiled == 6);
    CHECK(compiler.peak() == jobs);
  }
}

TEST_CASE("NVRTC tells its build, and its builtins come from its own folder", "[templates]") {
  const cuda::NvrtcApi* nvrtc = nvrtc_or_skip();
  if (nvrtc == nullptr) return;
  CHECK(nvrtc->major >= 12);
  CHECK(nvrtc->version.find(std::to_string(nvrtc->major) + "." + std::to_string(nvrtc->minor)) ==
        0);
  CHECK(nvrtc->build.find(nvrtc->version) == 0);
  CHECK(nvrtc->build.size() > nvrtc->version.size());
  CHECK_FALSE(nvrtc->archs.empty());
  REQUIRE_FALSE(nvrtc->builtins.empty());
  CHECK(os::parent_path(nvrtc->builtins) == os::parent_path(nvrtc->library));
}
