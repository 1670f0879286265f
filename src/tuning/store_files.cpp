#include "tuning/store_files.hpp"

#include <atomic>

#include "core/hash.hpp"

namespace scanjit::tuning {
namespace {

constexpr std::int64_t kMaxFileBytes = std::int64_t{4} << 20;  // an entry has a few kilobytes
constexpr const char* kSetAside = ".corrupt-";

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

bool is_entry_name(const std::string& name) {
  return ends_with(name, ".json") && name != kWidthBucketsName && !os::is_temporary_name(name);
}

os::StoreFileKind store_file_kind(const std::string& name) {
  if (is_entry_name(name)) return os::StoreFileKind::kEntry;
  return name.find(kSetAside) != std::string::npos ? os::StoreFileKind::kSetAside
                                                   : os::StoreFileKind::kOther;
}

Result<TunedFile> read_store_file(os::FileSystem& files, const std::string& path) {
  SCANJIT_ASSIGN_OR_RETURN(const std::string text, files.read_file(path, kMaxFileBytes));
  Result<TunedFile> file = tuned_file_from_json(text, Checksum::kWith);
  if (!file.ok()) return corrupt(file.status().message(), path);
  const std::string name = os::base_name(path);
  const std::string directory = os::base_name(os::parent_path(path));
  if (file->gpu.directory() != directory) {
    return corrupt(
        "it is of GPU " + file->gpu.directory() + " and lies in the directory " + directory, path);
  }
  if (name == kWidthBucketsName) {
    if (!file->entries.empty()) return corrupt("it holds entries beside the width buckets", path);
    return file;
  }
  if (file->entries.size() != 1) {
    return corrupt("it holds " + std::to_string(file->entries.size()) + " entries; it must hold 1",
                   path);
  }
  if (!file->width_buckets.empty()) return corrupt("it holds width buckets beside the entry", path);
  if (file->entries.front().key.file_name() != name) {
    return corrupt("its key belongs to the file " + file->entries.front().key.file_name(), path);
  }
  return file;
}

Result<std::int64_t> write_entry(os::FileSystem& files, const std::string& directory,
                                 const GpuFacts& gpu, const Record& record) {
  SCANJIT_TRY(files.make_directories(directory));
  TunedFile file;
  file.gpu = gpu;
  file.entries.push_back(record);
  const std::string text = to_json(file, Checksum::kWith);
  SCANJIT_TRY(files.publish(os::join_path(directory, record.key.file_name()), text));
  return static_cast<std::int64_t>(text.size());
}

Status write_width_buckets(os::FileSystem& files, const std::string& directory,
                           const TunedFile& file) {
  SCANJIT_TRY(files.make_directories(directory));
  TunedFile widths;
  widths.gpu = file.gpu;
  widths.width_buckets = file.width_buckets;
  return files.publish(os::join_path(directory, kWidthBucketsName),
                       to_json(widths, Checksum::kWith));
}

Status set_aside(os::FileSystem& files, const std::string& path) {
  // The id tells apart what is set aside twice; the content's hash keeps it the same for the same
  // damage.
  const Result<std::string> bytes = files.read_file(path, kMaxFileBytes);
  const std::string id = bytes.ok() ? sha256_hex(*bytes).substr(0, 8) : std::string("unreadable");
  return files.rename(path, path + kSetAside + id);
}

}  // namespace scanjit::tuning
