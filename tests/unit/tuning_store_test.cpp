#include <functional>

#include "os/memory_file_system.hpp"
#include "support/catch.hpp"
#include "tuning/tuned_store.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;
using samples::says;

namespace {

const Config kA{16, 32, 2, 2}, kB{32, 32, 2, 2}, kC{64, 32, 2, 2};

/// A store over memory files, and the shipped texts that it was given.
struct Bench {
  os::MemoryFileSystem files;
  StoreOptions options;
  std::vector<std::string> texts;  // what the shipped views point to
  std::vector<std::string> warnings;

  Bench() {
    options.files = &files;
    options.cache_dir = "/cache";
    options.gpu = samples::h200();
    options.toolchain = samples::toolchain();
    options.warn = [this](const std::string&, const std::string& line) {
      warnings.push_back(line);
    };
    texts.reserve(8);
  }
  void ship(const GpuFacts& gpu, std::vector<Record> entries,
            std::vector<WidthBuckets> widths = {}) {
    texts.push_back(
        to_json(TunedFile{gpu, std::move(widths), std::move(entries)}, Checksum::kWithout));
    options.shipped.push_back({"shipped.json", texts.back()});
  }
  void pack(const std::string& dir, const std::vector<Record>& entries) {
    TunedFile file{samples::h200(), {}, entries};
    REQUIRE(import_into_store(files, dir, file).ok());
    options.pack_dirs.push_back(dir);
  }
};

Record changed(const Config& config, const std::function<void(ShapeKey&)>& change,
               std::int64_t n = 16, std::int64_t chunks = 16) {
  ShapeKey key = samples::key(n, chunks);
  change(key);
  return samples::record(key, config);
}
Record plain(const Config& config, std::int64_t n = 16, std::int64_t chunks = 16) {
  return changed(
      config, [](ShapeKey&) {}, n, chunks);
}

}  // namespace

TEST_CASE("an entry is found again, by this store and by the next", "[tuning]") {
  Bench bench;
  const Record record = samples::record();
  {
    TunedStore store(bench.options);
    REQUIRE_FALSE(store.find(samples::query(), {}).has_value());
    REQUIRE(store.publish(record).ok());
    REQUIRE(store.find(samples::query(), {})->record->config == record.config);
  }
  TunedStore store(bench.options);
  const auto pick = store.find(samples::query(), {});
  REQUIRE(pick.has_value());
  REQUIRE(*pick->record == record);
  REQUIRE(pick->config == record.config);
  REQUIRE(pick->source == PickSource::kExact);
  REQUIRE(pick->layer == "cache");
  REQUIRE(pick->alternate == 0);
  REQUIRE_FALSE(pick->stale_toolchain);
  REQUIRE(store.key_of(samples::query()) == record.key);
  // Every N of the bucket, and no N of another.
  REQUIRE(store.find_exact(samples::query(5000, 9), {}).has_value());
  REQUIRE_FALSE(store.find_exact(samples::query(15, 9), {}).has_value());
  REQUIRE_FALSE(store.find_exact(samples::query(16, 8), {}).has_value());
  REQUIRE(bench.warnings.empty());
}

TEST_CASE("the declared order is walked step by step", "[tuning]") {
  // From the last step to the first: each entry added beats all before it.
  struct Step {
    Record record;
    PickSource source;
  };
  const std::vector<Step> steps = {
      {plain(kA, 8, 16), PickSource::kNeighbourWidth},
      {changed(
           kB, [](ShapeKey& k) { k.optional = {"h"}; }, 16, 200),
       PickSource::kNeighbourChunks},
      {plain(kC, 16, 200), PickSource::kNeighbourChunks},
      {plain(kA, 16, 5), PickSource::kNeighbourChunks},  // 16 chunks: twice 8, a quarter of 65
      {changed(kB,
               [](ShapeKey& k) {
                 k.dtype = DType::kF16;
                 k.packed = true;
               }),
       PickSource::kOtherDtype},
      {changed(kC, [](ShapeKey& k) { k.dtype = DType::kF16; }), PickSource::kOtherDtype},
      {changed(kA,
               [](ShapeKey& k) {
                 k.packed = true;
                 k.index = "i64";
                 k.pool = "h0+ht";
                 k.gate = "g+gk";
               }),
       PickSource::kOtherOptionalSet},
      {changed(kB,
               [](ShapeKey& k) {
                 k.optional = {"h", "v_new"};
               }),
       PickSource::kOtherOptionalSet},
      {changed(kC,
               [](ShapeKey& k) {
                 k.optional = {"h", "h0", "v_new"};
               }),
       PickSource::kOtherOptionalSet},
      {plain(kA), PickSource::kExact}};
  Bench bench;
  bench.ship(samples::h100(), {plain(kC)});
  TunedStore store(bench.options);
  REQUIRE(store.find(samples::query(), {})->source == PickSource::kNearestGpu);
  REQUIRE(store.find(samples::query(), {})->layer == "shipped:shipped.json");
  for (const Step& step : steps) {
    INFO(step.record.key.text());
    REQUIRE(store.publish(step.record).ok());
    const auto pick = store.find(samples::query(), {});
    REQUIRE(pick.has_value());
    REQUIRE(pick->source == step.source);
    REQUIRE(*pick->record == step.record);
  }
}

