#include "io/safetensors.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

namespace scanjit::io {
namespace {

using nlohmann::json;

struct TypeRow {
  TensorType type;
  const char* name;
  std::size_t bytes;
};
constexpr TypeRow kTypes[] = {
    {TensorType::kBool, "BOOL", 1}, {TensorType::kU8, "U8", 1},   {TensorType::kI8, "I8", 1},
    {TensorType::kU16, "U16", 2},   {TensorType::kI16, "I16", 2}, {TensorType::kF16, "F16", 2},
    {TensorType::kBf16, "BF16", 2}, {TensorType::kU32, "U32", 4}, {TensorType::kI32, "I32", 4},
    {TensorType::kF32, "F32", 4},   {TensorType::kU64, "U64", 8}, {TensorType::kI64, "I64", 8},
    {TensorType::kF64, "F64", 8},
};

constexpr std::uint64_t kLengthBytes = 8;  // of the header length at the start of the file
constexpr const char* kMetadataName = "__metadata__";

/// A name from the file, short and printable enough for an error message.
std::string in_quotes(std::string_view name) {
  constexpr std::size_t kLongest = 80;
  std::string out = "\"";
  for (const char c : name.substr(0, kLongest))
    out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return out + (name.size() > kLongest ? "...\"" : "\"");
}

/// One tensor's line of the header.
struct HeaderEntry {
  std::string name;
  std::optional<TensorType> type;
  std::optional<std::vector<std::int64_t>> shape;
  std::vector<std::uint64_t> offsets;
  bool has_offsets = false;
};

/// Reads the header as the parser meets it, and stops the parser at the first thing that does not
/// belong there: a hostile header costs no more than its own size. The function names are the
/// parser's.
class HeaderReader : public json::json_sax_t {
 public:
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart: place_ = Place::kTop; return true;
      case Place::kTopValue:
        place_ = name_ == kMetadataName ? Place::kMetadata : Place::kEntry;
        return true;
      default: return unexpected("an object");
    }
  }
  bool key(std::string& key) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(key).second) return fail("the name " + in_quotes(key) + " occurs twice");
      name_ = key;
      place_ = Place::kTopValue;
      if (key != kMetadataName) {
        if (key.empty()) return fail("a tensor has an empty name");
        entries.emplace_back().name = key;
      }
      return true;
    }
    if (place_ == Place::kMetadata) {
      if (metadata.count(key) != 0)
        return fail("the metadata key " + in_quotes(key) + " occurs twice");
      field_ = key;
      place_ = Place::kMetadataValue;
      return true;
    }
    HeaderEntry& entry = entries.back();
    const bool again = (key == "dtype" && entry.type) || (key == "shape" && entry.shape) ||
                       (key == "data_offsets" && entry.has_offsets);
    if (again) return fail("the tensor " + in_quotes(name_) + " has " + in_quotes(key) + " twice");
    if (key == "dtype") {
      place_ = Place::kType;
    } else if (key == "shape") {
      place_ = Place::kShape;
    } else if (key == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      return fail("the tensor " + in_quotes(name_) + " has an unknown field " + in_quotes(key));
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kEnd;
      return true;
    }
    if (place_ == Place::kEntry) {
      const HeaderEntry& entry = entries.back();
      const char* missing = !entry.type          ? "dtype"
                            : !entry.shape       ? "shape"
                            : !entry.has_offsets ? "data_offsets"
                                                 : nullptr;
      if (missing != nullptr) return fail("the tensor " + in_quotes(name_) + " has no " + missing);
    }
    place_ = Place::kTop;
    return true;
  }
  bool start_array(std::size_t) override {
    HeaderEntry* entry = entries.empty() ? nullptr : &entries.back();
    if (place_ == Place::kShape) {
      entry->shape.emplace();
      place_ = Place::kShapeItems;
      return true;
    }
    if (place_ == Place::kOffsets) {
      entry->has_offsets = true;
      place_ = Place::kOffsetItems;
      return true;
    }
    return unexpected("an array");
  }
  bool end_array() override {
    if (place_ == Place::kOffsetItems && entries.back().offsets.size() != 2) {
      return fail("data_offsets of " + in_quotes(name_) + " has " +
                  std::to_string(entries.back().offsets.size()) + " values; it must have 2");
    }
    place_ = Place::kEntry;
    return true;
  }
  bool string(std::string& value) override {
    if (place_ == Place::kMetadataValue) {
      metadata.emplace(field_, value);
      place_ = Place::kMetadata;
      return true;
    }
    if (place_ != Place::kType) return unexpected("a string");
    const auto* const row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                         [&](const TypeRow& r) { return value == r.name; });
    if (row == std::end(kTypes))
      return fail("dtype of " + in_quotes(name_) + " is " + in_quotes(value) +
                  ", which is unknown");
    entries.back().type = row->type;
    place_ = Place::kEntry;
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    constexpr std::size_t kMostDimensions = 64;
    HeaderEntry* entry = entries.empty() ? nullptr : &entries.back();
    if (place_ == Place::kShapeItems) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return fail("shape of " + in_quotes(name_) + " has " + std::to_string(value) +
                    "; the most is 2^63-1");
      }
      if (entry->shape->size() == kMostDimensions) {
        return fail("shape of " + in_quotes(name_) + " has more than " +
                    std::to_string(kMostDimensions) + " dimensions");
      }
      entry->shape->push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsetItems) {
      if (entry->offsets.size() == 2)
        return fail("data_offsets of " + in_quotes(name_) + " has more than 2 values");
      entry->offsets.push_back(value);
      return true;
    }
    return unexpected("the number " + std::to_string(value));
  }
  bool number_integer(std::int64_t value) override {
    return unexpected("the negative number " + std::to_string(value));
  }
  bool number_float(double, const std::string& text) override {
    return unexpected("the number " + text.substr(0, 40));
  }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool null() override { return unexpected("null"); }
  bool binary(json::binary_t&) override { return unexpected("bytes"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail("the header is no JSON: byte " + std::to_string(position));
  }

 private:
  enum class Place {
    kStart,
    kTop,
    kTopValue,
    kEntry,
    kType,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kMetadata,
    kMetadataValue,
    kEnd
  };

  bool fail(std::string message) {
    if (error.empty()) error = std::move(message);
    return false;
  }
  bool unexpected(const std::string& what) {
    switch (place_) {
      case Place::kStart:
      case Place::kEnd: return fail("the header is " + what + "; it must be an object");
      case Place::kTopValue:
        return fail(in_quotes(name_) + " is " + what + "; it must be an object");
      case Place::kType:
        return fail("dtype of " + in_quotes(name_) + " is " + what + "; it must be a string");
      case Place::kShape:
        return fail("shape of " + in_quotes(name_) + " is " + what + "; it must be an array");
      case Place::kOffsets:
        return fail("data_offsets of " + in_quotes(name_) + " is " + what +
                    "; it must be an array");
      case Place::kShapeItems:
        return fail("shape of " + in_quotes(name_) + " has " + what +
                    "; it must have integers from 0");
      case Place::kOffsetItems:
        return fail("data_offsets of " + in_quotes(name_) + " has " + what +
                    "; it must have integers from 0");
      case Place::kMetadataValue:
        return fail("metadata " + in_quotes(field_) + " is " + what + "; it must be a string");
      default: return fail(what + " stands where the header cannot have it");
    }
  }

  Place place_ = Place::kStart;
  std::string name_;   // of the tensor, or kMetadataName
  std::string field_;  // of the metadata
  std::set<std::string, std::less<>> names_;
};

