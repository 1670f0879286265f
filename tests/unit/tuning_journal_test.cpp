#include "tuning/journal.hpp"

#include "support/catch.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;

namespace {

JournalEntry entry_of(std::int64_t heads, std::int64_t misses) {
  JournalEntry entry;
  entry.key = samples::key();
  entry.key.HV = heads;
  entry.point = {16, 1024};
  entry.misses = misses;
  return entry;
}

}  // namespace

TEST_CASE("a journal survives a round trip", "[tuning]") {
  const std::vector<JournalEntry> entries = {entry_of(32, 1), entry_of(16, 7)};
  const auto back = journal_from_json(journal_to_json(entries));
  REQUIRE(back.ok());
  CHECK(*back == entries);
  CHECK(journal_from_json(journal_to_json({}))->empty());
}

TEST_CASE("journals of several servers become one", "[tuning]") {
  const auto merged =
      merge_journals({entry_of(32, 1), entry_of(16, 7)}, {entry_of(48, 2), entry_of(32, 5)});
  CHECK(merged == std::vector<JournalEntry>{entry_of(32, 6), entry_of(16, 7), entry_of(48, 2)});
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(merge_journals({entry_of(1, kMost)}, {entry_of(1, 3)})[0].misses == kMost);
}

TEST_CASE("a malformed journal is corrupt and says where", "[tuning]") {
  const std::string good = journal_to_json({entry_of(32, 1)});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    REQUIRE(text.find(from) != std::string::npos);
    return text.replace(text.find(from), from.size(), to);
  };
  const std::pair<std::string, const char*> rows[] = {
      {"", "JSON"},
      {"[]", "object"},
      {with("scanjit-journal/1", "scanjit-journal/2"), "schema"},
      {with("\"misses\":1", "\"misses\":0"), "entries[0].misses"},
      {with("\"misses\":1", "\"misses\":1,\"more\":2"), "more"},
      {with("\"tokens\":1024", "\"tokens\":-1"), "entries[0].point.tokens"},
      {with("\"sequences\":16,\"tokens\"", "\"tokens\""), "entries[0].point.sequences"},
      {with("\"HV\":32", "\"HV\":\"32\""), "entries[0].key.HV"},
      {journal_to_json({entry_of(32, 1), entry_of(32, 2)}), "entries[1]"},
  };
  for (const auto& [text, word] : rows) {
    INFO(text);
    const auto result = journal_from_json(text);
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().code() == ErrorCode::kCorrupt);
    CHECK(result.status().message().find(word) != std::string::npos);
  }
}
