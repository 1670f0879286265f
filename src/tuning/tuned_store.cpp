#include "tuning/tuned_store.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "core/guard.hpp"
#include "core/hash.hpp"
#include "os/file_system.hpp"
#include "tuning/store_files.hpp"

namespace scanjit::tuning {
namespace {

using RecordPtr = std::shared_ptr<const Record>;

/// The entries of one directory or one shipped file, as far as they were needed.
struct Layer {
  std::string name;
  std::string root;       // the cache or pack that it is a part of
  std::string directory;  // "" if nothing of it is on disk
  bool writable = false;
  GpuFacts gpu;
  std::string_view shipped;  // the text of a shipped file, read family by family

  // Guarded by `mutex`, which is never held while a file is read or written.
  std::mutex mutex;
  std::map<std::string, RecordPtr> records;  // by key text
  std::set<std::string> asked;               // file names that were read, or were not there
  bool listed = false;                       // every file of the directory was read
  std::set<std::string> families;            // that were read of `shipped`
  bool buckets_read = false;
  TunedFile widths;  // only its width buckets

  void add(const RecordPtr& record) { records[record->key.text()] = record; }
};

int optional_differences(const ShapeKey& a, const ShapeKey& b) {
  std::vector<std::string> different;
  std::set_symmetric_difference(a.optional.begin(), a.optional.end(), b.optional.begin(),
                                b.optional.end(), std::back_inserter(different));
  return static_cast<int>(different.size()) + (a.gate != b.gate) + (a.gate_base != b.gate_base) +
         (a.packed != b.packed) + (a.index != b.index) + (a.pool != b.pool);
}

/// What no step lets differ.
bool same_family(const ShapeKey& a, const ShapeKey& b) {
  const auto sixteen_bits = [](DType dtype) {
    return dtype == DType::kBf16 || dtype == DType::kF16;
  };
  return a.kernel == b.kernel && a.kernel_revision == b.kernel_revision && a.space == b.space &&
         a.K == b.K && a.V == b.V && a.BT == b.BT && a.layout == b.layout &&
         a.alignment == b.alignment && a.numerics == b.numerics && a.H == b.H && a.HV == b.HV &&
         (a.dtype == b.dtype || (sixteen_bits(a.dtype) && sixteen_bits(b.dtype)));
}

bool adjacent(const Range& a, const Range& b) {
  return (a.max && *a.max + 1 == b.min) || (b.max && *b.max + 1 == a.min);
}

/// How far `value` lies outside a range, as a ratio; 1 inside.
double distance(std::int64_t value, const Range& range) {
  const double v = static_cast<double>(std::max<std::int64_t>(value, 1));
  if (value < range.min) return static_cast<double>(range.min) / v;
  if (range.max && value > *range.max) return v / static_cast<double>(*range.max);
  return 1;
}

/// A record that one of the steps after "exact" may serve, and how much it differs.
struct Neighbour {
  PickSource source;
  std::array<int, 4> differences;  // width, chunks, dtype, optional tensors
  double width_distance;
  double chunk_distance;
  std::size_t layer;
  RecordPtr record;

  [[nodiscard]] auto order() const {
    return std::make_tuple(differences, width_distance, chunk_distance, layer);
  }
};

std::optional<Neighbour> neighbour_of(const KeyQuery& query, const ShapeKey& wanted,
                                      const RecordPtr& record, std::size_t layer) {
  const ShapeKey& key = record->key;
  if (!same_family(key, wanted)) return std::nullopt;
  const bool other_width = key.sequences != wanted.sequences;
  const bool other_chunks = key.chunks != wanted.chunks;
  if (other_width && !adjacent(key.sequences, wanted.sequences)) return std::nullopt;
  if (other_chunks && !adjacent(key.chunks, wanted.chunks)) return std::nullopt;
  const bool other_dtype = key.dtype != wanted.dtype;
  const int optional = optional_differences(key, wanted);
  const PickSource source = other_width    ? PickSource::kNeighbourWidth
                            : other_chunks ? PickSource::kNeighbourChunks
                            : other_dtype  ? PickSource::kOtherDtype
                            : optional > 0 ? PickSource::kOtherOptionalSet
                                           : PickSource::kExact;
  return Neighbour{source,
                   {other_width, other_chunks, other_dtype, optional},
                   distance(query.sequences, key.sequences),
                   distance(query.chunks, key.chunks),
                   layer,
                   record};
}

/// How unlike two GPU models are; the first difference that counts is the architecture.
auto unlikeness(const GpuFacts& a, const GpuFacts& b) {
  return std::make_tuple(a.compute_major != b.compute_major, a.compute_minor != b.compute_minor,
                         std::abs(std::log(static_cast<double>(std::max(a.sm_count, 1)) /
                                           static_cast<double>(std::max(b.sm_count, 1)))));
}

}  // namespace

struct TunedStore::Impl {
  explicit Impl(StoreOptions given) : options(std::move(given)) {
    const auto add_directory = [&](const std::string& name, const std::string& root,
                                   bool writable) {
      auto layer = std::make_unique<Layer>();
      layer->name = name;
      layer->writable = writable;
      layer->gpu = options.gpu;
      layer->widths.gpu = options.gpu;
      if (!root.empty() && options.files != nullptr) {
        layer->root = root;
        layer->directory = os::join_path(tuned_root(root), options.gpu.directory());
      }
      directories.push_back(std::move(layer));
    };
    add_directory("cache", options.cache_dir, true);
    for (const std::string& pack : options.pack_dirs) add_directory("pack:" + pack, pack, false);
    if (!directories.front()->directory.empty()) {
      cap.emplace(*options.files, directories.front()->directory, store_file_kind,
                  options.cache_max_bytes);
    }
  }

