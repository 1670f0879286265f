#pragma once
/// \file
/// A journal: the keys that a server met without a tuned entry, for `scanjit tune --from-journal`.
/// JSON of schema "scanjit-journal/1", one entry a line; reading is strict, as in record.hpp. Pure;
/// thread-compatible values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"
#include "tuning/record.hpp"
#include "tuning/shape_key.hpp"

namespace scanjit::tuning {

inline constexpr const char* kJournalSchema = "scanjit-journal/1";

struct JournalEntry {
  ShapeKey key;
  MeasuredPoint point;      ///< the first problem of this key that was met
  std::int64_t misses = 1;  ///< how many problems of it were met
  friend bool operator==(const JournalEntry&, const JournalEntry&) = default;
};

[[nodiscard]] std::string journal_to_json(const std::vector<JournalEntry>& entries);
/// Errors: kCorrupt, the sentence names entry and field; also for one key twice.
[[nodiscard]] Result<std::vector<JournalEntry>> journal_from_json(std::string_view text);

/// Entries of both, the first ones first; the misses of one key are added up.
[[nodiscard]] std::vector<JournalEntry> merge_journals(std::vector<JournalEntry> into,
                                                       const std::vector<JournalEntry>& more);

}  // namespace scanjit::tuning
