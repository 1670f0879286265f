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

BinaryCache::BinaryCache(os::FileSystem& files, const std::string& directory,
                         const std::vector<std::string>& packs, Log log)
    : files_(files), log_(std::move(log)) {
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
      log_.warn_once("trust " + layer.dir,
                     "compiled kernels in " + layer.dir + " are not used: " + status.message());
    }
  }
  return layer.trust == Layer::Trust::kYes;
}

std::optional<BinaryCache::Found> BinaryCache::find(const std::string& source_id,
                                                    const std::string& binary_id,
                                                    const std::string& entry) {
  if (!binary_id.empty()) {
    for (Layer& layer : layers_) {
      if (!trusted(layer)) continue;
      if (auto binary = read(layer, binary_id, source_id, entry))
        return Found{std::move(*binary), layer.from};
    }
  }
  for (Layer& layer : layers_) {
    if (!binary_id.empty() && layer.writable) continue;  // the NVRTC at hand makes its own
    if (!trusted(layer)) continue;
    if (auto binary = read_any(layer, source_id, entry))
      return Found{std::move(*binary), layer.from};
  }
  return std::nullopt;
}

std::optional<StoredBinary> BinaryCache::read(const Layer& layer, const std::string& binary_id,
                                              const std::string& source_id,
                                              const std::string& entry) {
  const std::string path = os::join_path(layer.bin, binary_id + std::string(kSuffix));
  const Result<std::string> bytes = files_.read_file(path, kMostFileBytes);
  if (!bytes.ok()) {
    if (bytes.status().code() != ErrorCode::kNotFound) {
      log_.warn_once("read " + layer.dir,
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
                                                  const std::string& entry) {
  const Result<std::vector<std::string>> names = files_.list_directory(layer.bin);
  if (!names.ok()) return std::nullopt;
  std::optional<StoredBinary> best;
  for (const std::string& name : *names) {
    if (!name.starts_with(source_id + "-") || !name.ends_with(kSuffix)) continue;
    auto binary = read(layer, name.substr(0, name.size() - kSuffix.size()), source_id, entry);
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
  const auto layer =
      std::find_if(layers_.begin(), layers_.end(), [](const Layer& l) { return l.writable; });
  if (layer == layers_.end()) return;
  Status status = files_.make_directories(layer->bin);
  if (status.ok()) {
    if (!trusted(*layer)) return;  // warned of
    status = files_.publish(os::join_path(layer->bin, binary.binary_id + std::string(kSuffix)),
                            encode_binary(binary));
  }
  if (!status.ok()) {
    ++write_errors_;
    log_.warn_once("write " + layer->dir,
                   "compiled kernels are kept in memory only: " + status.message());
  }
}

BinaryCache::Counters BinaryCache::counters() const {
  return {corrupt_files_.load(), write_errors_.load()};
}

}  // namespace scanjit::jit
