#include <ctime>
#include <fstream>
#include <functional>
#include <iterator>

#include "support/catch.hpp"
#include "tuning/record.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;
using samples::says;

namespace {

TunedFile sample_file() {
  TunedFile file;
  file.gpu = samples::h200();
  file.width_buckets = {{16, 128, {1, 4, 32}}, {32, 128, {1, 2, 4, 8, 16}}};
  file.entries = {samples::record(), samples::record(samples::key(1, 1))};
  return file;
}

std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

}  // namespace

TEST_CASE("entries and files survive JSON", "[tuning]") {
  std::mt19937_64 random(21);
  TunedFile file = sample_file();
  file.entries.clear();
  for (int i = 0; i < 300; ++i) {
    const Record record = samples::random_record(random);
    REQUIRE(record.check().ok());
    const Result<Record> back = record_from_json(to_json(record));
    INFO(back.status().message());
    REQUIRE(back.ok());
    REQUIRE(*back == record);
    file.entries.push_back(record);
  }
  for (const Checksum checksum : {Checksum::kWithout, Checksum::kWith}) {
    const Result<TunedFile> back = tuned_file_from_json(to_json(file, checksum), checksum);
    INFO(back.status().message());
    REQUIRE(back.ok());
    REQUIRE(*back == file);
  }
}

TEST_CASE("a file is read by one kernel and head counts at a time", "[tuning]") {
  std::mt19937_64 random(22);
  TunedFile file = sample_file();
  file.entries.clear();
  for (int i = 0; i < 60; ++i) file.entries.push_back(samples::random_record(random));
  const std::string text = to_json(file, Checksum::kWithout);
  for (const Record& record : file.entries) {
    const ShapeKey& key = record.key;
    const Result<TunedFile> part =
        tuned_file_from_json(only_entries(text, key.kernel, key.H, key.HV), Checksum::kWithout);
    INFO(part.status().message());
    REQUIRE(part.ok());
    CHECK(part->gpu == file.gpu);
    CHECK(part->width_buckets == file.width_buckets);
    CHECK(part->entries.size() < file.entries.size());
    // In order, and all of that kernel and head counts.
    std::vector<Record> wanted;
    for (const Record& other : file.entries) {
      if (other.key.kernel == key.kernel && other.key.H == key.H && other.key.HV == key.HV)
        wanted.push_back(other);
    }
    std::vector<Record> got;
    for (const Record& other : part->entries) {
      if (other.key.kernel == key.kernel && other.key.H == key.H && other.key.HV == key.HV)
        got.push_back(other);
    }
    CHECK(got == wanted);
  }
  const Result<TunedFile> none =
      tuned_file_from_json(only_entries(text, "", 0, 0), Checksum::kWithout);
  REQUIRE(none.ok());
  CHECK(none->entries.empty());
  CHECK(none->width_buckets == file.width_buckets);
  // Texts of another form come back whole.
  const std::string signed_text = to_json(file, Checksum::kWith);
  CHECK(only_entries(signed_text, "x", 1, 1) == signed_text);
  CHECK(only_entries("{}", "x", 1, 1) == "{}");
  CHECK(only_entries("", "x", 1, 1).empty());
}

TEST_CASE("the golden file of version 1 reads and writes as ever", "[tuning][golden]") {
  const std::string text = read_text(SCANJIT_SOURCE_DIR "/tests/unit/tuning_golden_v1.json");
  const Result<TunedFile> file = tuned_file_from_json(text, Checksum::kWith);
  INFO(file.status().message());
  REQUIRE(file.ok());
  TunedFile expected = sample_file();
  for (Record& record : expected.entries) record.key.space = file->entries[0].key.space;
  REQUIRE(*file == expected);
  REQUIRE(to_json(*file, Checksum::kWith) == text);
}

