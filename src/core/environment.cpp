#include "core/environment.hpp"

#include <cstdlib>

namespace scanjit {

Environment read_environment() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): the header says so
    return std::string(value == nullptr ? "" : value);
  };
  Environment environment;
  environment.scanjit_cache_dir = variable("SCANJIT_CACHE_DIR");
  environment.scanjit_cache_max_bytes = variable("SCANJIT_CACHE_MAX_BYTES");
  environment.scanjit_cuda_library = variable("SCANJIT_CUDA_LIBRARY");
  environment.scanjit_nvrtc_library = variable("SCANJIT_NVRTC_LIBRARY");
  environment.scanjit_template_dir = variable("SCANJIT_TEMPLATE_DIR");
  environment.xdg_cache_home = variable("XDG_CACHE_HOME");
  environment.home = variable("HOME");
  environment.cuda_home = variable("CUDA_HOME");
  environment.cuda_path = variable("CUDA_PATH");
  environment.ld_library_path = variable("LD_LIBRARY_PATH");
  environment.virtual_env = variable("VIRTUAL_ENV");
  environment.conda_prefix = variable("CONDA_PREFIX");
  return environment;
}

}  // namespace scanjit
