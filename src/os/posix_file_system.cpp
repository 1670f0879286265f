#include "os/posix_file_system.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

namespace scanjit::os {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int give_up() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

FileDescriptor open_file(const std::string& path, int flags) noexcept {
  constexpr mode_t kOwnerOnly = 0600;
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, kOwnerOnly);
  } while (fd < 0 && errno == EINTR);
  return FileDescriptor(fd);
}

FileInfo to_info(const struct stat& raw) noexcept {
  FileInfo info;
  info.type = S_ISREG(raw.st_mode)   ? FileType::kRegular
              : S_ISDIR(raw.st_mode) ? FileType::kDirectory
              : S_ISLNK(raw.st_mode) ? FileType::kSymlink
                                     : FileType::kOther;
  info.size = static_cast<std::int64_t>(raw.st_size);
  info.modified_ns = static_cast<std::int64_t>(raw.st_mtim.tv_sec) * 1'000'000'000 +
                     static_cast<std::int64_t>(raw.st_mtim.tv_nsec);
  info.owner = raw.st_uid;
  info.mode = raw.st_mode & 07777U;
  return info;
}

class PosixWriter final : public FileWriter {
 public:
  PosixWriter(FileDescriptor file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  [[nodiscard]] Status write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        return system_error(errno, "write", path_);
      }
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return {};
  }
  [[nodiscard]] Status sync() override {
    if (::fsync(file_.get()) != 0) return system_error(errno, "sync", path_);
    return {};
  }
  [[nodiscard]] Status close() override {
    // Network file systems report a full disk here. The descriptor is gone even if close fails.
    if (::close(file_.give_up()) != 0 && errno != EINTR) return system_error(errno, "close", path_);
    return {};
  }

 private:
  FileDescriptor file_;
  std::string path_;
};

/// An open-file-description lock: it belongs to this descriptor, so that two threads of one process
/// exclude each other, and closing another descriptor of the file does not drop it.
class OfdLock final : public FileLock::Hold {
 public:
  explicit OfdLock(FileDescriptor file) noexcept : file_(std::move(file)) {}
  OfdLock(const OfdLock&) = delete;
  OfdLock& operator=(const OfdLock&) = delete;
  ~OfdLock() override {
    // Unlocked by hand: a child forked meanwhile shares the descriptor and would keep the lock.
    struct flock region {};
    region.l_type = F_UNLCK;
    region.l_whence = SEEK_SET;
    ::fcntl(file_.get(), F_OFD_SETLK, &region);
  }

 private:
  FileDescriptor file_;
};

class PosixFileSystem final : public FileSystem {
 public:
  [[nodiscard]] Result<std::string> read_file(const std::string& path,
                                              std::int64_t max_bytes) override {
    // O_NONBLOCK: opening a FIFO must not wait for a writer. It changes nothing for files.
    const FileDescriptor file = open_file(path, O_RDONLY | O_NONBLOCK);
    if (!file.valid()) return system_error(errno, "open", path);
    struct stat raw {};
    if (::fstat(file.get(), &raw) != 0) return system_error(errno, "stat", path);
    if (!S_ISREG(raw.st_mode)) return corrupt(path + " is not a regular file", path);
    const auto too_large = [&](std::int64_t size) {
      return corrupt(path + " has " + std::to_string(size) + " bytes, more than the " +
                         std::to_string(max_bytes) + " allowed",
                     path);
    };
    if (raw.st_size > max_bytes) return too_large(raw.st_size);
    std::string bytes;
    std::size_t used = 0;
    // One byte more than the size says, to see the end; files in /proc say 0, and files may grow.
    bytes.resize(static_cast<std::size_t>(raw.st_size) + 1);
    for (;;) {
      const ssize_t got = ::read(file.get(), bytes.data() + used, bytes.size() - used);
      if (got < 0) {
        if (errno == EINTR) continue;
        return system_error(errno, "read", path);
      }
      if (got == 0) break;
      used += static_cast<std::size_t>(got);
      if (used > static_cast<std::size_t>(max_bytes))
        return too_large(static_cast<std::int64_t>(used));
      if (used == bytes.size()) bytes.resize(bytes.size() * 2);
    }
    bytes.resize(used);
    return bytes;
  }