TEST_CASE("what changes the code beyond the steps never serves", "[tuning]") {
  const std::vector<std::function<void(ShapeKey&)>> changes = {
      [](ShapeKey& k) { k.kernel = "other"; },
      [](ShapeKey& k) { k.kernel_revision = 2; },
      [](ShapeKey& k) { k.space = "0"; },
      [](ShapeKey& k) { k.dtype = DType::kF32; },
      [](ShapeKey& k) { k.K = 64; },
      [](ShapeKey& k) { k.V = 64; },
      [](ShapeKey& k) { k.BT = 16; },
      [](ShapeKey& k) { k.layout = StateLayout::kVK; },
      [](ShapeKey& k) { k.alignment = 2; },
      [](ShapeKey& k) { k.numerics = "split64"; },
      [](ShapeKey& k) { k.H = 8; },
      [](ShapeKey& k) { k.HV = 64; },
      [](ShapeKey& k) { k.chunks = chunk_class(1); },
      [](ShapeKey& k) {
        k.sequences = {1, 1};
      }};
  Bench bench;
  TunedStore store(bench.options);
  for (const auto& change : changes) {
    ShapeKey key = samples::key();
    change(key);
    REQUIRE(store.publish(samples::record(key)).ok());
    INFO(key.text());
    REQUIRE_FALSE(store.find(samples::query(), {}).has_value());
  }
}

TEST_CASE("cache, packs and shipped files are asked in turn", "[tuning]") {
  Bench bench;
  bench.ship(samples::h200(), {plain(kA), plain(kA, 1, 1)});
  bench.pack("/pack1", {plain(kB)});
  bench.pack("/pack2", {plain(kC), plain(kC, 2, 2)});
  {
    TunedStore store(bench.options);
    REQUIRE(store.find(samples::query(), {})->layer == "pack:/pack1");
    REQUIRE(store.find(samples::query(2, 2), {})->layer == "pack:/pack2");
    REQUIRE(store.find(samples::query(1, 1), {})->layer == "shipped:shipped.json");
    // An exact entry of the last layer goes before a neighbour of the first.
    REQUIRE(store
                .publish(changed(
                    kC, [](ShapeKey& k) { k.optional = {"h"}; }, 1, 1))
                .ok());
    REQUIRE(store.find(samples::query(1, 1), {})->source == PickSource::kExact);
    REQUIRE(store.publish(plain(kC)).ok());
    REQUIRE(store.find(samples::query(), {})->layer == "cache");
  }
  // Packs are never written to.
  REQUIRE_FALSE(bench.files.exists("/pack1/tuned/" + samples::h200().directory() + "/" +
                                   samples::key(1, 1).file_name()));
}

TEST_CASE("each layer cuts N by its own buckets", "[tuning]") {
  Bench bench;
  const WidthBuckets wide{32, 128, {1, 10}};
  KeyQuery query = samples::query(12, 16);
  const ShapeKey shipped_key = query.under(wide);
  REQUIRE(to_string(shipped_key.sequences) == "10+");
  bench.ship(samples::h200(), {samples::record(shipped_key, kA)}, {wide});
  TunedStore store(bench.options);
  REQUIRE(to_string(store.key_of(query).sequences) == "8-15");
  REQUIRE(store.find(query, {})->source == PickSource::kExact);
  query.sequences = 9;
  REQUIRE(store.find(query, {})->source == PickSource::kNeighbourWidth);

  // A directory with buckets of its own.
  REQUIRE(import_into_store(bench.files, "/cache", TunedFile{samples::h200(), {wide}, {}}).ok());
  TunedStore next(bench.options);
  REQUIRE(to_string(next.key_of(query).sequences) == "1-9");
}

