#include "os/cache_directory.hpp"

#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <vector>

namespace scanjit::os {
namespace {

bool is_absolute(const std::string& path) noexcept { return !path.empty() && path.front() == '/'; }

/// A path that somebody named: taken as it is, or refused with a reason.
CacheDirectory named(const std::string& path, const std::string& who) {
  if (path == "none") return {"", who + " asks for no cache directory", true};
  if (!is_absolute(path)) {
    return {"",
            who + " is the relative path \"" + path +
                "\", which would depend on the working directory: give an absolute one",
            false};
  }
  return {path, "from " + who, true};
}

}  // namespace

std::string home_from_password_database() {
  constexpr std::size_t kMaxBuffer = std::size_t{1} << 20;
  for (std::size_t size = 4096; size <= kMaxBuffer; size *= 2) {
    std::vector<char> buffer(size);
    passwd entry{};
    passwd* found = nullptr;
    const int error = ::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found);
    if (error == ERANGE) continue;
    if (error != 0 || found == nullptr || found->pw_dir == nullptr) return "";
    return found->pw_dir;
  }
  return "";
}

CacheDirectory choose_cache_directory(const std::string& requested, const Environment& environment,
                                      const std::function<std::string()>& home_of_user) {
  if (!requested.empty()) return named(requested, "the cache directory option");
  if (!environment.scanjit_cache_dir.empty())
    return named(environment.scanjit_cache_dir, "SCANJIT_CACHE_DIR");
  if (is_absolute(environment.xdg_cache_home)) {
    return {environment.xdg_cache_home + "/scanjit", "from XDG_CACHE_HOME", true};
  }
  if (is_absolute(environment.home))
    return {environment.home + "/.cache/scanjit", "from HOME", true};
  const std::string home = home_of_user();
  if (is_absolute(home))
    return {home + "/.cache/scanjit", "from the home in the password database", true};
  return {"",
          "there is no cache directory: SCANJIT_CACHE_DIR, XDG_CACHE_HOME and HOME are not set and "
          "this "
          "user has no home in the password database; everything is kept in memory",
          false};
}

}  // namespace scanjit::os
