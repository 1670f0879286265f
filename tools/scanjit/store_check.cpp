#include "store_check.hpp"

#include <utility>

#include "engine/record_check.hpp"
#include "jit/binary_cache.hpp"
#include "os/posix_file_system.hpp"

namespace scanjit::cli {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;

os::FileSystem& files() { return os::posix_file_system(); }

// A file that somebody else owns or may write to is no more to be trusted than such a directory.
Status check_file(const os::FileInfo& info) {
  constexpr std::uint32_t kWritableByOthers = 0022, kRoot = 0;
  if (info.type == os::FileType::kSymlink) return unsupported("it is a symbolic link");
  if (info.owner != files().user_id() && info.owner != kRoot)
    return unsupported("it belongs to user " + std::to_string(info.owner));
  if ((info.mode & kWritableByOthers) != 0)
    return unsupported("others can write to it; chmod go-w it");
  return {};
}

// `directory` and the files right in it; what is not there has no rights.
Status check_rights(const std::string& directory, std::vector<Finding>* findings) {
  const Status trusted = files().check_trusted_directory(directory, os::TrustedOwner::kSelfOrRoot);
  if (trusted.code() == ErrorCode::kNotFound) return {};
  if (!trusted.ok()) findings->push_back({directory, trusted});
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files().names_in(directory));
  for (const std::string& name : names) {
    const std::string path = os::join_path(directory, name);
    const Result<os::FileInfo> info = files().link_info(path);
    if (!info.ok() || info->type == os::FileType::kDirectory) continue;
    if (Status status = check_file(*info); !status.ok())
      findings->push_back({path, std::move(status)});
  }
  return {};
}

}  // namespace

Result<BinaryItem> read_binary(const std::string& path) {
  BinaryItem item;
  item.path = path;
  SCANJIT_ASSIGN_OR_RETURN(const os::FileInfo info, files().info(path));
  item.bytes = info.size;
  Result<std::string> bytes = files().read_file(path, kMaxBytes);
  if (!bytes.ok()) {
    item.status = bytes.status();
    return item;
  }
  Result<jit::StoredBinary> binary = jit::decode_binary(*bytes);
  if (!binary.ok()) {
    item.status = binary.status();
  } else if (os::base_name(path) != binary->binary_id + ".cubin") {
    item.status = corrupt("its name is not that of the binary inside, " + binary->binary_id, path);
  } else {
    item.binary = std::move(*binary);
  }
  return item;
}

Result<std::vector<BinaryItem>> list_binaries(const std::string& directory) {
  std::vector<BinaryItem> items;
  const std::string bin = os::join_path(directory, "bin");
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files().names_in(bin));
  for (const std::string& name : names) {
    if (!name.ends_with(".cubin")) continue;
    Result<BinaryItem> item = read_binary(os::join_path(bin, name));
    if (item.ok()) items.push_back(std::move(*item));
  }
  return items;
}

Result<tuning::TunedFile> read_tuned(const std::string& path) {
  SCANJIT_ASSIGN_OR_RETURN(const std::string text, files().read_file(path, kMaxBytes));
  Result<tuning::TunedFile> file = tuning::tuned_file_from_json(text, tuning::Checksum::kWithout);
  const Status status = file.ok() ? engine::check_records(*file) : file.status();
  if (!status.ok()) return Status(status.code(), path + ": " + status.message(), {{}, path, 0});
  return file;
}

Result<StoreCheck> check_store(const std::string& directory) {
  StoreCheck result;
  SCANJIT_ASSIGN_OR_RETURN(const auto items, tuning::list_store(files(), directory));
  SCANJIT_ASSIGN_OR_RETURN(const auto binaries, list_binaries(directory));
  result.checked = static_cast<std::int64_t>(items.size() + binaries.size());
  for (const tuning::StoreItem& item : items) {
    const Status status = item.file ? engine::check_records(*item.file) : item.status;
    if (!status.ok()) result.findings.push_back({item.path, status});
  }
  for (const BinaryItem& item : binaries) {
    if (!item.status.ok()) result.findings.push_back({item.path, item.status});
  }
  const std::string tuned = tuning::tuned_root(directory);
  std::vector<std::string> folders = {directory, os::join_path(directory, "bin"), tuned};
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files().names_in(tuned));
  for (const std::string& name : names) {
    const std::string path = os::join_path(tuned, name);
    const Result<os::FileInfo> info = files().info(path);
    if (info.ok() && info->type == os::FileType::kDirectory) folders.push_back(path);
  }
  for (const std::string& folder : folders) SCANJIT_TRY(check_rights(folder, &result.findings));
  return result;
}

}  // namespace scanjit::cli
