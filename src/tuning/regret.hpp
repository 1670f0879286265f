#pragma once
/// \file
/// Choosing one config for many measured points: inside the box of one key, over a whole map (the
/// shortlist of first use), and along N (where width buckets should begin). The regret of a config
/// at a point is its time over the best config's there, minus 1. Pure; thread-compatible values.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "scanjit/result.hpp"
#include "tuning/record.hpp"
#include "tuning/select.hpp"

namespace scanjit::tuning {

/// At most so many alternates are kept in an entry.
inline constexpr std::size_t kMaxAlternates = 8;
/// At most so many configs in a shortlist.
inline constexpr std::size_t kMaxShortlist = 6;

/// Where to measure a key: the middle of its box of sequences and chunks (geometric; what its
/// entry's times stand for), then both corners, none twice. An open end counts as twice its start.
/// Sequences are whole chunks long; points above `max_tokens` tokens in all are shortened as far as
/// the class allows, else left out (the lowest corner is always there).
[[nodiscard]] std::vector<MeasuredPoint> box_points(const ShapeKey& key, std::int64_t max_tokens);

struct PointSelection {
  MeasuredPoint point;
  Selection selection;
};

/// One record out of the selections of one key's box; the first point is the one whose times are
/// stored. The pick is the config, timed and not rejected at every point, with the least worst
/// regret. The default stays unless its worst regret is above the least by more than the greatest
/// `tie` of the points; among others as close, `fewer_resources` decides. `partial` if any
/// selection is. Key, l2, clock and toolchain are the caller's to fill in. Errors: kInvalidArgument
/// (no point, a busy selection, different defaults).
[[nodiscard]] Result<Record> combine(const std::vector<PointSelection>& points);

/// Times of every config at one place of a map, in any unit.
struct MapPoint {
  std::string name;  ///< for messages
  std::vector<std::pair<Config, double>> us;
};
/// The point of an entry: 1 + the worst regret of its pick and alternates.
[[nodiscard]] MapPoint map_point(const Record& record);

struct Shortlist {
  std::vector<Config> configs;  ///< in the order in which they were added
  double worst_regret = 0;      ///< of the best of the list at each point, over all points
  double mean_regret = 0;       ///< geometric mean of the same
};
/// Greedy cover: adds the config that lowers the sum of log regrets most (ties: `fewer_resources`),
/// until `limit` configs, or until every point has a config within `enough`. A config that was not
/// timed at a point counts as twice its worst time there. Points without times are passed over.
[[nodiscard]] Shortlist shortlist(const std::vector<MapPoint>& points,
                                  std::size_t limit = kMaxShortlist, double enough = 0.01);

/// Times of every config at one sequence count.
struct WidthPoint {
  std::int64_t sequences = 0;
  std::vector<std::pair<Config, double>> us;
};
struct BucketReport {
  Range sequences;
  Config config;  ///< of least worst regret in the bucket
  double worst_regret = 0;
};
struct FoundBuckets {
  WidthBuckets buckets;
  std::vector<BucketReport> report;  ///< one for each bucket
  double worst_regret = 0;
  [[nodiscard]] std::string to_text() const;  ///< a table, one bucket a line
};
/// The fewest buckets whose starts are measured N and in each of which one config is within
/// `max_regret` of the best at every measured N; among equally many, the least worst regret. The
/// first bucket starts at 1. Only configs timed at every N are considered. Errors: kInvalidArgument
/// (no point, an N below 1 or twice, no config timed at every N).
[[nodiscard]] Result<FoundBuckets> find_buckets(std::int64_t HV, std::int64_t V,
                                                std::vector<WidthPoint> points,
                                                double max_regret = 0.03);

}  // namespace scanjit::tuning
