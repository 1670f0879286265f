#include <algorithm>

#include "os/memory_file_system.hpp"
#include "support/catch.hpp"
#include "tuning/tuned_store.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;
using samples::says;

namespace {

const Config kA{16, 32, 2, 2}, kB{32, 32, 2, 2};
const std::string kDirectory = "/cache/tuned/" + samples::h200().directory();

TunedFile file_of(std::vector<Record> entries, std::vector<WidthBuckets> widths = {}) {
  return {samples::h200(), std::move(widths), std::move(entries)};
}
Record with_points(Record record, std::size_t points) {
  while (record.measured_at.size() < points) {
    record.measured_at.push_back(
        {record.measured_at.back().sequences + 1, record.measured_at.back().tokens});
  }
  return record;
}

}  // namespace

TEST_CASE("a list shows every file and what is wrong with it", "[tuning]") {
  os::MemoryFileSystem files;
  REQUIRE(list_store(files, "/cache")->empty());
  REQUIRE(import_into_store(files, "/cache",
                            file_of({samples::record(), samples::record(samples::key(1, 1))}))
              .ok());
  files.put(kDirectory + "/bad.json", "{}");
  files.put(kDirectory + "/old.json.corrupt-12345678", "{}");
  const Result<std::vector<StoreItem>> items = list_store(files, "/cache");
  REQUIRE(items.ok());
  REQUIRE(items->size() == 4);  // two entries, their width buckets, the bad one
  REQUIRE(std::is_sorted(items->begin(), items->end(),
                         [](const StoreItem& a, const StoreItem& b) { return a.path < b.path; }));
  for (const StoreItem& item : *items) {
    const bool bad = says(item.path, "bad.json");
    REQUIRE(item.status.code() == (bad ? ErrorCode::kCorrupt : ErrorCode::kOk));
    REQUIRE(item.file.has_value() == !bad);
    REQUIRE(item.gpu == samples::h200().directory());
    REQUIRE(item.bytes > 0);
  }
}

TEST_CASE("merging keeps the better entry of each key", "[tuning]") {
  Record partial = samples::record(samples::key(), kA);
  partial.partial = true;
  const Record whole = samples::record(samples::key(), kB);
  const auto pick = [](const std::vector<Record>& in_turn) {
    std::vector<TunedFile> files;
    for (const Record& record : in_turn) files.push_back(file_of({record}));
    const Result<TunedFile> merged = merge(files);
    REQUIRE(merged.ok());
    REQUIRE(merged->entries.size() == 1);
    return merged->entries[0];
  };
  REQUIRE(pick({partial, whole}) == whole);
  REQUIRE(pick({whole, partial}) == whole);
  const Record thorough = with_points(samples::record(samples::key(), kA), 3);
  REQUIRE(pick({thorough, whole}) == thorough);
  REQUIRE(pick({whole, thorough}) == thorough);
  const Record later = samples::record(samples::key(), kA);
  REQUIRE(pick({whole, later}) == later);

  TunedFile alias = file_of({samples::record(samples::key(1, 1))});
  alias.gpu.names = {"NVIDIA H200 NVL", "NVIDIA H200"};
  const Result<TunedFile> merged = merge({file_of({whole}), alias});
  REQUIRE(merged->gpu.names == std::vector<std::string>{"NVIDIA H200", "NVIDIA H200 NVL"});
  REQUIRE(merged->entries.size() == 2);
  REQUIRE(merged->entries[0].key.text() < merged->entries[1].key.text());
}

TEST_CASE("merging refuses what could not be found afterwards", "[tuning]") {
  TunedFile foreign = file_of({});
  foreign.gpu = samples::h100();
  REQUIRE(says(merge({file_of({}), foreign}).status().message(), "different GPU models"));
  const WidthBuckets one{32, 128, {1, 4}}, other{32, 128, {1, 5}};
  REQUIRE(says(merge({file_of({}, {one}), file_of({}, {other})}).status().message(),
               "differ between the files"));
  REQUIRE(merge({file_of({}, {one}), file_of({}, {one})})->width_buckets.size() == 1);
  REQUIRE(says(merge({file_of({samples::record()}, {one})}).status().message(),
               "16+ lies in no width bucket"));
  REQUIRE_FALSE(merge({}).ok());
}