  StoreOptions options;
  std::vector<std::unique_ptr<Layer>> directories;  // [0] is the cache
  std::optional<os::FolderCap> cap;                 // of the cache
  std::atomic<bool> sealed{false};

  std::once_flag shipped_once;
  std::vector<std::unique_ptr<Layer>> shipped;  // of this GPU model
  std::vector<std::unique_ptr<Layer>> foreign;  // of others, the likest first

  std::mutex warned_mutex;
  std::set<std::string> warned;
  std::atomic<std::int64_t> corrupt_files{0}, published{0}, publish_errors{0};

  void warn_once(const std::string& about, const std::string& message) {
    if (!options.warn) return;
    {
      const std::lock_guard lock(warned_mutex);
      if (!warned.insert(about).second) return;
    }
    options.warn(about, message);
  }

  void note_bad_file(const Layer& layer, const std::string& path, const Status& status) {
    if (status.code() != ErrorCode::kCorrupt) {
      warn_once("store " + layer.root,
                "tuned entries of " + layer.name + " cannot be read: " + status.message());
      return;
    }
    ++corrupt_files;
    std::string outcome = "it is skipped";
    if (layer.writable) {
      outcome = set_aside(*options.files, path).ok() ? "it is set aside"
                                                     : "it cannot be set aside and is skipped";
    }
    warn_once("corrupt " + layer.directory,
              "tuned file " + path + " is damaged (" + status.message() + "); " + outcome);
  }

  /// Reads one entry's file; nothing if it is missing, damaged or not what its name says.
  RecordPtr read_record_file(const Layer& layer, const std::string& name) {
    const std::string path = os::join_path(layer.directory, name);
    Result<TunedFile> file = read_store_file(*options.files, path);
    if (!file.ok()) {
      if (file.status().code() != ErrorCode::kNotFound) note_bad_file(layer, path, file.status());
      return nullptr;
    }
    return std::make_shared<const Record>(std::move(file->entries.front()));
  }

  WidthBuckets buckets(Layer& layer, std::int64_t HV, std::int64_t V) {
    {
      const std::lock_guard lock(layer.mutex);
      if (layer.buckets_read || layer.directory.empty() || sealed)
        return layer.widths.buckets(HV, V);
    }
    std::vector<WidthBuckets> found;
    const std::string path = os::join_path(layer.directory, kWidthBucketsName);
    Result<TunedFile> file = read_store_file(*options.files, path);
    if (file.ok()) {
      found = std::move(file->width_buckets);
    } else if (file.status().code() != ErrorCode::kNotFound) {
      note_bad_file(layer, path, file.status());
    }
    const std::lock_guard lock(layer.mutex);
    if (!layer.buckets_read) {
      layer.widths.width_buckets = std::move(found);
      layer.buckets_read = true;
    }
    return layer.widths.buckets(HV, V);
  }

  ShapeKey key_in(Layer& layer, const KeyQuery& query) {
    return query.under(buckets(layer, query.key.HV, query.key.V));
  }

  /// Reads the entries of a shipped file that a key can have to do with. To read all of a large file
  /// would take most of a warm start.
  void read_family(Layer& layer, const ShapeKey& key) {
    if (layer.shipped.empty()) return;
    const std::lock_guard lock(layer.mutex);
    if (!layer.families
             .insert(key.kernel + " " + std::to_string(key.H) + " " + std::to_string(key.HV))
             .second)
      return;
    Result<TunedFile> file = tuned_file_from_json(
        only_entries(layer.shipped, key.kernel, key.H, key.HV), Checksum::kWithout);
    if (!file.ok()) {
      note_bad_shipped(layer.name, file.status());
      return;
    }
    for (Record& record : file->entries) {
      const auto kept = std::make_shared<const Record>(std::move(record));
      layer.records.try_emplace(kept->key.text(), kept);
    }
  }

