#pragma once
/// \file
/// Files as the stores need them. `FileSystem` has few primitives, one per system call, that an
/// implementation supplies (`posix_file_system`, `memory_file_system`), and the protocols that
/// stand on them, written once, so that faults injected below them test the code that ships.
///
/// Paths are absolute or relative as the system takes them, '/' separated. Thread-safe.
/// Errors everywhere: kNotFound (no such file or folder), kIoError (anything else the system says),
/// with `details().path`; the sentence ends with the system's own words.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/file_lock.hpp"
#include "scanjit/result.hpp"

namespace scanjit::os {

enum class FileType { kRegular, kDirectory, kSymlink, kOther };

struct FileInfo {
  FileType type = FileType::kOther;
  std::int64_t size = 0;         ///< bytes
  std::int64_t modified_ns = 0;  ///< nanoseconds since 1970
  std::uint32_t owner = 0;       ///< user id
  std::uint32_t mode = 0;        ///< permission bits, 07777
};

/// Who may own a directory that code is loaded from.
enum class TrustedOwner {
  kSelf,        ///< this user: a cache
  kSelfOrRoot,  ///< or root: a pack inside a container image
};

/// A new file that is being written. Closed by the destructor, which does not remove it.
class FileWriter {
 public:
  virtual ~FileWriter() = default;
  [[nodiscard]] virtual Status write(std::string_view bytes) = 0;  ///< all of them, or an error
  [[nodiscard]] virtual Status sync() = 0;                         ///< to the device
  [[nodiscard]] virtual Status close() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Protocols.

  /// Puts `bytes` at `path` (mode 0600, folder must exist), at once and durably: a temporary file
  /// in the same folder, synced, renamed, the folder synced. A reader, even after a crash, sees the
  /// old file or the new one and never a mixture. On an error the temporary file is removed, as far
  /// as the system lets us, and `path` has the old content (or the new, if only the last sync
  /// failed).
  [[nodiscard]] Status publish(const std::string& path, std::string_view bytes);

  /// Makes a directory and its parents, those that are missing, with mode 0700.
  [[nodiscard]] Status make_directories(const std::string& path);

  /// Ok if nobody else can put a file into this directory: it is a directory and no symbolic link,
  /// owned as `owner` says, writable by its owner alone, and no directory above it is writable by
  /// everybody without the sticky bit. Otherwise kUnsupported; the sentence says what to change.
  [[nodiscard]] Status check_trusted_directory(const std::string& path,
                                               TrustedOwner owner = TrustedOwner::kSelf);

  /// Names in a directory as `list_directory` gives them; none if it is not there.
  [[nodiscard]] Result<std::vector<std::string>> names_in(const std::string& path);

  /// True if `info` succeeds. An unreadable folder counts as not there.
  [[nodiscard]] bool exists(const std::string& path) { return info(path).ok(); }

  // Primitives.

  /// The whole content. kCorrupt if it is no regular file or has more than `max_bytes`.
  [[nodiscard]] virtual Result<std::string> read_file(const std::string& path,
                                                      std::int64_t max_bytes) = 0;

  /// Names in a directory, without "." and "..", sorted.
  [[nodiscard]] virtual Result<std::vector<std::string>> list_directory(
      const std::string& path) = 0;

  [[nodiscard]] virtual Result<FileInfo> info(const std::string& path) = 0;       ///< follows links
  [[nodiscard]] virtual Result<FileInfo> link_info(const std::string& path) = 0;  ///< does not
  /// The path without links and "..".
  [[nodiscard]] virtual Result<std::string> resolve(const std::string& path) = 0;

  /// A file that must not exist yet, mode 0600.
  [[nodiscard]] virtual Result<std::unique_ptr<FileWriter>> create(const std::string& path) = 0;
  /// Replaces `to`, at once.
  [[nodiscard]] virtual Status rename(const std::string& from, const std::string& to) = 0;
  [[nodiscard]] virtual Status remove_file(const std::string& path) = 0;
  [[nodiscard]] virtual Status remove_directory(const std::string& path) = 0;  ///< an empty one
  [[nodiscard]] virtual Status make_directory(
      const std::string& path) = 0;  ///< 0700; ok if there is one
  [[nodiscard]] virtual Status sync_directory(const std::string& path) = 0;
  [[nodiscard]] virtual Status touch(const std::string& path) = 0;  ///< modified now
  [[nodiscard]] virtual Result<std::int64_t> free_bytes(const std::string& path) = 0;
  [[nodiscard]] virtual std::uint32_t user_id() const noexcept = 0;

  /// One attempt, without waiting, at the lock named by `path` (an empty file, made if missing,
  /// never removed). Empty: another holder has it. kUnsupported: there is no locking here (the file
  /// system has none, is read-only, full or broken); go on without.
  [[nodiscard]] virtual Result<std::optional<FileLock>> try_lock(const std::string& path) = 0;
};

/// True of the names that `publish` gives to temporary files: what a crash left behind.
[[nodiscard]] bool is_temporary_name(std::string_view name) noexcept;

/// "folder/name"; `name` alone if folder is "".
[[nodiscard]] std::string join_path(const std::string& folder, std::string_view name);
/// The folder of a path: "." if it has none, "/" of "/name".
[[nodiscard]] std::string parent_path(const std::string& path);
/// What follows the last '/'.
[[nodiscard]] std::string base_name(const std::string& path);

/// The error of a failed system call: "cannot ACTION PATH: No space left on device".
[[nodiscard]] Status system_error(int error_number, const std::string& action,
                                  const std::string& path);

}  // namespace scanjit::os
