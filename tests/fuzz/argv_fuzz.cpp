// Any command line: an exit status from 0 to 3 and never silence about a failure. Bytes below 128
// are words of a table; others begin a word of their own, up to a line feed, without '/', so that
// nothing is written but in the directory that this makes for itself.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "require.hpp"

using scanjit::fuzz::require;

namespace {

const char* const kWords[] = {"tune",
                              "prewarm",
                              "run",
                              "bench",
                              "inspect",
                              "cache",
                              "doctor",
                              "path",
                              "ls",
                              "show",
                              "merge",
                              "export",
                              "import",
                              "gc",
                              "--json",
                              "--shape",
                              "N=2,T=64",
                              "N=-1",
                              "--shapes",
                              "small",
                              "--config",
                              "--set",
                              "bv=64,bk=64,stages=2,warps=4",
                              "BT=64",
                              "--want",
                              "ht,h",
                              "--in",
                              "--out",
                              "file.json",
                              "--check",
                              "--budget",
                              "nan",
                              "--shard",
                              "0/1",
                              "--devices",
                              "all",
                              "--",
                              "-",
                              "",
                              "=",
                              "--help",
                              "--sweep",
                              "N=1,,2",
                              "--gates",
                              "slow",
                              "--key",
                              "x",
                              "--max-bytes",
                              "1",
                              "%s%n",
                              "--model",
                              "qwen3.5-4b",
                              "--tp",
                              "gated_delta_h",
                              "--source",
                              "--arch",
                              "sm_90a",
                              "--gpu",
                              "--into",
                              "--cache-dir",
                              "none",
                              "--from-journal",
                              "/dev/null",
                              "--quiet",
                              "--verbose",
                              "stride.k=0",
                              "18446744073709551616"};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  std::string pattern = (std::filesystem::temp_directory_path() / "scanjit-fuzz-XXXXXX").string();
  require(::mkdtemp(pattern.data()) != nullptr && ::chdir(pattern.c_str()) == 0);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMostWords = 24;
  std::vector<std::string> arguments = {"scanjit"};
  for (std::size_t i = 0; i < size && arguments.size() < kMostWords; ++i) {
    if (data[i] < 128) {
      arguments.emplace_back(kWords[data[i] % std::size(kWords)]);
      continue;
    }
    std::string word;
    for (++i; i < size && data[i] != '\n'; ++i) {
      if (data[i] != '/' && data[i] != 0) word += static_cast<char>(data[i]);
    }
    arguments.push_back(std::move(word));
  }
  scanjit::Environment environment;
  environment.scanjit_cuda_library = "/nowhere/libcuda.so.1";
  environment.scanjit_nvrtc_library = "/nowhere/libnvrtc.so";
  environment.scanjit_cache_dir = std::filesystem::current_path().string() + "/cache";
  std::istringstream in;
  std::ostringstream out, err;
  scanjit::cli::Session session{in, out, err, environment, std::move(arguments)};
  const int exit = scanjit::cli::run_command_line(session);
  require(exit >= 0 && exit <= 3);
  require(exit == 0 || !out.str().empty() || err.str().find("scanjit: ") != std::string::npos);
  require(err.str().find("unexpected: ") == std::string::npos);
  return 0;
}
