#include "jit/binary_cache.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "core/hash.hpp"

namespace scanjit::jit {
namespace {

constexpr std::int64_t kMostFileBytes = std::int64_t{64} << 20;
constexpr std::string_view kSuffix = ".cubin";
constexpr std::string_view kSetAside = ".cubin.corrupt-";

// "13.0.88" -> 13, 0, 88: what is no number counts as 0.
std::vector<int> version_numbers(std::string_view version) {
  std::vector<int> numbers;
  while (true) {
    const std::size_t dot = version.find('.');
    const std::string_view part = version.substr(0, dot);
    int number = 0;
    std::from_chars(part.data(), part.data() + part.size(), number);
    numbers.push_back(number);
    if (dot == std::string_view::npos) return numbers;
    version.remove_prefix(dot + 1);
  }
}

}  // namespace

os::StoreFileKind binary_file_kind(const std::string& name) {
  if (name.ends_with(kSuffix)) return os::StoreFileKind::kEntry;
  return name.find(kSetAside) != std::string::npos ? os::StoreFileKind::kSetAside
                                                   : os::StoreFileKind::kOther;
}

BinaryCache::BinaryCache(os::FileSystem& files, const std::string& directory,
                         const std::vector<std::string>& packs, Log log, std::int64_t max_bytes)
    : files_(files),
      log_(std::move(log)),
      cap_(files, os::join_path(directory, "bin"), binary_file_kind, max_bytes) {
  if (!directory.empty()) {
    layers_.push_back(
        {directory, os::join_path(directory, "bin"), "cache", true, Layer::Trust::kUnknown});
  }
  for (const std::string& pack : packs) {
    layers_.push_back(
        {pack, os::join_path(pack, "bin"), "pack:" + pack, false, Layer::Trust::kUnknown});
  }
}

bool BinaryCache::trusted(Layer& layer) {
  const std::lock_guard lock(mutex_);
  if (layer.trust == Layer::Trust::kUnknown) {
    if (!files_.exists(layer.bin)) return false;  // perhaps later
    const os::TrustedOwner owner =
        layer.writable ? os::TrustedOwner::kSelf : os::TrustedOwner::kSelfOrRoot;
    Status status = files_.check_trusted_directory(layer.dir, owner);
    if (status.ok()) status = files_.check_trusted_directory(layer.bin, owner);
    layer.trust = status.ok() ? Layer::Trust::kYes : Layer::Trust::kNo;
    if (!status.ok()) {
      log_.warn_once("store " + layer.dir,
                     "compiled kernels in " + layer.dir + " are not used: " + status.message());
    }
  }
  return layer.trust == Layer::Trust::kYes;
}

std::optional<BinaryCache::Found> BinaryCache::find(const std::string& source_id,
                                                    const std::string& binary_id,
                                                    const std::string& entry,
                                                    const Refused& refused) {
  const bool own_refused = refused.count(binary_id) > 0;
  if (!binary_id.empty() && !own_refused) {
    for (Layer& layer : layers_) {
      if (!trusted(layer)) continue;
      if (auto binary = read(layer, binary_id, source_id, entry))
        return Found{std::move(*binary), layer.from};
    }
  }
  for (Layer& layer : layers_) {
    // The NVRTC at hand makes its own, if the driver takes what it makes.
    if (!binary_id.empty() && layer.writable && !own_refused) continue;
    if (!trusted(layer)) continue;
    if (auto binary = read_any(layer, source_id, entry, refused))
      return Found{std::move(*binary), layer.from};
  }
  return std::nullopt;
}

BinaryCache::Layer* BinaryCache::writable_layer() {
  const auto layer =
      std::find_if(layers_.begin(), layers_.end(), [](const Layer& l) { return l.writable; });
  return layer == layers_.end() ? nullptr : &*layer;
}

std::optional<BinaryCache::Found> BinaryCache::find_published(const std::string& source_id,
                                                              const std::string& binary_id,
                                                              const std::string& entry) {
  Layer* const layer = writable_layer();
  if (layer == nullptr || !trusted(*layer)) return std::nullopt;
  auto binary = read(*layer, binary_id, source_id, entry);
  if (!binary) return std::nullopt;
  return Found{std::move(*binary), layer->from};
}

Result<std::optional<os::FileLock>> BinaryCache::try_claim(const std::string& binary_id) {
  Layer* const layer = writable_layer();
  if (layer == nullptr) return unsupported("there is no cache directory to lock in");
  const std::string folder = os::join_path(layer->dir, "locks");
  if (!files_.exists(folder)) {
    if (const Status made = files_.make_directories(folder); !made.ok())
      return unsupported(made.message() + "; going on without a lock");
  }
  // A folder that is not used is not compiled for either.
  if (files_.exists(layer->bin) && !trusted(*layer))
    return unsupported("there is no cache directory that can be used");
  return files_.try_lock(os::join_path(folder, binary_id + ".lock"));
}

std::optional<StoredBinary> BinaryCache::read(const Layer& layer, const std::string& binary_id,
                                              const std::string& source_id,
                                              const std::string& entry) {
  const std::string path = os::join_path(layer.bin, binary_id + std::string(kSuffix));
  const Result<std::string> bytes = files_.read_file(path, kMostFileBytes);
  if (!bytes.ok()) {
    if (bytes.status().code() != ErrorCode::kNotFound) {
      log_.warn_once("store " + layer.dir,
                     "a compiled kernel is passed over: " + bytes.status().message());
    }
    return std::nullopt;
  }
  Result<StoredBinary> binary = decode_binary(*bytes);
  if (binary.ok() && (binary->binary_id != binary_id || binary->source_id != source_id ||
                      binary->entry != entry)) {
    binary = corrupt("the file is another kernel than its name says");
  }
  if (!binary.ok()) {
    set_aside(layer, path, *bytes, binary.status());
    return std::nullopt;
  }
  // The stamp of last use is a convenience for clearing the cache: it may fail.
  if (layer.writable) static_cast<void>(files_.touch(path));
  return std::move(binary).value();
}

std::optional<StoredBinary> BinaryCache::read_any(const Layer& layer, const std::string& source_id,
                                                  const std::string& entry,
                                                  const Refused& refused) {
  const Result<std::vector<std::string>> names = files_.list_directory(layer.bin);
  if (!names.ok()) return std::nullopt;
  std::optional<StoredBinary> best;
  for (const std::string& name : *names) {
    if (!name.starts_with(source_id + "-") || !name.ends_with(kSuffix)) continue;
    const std::string binary_id = name.substr(0, name.size() - kSuffix.size());
    if (refused.count(binary_id) > 0) continue;
    auto binary = read(layer, binary_id, source_id, entry);
    if (binary && (!best || version_numbers(best->nvrtc) < version_numbers(binary->nvrtc)))
      best = std::move(binary);
  }
  return best;
}

void BinaryCache::set_aside(const Layer& layer, const std::string& path, const std::string& bytes,
                            const Status& reason) {
  ++corrupt_files_;
  log_.warn_once("corrupt " + layer.dir, path + " is damaged and not used: " + reason.message());
  if (!layer.writable) return;
  constexpr std::size_t kDigits = 16;
  // If it cannot be renamed it stays, and the file that replaces it lands on it.
  static_cast<void>(files_.rename(path, path + ".corrupt-" + sha256_hex(bytes).substr(0, kDigits)));
}

void BinaryCache::put(const StoredBinary& binary) {
  Layer* const layer = writable_layer();
  if (layer == nullptr) return;
  Status status = files_.make_directories(layer->bin);
  if (status.ok()) {
    if (!trusted(*layer)) {  // warned of
      ++write_errors_;
      return;
    }
    const std::string bytes = encode_binary(binary);
    status =
        files_.publish(os::join_path(layer->bin, binary.binary_id + std::string(kSuffix)), bytes);
    if (status.ok()) cap_.wrote(static_cast<std::int64_t>(bytes.size()));
  }
  if (!status.ok()) {
    ++write_errors_;
    log_.warn_once("store " + layer->dir,
                   "nothing more is stored in " + layer->dir +
                       ", what is compiled stays in memory: " + status.message());
  }
}

BinaryCache::Counters BinaryCache::counters() const {
  return {corrupt_files_.load(), write_errors_.load()};
}

}  // namespace scanjit::jit