/// Elements times element size, or nothing if it exceeds 64 bits.
std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, TensorType type) {
  // A zero anywhere makes the tensor empty, however large the other sizes are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::uint64_t bytes = element_bytes(type);
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes))
      return std::nullopt;
  }
  return bytes;
}

struct Header {
  std::vector<HeaderEntry> entries;  // by offset; together they cover the data without a gap
  std::map<std::string, std::string> metadata;
};

Result<Header> parse_header(std::string_view text, std::uint64_t data_bytes) {
  if (text.empty() || text.front() != '{') return corrupt("the header does not begin with {");
  HeaderReader reader;
  const bool whole = json::sax_parse(text.begin(), text.end(), &reader);
  if (!whole || !reader.error.empty())
    return corrupt(reader.error.empty() ? "the header is no JSON" : reader.error);

  for (const HeaderEntry& entry : reader.entries) {
    const std::uint64_t begin = entry.offsets[0], end = entry.offsets[1];
    if (begin > end || end > data_bytes) {
      return corrupt("data_offsets of " + in_quotes(entry.name) + " are " + std::to_string(begin) +
                     " to " + std::to_string(end) + "; the file has " + std::to_string(data_bytes) +
                     " bytes of data");
    }
    const std::optional<std::uint64_t> bytes = bytes_of(*entry.shape, *entry.type);
    if (!bytes) return corrupt("shape of " + in_quotes(entry.name) + " exceeds 2^64 bytes");
    if (*bytes != end - begin) {
      return corrupt("data_offsets of " + in_quotes(entry.name) + " hold " +
                     std::to_string(end - begin) + " bytes; its shape and dtype need " +
                     std::to_string(*bytes));
    }
  }
  std::stable_sort(
      reader.entries.begin(), reader.entries.end(),
      [](const HeaderEntry& a, const HeaderEntry& b) { return a.offsets < b.offsets; });
  std::uint64_t covered = 0;
  for (const HeaderEntry& entry : reader.entries) {
    if (entry.offsets[0] < covered) {
      return corrupt("the data of " + in_quotes(entry.name) + " begins at byte " +
                     std::to_string(entry.offsets[0]) +
                     ", inside another tensor's, which ends at " + std::to_string(covered));
    }
    if (entry.offsets[0] > covered) {
      return corrupt("bytes " + std::to_string(covered) + " to " +
                     std::to_string(entry.offsets[0]) + " of the data belong to no tensor");
    }
    covered = entry.offsets[1];
  }
  if (covered != data_bytes) {
    return corrupt("bytes " + std::to_string(covered) + " to " + std::to_string(data_bytes) +
                   " of the data belong to no tensor");
  }
  return Header{std::move(reader.entries), std::move(reader.metadata)};
}

