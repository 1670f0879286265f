#include <algorithm>
#include <cmath>
#include <random>

#include "support/catch.hpp"
#include "tuning/regret.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;

namespace {

const Config kDefault{32, 64, 2, 4}, kWide{64, 64, 2, 4}, kSmall{16, 32, 2, 2}, kDeep{64, 64, 3, 8};

PointSelection point(std::int64_t sequences, const std::vector<std::pair<Config, double>>& us) {
  PointSelection one;
  one.point = {sequences, 1024};
  one.selection.default_config = kDefault;
  one.selection.tie = 0.01;
  for (const auto& [config, time] : us) {
    if (config == kDefault) one.selection.default_us = {time, time, time, 9};
  }
  for (const auto& [config, time] : us) {
    one.selection.measured.push_back(
        {config, {time, time, time, 9}, time / one.selection.default_us.median, false});
  }
  return one;
}

}  // namespace

TEST_CASE("the pick of a box does least badly at its worst point", "[tuning]") {
  // kWide is best at the first point and bad at the second; kDeep is never best and never bad.
  const Result<Record> record = combine({point(16, {{kDefault, 60}, {kWide, 40}, {kDeep, 42}}),
                                         point(64, {{kDefault, 100}, {kWide, 130}, {kDeep, 103}})});
  REQUIRE(record.ok());
  REQUIRE(record->config == kDeep);
  REQUIRE(record->regret == Approx(0.05));
  REQUIRE(record->us.median == 42);
  REQUIRE(record->default_us == 60);
  REQUIRE(record->measured_at.size() == 2);
  REQUIRE(record->alternates.size() == 2);
  REQUIRE(record->alternates[0].config == kWide);
  REQUIRE(record->alternates[0].regret == Approx(0.3));
  REQUIRE(record->alternates[1].regret == Approx(0.5));
  Record whole = *record;
  whole.key = samples::key(16, 16);
  whole.toolchain = samples::toolchain();
  INFO(whole.check().message());
  REQUIRE(whole.check().ok());
}

TEST_CASE("a box keeps the default inside the tie, and small configs before large", "[tuning]") {
  REQUIRE(combine({point(16, {{kDefault, 40.3}, {kWide, 40}})})->config == kDefault);
  REQUIRE(combine({point(16, {{kDefault, 50}, {kDeep, 40}, {kSmall, 40.2}})})->config == kSmall);
}

TEST_CASE("a config rejected at one point serves at none", "[tuning]") {
  PointSelection bad = point(64, {{kDefault, 60}});
  bad.selection.rejected = {{kWide, RejectReason::kWrongBits, "differs"}};
  bad.selection.partial = true;
  const Result<Record> record = combine({point(16, {{kDefault, 60}, {kWide, 40}}), bad});
  REQUIRE(record.ok());
  REQUIRE(record->config == kDefault);
  REQUIRE(record->alternates.empty());
  REQUIRE(record->rejected.size() == 1);
  REQUIRE(record->partial);
  REQUIRE(record->regret == 0);
}

TEST_CASE("points that cannot be combined are refused", "[tuning]") {
  REQUIRE_FALSE(combine({}).ok());
  PointSelection busy = point(16, {{kDefault, 60}});
  busy.selection.busy = true;
  REQUIRE_FALSE(combine({busy}).ok());
  PointSelection other = point(16, {{kDefault, 60}});
  other.selection.default_config = kWide;
  REQUIRE_FALSE(combine({point(16, {{kDefault, 60}}), other}).ok());
}

TEST_CASE("measured points lie in their box", "[tuning]") {
  for (const Range& chunks : chunk_classes()) {
    for (const Range& sequences : WidthBuckets{32, 128, {1, 2, 4, 8, 16}}.all()) {
      ShapeKey key = samples::key();
      key.chunks = chunks;
      key.sequences = sequences;
      for (const std::int64_t max_tokens :
           {std::int64_t{1000}, std::int64_t{131072}, std::int64_t{1} << 40}) {
        const std::vector<MeasuredPoint> points = box_points(key, max_tokens);
        REQUIRE_FALSE(points.empty());
        REQUIRE(points.size() <= 3);
        Record record = samples::record(key);
        record.measured_at = points;
        INFO(record.check().message());
        REQUIRE(record.check().ok());
        for (const MeasuredPoint& one : points) {
          const bool lowest = one.sequences == sequences.min && one.tokens == chunks.min * key.BT;
          REQUIRE((lowest || one.sequences * one.tokens <= max_tokens));
        }
      }
      REQUIRE(box_points(key, std::int64_t{1} << 40).size() ==
              (chunks.max == 1 && sequences.max == 1         ? 1U
               : sequences == Range{2, 3} && chunks.max == 1 ? 2U
                                                             : 3U));
    }
  }
}

