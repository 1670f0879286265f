#pragma once
#include "os/file_system.hpp"

namespace scanjit::os {

/// The machine's files; without state, lives as long as the process.
[[nodiscard]] FileSystem& posix_file_system() noexcept;

}  // namespace scanjit::os
