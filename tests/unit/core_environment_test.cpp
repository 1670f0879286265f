#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/environment.hpp"
#include "support/catch.hpp"

using scanjit::Environment;
using scanjit::read_environment;

TEST_CASE("Each variable lands in its own field, and an unset one is empty", "[core]") {
  const std::vector<std::pair<const char*, std::string Environment::*>> fields = {
      {"SCANJIT_CACHE_DIR", &Environment::scanjit_cache_dir},
      {"SCANJIT_CACHE_MAX_BYTES", &Environment::scanjit_cache_max_bytes},
      {"SCANJIT_CUDA_LIBRARY", &Environment::scanjit_cuda_library},
      {"SCANJIT_NVRTC_LIBRARY", &Environment::scanjit_nvrtc_library},
      {"SCANJIT_TEMPLATE_DIR", &Environment::scanjit_template_dir},
      {"XDG_CACHE_HOME", &Environment::xdg_cache_home},
      {"HOME", &Environment::home},
      {"CUDA_HOME", &Environment::cuda_home},
      {"CUDA_PATH", &Environment::cuda_path},
      {"LD_LIBRARY_PATH", &Environment::ld_library_path},
      {"VIRTUAL_ENV", &Environment::virtual_env},
      {"CONDA_PREFIX", &Environment::conda_prefix}};
  for (const auto& [name, field] : fields) {
    CAPTURE(name);
    const char* before = std::getenv(name);
    const std::string kept = before == nullptr ? "" : before;
    REQUIRE(::setenv(name, "/a value", 1) == 0);
    const Environment with = read_environment();
    REQUIRE(::unsetenv(name) == 0);
    const Environment without = read_environment();
    if (before != nullptr) REQUIRE(::setenv(name, kept.c_str(), 1) == 0);
    CHECK(with.*field == "/a value");
    CHECK((without.*field).empty());
    int changed = 0;
    for (const auto& other : fields)
      changed += with.*(other.second) != without.*(other.second) ? 1 : 0;
    CHECK(changed == 1);
  }
}