std::uint64_t little_endian(const std::byte* bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    value |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

Result<std::uint64_t> header_length(const std::byte* start, std::uint64_t file_bytes) {
  const std::uint64_t length = little_endian(start);
  const std::uint64_t most = std::min(kMaxHeaderBytes, file_bytes - kLengthBytes);
  if (length > most) {
    return corrupt("the header has " + std::to_string(length) +
                   " bytes by its length field; at most " + std::to_string(most) + " are possible");
  }
  return length;
}

Status too_short(std::uint64_t bytes) {
  return corrupt("the file has " + std::to_string(bytes) +
                 " bytes; its header length alone takes 8");
}

std::vector<TensorView> views_of(Header header, const std::byte* data) {
  std::vector<TensorView> views;
  views.reserve(header.entries.size());
  for (HeaderEntry& entry : header.entries) {
    views.push_back(
        {std::move(entry.name),
         *entry.type,
         std::move(*entry.shape),
         {data + entry.offsets[0], static_cast<std::size_t>(entry.offsets[1] - entry.offsets[0])}});
  }
  return views;
}

Status out_of_memory(const std::string& what) {
  return Status(ErrorCode::kOutOfMemory, "no memory for " + what);
}

/// The error with the file's name before it and in its details.
Status in_file(const Status& status, const std::string& path) {
  return Status(status.code(), path + ": " + status.message(),
                {.compile_log = {}, .path = path, .cuda_result = 0});
}

Status check_tensors(std::span<const TensorView> tensors) {
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == kMetadataName) {
      return invalid_argument("the tensor name " + in_quotes(tensor.name) + " is reserved");
    }
    if (!names.insert(tensor.name).second)
      return invalid_argument("two tensors are named " + in_quotes(tensor.name));
    if (element_bytes(tensor.type) == 0) {
      return invalid_argument("the type of " + in_quotes(tensor.name) + " is " +
                              std::to_string(static_cast<int>(tensor.type)) + ", which is unknown");
    }
    const std::optional<std::uint64_t> bytes = bytes_of(tensor.shape, tensor.type);
    if (!bytes || *bytes != tensor.data.size()) {
      return invalid_argument(
          "the tensor " + in_quotes(tensor.name) + " has " + std::to_string(tensor.data.size()) +
          " bytes; its shape and type need " + (bytes ? std::to_string(*bytes) : "more than 2^64"));
    }
  }
  return Status();
}

