#pragma once
/// \file
/// A file system on top of another one, for tests that change one thing about it.

#include <ctime>

#include "os/file_system.hpp"

namespace scanjit::test {

/// Passes every call on.
class WrappedFileSystem : public os::FileSystem {
 public:
  explicit WrappedFileSystem(os::FileSystem& inner) : inner_(inner) {}

  [[nodiscard]] Result<std::string> read_file(const std::string& path,
                                              std::int64_t max_bytes) override {
    return inner_.read_file(path, max_bytes);
  }
  [[nodiscard]] Result<std::vector<std::string>> list_directory(const std::string& path) override {
    return inner_.list_directory(path);
  }
  [[nodiscard]] Result<os::FileInfo> info(const std::string& path) override {
    return inner_.info(path);
  }
  [[nodiscard]] Result<os::FileInfo> link_info(const std::string& path) override {
    return inner_.link_info(path);
  }
  [[nodiscard]] Result<std::string> resolve(const std::string& path) override {
    return inner_.resolve(path);
  }
  [[nodiscard]] Result<std::unique_ptr<os::FileWriter>> create(const std::string& path) override {
    return inner_.create(path);
  }
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override {
    return inner_.rename(from, to);
  }
  [[nodiscard]] Status remove_file(const std::string& path) override {
    return inner_.remove_file(path);
  }
  [[nodiscard]] Status remove_directory(const std::string& path) override {
    return inner_.remove_directory(path);
  }
  [[nodiscard]] Status make_directory(const std::string& path) override {
    return inner_.make_directory(path);
  }
  [[nodiscard]] Status sync_directory(const std::string& path) override {
    return inner_.sync_directory(path);
  }
  [[nodiscard]] Status touch(const std::string& path) override { return inner_.touch(path); }
  [[nodiscard]] Result<std::int64_t> free_bytes(const std::string& path) override {
    return inner_.free_bytes(path);
  }
  [[nodiscard]] std::uint32_t user_id() const noexcept override { return inner_.user_id(); }
  [[nodiscard]] Result<std::optional<os::FileLock>> try_lock(const std::string& path) override {
    return inner_.try_lock(path);
  }

 protected:
  os::FileSystem& inner_;
};

/// Where locks fail with `error_number`; writing works.
class LocklessFileSystem final : public WrappedFileSystem {
 public:
  LocklessFileSystem(os::FileSystem& inner, int error_number)
      : WrappedFileSystem(inner), error_number_(error_number) {}
  [[nodiscard]] Result<std::optional<os::FileLock>> try_lock(const std::string& path) override {
    return unsupported(os::system_error(error_number_, "lock", path).message());
  }

 private:
  int error_number_;
};

/// Where files of others are seen `late_ns` after they were put there, as on a network file system
/// that remembers for a while what was not there. Stamps of last use are not written.
class LateFileSystem final : public WrappedFileSystem {
 public:
  LateFileSystem(os::FileSystem& inner, std::int64_t late_ns)
      : WrappedFileSystem(inner), late_ns_(late_ns) {}
  [[nodiscard]] Result<std::string> read_file(const std::string& path,
                                              std::int64_t max_bytes) override {
    const Result<os::FileInfo> there = inner_.info(path);
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::int64_t now_ns = std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
    if (there.ok() && now_ns - there->modified_ns < late_ns_)
      return not_found(path + " is not seen yet", path);
    return inner_.read_file(path, max_bytes);
  }
  [[nodiscard]] Status touch(const std::string&) override { return {}; }

 private:
  std::int64_t late_ns_;
};

/// Where nothing waits for a device, for tests that write thousands of files.
class UnsyncedFileSystem final : public WrappedFileSystem {
 public:
  using WrappedFileSystem::WrappedFileSystem;
  [[nodiscard]] Status sync_directory(const std::string&) override { return {}; }
  [[nodiscard]] Result<std::unique_ptr<os::FileWriter>> create(const std::string& path) override {
    SCANJIT_ASSIGN_OR_RETURN(std::unique_ptr<os::FileWriter> inner, inner_.create(path));
    return std::unique_ptr<os::FileWriter>(std::make_unique<Writer>(std::move(inner)));
  }

 private:
  class Writer final : public os::FileWriter {
   public:
    explicit Writer(std::unique_ptr<os::FileWriter> inner) : inner_(std::move(inner)) {}
    [[nodiscard]] Status write(std::string_view bytes) override { return inner_->write(bytes); }
    [[nodiscard]] Status sync() override { return {}; }
    [[nodiscard]] Status close() override { return inner_->close(); }

   private:
    std::unique_ptr<os::FileWriter> inner_;
  };
};

}  // namespace scanjit::test
