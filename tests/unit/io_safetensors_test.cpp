// safetensors: what is written comes back, and no bytes whatever do harm.
#include "io/safetensors.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "support/catch.hpp"
#include "support/temporary_directory.hpp"

using namespace scanjit;
using namespace scanjit::io;

namespace {

std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// A file of this header, with `data_bytes` bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i));
  return out + header + std::string(data_bytes, 'x');
}
std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

/// Three tensors of different widths, one of them a scalar, one empty, and metadata.
std::string sample_file() {
  return file_of("{\"__metadata__\":{\"made by\":\"a test\"}," + entry("a", "F64", "[2,1]", 0, 16) +
                     "," + entry("b.c", "BF16", "[3]", 16, 22) + "," +
                     entry("scalar", "U8", "[]", 22, 23) + "," +
                     entry("empty", "I32", "[0,9223372036854775807]", 23, 23) + "}",
                 23);
}

/// Views must lie inside the bytes and match their shapes, whatever the bytes were.
void check_sound(const Safetensors& file, std::span<const std::byte> bytes) {
  for (const TensorView& tensor : file.tensors()) {
    if (!tensor.data.empty()) {
      REQUIRE(tensor.data.data() >= bytes.data());
      REQUIRE(tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size());
    }
    std::uint64_t elements = 1;
    for (const std::int64_t size : tensor.shape) {
      REQUIRE(size >= 0);
      elements *= static_cast<std::uint64_t>(size);
    }
    REQUIRE(elements * element_bytes(tensor.type) == tensor.data.size());
    REQUIRE(file.find(tensor.name) == &tensor);
  }
}

std::string error_of(const std::string& header, std::size_t data_bytes) {
  const std::string bytes = file_of(header, data_bytes);
  const Status status = Safetensors::parse(bytes_of(bytes)).status();
  CHECK((status.ok() || status.code() == ErrorCode::kCorrupt));
  return status.message();
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("tensors and metadata come back as they were written", "[io]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.file("tensors.safetensors");
  const std::vector<std::uint16_t> k = {1, 2, 3, 4, 5, 6};
  const std::vector<float> g = {0.5F, -1.5F};
  const std::vector<std::int64_t> lengths = {7};
  const std::vector<TensorView> tensors = {
      {"k", TensorType::kBf16, {1, 2, 3}, std::as_bytes(std::span(k))},
      {"g \"quoted\" \xc3\xa9", TensorType::kF32, {2}, std::as_bytes(std::span(g))},
      {"lengths", TensorType::kI64, {}, std::as_bytes(std::span(lengths))},
      {"nothing", TensorType::kF16, {0, 4}, {}},
  };
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"", "empty key"}};
  REQUIRE(write_safetensors(path, tensors, metadata).ok());

  const Result<Safetensors> file = Safetensors::read(path);
  INFO(file.status().to_string());
  REQUIRE(file.ok());
  CHECK(file->metadata() == metadata);
  REQUIRE(file->tensors().size() == 4);
  for (const TensorView& wanted : tensors) {
    const TensorView* got = file->find(wanted.name);
    REQUIRE(got != nullptr);
    CHECK(got->type == wanted.type);
    CHECK(got->shape == wanted.shape);
    CHECK(std::equal(got->data.begin(), got->data.end(), wanted.data.begin(), wanted.data.end()));
    CHECK(reinterpret_cast<std::uintptr_t>(got->data.data()) % element_bytes(got->type) == 0);
  }
  CHECK(file->find("h") == nullptr);
  CHECK(read_text(path).size() % 2 == 0);
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) ==
        1);  // no temporary file is left
}

TEST_CASE("a file of no tensors is fine", "[io]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.file("empty.safetensors");
  REQUIRE(write_safetensors(path, {}).ok());
  const Result<Safetensors> file = Safetensors::read(path);
  REQUIRE(file.ok());
  CHECK(file->tensors().empty());
}

TEST_CASE("a file that cannot be had is an error with its path", "[io]") {
  const test::TemporaryDirectory directory;
  const std::string missing = directory.file("missing");
  const Status status = Safetensors::read(missing).status();
  CHECK(status.code() == ErrorCode::kNotFound);
  CHECK(status.details().path == missing);
  CHECK(Safetensors::read(directory.path()).status().code() == ErrorCode::kIoError);
  CHECK(Safetensors::read("/dev/zero").status().code() == ErrorCode::kIoError);
  CHECK(write_safetensors(directory.file("no/such/directory"), {}).code() == ErrorCode::kIoError);
  write_text(missing, "short");
  CHECK(Safetensors::read(missing).status().code() == ErrorCode::kCorrupt);
}