  void note_bad_shipped(const std::string& name, const Status& status) {
    ++corrupt_files;
    warn_once(name, name + " is skipped: " + status.message());
  }

  RecordPtr exact(Layer& layer, const ShapeKey& key) {
    read_family(layer, key);
    const std::string text = key.text();
    const std::string name = key.file_name();
    {
      const std::lock_guard lock(layer.mutex);
      const auto found = layer.records.find(text);
      if (found != layer.records.end()) return found->second;
      if (layer.directory.empty() || sealed || layer.asked.count(name) > 0) return nullptr;
    }
    RecordPtr record = read_record_file(layer, name);
    // The stamp of last use is a convenience for clearing the cache: it may fail.
    if (record != nullptr && layer.writable)
      static_cast<void>(options.files->touch(os::join_path(layer.directory, name)));
    const std::lock_guard lock(layer.mutex);
    layer.asked.insert(name);
    if (record != nullptr) layer.records.try_emplace(record->key.text(), record);
    const auto found = layer.records.find(text);  // another thread may have published meanwhile
    return found != layer.records.end() ? found->second : nullptr;
  }

  /// Reads what is left of a directory, so that neighbours can be found.
  void read_all(Layer& layer) {
    std::set<std::string> asked;
    {
      const std::lock_guard lock(layer.mutex);
      if (layer.listed || layer.directory.empty() || sealed) return;
      asked = layer.asked;
      for (const auto& [text, record] : layer.records) asked.insert(record->key.file_name());
    }
    std::vector<RecordPtr> records;
    const Result<std::vector<std::string>> names = options.files->list_directory(layer.directory);
    if (names.ok()) {
      for (const std::string& name : *names) {
        if (!is_entry_name(name) || asked.count(name) > 0) continue;
        asked.insert(name);
        if (RecordPtr record = read_record_file(layer, name)) records.push_back(std::move(record));
      }
    } else if (names.status().code() != ErrorCode::kNotFound) {
      note_bad_file(layer, layer.directory, names.status());
    }
    const std::lock_guard lock(layer.mutex);
    layer.listed = true;
    layer.asked.merge(asked);
    for (const RecordPtr& record : records) layer.records.try_emplace(record->key.text(), record);
  }

  void read_shipped() {
    std::call_once(shipped_once, [&] {
      for (const ShippedText& text : options.shipped) {
        const std::string name = "shipped:" + std::string(text.name);
        Result<TunedFile> file =
            tuned_file_from_json(only_entries(text.text, "", 0, 0), Checksum::kWithout);
        if (!file.ok()) {
          note_bad_shipped(name, file.status());
          continue;
        }
        auto layer = std::make_unique<Layer>();
        layer->name = name;
        layer->gpu = file->gpu;
        layer->widths.gpu = file->gpu;
        layer->widths.width_buckets = std::move(file->width_buckets);
        layer->shipped = text.text;
        (layer->gpu.same_model(options.gpu) ? shipped : foreign).push_back(std::move(layer));
      }
      std::stable_sort(foreign.begin(), foreign.end(), [&](const auto& a, const auto& b) {
        return unlikeness(a->gpu, options.gpu) < unlikeness(b->gpu, options.gpu);
      });
    });
  }

  /// This GPU's layers, first to last.
  std::vector<Layer*> layers() {
    read_shipped();
    std::vector<Layer*> all;
    for (const auto& layer : directories) all.push_back(layer.get());
    for (const auto& layer : shipped) all.push_back(layer.get());
    return all;
  }

  std::optional<Pick> legal_pick(const RecordPtr& record, const Layer& layer, PickSource source,
                                 const LegalFn& legal) {
    const auto pick = [&](const Config& config, int alternate) {
      return Pick{record, config,     alternate,
                  source, layer.name, is_stale(record->toolchain, options.toolchain)};
    };
    const auto is_legal = [&](const Config& config) { return !legal || legal(config).ok(); };
    if (is_legal(record->config)) return pick(record->config, 0);
    int number = 0;
    for (const Alternate& alternate : record->alternates) {
      ++number;
      if (is_legal(alternate.config)) return pick(alternate.config, number);
    }
    return std::nullopt;
  }

  std::optional<Pick> find_exact(const KeyQuery& query, const LegalFn& legal) {
    // Directories before shipped texts are even parsed: a warm start reads one small file.
    for (const auto& layer : directories) {
      if (const RecordPtr record = exact(*layer, key_in(*layer, query))) {
        if (auto pick = legal_pick(record, *layer, PickSource::kExact, legal)) return pick;
      }
    }
    read_shipped();
    for (const auto& layer : shipped) {
      if (const RecordPtr record = exact(*layer, key_in(*layer, query))) {
        if (auto pick = legal_pick(record, *layer, PickSource::kExact, legal)) return pick;
      }
    }
    return std::nullopt;
  }