TEST_CASE("a damaged field is named", "[tuning]") {
  const std::string good = to_json(sample_file(), Checksum::kWithout);
  const auto message = [&](const std::string& what, const std::string& with) {
    const Result<TunedFile> file =
        tuned_file_from_json(replaced(good, what, with), Checksum::kWithout);
    REQUIRE(file.status().code() == ErrorCode::kCorrupt);
    return file.status().message();
  };
  CHECK(says(message("scanjit-tuned/1", "scanjit-tuned/2"), "schema"));
  CHECK(says(message("\"K\":128", "\"K\":0"), "entries[0].key.K is 0"));
  CHECK(says(message("\"K\":128", "\"K\":128.5"), "entries[0].key.K is 128.5"));
  CHECK(says(message("\"K\":128", "\"K\":99999999999999999999"), "entries[0].key.K"));
  CHECK(says(message("\"K\":128", "\"K\":18446744073709551615"), "entries[0].key.K"));
  CHECK(says(message("\"bf16\"", "\"bf17\""), "entries[0].key.dtype"));
  CHECK(says(message("\"packed\":false", "\"packed\":0"), "entries[0].key.packed"));
  CHECK(says(message("\"h0\",\"ht\"", "\"ht\",\"h0\""), "entries[0].key.optional"));
  CHECK(says(message("\"max\":64", "\"max\":8"), "entries[0].key.chunks.max"));
  CHECK(says(message("\"bv\":64", "\"bv\":\"64\""), "entries[0].config.bv"));
  CHECK(says(message("\"bv\":64", "\"bv\":64,\"bw\":1"), "entries[0].config.bw"));
  CHECK(says(message("\"bv\":64,", ""), "entries[0].config.bv is missing"));
  CHECK(says(message("\"bv\":64", "\"bv\":64,\"bv\":32"), "bv"));
  CHECK(says(message("[41.25,41.875]", "[41.25]"), "entries[0].us.ci95"));
  CHECK(says(message("[41.25,41.875]", "[42.25,42.875]"), "ci95"));
  CHECK(says(message("\"median\":41.5", "\"median\":-1"), "entries[0].us.median"));
  CHECK(says(message("\"median\":41.5", "\"median\":1e999"), "JSON"));
  CHECK(says(message("\"illegal\"", "\"ugly\""), "entries[0].rejected[0].reason"));
  CHECK(says(message("\"warm\"", "\"hot\""), "entries[0].policy.l2"));
  CHECK(says(message("\"sequences\":16", "\"sequences\":3"), "outside the key's 16+"));
  CHECK(says(message("\"tokens\":576", "\"tokens\":4097"),
             "65 chunks, which is above the key's 9-64"));
  CHECK(says(message("\"9.0\"", "\"ninety\""), "gpu.compute_capability"));
  CHECK(says(message("[1,4,32]", "[1,4,4]"), "width_buckets[0]"));
  CHECK(says(message("\"HV\":16,\"V\":128", "\"HV\":32,\"V\":128"), "width_buckets[1]"));
  CHECK(says(message("{\n", "{ , \n"), "line 1 column"));
  CHECK(tuned_file_from_json("[]", Checksum::kWithout).status().code() == ErrorCode::kCorrupt);
  CHECK(tuned_file_from_json("", Checksum::kWithout).status().code() == ErrorCode::kCorrupt);
  CHECK(
      says(tuned_file_from_json(good, Checksum::kWith).status().message(), "checksum is missing"));
}

TEST_CASE("two entries of one key are refused", "[tuning]") {
  TunedFile file = sample_file();
  file.entries[1] = file.entries[0];
  REQUIRE(tuned_file_from_json(to_json(file, Checksum::kWithout), Checksum::kWithout)
              .status()
              .message() == "entries[1] has the key of entries[0]");
}

TEST_CASE("nesting and huge objects are refused quickly", "[tuning]") {
  const std::string deep(1'000'000, '[');
  REQUIRE_FALSE(record_from_json(deep).ok());
  REQUIRE_FALSE(record_from_json(deep + std::string(1'000'000, ']')).ok());
  std::string nested = "1";
  for (int i = 0; i < 100'000; ++i) nested = "{\"a\":" + nested.substr(0, 1);  // never closed
  REQUIRE_FALSE(record_from_json(nested).ok());
  std::string wide = "{";
  for (int i = 0; i < 200'000; ++i) wide += "\"" + std::to_string(i) + "\":0,";
  wide += "\"x\":0}";
  const std::clock_t start = std::clock();  // processor time: a loaded machine is no failure
  REQUIRE_FALSE(record_from_json(wide).ok());
  REQUIRE(std::clock() - start < 20 * CLOCKS_PER_SEC);
}

TEST_CASE("every flipped byte of a cache entry is noticed, or changes nothing", "[tuning][fuzz]") {
  TunedFile file = sample_file();
  file.width_buckets.clear();
  file.entries.pop_back();
  const std::string good = to_json(file, Checksum::kWith);
  std::size_t unchanged = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {0x01, 0x02, 0x10, 0x20, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      const Result<TunedFile> read = tuned_file_from_json(bad, Checksum::kWith);
      if (!read.ok()) continue;
      ++unchanged;
      REQUIRE(*read == file);
    }
  }
  REQUIRE(unchanged < good.size() / 10);  // blanks between tokens, and little else
  for (std::size_t length = 0; length + 1 < good.size();
       ++length) {  // the last byte is a line feed
    if (length == good.size() - 1) continue;
    REQUIRE_FALSE(
        tuned_file_from_json(std::string_view(good).substr(0, length), Checksum::kWith).ok());
  }
}

TEST_CASE("mutated JSON never does worse than an error", "[tuning][fuzz]") {
  std::mt19937_64 random(42);
  const std::string good = to_json(sample_file(), Checksum::kWithout);
  const std::vector<std::string> pieces = {
      "null", "-1", "1e308", "\"\"",    "[]",  "{}", "true", "9223372036854775808",
      "0.1",  ",",  "\"",    "\\u0000", "\xff"};
  constexpr int kRuns = 4000;  // about two seconds
  int accepted = 0;
  for (int run = 0; run < kRuns; ++run) {
    std::string text = good;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      const std::size_t at = random() % text.size();
      const std::size_t length = random() % 12;
      switch (random() % 4) {
        case 0: text.erase(at, length); break;
        case 1: text.insert(at, pieces[random() % pieces.size()]); break;
        case 2: text.replace(at, length, pieces[random() % pieces.size()]); break;
        default: text[at] = static_cast<char>(random()); break;
      }
      if (text.empty()) text = " ";
    }
    const Result<TunedFile> file = tuned_file_from_json(text, Checksum::kWithout);
    if (!file.ok()) {
      REQUIRE(file.status().code() == ErrorCode::kCorrupt);
      continue;
    }
    ++accepted;  // then it is a file like any other
    for (const Record& record : file->entries) REQUIRE(record.check().ok());
    REQUIRE(*tuned_file_from_json(to_json(*file, Checksum::kWith), Checksum::kWith) == *file);
  }
  REQUIRE(accepted > 0);
  REQUIRE(accepted < kRuns);
}
