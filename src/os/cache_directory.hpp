#pragma once
/// \file
/// Where the user's cache lives.

#include <functional>
#include <string>

#include "core/environment.hpp"

namespace scanjit::os {

struct CacheDirectory {
  std::string path;       ///< absolute; "": keep everything in memory
  std::string reason;     ///< where the path comes from, or why there is none, as a sentence
  bool asked_for = true;  ///< by somebody's word or as usual; false: nothing better was found
  [[nodiscard]] bool memory_only() const noexcept { return path.empty(); }
};

/// The calling user's home in the password database, "" if the user is unknown.
[[nodiscard]] std::string home_from_password_database();

/// In this order: `requested` (EngineOptions::cache_dir), SCANJIT_CACHE_DIR,
/// $XDG_CACHE_HOME/scanjit, $HOME/.cache/scanjit, the same in the home of the password database;
/// else memory only. "none" as one of the first two asks for memory only. A relative path is never
/// used: `requested` and SCANJIT_CACHE_DIR then mean memory only, the others are passed over.
/// Touches no file.
[[nodiscard]] CacheDirectory choose_cache_directory(
    const std::string& requested, const Environment& environment,
    const std::function<std::string()>& home_of_user = home_from_password_database);

}  // namespace scanjit::os