  std::optional<Pick> find_near(const KeyQuery& query, const LegalFn& legal,
                                const std::vector<Layer*>& where) {
    std::vector<Neighbour> neighbours;
    for (std::size_t i = 0; i < where.size(); ++i) {
      Layer& layer = *where[i];
      const ShapeKey wanted = key_in(layer, query);
      read_all(layer);
      read_family(layer, wanted);
      const std::lock_guard lock(layer.mutex);
      for (const auto& [text, record] : layer.records) {
        if (auto neighbour = neighbour_of(query, wanted, record, i))
          neighbours.push_back(std::move(*neighbour));
      }
    }
    // Records of one layer come in the order of their key texts, and the sort keeps it.
    std::stable_sort(neighbours.begin(), neighbours.end(),
                     [](const Neighbour& a, const Neighbour& b) { return a.order() < b.order(); });
    for (const Neighbour& neighbour : neighbours) {
      auto pick = legal_pick(neighbour.record, *where[neighbour.layer], neighbour.source, legal);
      if (pick) return pick;
    }
    return std::nullopt;
  }

  std::optional<Pick> find(const KeyQuery& query, const LegalFn& legal) {
    if (auto pick = find_exact(query, legal)) return pick;
    if (auto pick = find_near(query, legal, layers())) return pick;
    for (const auto& layer : foreign) {
      if (auto pick = find_near(query, legal, {layer.get()})) {
        pick->source = PickSource::kNearestGpu;
        return pick;
      }
    }
    return std::nullopt;
  }

  Status publish(const Record& record) {
    if (const Status status = record.check(); !status.ok()) {
      return invalid_argument("the record cannot be published: " + status.message());
    }
    Layer& cache = *directories.front();
    const RecordPtr kept = exact(cache, record.key);
    if (record.partial && kept != nullptr && !kept->partial &&
        !is_stale(kept->toolchain, options.toolchain))
      return {};
    const std::string name = record.key.file_name();
    {
      const std::lock_guard lock(cache.mutex);
      cache.add(std::make_shared<const Record>(record));
      cache.asked.insert(name);
    }
    if (cache.directory.empty() || sealed) {
      ++published;
      return {};
    }
    const Result<std::int64_t> bytes =
        write_entry(*options.files, cache.directory, options.gpu, record);
    if (bytes.ok()) {
      ++published;
      cap->wrote(*bytes);
    } else {
      ++publish_errors;
      warn_once("store " + cache.root,
                "nothing more is stored in " + cache.root +
                    ", what is tuned stays in memory: " + bytes.status().message());
    }
    return bytes.status();
  }
};

TunedStore::TunedStore(StoreOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
TunedStore::~TunedStore() = default;

ShapeKey TunedStore::key_of(const KeyQuery& query) const {
  return impl_->key_in(*impl_->directories.front(), query);
}

std::optional<Pick> TunedStore::find(const KeyQuery& query, const LegalFn& legal) const {
  return impl_->find(query, legal);
}

std::optional<Pick> TunedStore::find_exact(const KeyQuery& query, const LegalFn& legal) const {
  return impl_->find_exact(query, legal);
}

void TunedStore::forget(const ShapeKey& key) {
  Layer& cache = *impl_->directories.front();
  if (cache.directory.empty() || impl_->sealed) return;
  const std::lock_guard lock(cache.mutex);
  cache.asked.erase(key.file_name());
}

Status TunedStore::publish(const Record& record) {
  return guard([&] { return impl_->publish(record); });
}

void TunedStore::seal() { impl_->sealed = true; }

StoreStats TunedStore::stats() const {
  return {impl_->corrupt_files, impl_->published, impl_->publish_errors};
}

bool is_stale(const Toolchain& recorded, const Toolchain& current) {
  const auto differs = [](const std::string& a, const std::string& b) {
    return !a.empty() && !b.empty() && a != b;
  };
  return differs(recorded.nvrtc, current.nvrtc) || differs(recorded.driver, current.driver);
}

std::vector<Config> retime_candidates(const Record& record) {
  constexpr std::size_t kMost = 3;
  std::vector<Config> configs{record.default_config};
  const auto add = [&](const Config& config) {
    if (configs.size() < kMost &&
        std::find(configs.begin(), configs.end(), config) == configs.end()) {
      configs.push_back(config);
    }
  };
  add(record.config);
  for (const Alternate& alternate : record.alternates) add(alternate.config);
  return configs;
}

}  // namespace scanjit::tuning
