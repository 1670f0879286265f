#include "store_world.hpp"

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "cuda/nvrtc.hpp"
#include "jit/cubin.hpp"
#include "os/dynamic_library.hpp"
#include "os/posix_file_system.hpp"

namespace scanjit::test {

void report_count(const std::string& what, std::int64_t trials, std::int64_t failures,
                  const std::string& more) {
  const std::string line =
      "{\"what\":\"" + what + "\",\"value\":" + std::to_string(failures) +
      ",\"unit\":\"failures\",\"limit\":0,\"ok\":" + (failures == 0 ? "true" : "false") +
      ",\"trials\":" + std::to_string(trials) + (more.empty() ? "" : "," + more) + "}";
  std::cout << "count: " << line << std::endl;
  if (const std::string path = variable("SCANJIT_COUNTS"); !path.empty())
    std::ofstream(path, std::ios::app) << line << '\n';
}

Environment fake_nvrtc_environment() {
  Environment environment;
  environment.scanjit_nvrtc_library = SCANJIT_FAKE_NVRTC;
  return environment;
}

FakeNvrtc::FakeNvrtc() {
  const auto api = cuda::load_nvrtc(fake_nvrtc_environment());
  INFO(api.status().to_string());
  REQUIRE(api.ok());
  const auto library = os::system_loader().open(SCANJIT_FAKE_NVRTC);
  REQUIRE(library.ok());
  const auto find = [&](auto& function, const char* name) {
    const auto address = (*library)->symbol(name);
    REQUIRE(address.ok());
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(*address);
  };
  find(fail_call_, "scanjit_fake_nvrtc_fail_call");
  find(calls_, "scanjit_fake_nvrtc_calls");
  find(live_, "scanjit_fake_nvrtc_live");
}

jit::TemplateStore numbered_templates() {
  return jit::TemplateStore::from_files({{"numbered/numbered.cu", "// nothing\n"}});
}

jit::KernelSource numbered_kernel(int number) {
  jit::KernelSource kernel;
  kernel.template_file = "numbered/numbered.cu";
  kernel.entry = "numbered";
  kernel.traits = "NumberedTraits";
  kernel.params_type = "scanjit::numbered::Params";
  kernel.constants = {{"NUMBER", jit::Constant::Type::kInt, number}};
  kernel.threads = 32;
  return kernel;
}

std::unique_ptr<jit::KernelProvider> provider_on(
    os::FileSystem& files, const std::string& cache, const std::vector<std::string>& packs,
    const std::function<void(jit::KernelProviderOptions&)>& change) {
  jit::KernelProviderOptions options;
  options.environment = fake_nvrtc_environment();
  options.cache_dir = cache;
  options.pack_dirs = packs;
  if (change) change(options);
  return jit::KernelProvider::create_with(options, numbered_templates(), files);
}

std::string code_of(const jit::Binary& binary) {
  const auto code = jit::text_section(*binary.cubin, binary.entry);
  INFO(code.status().to_string());
  REQUIRE(code.ok());
  return *code;
}

std::string expected_code(int number) {
  const auto binary =
      provider_on(os::posix_file_system(), "")->get(numbered_kernel(number), "sm_90a");
  INFO(binary.status().to_string());
  REQUIRE(binary.ok());
  return code_of(*binary);
}

namespace {

os::ProcessOptions child_options(const std::string& tag,
                                 const std::vector<std::string>& variables) {
  os::ProcessOptions options;
  options.argv = {"/proc/self/exe", tag};
  options.environment = variables;
  options.environment.emplace_back("SCANJIT_COUNTS=");
  options.capture_stderr = true;
  return options;
}

}  // namespace

os::Process start_child(const std::string& tag, const std::vector<std::string>& variables) {
  auto child = os::Process::spawn(child_options(tag, variables));
  INFO(child.status().to_string());
  REQUIRE(child.ok());
  return std::move(child).value();
}

bool run_child(const std::string& tag, const std::vector<std::string>& variables,
               std::string& output) {
  constexpr std::int64_t kTimeoutMs = 600'000;
  const auto ran = os::run_process(child_options(tag, variables), "", kTimeoutMs);
  REQUIRE(ran.ok());
  output = ran->output + ran->error_output;
  // A filter that names no test must not pass for one that did.
  return ran->exit.success() && output.find("All tests passed") != std::string::npos;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace scanjit::test
