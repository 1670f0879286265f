// The C interface: a program in C does the checking; here it is run, and the library's exports are
// held against the header.
#include <algorithm>
#include <regex>

#include "packed_world.hpp"

namespace scanjit::test {
namespace {

os::ProcessOutput run_c(std::vector<std::string> arguments, const std::string& driver) {
  os::ProcessOptions options;
  options.argv = std::move(arguments);
  options.environment = {"SCANJIT_CUDA_LIBRARY=" + driver,
                         "SCANJIT_NVRTC_LIBRARY=/nowhere/libnvrtc.so", "SCANJIT_CACHE_DIR=none"};
  options.capture_stderr = true;
  const auto output = os::run_process(options, "", 60'000);
  REQUIRE(output.ok());
  return *output;
}

TEST_CASE("a program in C gets codes and sentences where there is no driver", "[capi]") {
  const auto ran = run_c({SCANJIT_C_PROGRAM}, "/nowhere/libcuda.so.1");
  INFO(ran.output << ran.error_output);
  CHECK(ran.exit.signal == 0);
  CHECK(ran.exit.code == 0);
}

TEST_CASE("a program in C plans and launches", "[capi]") {
  const PackedWorld world;
  const TemporaryDirectory scratch;
  const auto ran = run_c({SCANJIT_C_PROGRAM, world.pack(), scratch.path()}, SCANJIT_FAKE_CUDA);
  INFO(ran.output << ran.error_output);
  CHECK(ran.exit.signal == 0);
  CHECK(ran.exit.code == 0);
}

TEST_CASE("the shared library shows the functions of its header and nothing else", "[capi]") {
  os::ProcessOptions options;
  options.argv = {"nm", "-D", "--defined-only", "--format=just-symbols", SCANJIT_C_LIBRARY};
  const auto output = os::run_process(options, "", 60'000);
  REQUIRE(output.ok());
  if (output->exit.code != 0) {
    WARN("skipped: there is no nm");
    return;
  }
  std::istringstream lines(output->output);
  std::vector<std::string> shown;
  for (std::string line; std::getline(lines, line);) shown.push_back(line);

  std::ifstream header(SCANJIT_SOURCE_DIR "/include/scanjit/scanjit.h");
  const std::string text{std::istreambuf_iterator<char>(header), {}};
  const std::regex declaration("SCANJIT_API [^;(]*\\b(scanjit_\\w+)\\(");
  std::vector<std::string> declared;
  for (std::sregex_iterator at(text.begin(), text.end(), declaration), end; at != end; ++at)
    declared.push_back((*at)[1]);
  std::sort(shown.begin(), shown.end());
  std::sort(declared.begin(), declared.end());
  CHECK(declared.size() > 15);
  CHECK(shown == declared);
}

}  // namespace
}  // namespace scanjit::test