TEST_CASE("export and import are inverse, and import replaces buckets", "[tuning]") {
  os::MemoryFileSystem files;
  const TunedFile original =
      *merge({file_of({samples::record(), samples::record(samples::key(1, 1)),
                       samples::record(samples::key(2, 600))})});
  REQUIRE(*import_into_store(files, "/cache", original) == 3);
  Result<TunedFile> exported = export_store(files, "/cache", samples::h200().directory());
  REQUIRE(exported.ok());
  REQUIRE(exported->entries == original.entries);
  REQUIRE(exported->gpu == original.gpu);
  REQUIRE(export_store(files, "/cache", "cc00").status().code() == ErrorCode::kNotFound);
  REQUIRE(export_store(files, "/nowhere", samples::h200().directory()).status().code() ==
          ErrorCode::kNotFound);

  // A poorer entry does not replace; other (HV, V) keep their buckets.
  Record partial = samples::record(samples::key(), kA);
  partial.partial = true;
  REQUIRE(*import_into_store(files, "/cache", file_of({partial})) == 0);
  const WidthBuckets elsewhere{48, 128, {1, 3}};
  REQUIRE(import_into_store(files, "/cache", file_of({}, {elsewhere})).ok());

  const WidthBuckets fresh{32, 128, {1, 10}};
  const Record in_fresh = samples::record(samples::query(12, 16).under(fresh), kB);
  REQUIRE(*import_into_store(files, "/cache", file_of({in_fresh}, {fresh})) == 1);
  exported = export_store(files, "/cache", samples::h200().directory());
  REQUIRE(exported->entries ==
          std::vector<Record>{in_fresh});  // the others lie in no bucket any more
  REQUIRE(exported->width_buckets == std::vector<WidthBuckets>{fresh, elsewhere});
}

TEST_CASE("garbage goes: set-aside files, old temporaries, then the oldest entries", "[tuning]") {
  os::MemoryFileSystem files;
  std::vector<Record> records;
  for (const std::int64_t n : {1, 2, 4, 8}) records.push_back(samples::record(samples::key(n, 1)));
  REQUIRE(import_into_store(files, "/cache", file_of(records)).ok());
  std::int64_t stamp = 1000;
  std::int64_t bytes = 0;
  for (const Record& record : records) {
    const std::string path = kDirectory + "/" + record.key.file_name();
    files.set_modified_ns(path, stamp++);
    bytes = files.info(path)->size;
  }
  files.put(kDirectory + "/x.json.corrupt-1", "junk");
  const std::int64_t now_ns = std::int64_t{7200} * 1'000'000'000;
  Result<os::SweepResult> result = collect_garbage(files, "/cache", -1, now_ns);
  REQUIRE(result.ok());
  REQUIRE(result->removed_files == 1);
  REQUIRE(result->removed_bytes == 4);
  REQUIRE(list_store(files, "/cache")->size() == 5);

  result = collect_garbage(files, "/cache", 2 * bytes + 10, now_ns);
  REQUIRE(result->removed_files == 2);
  REQUIRE(result->kept_bytes <= 2 * bytes + 10);
  REQUIRE_FALSE(files.exists(kDirectory + "/" + records[0].key.file_name()));
  REQUIRE_FALSE(files.exists(kDirectory + "/" + records[1].key.file_name()));
  REQUIRE(files.exists(kDirectory + "/" + records[2].key.file_name()));
  REQUIRE(files.exists(kDirectory + "/width_buckets.json"));
  REQUIRE(collect_garbage(files, "/cache", 0, now_ns)->kept_bytes == 0);
  REQUIRE(collect_garbage(files, "/nowhere", 0, now_ns)->removed_files == 0);
}
