#pragma once
/// \file
/// Where NVRTC may lie.

#include <string>
#include <vector>

#include "core/environment.hpp"
#include "os/file_system.hpp"

namespace scanjit::cuda {

/// Folders that exist and may hold libnvrtc, best first, none twice: CUDA_HOME, CUDA_PATH,
/// /usr/local/cuda, /usr/local/cuda-* (newest first), distributions' folders, then the
/// `nvidia/*/lib` folders of Python packages (VIRTUAL_ENV, CONDA_PREFIX, the user's and the
/// system's pythons).
[[nodiscard]] std::vector<std::string> nvrtc_folders(const Environment& environment,
                                                     os::FileSystem& files);

/// Paths of the NVRTC libraries in a folder that are of version 12 or later by their name, newest
/// first, and last a plain libnvrtc.so.
[[nodiscard]] std::vector<std::string> nvrtc_files(const std::string& folder,
                                                   os::FileSystem& files);

/// The libnvrtc-builtins that belongs to an NVRTC of this version, in its folder; "" if there is
/// none.
[[nodiscard]] std::string nvrtc_builtins_file(const std::string& folder, int major, int minor,
                                              os::FileSystem& files);

}  // namespace scanjit::cuda