TEST_CASE("a shortlist covers the map with few configs", "[tuning]") {
  std::vector<MapPoint> points;
  for (int i = 0; i < 30; ++i) {
    const bool narrow = i % 3 == 0;
    points.push_back({"p",
                      {{kSmall, narrow ? 10 : 20},
                       {kWide, narrow ? 18 : 10.1},
                       {kDeep, narrow ? 15 : 15},
                       {kDefault, narrow ? 11 : 14}}});
  }
  const Shortlist two = shortlist(points, 2, 0.0);
  REQUIRE(two.configs == std::vector<Config>{kWide, kSmall});
  REQUIRE(two.worst_regret == Approx(0).margin(1e-12));
  const Shortlist one = shortlist(points, 1);
  REQUIRE(one.configs.size() == 1);
  REQUIRE(one.worst_regret > 0.1);
  REQUIRE(one.mean_regret <= one.worst_regret);
  REQUIRE(shortlist({}).configs.empty());
  REQUIRE(shortlist({{"empty", {}}}).configs.empty());
  // A config that a point does not know is no cover of it.
  REQUIRE(shortlist({{"a", {{kSmall, 10}}}, {"b", {{kWide, 10}}}}, 6).configs.size() == 2);
  const MapPoint from_record = map_point(samples::record());
  REQUIRE(from_record.us.size() == 3);
  REQUIRE(from_record.us[1].second == Approx(1.27));
}

TEST_CASE("a greedy shortlist is never worse for being longer", "[tuning]") {
  std::mt19937_64 random(9);
  std::vector<MapPoint> points;
  const std::vector<Config> configs = samples::space().all();
  for (int p = 0; p < 40; ++p) {
    MapPoint one{"p", {}};
    for (const Config& config : configs)
      one.us.emplace_back(config, 1 + static_cast<double>(random() % 1000) / 500);
    points.push_back(one);
  }
  double before = 1e9;
  for (std::size_t limit = 1; limit <= kMaxShortlist; ++limit) {
    const Shortlist list = shortlist(points, limit, 0.0);
    REQUIRE(list.configs.size() == limit);
    REQUIRE(list.mean_regret <= before);
    before = list.mean_regret;
  }
}

TEST_CASE("buckets are split where the best config changes, and nowhere else", "[tuning]") {
  std::vector<WidthPoint> points;
  for (const std::int64_t n : {16, 1, 2, 64, 3, 4, 8, 32}) {
    const double wide = n >= 4 ? 10.0 : 14.0, small = n >= 4 ? 15.0 : 10.0;
    points.push_back({n, {{kWide, wide}, {kSmall, small}, {kDefault, 13}}});
  }
  const Result<FoundBuckets> found = find_buckets(32, 128, points);
  REQUIRE(found.ok());
  REQUIRE(found->buckets.starts == std::vector<std::int64_t>{1, 4});
  REQUIRE(found->report[0].config == kSmall);
  REQUIRE(found->report[1].config == kWide);
  REQUIRE(found->worst_regret == 0);
  REQUIRE(found->buckets.check().ok());
  REQUIRE(found->to_text().find("1-3") != std::string::npos);
  REQUIRE(found->to_text().find("4+") != std::string::npos);
  REQUIRE(find_buckets(32, 128, points, 0.5)->buckets.starts == std::vector<std::int64_t>{1});
  REQUIRE_FALSE(find_buckets(32, 128, {}).ok());
  REQUIRE_FALSE(find_buckets(32, 128, {points[0], points[0]}).ok());
  REQUIRE_FALSE(find_buckets(32, 128, {{1, {{kWide, 1}}}, {2, {{kSmall, 1}}}}).ok());
}

TEST_CASE("found buckets are as few as any cutting that keeps the bound", "[tuning]") {
  std::mt19937_64 random(13);
  const std::vector<Config> configs = {kDefault, kWide, kSmall, kDeep};
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::vector<WidthPoint> points;
    for (std::int64_t n = 1; n <= 7; ++n) {
      WidthPoint one{n, {}};
      for (const Config& config : configs)
        one.us.emplace_back(config, 1 + static_cast<double>(random() % 5) / 50);
      points.push_back(one);
    }
    const Result<FoundBuckets> found = find_buckets(32, 128, points, 0.03);
    REQUIRE(found.ok());
    // Every way to cut, by brute force.
    std::size_t fewest = 99;
    for (unsigned cuts = 0; cuts < 64; ++cuts) {
      std::size_t from = 0, buckets = 0;
      bool good = true;
      for (std::size_t end = 1; end <= 7; ++end) {
        if (end != 7 && (cuts >> (end - 1) & 1U) == 0) continue;
        double least = 1e9;
        for (const Config& config : configs) {
          double worst = 0;
          for (std::size_t p = from; p < end; ++p) {
            double best = 1e9, own = 0;
            for (const auto& [other, us] : points[p].us) {
              best = std::min(best, us);
              if (other == config) own = us;
            }
            worst = std::max(worst, own / best - 1);
          }
          least = std::min(least, worst);
        }
        good = good && least <= 0.03;
        ++buckets;
        from = end;
      }
      if (good) fewest = std::min(fewest, buckets);
    }
    REQUIRE(found->buckets.starts.size() == fewest);
    REQUIRE(found->worst_regret <= 0.03);
  }
}