/// The header, padded with spaces so that the data begin at a multiple of 8.
std::string header_of(const std::vector<const TensorView*>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  std::uint64_t offset = 0;
  for (const TensorView* tensor : tensors) {
    const std::uint64_t end = offset + tensor->data.size();
    header[tensor->name] = {{"dtype", to_string(tensor->type)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

/// A file that is removed unless it was renamed.
class TemporaryFile {
 public:
  /// Beside `path`, under a name that no other writer has. Empty path(): none could be made.
  explicit TemporaryFile(const std::string& path) {
    static std::atomic<std::uint64_t> counter{0};
    for (int attempt = 0; attempt < 100 && file_ == nullptr; ++attempt) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
      path_ = path + ".tmp-" + std::to_string(now) + "-" + std::to_string(counter++);
      file_ = std::fopen(path_.c_str(), "wbx");  // x: fails if the name exists
      if (file_ == nullptr && errno != EEXIST) break;
    }
    if (file_ == nullptr) error_ = errno;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (file_ != nullptr) static_cast<void>(std::fclose(file_));
    if (made() && !renamed_) static_cast<void>(std::remove(path_.c_str()));
  }

  [[nodiscard]] bool made() const noexcept { return error_ == 0; }
  [[nodiscard]] int error() const noexcept { return error_; }
  bool write(const void* data, std::size_t bytes) {
    return bytes == 0 || std::fwrite(data, 1, bytes, file_) == bytes;
  }
  bool close() { return std::fclose(std::exchange(file_, nullptr)) == 0; }
  bool rename_to(const std::string& path) {
    return renamed_ = std::rename(path_.c_str(), path.c_str()) == 0;
  }

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
  int error_ = 0;
  bool renamed_ = false;
};

Status write_file(const std::string& path, const std::string& header,
                  const std::vector<const TensorView*>& tensors) {
  const auto failed = [&](const char* doing, int error) {
    return io_error(path + ": " + doing + " failed: " + std::generic_category().message(error),
                    path);
  };
  TemporaryFile file(path);
  if (!file.made()) return failed("creating a file beside it", file.error());
  std::array<unsigned char, kLengthBytes> length{};
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  bool written =
      file.write(length.data(), length.size()) && file.write(header.data(), header.size());
  for (const TensorView* tensor : tensors)
    written = written && file.write(tensor->data.data(), tensor->data.size());
  if (!written) return failed("writing", errno);
  if (!file.close()) return failed("writing", errno);
  if (!file.rename_to(path)) return failed("renaming", errno);
  return Status();
}

}  // namespace

const char* to_string(TensorType type) noexcept {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.name;
  }
  return "unknown";
}

std::size_t element_bytes(TensorType type) noexcept {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.bytes;
  }
  return 0;
}