TEST_CASE("a write that fails leaves the old file and no temporary one", "[io]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.file("a.safetensors");
  REQUIRE(write_safetensors(path, {}).ok());
  const std::string before = read_text(path);
  const std::vector<float> g = {1, 2};
  const auto code_of = [&](const std::vector<TensorView>& tensors,
                           const std::map<std::string, std::string>& metadata = {}) {
    return write_safetensors(path, tensors, metadata).code();
  };
  const std::span<const std::byte> data = std::as_bytes(std::span(g));
  CHECK(code_of({{"g", TensorType::kF32, {3}, data}}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({{"g", TensorType::kF32, {-2}, data}}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({{"", TensorType::kF32, {2}, data}}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({{"__metadata__", TensorType::kF32, {2}, data}}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({{"g", TensorType::kF32, {2}, data}, {"g", TensorType::kF32, {2}, data}}) ==
        ErrorCode::kInvalidArgument);
  CHECK(code_of({{"g", TensorType::kF32, {std::int64_t{1} << 62, 4}, data}}) ==
        ErrorCode::kInvalidArgument);
  CHECK(code_of({{"g", static_cast<TensorType>(99), {2}, data}}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({{"\xff", TensorType::kF32, {2}, data}}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({}, {{"key", "\xff"}}) == ErrorCode::kInvalidArgument);
  CHECK(read_text(path) == before);
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
  // The rename fails: the target is a directory.
  const std::string target = directory.file("directory");
  std::filesystem::create_directory(target);
  write_text(target + "/occupant", "");
  CHECK(write_safetensors(target, {}).code() == ErrorCode::kIoError);
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 2);
}

TEST_CASE("each fault of a header is named with its tensor, value and bound", "[io]") {
  CHECK(error_of("{" + entry("a", "F32", "[2]", 0, 8) + "}", 8).empty());
  CHECK(error_of("{}", 0).empty());
  CHECK(error_of("{} \n ", 0).empty());

  CHECK(contains(error_of("", 0), "does not begin with {"));
  CHECK(contains(error_of(" {}", 0), "does not begin with {"));
  CHECK(contains(error_of("[]", 0), "does not begin with {"));
  CHECK(contains(error_of("{", 0), "no JSON"));
  CHECK(contains(error_of("{}x", 0), "no JSON"));
  CHECK(contains(error_of("{\"\xff\":1}", 0), "no JSON"));
  CHECK(contains(
      error_of("{" + entry("a", "F32", "[1]", 0, 4) + "," + entry("a", "F32", "[1]", 4, 8) + "}",
               8),
      "\"a\" occurs twice"));
  CHECK(
      contains(error_of("{\"__metadata__\":{\"x\":\"1\",\"x\":\"2\"}}", 0), "\"x\" occurs twice"));
  CHECK(contains(error_of("{\"__metadata__\":{},\"__metadata__\":{}}", 0), "occurs twice"));
  CHECK(contains(error_of("{\"__metadata__\":{\"x\":1}}", 0), "must be a string"));
  CHECK(contains(error_of("{\"__metadata__\":{\"x\":{}}}", 0), "must be a string"));
  CHECK(contains(error_of("{\"__metadata__\":\"x\"}", 0), "must be an object"));
  CHECK(contains(error_of("{\"a\":null}", 0), "\"a\" is null; it must be an object"));
  CHECK(contains(error_of("{" + entry("", "F32", "[1]", 0, 4) + "}", 4), "empty name"));
  CHECK(contains(error_of("{" + entry("a", "F31", "[1]", 0, 4) + "}", 4),
                 "dtype of \"a\" is \"F31\""));
  CHECK(contains(error_of("{\"a\":{\"dtype\":4,\"shape\":[],\"data_offsets\":[0,4]}}", 4),
                 "dtype of \"a\" is the number 4"));
  CHECK(contains(
      error_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
               4),
      "\"dtype\" twice"));
  CHECK(contains(
      error_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"shape\":[],\"data_offsets\":[0,4]}}", 4),
      "twice"));
  CHECK(contains(error_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4), "has no data_offsets"));
  CHECK(
      contains(error_of("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4), "has no shape"));
  CHECK(contains(error_of("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4), "has no dtype"));
  CHECK(contains(error_of("{\"a\":{\"extra\":1}}", 4), "unknown field \"extra\""));
  CHECK(
      contains(error_of("{" + entry("a", "F32", "[-1]", 0, 4) + "}", 4), "the negative number -1"));
  CHECK(contains(error_of("{" + entry("a", "F32", "[1.0]", 0, 4) + "}", 4), "the number 1.0"));
  CHECK(contains(error_of("{" + entry("a", "F32", "[true]", 0, 4) + "}", 4), "true"));
  CHECK(contains(error_of("{" + entry("a", "F32", "[[1]]", 0, 4) + "}", 4), "an array"));
  CHECK(contains(error_of("{" + entry("a", "F32", "1", 0, 4) + "}", 4), "must be an array"));
  CHECK(contains(error_of("{" + entry("a", "F32", "[9223372036854775808]", 0, 4) + "}", 4),
                 "2^63-1"));
  CHECK(contains(error_of("{" + entry("a", "F32", "[99999999999999999999999]", 0, 4) + "}", 4),
                 "the number 9999"));
  // 2^62 * 4 floats are 2^66 bytes, which is 4 in 64 bits.
  CHECK(contains(error_of("{" + entry("a", "F32", "[4611686018427387905,4]", 0, 16) + "}", 16),
                 "exceeds 2^64 bytes"));
  CHECK(contains(error_of("{" + entry("a", "F32", "[3]", 0, 8) + "}", 8), "need 12"));
  CHECK(contains(error_of("{" + entry("a", "F32", "[2]", 0, 8) + "}", 7),
                 "0 to 8; the file has 7 bytes"));
  CHECK(contains(error_of("{" + entry("a", "F32", "[0]", 8, 4) + "}", 8), "8 to 4"));
  CHECK(contains(error_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4),
                 "has 1 values"));
  CHECK(contains(error_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4),
                 "more than 2"));
  CHECK(contains(
      error_of("{" + entry("a", "U8", "[4]", 0, 4) + "," + entry("b", "U8", "[4]", 3, 7) + "}", 7),
      "\"b\" begins at byte 3, inside"));
  CHECK(contains(
      error_of("{" + entry("a", "U8", "[4]", 0, 4) + "," + entry("b", "U8", "[0]", 2, 2) + "}", 4),
      "inside"));
  CHECK(contains(
      error_of("{" + entry("a", "U8", "[4]", 0, 4) + "," + entry("b", "U8", "[1]", 5, 6) + "}", 6),
      "bytes 4 to 5"));
  CHECK(contains(error_of("{" + entry("a", "U8", "[4]", 0, 4) + "}", 5), "bytes 4 to 5"));
  CHECK(contains(error_of("{}", 1), "bytes 0 to 1"));
  std::string deep = "{\"a\":";
  deep.append(1 << 20, '[');
  CHECK(contains(error_of(deep, 0), "must be an object"));
  std::string many_dimensions = "1";
  for (int i = 0; i < 64; ++i) many_dimensions += ",1";
  CHECK(contains(error_of("{" + entry("a", "U8", "[" + many_dimensions + "]", 0, 1) + "}", 1),
                 "64 dimensions"));
}

TEST_CASE("a header length beyond the file or the limit is refused before anything is allocated",
          "[io]") {
  for (const std::uint64_t length : {std::uint64_t{3}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    std::string bytes = file_of("{}", 0);
    std::memcpy(bytes.data(), &length, 8);
    const Status status = Safetensors::parse(bytes_of(bytes)).status();
    CHECK(status.code() == ErrorCode::kCorrupt);
    CHECK(contains(status.message(), std::to_string(length)));
  }
}

TEST_CASE("a file cut at any byte is refused", "[io]") {
  const test::TemporaryDirectory directory;
  const std::string whole = sample_file();
  REQUIRE(Safetensors::parse(bytes_of(whole)).ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string cut = whole.substr(0, size);
    CHECK(Safetensors::parse(bytes_of(cut)).status().code() == ErrorCode::kCorrupt);
    const std::string path = directory.file("cut");
    write_text(path, cut);
    CHECK(Safetensors::read(path).status().code() == ErrorCode::kCorrupt);
  }
  CHECK(Safetensors::parse(bytes_of(whole + "x")).status().code() == ErrorCode::kCorrupt);
}

TEST_CASE("a flipped bit is refused or leaves a sound file", "[io]") {
  const std::string whole = sample_file();
  int refused = 0;
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const Result<Safetensors> file = Safetensors::parse(bytes_of(flipped));
    if (file.ok()) {
      check_sound(*file, bytes_of(flipped));
    } else {
      REQUIRE(file.status().code() == ErrorCode::kCorrupt);
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("random mutations of a file never do harm", "[io]") {
  // The fuzz target in tests/fuzz looks further; this one runs always, in a second, from fixed
  // seeds.
  std::minstd_rand random(20260);
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random()) % bound; };
  const std::string pieces[] = {"{",
                                "}",
                                "[",
                                "]",
                                ",",
                                ":",
                                "\"",
                                "0",
                                "-1",
                                "1e9",
                                "18446744073709551615",
                                "null",
                                "\"shape\"",
                                "\"dtype\"",
                                "\"F64\"",
                                "\"__metadata__\"",
                                "\\u0000",
                                "\xf0\x9f"};
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = sample_file();
    const std::size_t mutations = 1 + below(4);
    for (std::size_t i = 0; i < mutations; ++i) {
      const std::size_t place = below(bytes.size());
      switch (below(4)) {
        case 0: bytes[place] = static_cast<char>(random()); break;
        case 1: bytes.erase(place, below(20)); break;
        case 2: {
          const std::size_t from = below(bytes.size()), size = below(40);
          bytes.insert(place, bytes.substr(from, size));
          break;
        }
        default: bytes.insert(place, pieces[below(std::size(pieces))]); break;
      }
      if (bytes.size() < 9) bytes = sample_file();
    }
    if (below(2) == 0) {  // mend the header length, so that the header itself is reached
      const std::uint64_t length = bytes.size() < 8 + 23 ? 0 : bytes.size() - 8 - 23;
      std::memcpy(bytes.data(), &length, 8);
    }
    const Result<Safetensors> file = Safetensors::parse(bytes_of(bytes));
    if (file.ok()) {
      check_sound(*file, bytes_of(bytes));
      ++accepted;
    } else {
      REQUIRE(file.status().code() == ErrorCode::kCorrupt);
    }
  }
  CHECK(accepted > 100);  // otherwise nothing behind the first check was tried
}
