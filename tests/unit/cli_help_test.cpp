// Help that teaches, and a manual that leaves nothing out.
#include <set>

#include "cli_world.hpp"

namespace scanjit::test {
namespace {

using Words = std::vector<std::string>;

const std::vector<Words>& commands() {
  static const std::vector<Words> all = {{"tune"},
                                         {"prewarm"},
                                         {"run"},
                                         {"bench"},
                                         {"verify"},
                                         {"inspect"},
                                         {"doctor"},
                                         {"cache", "path"},
                                         {"cache", "ls"},
                                         {"cache", "show"},
                                         {"cache", "verify"},
                                         {"cache", "merge"},
                                         {"cache", "export"},
                                         {"cache", "import"},
                                         {"cache", "gc"}};
  return all;
}

// "--out" and so on, as the help lists them.
std::set<std::string> flags_in(const std::string& help) {
  std::set<std::string> flags;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, 2, "  ") != 0 || line.size() < 4 || line[2] != '-') continue;
    const std::size_t start = line.find("--");
    if (start == std::string::npos) continue;
    flags.insert(line.substr(start, line.find_first_of(" ,", start) - start));
  }
  return flags;
}

TEST_CASE("every command's help has its flags, --json and an example, and fits a terminal",
          "[cli]") {
  const CliWorld world;
  for (Words command : commands()) {
    const std::string name = command.size() == 1 ? command[0] : command[0] + " " + command[1];
    INFO(name);
    command.emplace_back("--help");
    const Ran ran = world.run(command);
    CHECK(ran.exit == 0);
    CHECK(ran.err.empty());
    CHECK(flags_in(ran.out).count("--json") == 1);
    CHECK(ran.out.find("Example") != std::string::npos);
    CHECK(ran.out.find("scanjit " + name) != std::string::npos);
    std::istringstream lines(ran.out);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 110);
  }
}

TEST_CASE("the manual names every command and every flag", "[cli]") {
  const CliWorld world;
  std::ifstream file(std::string(SCANJIT_SOURCE_DIR) + "/docs/command_line.md");
  const std::string manual{std::istreambuf_iterator<char>(file), {}};
  REQUIRE_FALSE(manual.empty());
  for (Words command : commands()) {
    const std::string name = command.size() == 1 ? command[0] : command[0] + " " + command[1];
    CHECK(manual.find("scanjit " + name) != std::string::npos);
    command.emplace_back("--help");
    for (const std::string& flag : flags_in(world.run(command).out)) {
      INFO(name << " " << flag);
      CHECK(manual.find("`" + flag) != std::string::npos);
    }
  }
}

TEST_CASE("the version is one line on standard output", "[cli]") {
  const Ran ran = CliWorld().run({"--version"});
  CHECK(ran.exit == 0);
  CHECK(ran.out.rfind("scanjit ", 0) == 0);
  CHECK(std::count(ran.out.begin(), ran.out.end(), '\n') == 1);
}

}  // namespace
}  // namespace scanjit::test
