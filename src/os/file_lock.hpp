#pragma once
/// \file
/// A lock held among processes (and among threads: each attempt opens the file anew). It saves
/// double work and nothing else: no result may depend on it, since some file systems have none.

#include <memory>
#include <utility>

namespace scanjit::os {

/// Held until destroyed, `release`d, or the process dies. Movable. From `FileSystem::try_lock`.
class FileLock {
 public:
  /// What a file system keeps while the lock is held; its destructor gives the lock back.
  class Hold {
   public:
    virtual ~Hold() = default;
  };

  explicit FileLock(std::unique_ptr<Hold> hold) noexcept : hold_(std::move(hold)) {}
  void release() noexcept { hold_.reset(); }

 private:
  std::unique_ptr<Hold> hold_;
};

}  // namespace scanjit::os
