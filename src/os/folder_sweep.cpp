#include "os/folder_sweep.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/guard.hpp"

namespace scanjit::os {
namespace {

constexpr std::int64_t kAbandonedAfter_ns = std::int64_t{3600} * 1'000'000'000;
constexpr std::string_view kLockSuffix = ".lock";

struct Found {
  std::int64_t modified_ns = 0;
  std::string path;
  std::int64_t bytes = 0;
};

/// A store's files, sorted out.
struct Inventory {
  std::vector<Found> entries, set_aside, temporaries;
  std::int64_t entry_bytes = 0;
  std::int64_t newest_ns = 0;
};

Result<Inventory> take_inventory(FileSystem& files, const std::vector<std::string>& folders,
                                 const StoreFileKindOf& kind_of) {
  Inventory inventory;
  for (const std::string& folder : folders) {
    // What a link leads to is not the store's.
    if (const Result<FileInfo> info = files.link_info(folder);
        info.ok() && info->type == FileType::kSymlink)
      continue;
    SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.names_in(folder));
    for (const std::string& name : names) {
      const bool temporary = is_temporary_name(name);
      const StoreFileKind kind = kind_of(name);
      if (!temporary && kind == StoreFileKind::kOther) continue;
      const std::string path = join_path(folder, name);
      const Result<FileInfo> info = files.link_info(path);
      if (!info.ok() || info->type != FileType::kRegular) continue;
      const Found found{info->modified_ns, path, info->size};
      inventory.newest_ns = std::max(inventory.newest_ns, found.modified_ns);
      if (temporary) {
        inventory.temporaries.push_back(found);
      } else if (kind == StoreFileKind::kSetAside) {
        inventory.set_aside.push_back(found);
      } else {
        inventory.entries.push_back(found);
        inventory.entry_bytes += found.bytes;
      }
    }
  }
  return inventory;
}

/// Removes a file unless it was used since it was listed; true if it is gone.
Result<bool> remove_unused(FileSystem& files, const Found& file) {
  const Result<FileInfo> now = files.link_info(file.path);
  if (!now.ok()) {
    if (now.status().code() == ErrorCode::kNotFound) return true;
    return now.status();
  }
  if (now->modified_ns != file.modified_ns) return false;
  const Status status = files.remove_file(file.path);
  if (!status.ok() && status.code() != ErrorCode::kNotFound) return status;
  return true;
}

Result<SweepResult> sweep(FileSystem& files, Inventory inventory, std::int64_t max_bytes,
                          std::int64_t now_ns) {
  SweepResult result;
  result.kept_bytes = inventory.entry_bytes;
  const auto remove = [&](const Found& file) -> Result<bool> {
    SCANJIT_ASSIGN_OR_RETURN(const bool gone, remove_unused(files, file));
    if (gone) {
      ++result.removed_files;
      result.removed_bytes += file.bytes;
    }
    return gone;
  };
  for (const Found& file : inventory.set_aside) SCANJIT_TRY(remove(file).status());
  const std::int64_t now = std::max(now_ns, inventory.newest_ns);
  for (const Found& file : inventory.temporaries) {
    if (now - file.modified_ns > kAbandonedAfter_ns) SCANJIT_TRY(remove(file).status());
  }
  if (max_bytes < 0) return result;
  std::sort(inventory.entries.begin(), inventory.entries.end(), [](const Found& a, const Found& b) {
    return std::tie(a.modified_ns, a.path) < std::tie(b.modified_ns, b.path);
  });
  for (const Found& file : inventory.entries) {
    if (result.kept_bytes <= max_bytes) break;
    SCANJIT_ASSIGN_OR_RETURN(const bool gone, remove(file));
    if (gone) result.kept_bytes -= file.bytes;
  }
  return result;
}

}  // namespace

Result<SweepResult> sweep_folders(FileSystem& files, const std::vector<std::string>& folders,
                                  const StoreFileKindOf& kind_of, std::int64_t max_bytes,
                                  std::int64_t now_ns) {
  SCANJIT_ASSIGN_OR_RETURN(Inventory inventory, take_inventory(files, folders, kind_of));
  return sweep(files, std::move(inventory), max_bytes, now_ns);
}

Result<std::int64_t> remove_idle_locks(FileSystem& files, const std::string& folder,
                                       std::int64_t now_ns) {
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.names_in(folder));
  std::int64_t removed = 0;
  for (const std::string& name : names) {
    if (!name.ends_with(kLockSuffix)) continue;
    const std::string path = join_path(folder, name);
    const Result<FileInfo> info = files.link_info(path);
    if (!info.ok() || info->type != FileType::kRegular ||
        now_ns - info->modified_ns <= kAbandonedAfter_ns)
      continue;
    const Result<std::optional<FileLock>> lock = files.try_lock(path);
    if (!lock.ok() || !lock->has_value()) continue;
    const Status status = files.remove_file(path);
    if (!status.ok() && status.code() != ErrorCode::kNotFound) return status;
    ++removed;
  }
  return removed;
}

FolderCap::FolderCap(FileSystem& files, std::string folder, StoreFileKindOf kind_of,
                     std::int64_t max_bytes)
    : files_(files),
      folder_(std::move(folder)),
      kind_of_(std::move(kind_of)),
      max_bytes_(max_bytes) {}

void FolderCap::wrote(std::int64_t bytes) {
  if (max_bytes_ < 0) return;
  constexpr std::int64_t kParts = 16;
  {
    const std::lock_guard lock(mutex_);
    written_bytes_ += bytes;
    const bool above = known_bytes_ + written_bytes_ > max_bytes_;
    if (listing_ || (listed_ && !above && written_bytes_ <= max_bytes_ / kParts)) return;
    listing_ = true;
    written_bytes_ = 0;  // the list will show it
  }
  const Result<std::int64_t> kept = guard([&]() -> Result<std::int64_t> {
    SCANJIT_ASSIGN_OR_RETURN(Inventory inventory, take_inventory(files_, {folder_}, kind_of_));
    const std::int64_t bytes_there = inventory.entry_bytes;
    if (bytes_there <= max_bytes_) return bytes_there;
    SCANJIT_ASSIGN_OR_RETURN(const SweepResult swept, sweep(files_, std::move(inventory),
                                                            max_bytes_ - max_bytes_ / kParts, 0));
    return swept.kept_bytes;
  });
  const std::lock_guard lock(mutex_);
  listing_ = false;
  listed_ = kept.ok();
  known_bytes_ = kept.ok() ? *kept : 0;
}

}  // namespace scanjit::os