Result<Safetensors> Safetensors::read(const std::string& path) {
  try {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found)
      return not_found(path + " does not exist", path);
    if (status.type() != std::filesystem::file_type::regular) {
      return io_error(path + (error ? ": " + error.message() : " is no regular file"), path);
    }
    const std::uint64_t file_bytes = std::filesystem::file_size(path, error);
    if (error) return io_error(path + ": " + error.message(), path);
    if (file_bytes < kLengthBytes) return in_file(too_short(file_bytes), path);

    std::ifstream stream(path, std::ios::binary);
    std::array<std::byte, kLengthBytes> start{};
    const auto read_bytes = [&](void* to, std::uint64_t bytes) {
      return bytes == 0 ||
             stream.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes)).good();
    };
    const auto unreadable = [&] {
      return io_error(path + " cannot be read, or shrank while it was read", path);
    };
    if (!read_bytes(start.data(), kLengthBytes)) return unreadable();
    const Result<std::uint64_t> length = header_length(start.data(), file_bytes);
    if (!length.ok()) return in_file(length.status(), path);
    std::string text(static_cast<std::size_t>(*length), '\0');
    if (!read_bytes(text.data(), *length)) return unreadable();

    // Only a header that agrees with the file's size makes us allocate for the data.
    const std::uint64_t data_bytes = file_bytes - kLengthBytes - *length;
    Result<Header> header = parse_header(text, data_bytes);
    if (!header.ok()) return in_file(header.status(), path);
    Safetensors file;
    file.buffer_ =
        std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(data_bytes));
    if (!read_bytes(file.buffer_.get(), data_bytes)) return unreadable();
    file.metadata_ = std::move(header->metadata);
    file.tensors_ = views_of(std::move(*header), file.buffer_.get());
    return file;
  } catch (const std::bad_alloc&) {
    return out_of_memory(path);
  } catch (
      const std::exception& foreign) {  // of the JSON parser, the file system or a string's length
    return internal_error(path + ": " + foreign.what());
  }
}

Result<Safetensors> Safetensors::parse(std::span<const std::byte> bytes) {
  try {
    if (bytes.size() < kLengthBytes) return too_short(bytes.size());
    SCANJIT_ASSIGN_OR_RETURN(const std::uint64_t length, header_length(bytes.data(), bytes.size()));
    std::string text(static_cast<std::size_t>(length), '\0');
    std::memcpy(text.data(), bytes.data() + kLengthBytes, text.size());
    const std::uint64_t data_begin = kLengthBytes + length;
    SCANJIT_ASSIGN_OR_RETURN(Header header, parse_header(text, bytes.size() - data_begin));
    Safetensors file;
    file.metadata_ = std::move(header.metadata);
    file.tensors_ = views_of(std::move(header), bytes.data() + data_begin);
    return file;
  } catch (const std::bad_alloc&) {
    return out_of_memory("the header");
  } catch (const std::exception& foreign) {
    return internal_error(std::string("the safetensors header: ") + foreign.what());
  }
}

const TensorView* Safetensors::find(std::string_view name) const noexcept {
  for (const TensorView& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const std::map<std::string, std::string>& metadata) {
  try {
    SCANJIT_TRY(check_tensors(tensors));
    std::vector<const TensorView*> ordered;
    for (const TensorView& tensor : tensors) ordered.push_back(&tensor);
    std::stable_sort(ordered.begin(), ordered.end(), [](const TensorView* a, const TensorView* b) {
      return element_bytes(a->type) > element_bytes(b->type);
    });
    const std::string header = header_of(ordered, metadata);
    if (header.size() > kMaxHeaderBytes) {
      return invalid_argument("the header has " + std::to_string(header.size()) +
                              " bytes; at most " + std::to_string(kMaxHeaderBytes) +
                              " are allowed");
    }
    return write_file(path, header, ordered);
  } catch (const std::bad_alloc&) {
    return out_of_memory("the header of " + path);
  } catch (const json::exception&) {  // a name or metadata string that is not UTF-8
    return invalid_argument("a tensor name or metadata string is not UTF-8");
  } catch (const std::exception& foreign) {
    return internal_error(path + ": " + foreign.what());
  }
}

}  // namespace scanjit::io
