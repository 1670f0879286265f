// What `scanjit cache` does to stores: list, merge, export, import, collect garbage.
#include <algorithm>
#include <map>
#include <set>

#include "core/guard.hpp"
#include "os/file_system.hpp"
#include "tuning/store_files.hpp"
#include "tuning/tuned_store.hpp"

namespace scanjit::tuning {
namespace {

/// The directories of all GPU models below a cache directory.
Result<std::vector<std::string>> gpu_directories(os::FileSystem& files,
                                                 const std::string& cache_dir) {
  const std::string root = tuned_root(cache_dir);
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.names_in(root));
  std::vector<std::string> directories;
  for (const std::string& name : names) {
    const Result<os::FileInfo> info = files.info(os::join_path(root, name));
    if (info.ok() && info->type == os::FileType::kDirectory)
      directories.push_back(os::join_path(root, name));
  }
  return directories;
}

/// True if `a` may stay where `b` came later.
bool outranks(const Record& a, const Record& b) {
  if (a.partial != b.partial) return !a.partial;
  return a.measured_at.size() > b.measured_at.size();
}

bool lies_in(const Range& range, const WidthBuckets& buckets) {
  const std::vector<Range> all = buckets.all();
  return std::find(all.begin(), all.end(), range) != all.end();
}

Status removed_or_gone(os::FileSystem& files, const std::string& path) {
  Status status = files.remove_file(path);
  return status.code() == ErrorCode::kNotFound ? Status() : status;
}

}  // namespace

std::string tuned_root(const std::string& cache_dir) { return os::join_path(cache_dir, "tuned"); }

Result<std::vector<StoreItem>> list_store(os::FileSystem& files, const std::string& cache_dir) {
  return guard([&]() -> Result<std::vector<StoreItem>> {
    std::vector<StoreItem> items;
    SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> directories,
                             gpu_directories(files, cache_dir));
    for (const std::string& directory : directories) {
      SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.names_in(directory));
      for (const std::string& name : names) {
        if (!is_entry_name(name) && name != kWidthBucketsName) continue;
        StoreItem item;
        item.path = os::join_path(directory, name);
        item.gpu = os::base_name(directory);
        const Result<os::FileInfo> info = files.info(item.path);
        if (info.ok()) item.bytes = info->size;
        Result<TunedFile> file = read_store_file(files, item.path);
        if (file.ok()) {
          item.file = std::move(file).value();
        } else if (file.status().code() == ErrorCode::kNotFound) {
          continue;  // removed since the directory was listed
        } else {
          item.status = file.status();
        }
        items.push_back(std::move(item));
      }
    }
    return items;
  });
}

