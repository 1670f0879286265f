#pragma once
/// \file
/// Benchmark rows, as they are measured and as they stand in files ("scanjit-bench/1").

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"
#include "session.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::cli {

struct ConfigTimes {
  Config config;
  std::vector<double> samples;  ///< microseconds of one run, one for each timed block
  double us = 0;                ///< their median
  std::string failure;          ///< why there are no samples
};

/// Another implementation's time for the same shape.
struct PeerTime {
  std::string name;
  double us = 0;
};

struct BenchRow {
  tuning::Shape shape;
  int kernel_revision = 0;
  std::vector<ConfigTimes> configs;  ///< all that were timed
  std::size_t served = 0;            ///< place of the config that an engine serves
  std::string source;                ///< where that pick comes from: "exact", "heuristic", ...
  double floor_us = 0;               ///< fewest bytes over 4.3 TB/s
  std::string l2;
  std::int64_t timed_tokens =
      0;  ///< of each sequence: fewer than the shape's where memory did not do
  std::optional<PeerTime> peer;  ///< measured before, not in this run

  [[nodiscard]] const ConfigTimes& pick() const { return configs[served]; }
  [[nodiscard]] const ConfigTimes* best() const;  ///< null if none was timed
};

/// What device memory of an H200 moves a second, measured: bytes over this are the floor.
inline constexpr double kFloorBytesPerUs = 4.3e6;

[[nodiscard]] double median(std::vector<double> values);  ///< 0 of none

[[nodiscard]] Json row_json(const BenchRow& row);
[[nodiscard]] std::string csv_of(const std::vector<BenchRow>& rows);

/// Peer times of a file of this schema: (shape, time) of each row with a peer.
/// Errors: kCorrupt, names row and field.
[[nodiscard]] Result<std::vector<std::pair<tuning::Shape, PeerTime>>> read_peers(
    std::string_view text);
/// The same problem, as far as a peer's row says.
[[nodiscard]] bool same_problem(const tuning::Shape& a, const tuning::Shape& b);

}  // namespace scanjit::cli
