#include <string>

#include "os/cache_directory.hpp"
#include "support/catch.hpp"

using scanjit::Environment;
using scanjit::os::CacheDirectory;
using scanjit::os::choose_cache_directory;

namespace {

std::string nobody() { return ""; }

Environment full_environment() {
  Environment environment;
  environment.scanjit_cache_dir = "/given";
  environment.xdg_cache_home = "/xdg";
  environment.home = "/home/user";
  return environment;
}

}  // namespace

TEST_CASE("The first of option, SCANJIT_CACHE_DIR, XDG_CACHE_HOME, HOME and password database wins",
          "[os]") {
  Environment environment = full_environment();
  const auto home = [] { return std::string("/home/database"); };
  CHECK(choose_cache_directory("/option", environment, home).path == "/option");
  CHECK(choose_cache_directory("", environment, home).path == "/given");
  environment.scanjit_cache_dir.clear();
  CHECK(choose_cache_directory("", environment, home).path == "/xdg/scanjit");
  environment.xdg_cache_home = "relative";  // the XDG specification: to be ignored
  CHECK(choose_cache_directory("", environment, home).path == "/home/user/.cache/scanjit");
  environment.home.clear();
  CHECK(choose_cache_directory("", environment, home).path == "/home/database/.cache/scanjit");
}

TEST_CASE("No HOME and an unknown user: memory only, with the reason", "[os]") {
  const CacheDirectory answer = choose_cache_directory("", Environment(), nobody);
  CHECK(answer.memory_only());
  CHECK(answer.reason.find("HOME") != std::string::npos);
  CHECK(answer.reason.find("SCANJIT_CACHE_DIR") != std::string::npos);
}

TEST_CASE("\"none\" and relative paths mean memory only", "[os]") {
  Environment environment = full_environment();
  CHECK(choose_cache_directory("none", environment, nobody).memory_only());
  const CacheDirectory relative = choose_cache_directory("cache", environment, nobody);
  CHECK(relative.memory_only());
  CHECK(relative.reason.find("\"cache\"") != std::string::npos);
  environment.scanjit_cache_dir = "./cache";
  CHECK(choose_cache_directory("", environment, nobody).memory_only());
  environment.scanjit_cache_dir = "none";
  CHECK(choose_cache_directory("", environment, nobody).memory_only());
}
