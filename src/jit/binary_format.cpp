#include "jit/binary_format.hpp"

#include <array>

#include "core/hash.hpp"

namespace scanjit::jit {
namespace {

constexpr std::string_view kMagic = "SCANJITB";
constexpr std::size_t kChecksumBytes = 32;

std::string checksum_of(std::string_view bytes) {
  const std::array<std::uint8_t, kChecksumBytes> digest = Sha256().update(bytes).digest();
  return std::string(digest.begin(), digest.end());
}

// A field and its length: no other division of the same bytes gives the same hash.
void hash_field(Sha256& hash, std::string_view field) {
  hash.update(std::to_string(field.size()) + ":").update(field);
}

class Writer {
 public:
  template <class T>
  void integer(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      out_ += static_cast<char>((value >> (8 * i)) & 0xff);
  }
  void text(std::string_view value) {
    integer(static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }
  void raw(std::string_view value) { out_ += value; }
  std::string take() { return std::move(out_); }
  [[nodiscard]] std::string_view bytes() const { return out_; }

 private:
  std::string out_;
};

// After a read that would pass the end, everything read is empty and `failed` stays true.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T integer() {
    T value = 0;
    const std::string_view bytes = raw(sizeof(T));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value = static_cast<T>(
          value | static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i)));
    }
    return value;
  }
  std::string text() { return std::string(raw(integer<std::uint32_t>())); }
  std::string_view raw(std::uint64_t size) {
    if (failed_ || size > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace

std::string make_source_id(const std::string& generated_source, const std::string& template_digest,
                           const std::vector<std::string>& options, const std::string& arch) {
  Sha256 hash;
  hash_field(hash, "scanjit-source/" + std::to_string(kBinaryFormat));
  hash_field(hash, generated_source);
  hash_field(hash, template_digest);
  hash_field(hash, std::to_string(options.size()));
  for (const std::string& option : options) hash_field(hash, option);
  hash_field(hash, arch);
  constexpr std::size_t kDigits = 40;
  return hash.hex().substr(0, kDigits);
}

std::string make_binary_id(const std::string& source_id, const std::string& nvrtc_build) {
  Sha256 hash;
  hash_field(hash, source_id);
  hash_field(hash, nvrtc_build);
  constexpr std::size_t kDigits = 16;
  return source_id + "-" + hash.hex().substr(0, kDigits);
}

std::string encode_binary(const StoredBinary& binary) {
  Writer writer;
  writer.raw(kMagic);
  writer.integer(kBinaryFormat);
  for (const std::string* text :
       {&binary.source_id, &binary.binary_id, &binary.entry, &binary.arch, &binary.nvrtc}) {
    writer.text(*text);
  }
  const KernelResources& resources = binary.resources;
  for (const int value : {resources.registers, resources.smem_static, resources.spill_loads,
                          resources.spill_stores, resources.stack}) {
    writer.integer(static_cast<std::uint32_t>(value));
  }
  writer.integer(static_cast<std::uint64_t>(resources.code_bytes));
  writer.integer(static_cast<std::uint64_t>(binary.cubin.size()));
  writer.raw(binary.cubin);
  writer.raw(checksum_of(writer.bytes()));
  return writer.take();
}

Result<StoredBinary> decode_binary(std::string_view bytes) {
  if (bytes.size() < kMagic.size() + kChecksumBytes || !bytes.starts_with(kMagic)) {
    return corrupt("the file is no stored kernel");
  }
  const std::string_view body = bytes.substr(0, bytes.size() - kChecksumBytes);
  if (checksum_of(body) != bytes.substr(body.size()))
    return corrupt("the file's checksum is wrong");

  Reader reader(body.substr(kMagic.size()));
  if (const auto format = reader.integer<std::uint32_t>(); format != kBinaryFormat) {
    return corrupt("the file has format " + std::to_string(format) + ", this scanjit reads " +
                   std::to_string(kBinaryFormat));
  }
  StoredBinary binary;
  for (std::string* text :
       {&binary.source_id, &binary.binary_id, &binary.entry, &binary.arch, &binary.nvrtc}) {
    *text = reader.text();
  }
  KernelResources& resources = binary.resources;
  for (int* value : {&resources.registers, &resources.smem_static, &resources.spill_loads,
                     &resources.spill_stores, &resources.stack}) {
    *value = static_cast<int>(reader.integer<std::uint32_t>());
  }
  resources.code_bytes = static_cast<std::int64_t>(reader.integer<std::uint64_t>());
  binary.cubin = std::string(reader.raw(reader.integer<std::uint64_t>()));
  if (reader.failed() || !reader.at_end())
    return corrupt("the file's fields do not add up to its size");
  return binary;
}

}  // namespace scanjit::jit
