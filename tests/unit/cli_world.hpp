#pragma once
// Command lines for tests: run in this process, or by the program itself.

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "os/process.hpp"
#include "support/catch.hpp"
#include "support/temporary_directory.hpp"

namespace scanjit::test {

struct Ran {
  int exit = 0;
  std::string out, err;
  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

/// A folder, and an environment in which no GPU is found and the cache lies in the folder.
class CliWorld {
 public:
  TemporaryDirectory folder;
  Environment environment;
  std::string nvrtc = "/nowhere/libnvrtc.so";  ///< of what is spawned; "": the machine's own

  CliWorld() {
    environment.scanjit_cuda_library = "/nowhere/libcuda.so.1";
    environment.scanjit_cache_dir = folder.file("cache");
  }

  /// `scanjit ARGUMENTS` in this process.
  [[nodiscard]] Ran run(std::vector<std::string> arguments, const std::string& input = {}) const {
    arguments.insert(arguments.begin(), "scanjit");
    std::istringstream in(input);
    std::ostringstream out, err;
    cli::Session session{in, out, err, environment, std::move(arguments)};
    Ran ran;
    ran.exit = cli::run_command_line(session);
    ran.out = out.str();
    ran.err = err.str();
    return ran;
  }

  /// The program, with the fake driver library (or another) and these further variables.
  [[nodiscard]] Ran spawn(std::vector<std::string> arguments, const std::string& input = {},
                          std::vector<std::string> variables = {},
                          const std::string& driver = SCANJIT_FAKE_CUDA) const {
    const os::ProcessOptions options = process(std::move(arguments), std::move(variables), driver);
    const auto output = os::run_process(options, input, 120'000);
    REQUIRE(output.ok());
    Ran ran;
    ran.exit = output->exit.signal != 0 ? 128 + output->exit.signal : output->exit.code;
    ran.out = output->output;
    ran.err = output->error_output;
    return ran;
  }

  /// How `spawn` starts it.
  [[nodiscard]] os::ProcessOptions process(std::vector<std::string> arguments,
                                           std::vector<std::string> variables = {},
                                           const std::string& driver = SCANJIT_FAKE_CUDA) const {
    os::ProcessOptions options;
    arguments.insert(arguments.begin(), SCANJIT_PROGRAM);
    options.argv = std::move(arguments);
    options.environment = {"SCANJIT_CUDA_LIBRARY=" + driver, "SCANJIT_NVRTC_LIBRARY=" + nvrtc,
                           "SCANJIT_CACHE_DIR=" + environment.scanjit_cache_dir};
    options.environment.insert(options.environment.end(), variables.begin(), variables.end());
    options.capture_stderr = true;
    return options;
  }

  [[nodiscard]] Ran spawn_without_gpu(std::vector<std::string> arguments) const {
    return spawn(std::move(arguments), {}, {}, "/nowhere/libcuda.so.1");
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder.file(name), std::ios::binary) << text;
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(folder.file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

/// What every failure says: its sentence, then a line to repeat it.
inline void check_failure(const Ran& ran, int exit, const std::string& words) {
  INFO(ran.err);
  CHECK(ran.exit == exit);
  CHECK(ran.err.find(words) != std::string::npos);
  CHECK(ran.err.find("repeat: ") != std::string::npos);
}

}  // namespace scanjit::test
