#pragma once
/// \file
/// Holding the folders of a store below a number of bytes: what was used longest ago goes first.
/// The time of last use is a file's modification time, which the stores set when they read it.

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "os/file_system.hpp"

namespace scanjit::os {

/// What a store's file is, by its name. Temporary files of `publish` are known without.
enum class StoreFileKind {
  kEntry,     ///< may go when room is needed
  kSetAside,  ///< damaged and kept for a look: goes first
  kOther,     ///< never touched
};
using StoreFileKindOf = std::function<StoreFileKind(const std::string& name)>;

struct SweepResult {
  std::int64_t removed_files = 0;
  std::int64_t removed_bytes = 0;
  std::int64_t kept_bytes = 0;  ///< of entries
};

/// Removes what was set aside and temporaries that a crash left (an hour older than `now_ns`, in
/// nanoseconds since 1970, or than the newest file here), then entries, the one unused longest
/// first, until at most `max_bytes` of them are left (negative: no cap). Only regular files are
/// looked at; a folder that is not there, or that is a symbolic link, is empty. A file that
/// somebody removes or uses meanwhile is passed over, so that several processes may sweep at once.
/// Errors: kIoError (a folder cannot be listed, a file not removed).
[[nodiscard]] Result<SweepResult> sweep_folders(FileSystem& files,
                                                const std::vector<std::string>& folders,
                                                const StoreFileKindOf& kind_of,
                                                std::int64_t max_bytes, std::int64_t now_ns);

/// Removes lock files of `folder` (`*.lock`) that are an hour older than `now_ns` and that nobody
/// holds; their number. Should somebody take one at that very moment, two may do the same work, no
/// more. Errors: kIoError.
[[nodiscard]] Result<std::int64_t> remove_idle_locks(FileSystem& files, const std::string& folder,
                                                     std::int64_t now_ns);

/// The cap of one folder that this process writes to. What others write is seen when the folder is
/// listed, after every sixteenth of the cap that was written here: with P writers it may for a
/// while hold P/16 more than the cap. Thread-safe; one thread lists, others meanwhile go on.
class FolderCap {
 public:
  /// `max_bytes` negative: no cap, and then nothing is ever listed.
  FolderCap(FileSystem& files, std::string folder, StoreFileKindOf kind_of, std::int64_t max_bytes);

  /// To be called after a file was put there. Above the cap, removes entries down to 15/16 of it.
  /// Trouble is no error: the next call tries again.
  void wrote(std::int64_t bytes);

 private:
  FileSystem& files_;
  std::string folder_;
  StoreFileKindOf kind_of_;
  std::int64_t max_bytes_;
  std::mutex mutex_;                // of all below
  bool listed_ = false;             // at least once
  std::int64_t known_bytes_ = 0;    // when it was last listed
  std::int64_t written_bytes_ = 0;  // since
  bool listing_ = false;            // some thread is at it
};

}  // namespace scanjit::os
