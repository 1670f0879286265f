#include "os/file_system.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <system_error>
#include <utility>

#include "os/clock.hpp"

namespace scanjit::os {
namespace {

constexpr std::string_view kTemporaryPrefix = ".tmp-";

/// A name that no other process or thread on any machine that shares the folder picks.
std::string temporary_name() {
  static std::atomic<std::uint32_t> counter{0};
  // Asked of the system each time: a forked child does not repeat its parent. If the system has
  // none to give, process number, time and counter still differ on one machine.
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) {
    random = static_cast<std::uint64_t>(steady_clock().now_us());
  }
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64 "-%x-%x", random,
                static_cast<unsigned>(::getpid()), counter.fetch_add(1));
  return std::string(kTemporaryPrefix) + text.data();
}

std::string octal(std::uint32_t mode) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%04o", mode);
  return text.data();
}

/// The same error of `path` instead of its temporary file, a name that means nothing to a reader.
Status about(const Status& status, const std::string& temporary, const std::string& path) {
  std::string message = status.message();
  for (const auto& [from, to] : {std::pair{"rename " + temporary + " to", std::string("replace")},
                                 std::pair{temporary, path}}) {
    if (const std::size_t at = message.find(from); at != std::string::npos)
      message.replace(at, from.size(), to);
  }
  ErrorDetails details = status.details();
  if (details.path == temporary) details.path = path;
  return Status(status.code(), std::move(message), std::move(details));
}

Status write_synced(FileWriter& writer, std::string_view bytes) {
  SCANJIT_TRY(writer.write(bytes));
  SCANJIT_TRY(writer.sync());
  return writer.close();
}

}  // namespace

Status FileSystem::publish(const std::string& path, std::string_view bytes) {
  const std::string folder = parent_path(path);
  const std::string temporary = join_path(folder, temporary_name());
  Result<std::unique_ptr<FileWriter>> writer = create(temporary);
  if (!writer.ok()) return about(writer.status(), temporary, path);
  Status status = write_synced(**writer, bytes);
  writer->reset();
  if (status.ok()) status = rename(temporary, path);
  if (!status.ok()) {
    // Best effort: the first error is the one to report, and is_temporary_name() finds what stays.
    static_cast<void>(remove_file(temporary));
    return about(status, temporary, path);
  }
  return sync_directory(folder);
}

Status FileSystem::make_directories(const std::string& path) {
  const Result<FileInfo> there = info(path);
  if (there.ok()) {
    if (there->type == FileType::kDirectory) return {};
    return io_error("cannot make the directory " + path + ": it is a file", path);
  }
  if (there.status().code() != ErrorCode::kNotFound) return there.status();
  const std::string parent = parent_path(path);
  if (parent != path) SCANJIT_TRY(make_directories(parent));
  return make_directory(path);
}

Result<std::vector<std::string>> FileSystem::names_in(const std::string& path) {
  Result<std::vector<std::string>> names = list_directory(path);
  if (!names.ok() && names.status().code() == ErrorCode::kNotFound)
    return std::vector<std::string>();
  return names;
}

Status FileSystem::check_trusted_directory(const std::string& path, TrustedOwner owner) {
  constexpr std::uint32_t kWritableByOthers = 0022;
  constexpr std::uint32_t kWritableByAll = 0002;
  constexpr std::uint32_t kSticky = 01000;
  constexpr std::uint32_t kRoot = 0;

  SCANJIT_ASSIGN_OR_RETURN(const FileInfo directory, link_info(path));
  if (directory.type == FileType::kSymlink) {
    return unsupported(path + " is a symbolic link; name the directory that it leads to");
  }
  if (directory.type != FileType::kDirectory) return unsupported(path + " is not a directory");
  const bool owner_fits = directory.owner == user_id() ||
                          (owner == TrustedOwner::kSelfOrRoot && directory.owner == kRoot);
  if (!owner_fits) {
    return unsupported(path + " belongs to user " + std::to_string(directory.owner) +
                       ", not to user " + std::to_string(user_id()) +
                       (owner == TrustedOwner::kSelfOrRoot ? " or root" : "") +
                       ": code is loaded from it, so use a directory of your own");
  }
  if ((directory.mode & kWritableByOthers) != 0) {
    return unsupported(path + " has mode " + octal(directory.mode) +
                       ", so others can write into it; code is loaded from it: chmod 700 it");
  }
  SCANJIT_ASSIGN_OR_RETURN(std::string above, resolve(path));
  while (above != "/") {
    above = parent_path(above);
    SCANJIT_ASSIGN_OR_RETURN(const FileInfo parent, info(above));
    if ((parent.mode & kWritableByAll) != 0 && (parent.mode & kSticky) == 0) {
      return unsupported(above + " has mode " + octal(parent.mode) + ", so anybody can replace " +
                         path + "; code is loaded from it: chmod o-w " + above);
    }
  }
  return {};
}

bool is_temporary_name(std::string_view name) noexcept {
  return name.starts_with(kTemporaryPrefix);
}

std::string join_path(const std::string& folder, std::string_view name) {
  if (folder.empty()) return std::string(name);
  std::string path = folder;
  if (path.back() != '/') path += '/';
  return path.append(name);
}

std::string parent_path(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  const std::size_t slash = path.find_last_of('/', end);
  if (slash == std::string::npos) return ".";
  const std::size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

std::string base_name(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

Status system_error(int error_number, const std::string& action, const std::string& path) {
  const std::string sentence =
      "cannot " + action + " " + path + ": " + std::generic_category().message(error_number);
  if (error_number == ENOENT || error_number == ENOTDIR) return not_found(sentence, path);
  return io_error(sentence, path);
}

}  // namespace scanjit::os
