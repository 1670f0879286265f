#pragma once
/// \file
/// The environment variables that scanjit reads, as one value. An engine or tool takes it once, at
/// its start, and hands it down: nothing else calls getenv, and tests make one of their own.

#include <string>

namespace scanjit {

/// An unset variable is "". Lists (LD_LIBRARY_PATH) are kept as written.
struct Environment {
  std::string scanjit_cache_dir;        ///< SCANJIT_CACHE_DIR
  std::string scanjit_cache_max_bytes;  ///< SCANJIT_CACHE_MAX_BYTES
  std::string scanjit_cuda_library;     ///< SCANJIT_CUDA_LIBRARY
  std::string scanjit_nvrtc_library;    ///< SCANJIT_NVRTC_LIBRARY
  std::string scanjit_template_dir;     ///< SCANJIT_TEMPLATE_DIR
  std::string xdg_cache_home;           ///< XDG_CACHE_HOME
  std::string home;                     ///< HOME
  std::string cuda_home;                ///< CUDA_HOME
  std::string cuda_path;                ///< CUDA_PATH
  std::string ld_library_path;          ///< LD_LIBRARY_PATH
  std::string virtual_env;              ///< VIRTUAL_ENV
  std::string conda_prefix;             ///< CONDA_PREFIX
};

/// The process's environment now. As getenv: no other thread may call setenv meanwhile.
[[nodiscard]] Environment read_environment();

}  // namespace scanjit