TEST_CASE("an illegal pick falls to its alternates, then to the next step", "[tuning]") {
  Bench bench;
  TunedStore store(bench.options);
  const Record exact = samples::record();  // {64,64,2,4}, then {32,64,2,4}, then {16,64,2,2}
  REQUIRE(store.publish(exact).ok());
  REQUIRE(store.publish(plain(kC, 8, 16)).ok());
  const auto up_to = [](int bv) {
    return [bv](const Config& c) { return c.bv <= bv ? Status() : unsupported("too wide"); };
  };
  REQUIRE(store.find(samples::query(), up_to(64))->alternate == 0);
  REQUIRE(store.find(samples::query(), up_to(32))->alternate == 1);
  const auto second = store.find(samples::query(), up_to(16));
  REQUIRE(second->alternate == 2);
  REQUIRE(second->config == exact.alternates[1].config);
  REQUIRE(second->source == PickSource::kExact);
  const auto neighbour = store.find(
      samples::query(), [&](const Config& c) { return c == kC ? Status() : unsupported("no"); });
  REQUIRE(neighbour->source == PickSource::kNeighbourWidth);
  REQUIRE_FALSE(store.find(samples::query(), up_to(8)).has_value());
}

TEST_CASE("the likest foreign GPU is nearest", "[tuning]") {
  Bench bench;
  GpuFacts small = samples::h100();
  small.sm_count = 60;
  bench.ship(samples::a100(), {plain(kA)});
  bench.ship(small, {samples::record(
                        samples::query().under({32, 128, default_width_starts(32, 128, 60)}), kB)});
  bench.ship(samples::h100(), {plain(kC)});
  TunedStore store(bench.options);
  REQUIRE(store.find(samples::query(), {})->config == kC);
  REQUIRE(store
              .find(samples::query(),
                    [](const Config& c) { return c == kB ? Status() : unsupported("no"); })
              ->config == kB);
  REQUIRE_FALSE(store.find_exact(samples::query(), {}).has_value());
}

TEST_CASE("another toolchain is reported, not refused", "[tuning]") {
  Bench bench;
  REQUIRE(TunedStore(bench.options).publish(samples::record()).ok());
  bench.options.toolchain.driver = "600.1";
  REQUIRE(TunedStore(bench.options).find(samples::query(), {})->stale_toolchain);
  bench.options.toolchain.driver = "";
  REQUIRE_FALSE(TunedStore(bench.options).find(samples::query(), {})->stale_toolchain);
  bench.options.toolchain.scanjit = "9.9";
  REQUIRE_FALSE(TunedStore(bench.options).find(samples::query(), {})->stale_toolchain);
  bench.options.toolchain.nvrtc = "14.0";
  REQUIRE(TunedStore(bench.options).find(samples::query(), {})->stale_toolchain);

  const std::vector<Config> again = retime_candidates(samples::record());
  REQUIRE(again == std::vector<Config>{{32, 64, 2, 4}, {64, 64, 2, 4}, {16, 64, 2, 2}});
}

TEST_CASE("a partial entry does not replace a whole one", "[tuning]") {
  Bench bench;
  TunedStore store(bench.options);
  Record partial = plain(kA);
  partial.partial = true;
  REQUIRE(store.publish(partial).ok());
  REQUIRE(store.find(samples::query(), {})->config == kA);
  REQUIRE(store.publish(plain(kB)).ok());
  REQUIRE(store.publish(partial).ok());
  REQUIRE(store.find(samples::query(), {})->config == kB);
  bench.options.toolchain.nvrtc = "14.0";  // the whole one is of another toolchain now
  TunedStore later(bench.options);
  partial.toolchain = bench.options.toolchain;
  REQUIRE(later.publish(partial).ok());
  REQUIRE(later.find(samples::query(), {})->config == kA);
}

TEST_CASE("look-ups after the first touch no disk, nor does a sealed store", "[tuning]") {
  Bench bench;
  bench.pack("/pack", {plain(kB, 1, 1)});
  REQUIRE(TunedStore(bench.options).publish(samples::record()).ok());
  TunedStore store(bench.options);
  const auto all = [&] {
    (void)store.find(samples::query(), {});
    (void)store.find(samples::query(1, 1), {});
    (void)store.find(samples::query(4, 1), {});
    (void)store.find(samples::query(1000, 1000), {});
    (void)store.key_of(samples::query());
  };
  all();
  const std::int64_t calls = bench.files.calls();
  for (int i = 0; i < 10; ++i) all();
  REQUIRE(bench.files.calls() == calls);

  // Another process's entry is seen once the key is forgotten.
  const KeyQuery query = samples::query(2, 100);
  REQUIRE_FALSE(store.find_exact(query, {}).has_value());
  REQUIRE(TunedStore(bench.options).publish(plain(kC, 2, 100)).ok());
  REQUIRE_FALSE(store.find_exact(query, {}).has_value());
  store.forget(store.key_of(query));
  REQUIRE(store.find_exact(query, {})->config == kC);

  TunedStore sealed(bench.options);
  REQUIRE(sealed.find(samples::query(), {}).has_value());
  sealed.seal();
  const std::int64_t before = bench.files.calls();
  REQUIRE(sealed.find(samples::query(), {}).has_value());
  REQUIRE_FALSE(sealed.find_exact(samples::query(1, 1), {}).has_value());
  REQUIRE(sealed.publish(plain(kA, 1, 1)).ok());
  REQUIRE(sealed.find_exact(samples::query(1, 1), {}).has_value());
  REQUIRE(bench.files.calls() == before);
}

