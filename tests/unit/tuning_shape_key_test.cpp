#include <functional>
#include <set>

#include "support/catch.hpp"
#include "tuning/shape_key.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;

TEST_CASE("chunk classes cover every count exactly once", "[tuning]") {
  const std::vector<Range> classes = chunk_classes();
  std::vector<std::string> names;
  for (const Range& one : classes) names.push_back(to_string(one));
  REQUIRE(names == std::vector<std::string>{"1", "2-8", "9-64", "65-512", "513+"});
  for (std::int64_t chunks = 1; chunks <= 2000; ++chunks) {
    int holding = 0;
    for (const Range& one : classes) holding += one.contains(chunks);
    REQUIRE(holding == 1);
    REQUIRE(chunk_class(chunks).contains(chunks));
  }
  REQUIRE(chunk_class(0) == chunk_class(1));
  REQUIRE(chunk_class(std::int64_t{1} << 62) == classes.back());
}

TEST_CASE("the longest sequence decides the chunk class", "[tuning]") {
  REQUIRE(class_chunks(16, 1, 0, 64) == 1);
  REQUIRE(class_chunks(16 * 1024, 16, 0, 64) == 16);
  REQUIRE(class_chunks(16 * 1024 + 1, 16, 0, 64) == 17);  // ceil twice
  REQUIRE(class_chunks(16 * 1024, 16, 8192, 64) == 128);  // max_tokens wins
  REQUIRE(class_chunks(0, 0, 0, 64) == 1);
  REQUIRE(class_chunks(std::int64_t{1} << 62, 1, 0, 16) == std::int64_t{1} << 58);
}

TEST_CASE("default widths double until the GPU is full four times", "[tuning]") {
  REQUIRE(default_width_starts(32, 128, 132) == std::vector<std::int64_t>{1, 2, 4, 8, 16});
  REQUIRE(default_width_starts(16, 128, 132) == std::vector<std::int64_t>{1, 2, 4, 8, 16, 32});
  REQUIRE(default_width_starts(1000, 128, 132) == std::vector<std::int64_t>{1});
  REQUIRE(default_width_starts(0, 128, 132) == std::vector<std::int64_t>{1});
  REQUIRE(default_width_starts(std::int64_t{1} << 62, std::int64_t{1} << 62, 132) ==
          std::vector<std::int64_t>{1});
  for (const std::int64_t HV : {1, 2, 3, 8, 16, 24, 48, 64, 96}) {
    for (const std::int64_t V : {1, 64, 65, 128, 512}) {
      for (const int sm : {1, 16, 108, 132, 188}) {
        const std::vector<std::int64_t> starts = default_width_starts(HV, V, sm);
        const std::int64_t blocks = HV * ((V + 63) / 64);
        REQUIRE(starts.back() * blocks >= 4 * sm);
        if (starts.size() > 1) REQUIRE(starts[starts.size() - 2] * blocks < 4 * sm);
      }
    }
  }
}

TEST_CASE("width buckets partition the sequence counts, whatever their starts", "[tuning]") {
  std::mt19937_64 random(7);
  for (int repeat = 0; repeat < 200; ++repeat) {
    WidthBuckets buckets{32, 128, {1}};
    while (buckets.starts.size() < 1 + random() % 8)
      buckets.starts.push_back(buckets.starts.back() + 1 + static_cast<std::int64_t>(random() % 9));
    REQUIRE(buckets.check().ok());
    const std::vector<Range> all = buckets.all();
    REQUIRE(all.size() == buckets.starts.size());
    REQUIRE_FALSE(all.back().max.has_value());
    for (std::int64_t n = 1; n < 100; ++n) {
      int holding = 0;
      for (const Range& one : all) holding += one.contains(n);
      REQUIRE(holding == 1);
      REQUIRE(buckets.bucket(n).contains(n));
    }
  }
  REQUIRE_FALSE(WidthBuckets{32, 128, {}}.check().ok());
  REQUIRE_FALSE(WidthBuckets{32, 128, {2, 4}}.check().ok());
  REQUIRE_FALSE(WidthBuckets{32, 128, {1, 4, 4}}.check().ok());
}

