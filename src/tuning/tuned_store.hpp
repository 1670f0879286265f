#pragma once
/// \file
/// Where tuned entries live and in which order they are looked for.
///
/// Layers, first to last: the user cache (`<cache>/tuned/<gpu>/<key>.json`, writable, one file per
/// key), packs (the same layout, read-only), shipped files (text compiled into the library, parsed
/// when first needed, the entries of one kernel and head counts at a time). Each layer cuts N into its own width buckets: a shipped file by its
/// "width_buckets", a directory by its `width_buckets.json`, else by the default starts.
///
/// Steps, each tried on all layers before the next: exact; another set of optional tensors (which
/// also covers gates, packed or dense, index width and pools: all are tensors that may be absent);
/// the other 16-bit dtype; the neighbouring chunk class; the neighbouring width bucket; another GPU
/// model's shipped entry. A later step may differ in what earlier steps allow as well; among
/// entries of one step the one that differs least wins, then the earlier layer.
///
/// Threads: every member of TunedStore may be called from any thread. A key's file is read when the
/// key is first asked for, a whole directory when its first neighbour is; after that, look-ups
/// touch no disk. A corrupt file in the cache is set aside as `*.corrupt-<id>`; in a pack it is
/// skipped. Either is counted, warned of once for each directory, and a miss. A file of the cache
/// is stamped as used when it is read for its own key. Nothing here is ever an error to a caller
/// that only wants a config.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/folder_sweep.hpp"
#include "scanjit/engine.hpp"  // PickSource
#include "scanjit/result.hpp"
#include "tuning/config_space.hpp"
#include "tuning/record.hpp"
#include "tuning/shape_key.hpp"

namespace scanjit::tuning {

/// A tuned file that was compiled in. Name and text must outlive the store.
struct ShippedText {
  std::string_view name;  ///< "NVIDIA_H200.json"
  std::string_view text;
};

struct StoreOptions {
  os::FileSystem* files = nullptr;  ///< outlives the store
  std::string cache_dir;            ///< the `<cache>` directory; "": memory only
  std::vector<std::string> pack_dirs;
  std::vector<ShippedText> shipped;
  GpuFacts gpu;
  Toolchain toolchain;                ///< of this process; an empty field is not compared
  std::int64_t cache_max_bytes = -1;  ///< of this GPU's entries in the cache; negative: no cap
  /// A warning, and what it is about; of one subject once. May be empty; called without a lock
  /// held.
  std::function<void(const std::string& about, const std::string& text)> warn;
};

/// What a look-up found.
struct Pick {
  std::shared_ptr<const Record> record;
  Config config;      ///< the record's config, or its first legal alternate
  int alternate = 0;  ///< 0: the record's own pick; n: its n-th alternate
  PickSource source = PickSource::kHeuristic;
  std::string layer;  ///< "cache", "pack:DIR", "shipped:NAME"
  bool stale_toolchain = false;
};

struct StoreStats {
  std::int64_t corrupt_files = 0;
  std::int64_t published = 0;
  std::int64_t publish_errors = 0;
};

class TunedStore {
 public:
  explicit TunedStore(StoreOptions options);
  ~TunedStore();
  TunedStore(const TunedStore&) = delete;
  TunedStore& operator=(const TunedStore&) = delete;

  /// The key under which the cache keeps a query: what a first use tunes and publishes.
  [[nodiscard]] ShapeKey key_of(const KeyQuery& query) const;

  /// The first legal pick in the declared order, or nothing: then the heuristic serves. Legality is
  /// asked for the pick and its alternates; an empty `legal` accepts everything.
  [[nodiscard]] std::optional<Pick> find(const KeyQuery& query, const LegalFn& legal) const;
  /// The exact step alone.
  [[nodiscard]] std::optional<Pick> find_exact(const KeyQuery& query, const LegalFn& legal) const;

  /// Forgets that a key was looked for in the cache, so that the next `find` reads its file again:
  /// for waiters on another process that is tuning this key.
  void forget(const ShapeKey& key);

  /// Puts an entry into memory, then on disk, where above the cap those go that were used longest
  /// ago. A partial entry does not replace a whole one of this toolchain. Errors: kInvalidArgument
  /// (a record that fails `check`), kIoError (the disk; the entry serves from memory all the same).
  [[nodiscard]] Status publish(const Record& record);

  /// From here on nothing reads or writes a file: what is in memory serves.
  void seal();

  [[nodiscard]] StoreStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Recorded under another NVRTC or driver; empty fields are not compared.
[[nodiscard]] bool is_stale(const Toolchain& recorded, const Toolchain& current);
/// What an upgrade re-times: the default, the pick and its best alternates, three configs at most.
[[nodiscard]] std::vector<Config> retime_candidates(const Record& record);

/// `<root>/tuned`
[[nodiscard]] std::string tuned_root(const std::string& cache_dir);

/// One file of a store directory, as `scanjit cache ls` and `verify` show it.
struct StoreItem {
  std::string path;
  std::string gpu;  ///< the directory's name
  std::int64_t bytes = 0;
  Status status;                  ///< kCorrupt or kIoError: what is wrong
  std::optional<TunedFile> file;  ///< when ok: one entry, or the width buckets and no entry
};
/// Every tuned file below `<cache_dir>`, sorted by path; a missing directory has none. Reads all.
/// Errors: kIoError.
[[nodiscard]] Result<std::vector<StoreItem>> list_store(os::FileSystem& files,
                                                        const std::string& cache_dir);

/// One file out of several of the same GPU model, entries sorted by key text: of two entries of one
/// key the whole one wins over the partial, then the one with more measured points, then the later
/// in the list. Names are united. Every entry must lie in a width bucket of the result, so that it
/// can be found. Errors: kInvalidArgument (no file, different GPU models, width buckets that
/// disagree).
[[nodiscard]] Result<TunedFile> merge(const std::vector<TunedFile>& files);

/// Everything good in `<cache_dir>` of one GPU directory, entries sorted by key text.
/// Errors: kNotFound (no such directory), kIoError.
[[nodiscard]] Result<TunedFile> export_store(os::FileSystem& files, const std::string& cache_dir,
                                             const std::string& gpu_directory);

/// Writes a file's entries and width buckets into `<cache_dir>`. Existing entries are replaced as
/// in `merge`; where the file brings other width buckets for an (HV, V), they replace the
/// directory's, and entries outside the new buckets are removed. Returns how many entries were
/// written. Errors: kIoError, kInvalidArgument (as `merge`).
[[nodiscard]] Result<std::int64_t> import_into_store(os::FileSystem& files,
                                                     const std::string& cache_dir,
                                                     const TunedFile& file);

/// Removes files set aside as corrupt and temporaries left by a crash (older than an hour at
/// `now_ns`, nanoseconds since 1970), then the entries unused longest until at most `max_bytes` of
/// them remain (negative: no cap). Errors: kIoError.
[[nodiscard]] Result<os::SweepResult> collect_garbage(os::FileSystem& files,
                                                      const std::string& cache_dir,
                                                      std::int64_t max_bytes, std::int64_t now_ns);

}  // namespace scanjit::tuning