TEST_CASE("a damaged file is set aside in the cache and skipped in a pack", "[tuning]") {
  Bench bench;
  bench.pack("/pack", {plain(kB)});
  const std::string directory = "/cache/tuned/" + samples::h200().directory() + "/";
  const std::string name = samples::key().file_name();
  REQUIRE(TunedStore(bench.options).publish(samples::record()).ok());
  std::string text = *bench.files.read_file(directory + name, 1 << 20);
  const auto damage = [&](const std::string& bytes) {
    bench.files.put(directory + name, bytes);
    bench.warnings.clear();
    TunedStore store(bench.options);
    const auto pick = store.find(samples::query(), {});
    REQUIRE(pick->layer == "pack:/pack");
    REQUIRE(store.stats().corrupt_files == 1);
    REQUIRE(bench.warnings.size() == 1);
    REQUIRE_FALSE(bench.files.exists(directory + name));
    (void)store.find(samples::query(2, 1), {});
    REQUIRE(bench.warnings.size() == 1);
    REQUIRE(store.publish(samples::record()).ok());  // rebuilt in the same process
    REQUIRE(store.find(samples::query(), {})->layer == "cache");
  };
  damage(text.substr(0, text.size() / 2));
  damage("");
  damage(text.replace(text.find("\"bv\":64"), 7, "\"bv\":32"));
  damage(to_json(TunedFile{samples::h100(), {}, {samples::record()}},
                 Checksum::kWith));  // of another GPU
  damage(to_json(TunedFile{samples::h200(), {}, {plain(kA, 1, 1)}},
                 Checksum::kWith));  // of another key
  damage(to_json(TunedFile{samples::h200(), {}, {}}, Checksum::kWith));
  int aside = 0;
  const Result<std::vector<std::string>> left = bench.files.list_directory(directory);
  for (const std::string& file : *left) aside += says(file, ".json.corrupt-");
  REQUIRE(aside == 6);

  bench.files.put("/pack/tuned/" + samples::h200().directory() + "/" + name, "{}");
  REQUIRE(bench.files.remove_file(directory + name).ok());
  TunedStore store(bench.options);
  REQUIRE_FALSE(store.find_exact(samples::query(), {}).has_value());
  REQUIRE(bench.files.exists("/pack/tuned/" + samples::h200().directory() + "/" + name));

  bench.texts.push_back("{\"schema\": \"scanjit-tuned/1\"}");
  bench.options.shipped.push_back({"bad.json", bench.texts.back()});
  TunedStore with_bad_shipped(bench.options);
  REQUIRE_FALSE(with_bad_shipped.find(samples::query(), {}).has_value());
  REQUIRE(with_bad_shipped.stats().corrupt_files == 2);
}

TEST_CASE("damage of a shipped entry is damage of its head counts alone", "[tuning]") {
  Bench bench;
  const Record good = plain(kA), other = changed(kB, [](ShapeKey&key) { key.HV *= 2; });
  std::string text = to_json(TunedFile{samples::h200(), {}, {good, other}}, Checksum::kWithout);
  const std::size_t at = text.rfind("\"median\"");
  REQUIRE(at != std::string::npos);
  text.replace(at, 8, "\"mexian\"");
  bench.texts.push_back(text);
  bench.options.shipped = {{"damaged.json", bench.texts.back()}};
  TunedStore store(bench.options);
  const std::optional<Pick> pick = store.find(samples::query(), {});
  REQUIRE(pick.has_value());
  CHECK(pick->config == good.config);
  CHECK(store.stats().corrupt_files == 0);
  KeyQuery query = samples::query();
  query.key.HV *= 2;
  for (int again = 0; again < 2; ++again) CHECK_FALSE(store.find(query, {}).has_value());
  CHECK(store.stats().corrupt_files == 1);
  CHECK(bench.warnings.size() == 1);
}

TEST_CASE("without a cache directory everything stays in memory", "[tuning]") {
  Bench bench;
  bench.options.cache_dir.clear();
  TunedStore store(bench.options);
  REQUIRE(store.publish(samples::record()).ok());
  REQUIRE(store.find(samples::query(), {}).has_value());
  REQUIRE(bench.files.calls() == 0);
  Record bad = samples::record();
  bad.measured_at.clear();
  REQUIRE(store.publish(bad).code() == ErrorCode::kInvalidArgument);
}
