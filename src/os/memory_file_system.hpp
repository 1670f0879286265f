#pragma once
/// \file
/// Files in memory, for tests: calls fail when told to, and a crash forgets what was not synced.

#include <cstdint>
#include <memory>
#include <string>

#include "os/file_system.hpp"

namespace scanjit::os {

/// What a crash keeps of changes that were not synced.
enum class CrashKeeps {
  kSyncedOnly,  ///< names as of their folder's last sync, content as of the file's last sync
  kNames,  ///< names as they are now, content as of the file's last sync: what a journal may do
};

/// Starts with "/" alone, owned by user 1000, who is also the caller.
class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  // What tests do to it. None of these counts as a call.

  /// The `nth` call from now (1: the next) fails with `error_number`, a write after half of its
  /// bytes; with `persist` every later one too. Reading calls count as well.
  void fail_call(std::int64_t nth, int error_number, bool persist = false);
  void clear_fault();
  [[nodiscard]] std::int64_t calls() const;  ///< so far
  void crash(CrashKeeps keeps);
  /// Makes a file or replaces its content; folders are made too; all of it synced.
  void put(const std::string& path, const std::string& bytes);
  void set_owner(const std::string& path, std::uint32_t owner);
  void set_mode(const std::string& path, std::uint32_t mode);
  void set_modified_ns(const std::string& path, std::int64_t modified_ns);
  void set_free_bytes(std::int64_t bytes);
  void put_symlink(const std::string& path, const std::string& target);  ///< absolute target

  [[nodiscard]] Result<std::string> read_file(const std::string& path,
                                              std::int64_t max_bytes) override;
  [[nodiscard]] Result<std::vector<std::string>> list_directory(const std::string& path) override;
  [[nodiscard]] Result<FileInfo> info(const std::string& path) override;
  [[nodiscard]] Result<FileInfo> link_info(const std::string& path) override;
  [[nodiscard]] Result<std::string> resolve(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<FileWriter>> create(const std::string& path) override;
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status remove_file(const std::string& path) override;
  [[nodiscard]] Status remove_directory(const std::string& path) override;
  [[nodiscard]] Status make_directory(const std::string& path) override;
  [[nodiscard]] Status sync_directory(const std::string& path) override;
  [[nodiscard]] Status touch(const std::string& path) override;
  [[nodiscard]] Result<std::int64_t> free_bytes(const std::string& path) override;
  [[nodiscard]] std::uint32_t user_id() const noexcept override;
  [[nodiscard]] Result<std::optional<FileLock>> try_lock(const std::string& path) override;

  struct State;

 private:
  std::shared_ptr<State> state_;  // shared with writers and locks, which may outlive this
};

}  // namespace scanjit::os
