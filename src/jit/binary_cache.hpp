#pragma once
/// \file
/// Compiled kernels on disk: `<dir>/bin/<binary_id>.cubin` in one writable directory and any number
/// of read-only packs. A cubin is code, so a directory is used only if nobody else can write to it,
/// and every byte of a file is under its checksum.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/logging.hpp"
#include "jit/binary_format.hpp"
#include "os/file_system.hpp"
#include "os/folder_sweep.hpp"

namespace scanjit::jit {

/// What the files of `<dir>/bin` are.
[[nodiscard]] os::StoreFileKind binary_file_kind(const std::string& name);

/// Thread-safe. Never fails a look-up: what cannot be read or trusted is a miss, counted and warned
/// of once.
class BinaryCache {
 public:
  struct Found {
    StoredBinary binary;
    std::string from;  ///< "cache" or "pack:DIR"
  };
  struct Counters {
    std::int64_t corrupt_files = 0;  ///< set aside (cache) or passed over (packs)
    std::int64_t write_errors = 0;
  };
  /// What a look-up must not give: binary ids that the driver of this process refused.
  using Refused = std::set<std::string>;
  static constexpr std::int64_t kNoCap = -1;

  /// `directory`: the writable store, absolute, made when first written to; "": none. `packs`: in
  /// order of look-up. `max_bytes`: of the files in the writable store's bin/, see os::FolderCap.
  /// `files` must outlive this.
  BinaryCache(os::FileSystem& files, const std::string& directory,
              const std::vector<std::string>& packs, Log log, std::int64_t max_bytes = kNoCap);

  /// A binary of `source_id` for `entry`. With `binary_id`: exactly that one, in the cache, then in
  /// the packs; else any one that a pack has, since a pack was made for machines without its NVRTC;
  /// else, if `binary_id` itself is refused, any one of the cache. Without: any, cache first. Of
  /// several in one directory, that of the newest NVRTC. Reading from the cache stamps the file as
  /// used now. A damaged file in the cache is renamed to `<name>.corrupt-<hash>`.
  [[nodiscard]] std::optional<Found> find(const std::string& source_id,
                                          const std::string& binary_id, const std::string& entry,
                                          const Refused& refused = {});

  /// `find` of exactly `binary_id` in the cache directory alone: what another process may have put
  /// there.
  [[nodiscard]] std::optional<Found> find_published(const std::string& source_id,
                                                    const std::string& binary_id,
                                                    const std::string& entry);

  /// One attempt, without waiting, to be the only process that compiles `binary_id`. Empty: another
  /// one is at it. kUnsupported: there is no cache, or no locking in it; go on without.
  [[nodiscard]] Result<std::optional<os::FileLock>> try_claim(const std::string& binary_id);

  /// Puts it into the cache, durably and at once, or not at all: errors, and a directory that is
  /// not trusted, are counted and warned of once. Above the cap, what was used longest ago goes.
  void put(const StoredBinary& binary);

  [[nodiscard]] Counters counters() const;

 private:
  struct Layer {
    std::string dir;
    std::string bin;  // <dir>/bin
    std::string from;
    bool writable = false;
    enum class Trust { kUnknown, kYes, kNo } trust = Trust::kUnknown;
  };
  bool trusted(Layer& layer);
  Layer* writable_layer();
  std::optional<StoredBinary> read(const Layer& layer, const std::string& binary_id,
                                   const std::string& source_id, const std::string& entry);
  std::optional<StoredBinary> read_any(const Layer& layer, const std::string& source_id,
                                       const std::string& entry, const Refused& refused);
  void set_aside(const Layer& layer, const std::string& path, const std::string& bytes,
                 const Status& reason);

  os::FileSystem& files_;
  Log log_;
  std::mutex mutex_;  // `trust` of the layers
  std::vector<Layer> layers_;
  os::FolderCap cap_;
  std::atomic<std::int64_t> corrupt_files_{0};
  std::atomic<std::int64_t> write_errors_{0};
};

}  // namespace scanjit::jit