TEST_CASE("a key survives JSON, and each of its fields is in text, file name and JSON",
          "[tuning]") {
  std::mt19937_64 random(11);
  std::set<std::string> texts, names;
  for (int repeat = 0; repeat < 500; ++repeat) {
    const ShapeKey key = samples::random_record(random).key;
    const Result<ShapeKey> back = shape_key_from_json(to_json(key));
    REQUIRE(back.ok());
    REQUIRE(*back == key);
    texts.insert(key.text());
    names.insert(key.file_name());
  }
  REQUIRE(texts.size() == names.size());

  const ShapeKey base = samples::key();
  const std::vector<std::function<void(ShapeKey&)>> changes = {
      [](ShapeKey& k) { k.kernel = "other"; },
      [](ShapeKey& k) { k.kernel_revision = 2; },
      [](ShapeKey& k) { k.space = "0"; },
      [](ShapeKey& k) { k.dtype = DType::kF16; },
      [](ShapeKey& k) { k.K = 64; },
      [](ShapeKey& k) { k.V = 64; },
      [](ShapeKey& k) { k.BT = 32; },
      [](ShapeKey& k) { k.gate = "gk"; },
      [](ShapeKey& k) { k.gate_base = GateBase::kE; },
      [](ShapeKey& k) { k.layout = StateLayout::kVK; },
      [](ShapeKey& k) { k.optional = {"h"}; },
      [](ShapeKey& k) { k.packed = true; },
      [](ShapeKey& k) { k.index = "i32"; },
      [](ShapeKey& k) { k.pool = "h0"; },
      [](ShapeKey& k) { k.alignment = 2; },
      [](ShapeKey& k) { k.numerics = "split64"; },
      [](ShapeKey& k) { k.H = 8; },
      [](ShapeKey& k) { k.HV = 16; },
      [](ShapeKey& k) { k.chunks = chunk_class(1); },
      [](ShapeKey& k) {
        k.sequences = {8, 15};
      }};
  std::set<std::string> all{base.text()};
  for (const auto& change : changes) {
    ShapeKey other = base;
    change(other);
    REQUIRE(other != base);
    REQUIRE(other.file_name() != base.file_name());
    REQUIRE(to_json(other) != to_json(base));
    REQUIRE(all.insert(other.text()).second);
  }
}

TEST_CASE("a key that no op could mean is refused by name", "[tuning]") {
  const auto refused = [](const std::function<void(ShapeKey&)>& change, const std::string& word) {
    ShapeKey key = samples::key();
    change(key);
    const Status status = key.normalise();
    return status.code() == ErrorCode::kInvalidArgument &&
           status.message().find(word) != std::string::npos;
  };
  REQUIRE(refused([](ShapeKey& k) { k.K = 0; }, "K is 0"));
  REQUIRE(refused([](ShapeKey& k) { k.HV = -3; }, "HV is -3"));
  REQUIRE(refused([](ShapeKey& k) { k.kernel = "../evil"; }, "kernel"));
  REQUIRE(refused([](ShapeKey& k) { k.gate = "g gk"; }, "gate"));
  REQUIRE(refused([](ShapeKey& k) { k.index = "i16"; }, "index"));
  REQUIRE(refused([](ShapeKey& k) { k.pool = "all"; }, "pool"));
  REQUIRE(refused([](ShapeKey& k) { k.alignment = 8; }, "alignment is 8"));
  REQUIRE(refused([](ShapeKey& k) { k.sequences = {4, 3}; }, "sequences"));
  ShapeKey key = samples::key();
  key.optional = {"v_new", "h", "h"};
  REQUIRE(key.normalise().ok());
  REQUIRE(key.optional == std::vector<std::string>{"h", "v_new"});
}