Result<TunedFile> merge(const std::vector<TunedFile>& files) {
  return guard([&]() -> Result<TunedFile> {
    if (files.empty()) return invalid_argument("there is no tuned file to merge");
    TunedFile merged;
    merged.gpu = files.front().gpu;
    std::map<std::pair<std::int64_t, std::int64_t>, WidthBuckets> widths;
    std::map<std::string, Record> entries;
    for (const TunedFile& file : files) {
      if (!file.gpu.same_model(merged.gpu)) {
        return invalid_argument("tuned files of different GPU models cannot be merged: " +
                                merged.gpu.directory() + " and " + file.gpu.directory());
      }
      for (const std::string& name : file.gpu.names) {
        auto& names = merged.gpu.names;
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
      for (const WidthBuckets& buckets : file.width_buckets) {
        const auto [known, fresh] = widths.try_emplace({buckets.HV, buckets.V}, buckets);
        if (!fresh && known->second != buckets) {
          return invalid_argument("the width buckets of HV " + std::to_string(buckets.HV) + " V " +
                                  std::to_string(buckets.V) + " differ between the files");
        }
      }
      for (const Record& record : file.entries) {
        const auto [known, fresh] = entries.try_emplace(record.key.text(), record);
        if (!fresh && !outranks(known->second, record)) known->second = record;
      }
    }
    for (auto& [name, buckets] : widths) merged.width_buckets.push_back(std::move(buckets));
    for (auto& [text, record] : entries) {
      if (!lies_in(record.key.sequences, merged.buckets(record.key.HV, record.key.V))) {
        return invalid_argument("the entry of sequences " + to_string(record.key.sequences) +
                                " lies in no width bucket of HV " + std::to_string(record.key.HV) +
                                " V " + std::to_string(record.key.V) +
                                ", so it could never be found: " + text);
      }
      merged.entries.push_back(std::move(record));
    }
    return merged;
  });
}

Result<TunedFile> export_store(os::FileSystem& files, const std::string& cache_dir,
                               const std::string& gpu_directory) {
  return guard([&]() -> Result<TunedFile> {
    SCANJIT_ASSIGN_OR_RETURN(std::vector<StoreItem> items, list_store(files, cache_dir));
    TunedFile gathered;
    bool found = false;
    for (StoreItem& item : items) {
      if (item.gpu != gpu_directory || !item.file) continue;
      if (!found) gathered.gpu = item.file->gpu;
      found = true;
      for (const std::string& name : item.file->gpu.names) {
        auto& names = gathered.gpu.names;
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
      for (WidthBuckets& buckets : item.file->width_buckets)
        gathered.width_buckets.push_back(std::move(buckets));
      for (Record& record : item.file->entries) gathered.entries.push_back(std::move(record));
    }
    if (!found) {
      const std::string path = os::join_path(tuned_root(cache_dir), gpu_directory);
      return not_found("there is no readable tuned entry in " + path, path);
    }
    // Entries of buckets that the directory has since given up cannot be found any more: left
    // behind.
    std::erase_if(gathered.entries, [&](const Record& record) {
      return !lies_in(record.key.sequences, gathered.buckets(record.key.HV, record.key.V));
    });
    return merge({gathered});
  });
}

Result<std::int64_t> import_into_store(os::FileSystem& files, const std::string& cache_dir,
                                       const TunedFile& file) {
  return guard([&]() -> Result<std::int64_t> {
    SCANJIT_ASSIGN_OR_RETURN(const TunedFile incoming, merge({file}));
    const std::string directory = os::join_path(tuned_root(cache_dir), incoming.gpu.directory());
    SCANJIT_ASSIGN_OR_RETURN(const std::vector<StoreItem> items, list_store(files, cache_dir));

    // The directory's buckets afterwards: an (HV, V) that the file has entries of goes by the file.
    TunedFile widths;
    widths.gpu = incoming.gpu;
    std::set<std::pair<std::int64_t, std::int64_t>> from_file;
    for (const Record& record : incoming.entries) {
      if (from_file.insert({record.key.HV, record.key.V}).second) {
        widths.width_buckets.push_back(incoming.buckets(record.key.HV, record.key.V));
      }
    }
    for (const WidthBuckets& buckets : incoming.width_buckets) {
      if (from_file.insert({buckets.HV, buckets.V}).second) widths.width_buckets.push_back(buckets);
    }
    std::map<std::string, const Record*> present;
    for (const StoreItem& item : items) {
      if (item.gpu != incoming.gpu.directory() || !item.file) continue;
      for (const WidthBuckets& buckets : item.file->width_buckets) {
        if (from_file.count({buckets.HV, buckets.V}) == 0) widths.width_buckets.push_back(buckets);
      }
      for (const Record& record : item.file->entries) present[record.key.text()] = &record;
    }
    // Buckets last: until they are there, new entries outside the old buckets are only not found.
    std::int64_t written = 0;
    for (const Record& record : incoming.entries) {
      const auto known = present.find(record.key.text());
      if (known != present.end() && outranks(*known->second, record)) continue;
      SCANJIT_TRY(write_entry(files, directory, incoming.gpu, record).status());
      ++written;
    }
    if (!widths.width_buckets.empty()) SCANJIT_TRY(write_width_buckets(files, directory, widths));
    for (const auto& [text, record] : present) {
      if (lies_in(record->key.sequences, widths.buckets(record->key.HV, record->key.V))) continue;
      SCANJIT_TRY(removed_or_gone(files, os::join_path(directory, record->key.file_name())));
    }
    return written;
  });
}

Result<os::SweepResult> collect_garbage(os::FileSystem& files, const std::string& cache_dir,
                                        std::int64_t max_bytes, std::int64_t now_ns) {
  return guard([&]() -> Result<os::SweepResult> {
    const Result<os::FileInfo> root = files.link_info(tuned_root(cache_dir));
    if (root.ok() && root->type == os::FileType::kSymlink) return os::SweepResult();  // not ours
    SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> directories,
                             gpu_directories(files, cache_dir));
    return os::sweep_folders(files, directories, store_file_kind, max_bytes, now_ns);
  });
}

}  // namespace scanjit::tuning