  [[nodiscard]] Result<std::vector<std::string>> list_directory(const std::string& path) override {
    DIR* directory = ::opendir(path.c_str());
    if (directory == nullptr) return system_error(errno, "list", path);
    const std::unique_ptr<DIR, int (*)(DIR*)> closer(directory, ::closedir);
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry =
          ::readdir(directory);  // NOLINT(concurrency-mt-unsafe): a stream of our own
      if (entry == nullptr) {
        if (errno != 0) return system_error(errno, "list", path);
        break;
      }
      std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(std::move(name));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  [[nodiscard]] Result<FileInfo> info(const std::string& path) override {
    struct stat raw {};
    if (::stat(path.c_str(), &raw) != 0) return system_error(errno, "stat", path);
    return to_info(raw);
  }

  [[nodiscard]] Result<FileInfo> link_info(const std::string& path) override {
    // A trailing slash would follow the link.
    const std::size_t end = path.find_last_not_of('/');
    const std::string bare = end == std::string::npos ? path : path.substr(0, end + 1);
    struct stat raw {};
    if (::lstat(bare.c_str(), &raw) != 0) return system_error(errno, "stat", path);
    return to_info(raw);
  }

  [[nodiscard]] Result<std::string> resolve(const std::string& path) override {
    const std::unique_ptr<char, void (*)(void*)> resolved(::realpath(path.c_str(), nullptr),
                                                          std::free);
    if (!resolved) return system_error(errno, "resolve", path);
    return std::string(resolved.get());
  }

  [[nodiscard]] Result<std::unique_ptr<FileWriter>> create(const std::string& path) override {
    FileDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (!file.valid()) return system_error(errno, "create", path);
    return std::unique_ptr<FileWriter>(std::make_unique<PosixWriter>(std::move(file), path));
  }

  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0)
      return system_error(errno, "rename " + from + " to", to);
    return {};
  }

  [[nodiscard]] Status remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return system_error(errno, "remove", path);
    return {};
  }

  [[nodiscard]] Status remove_directory(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0) return system_error(errno, "remove the directory", path);
    return {};
  }

  [[nodiscard]] Status make_directory(const std::string& path) override {
    constexpr mode_t kOwnerOnly = 0700;
    if (::mkdir(path.c_str(), kOwnerOnly) == 0) return {};
    const int error = errno;
    if (error == EEXIST) {
      const Result<FileInfo> there = info(path);
      if (there.ok() && there->type == FileType::kDirectory) return {};
    }
    return system_error(error, "make the directory", path);
  }

  [[nodiscard]] Status sync_directory(const std::string& path) override {
    const FileDescriptor directory = open_file(path, O_RDONLY | O_DIRECTORY);
    if (!directory.valid()) return system_error(errno, "open", path);
    // EINVAL, ENOTSUP: this file system has no such thing, and then nothing better can be done.
    if (::fsync(directory.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
      return system_error(errno, "sync the directory", path);
    }
    return {};
  }

  [[nodiscard]] Status touch(const std::string& path) override {
    if (::utimensat(AT_FDCWD, path.c_str(), nullptr, 0) != 0)
      return system_error(errno, "touch", path);
    return {};
  }

  [[nodiscard]] Result<std::int64_t> free_bytes(const std::string& path) override {
    struct statvfs raw {};
    if (::statvfs(path.c_str(), &raw) != 0)
      return system_error(errno, "ask the free space of", path);
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(raw.f_bavail, raw.f_frsize, &bytes)) {
      bytes = std::numeric_limits<std::int64_t>::max();
    }
    return bytes;
  }

  [[nodiscard]] std::uint32_t user_id() const noexcept override { return ::geteuid(); }

  [[nodiscard]] Result<std::optional<FileLock>> try_lock(const std::string& path) override {
    const auto no_locking = [&](int error) {
      return unsupported(system_error(error, "lock", path).message() + "; going on without a lock");
    };
    FileDescriptor file = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
    if (!file.valid()) return no_locking(errno);
    struct flock region {};  // from 0 to the end, whatever the length; l_pid must be 0
    region.l_type = F_WRLCK;
    region.l_whence = SEEK_SET;
    int result = 0;
    do {
      result = ::fcntl(file.get(), F_OFD_SETLK, &region);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
      return std::optional<FileLock>(FileLock(std::make_unique<OfdLock>(std::move(file))));
    }
    if (errno == EAGAIN || errno == EACCES) return std::optional<FileLock>();
    return no_locking(errno);
  }
};

}  // namespace

FileSystem& posix_file_system() noexcept {
  static PosixFileSystem file_system;
  return file_system;
}

}  // namespace scanjit::os
