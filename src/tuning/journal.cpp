#include "tuning/journal.hpp"

#include <limits>
#include <map>
#include <set>

#include "core/guard.hpp"
#include "tuning/json_reader.hpp"
#include "tuning/key_json.hpp"

namespace scanjit::tuning {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int64_t>::max();

JournalEntry read_entry(const json::Value& value, const std::string& where, json::Errors& errors) {
  JournalEntry entry;
  json::Object object(value, where, errors);
  if (const json::Value* key = object.member("key"))
    entry.key = read_key(*key, object.path("key"), errors);
  if (const json::Value* point = object.member("point")) {
    json::Object numbers(*point, object.path("point"), errors);
    entry.point.sequences = numbers.integer("sequences", 1, kMaxCount);
    entry.point.tokens = numbers.integer("tokens", 1, kMaxCount);
    numbers.done();
  }
  entry.misses = object.integer("misses", 1, kMaxCount);
  object.done();
  return entry;
}

}  // namespace

std::string journal_to_json(const std::vector<JournalEntry>& entries) {
  std::string text = std::string("{\n  \"schema\": \"") + kJournalSchema + "\",\n  \"entries\": [";
  const char* before = "\n    ";
  for (const JournalEntry& entry : entries) {
    json::Ordered object;
    object["key"] = key_json(entry.key);
    object["point"]["sequences"] = entry.point.sequences;
    object["point"]["tokens"] = entry.point.tokens;
    object["misses"] = entry.misses;
    text += before + json::dump(object);
    before = ",\n    ";
  }
  return text + (entries.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

Result<std::vector<JournalEntry>> journal_from_json(std::string_view text) {
  return guard([&]() -> Result<std::vector<JournalEntry>> {
    SCANJIT_ASSIGN_OR_RETURN(const json::Value value, json::parse(text));
    json::Errors errors;
    json::Object object(value, "", errors);
    static_cast<void>(object.one_of("schema", {kJournalSchema}));
    const auto& elements = object.array("entries");
    object.done();
    std::vector<JournalEntry> entries;
    std::set<std::string> seen;
    for (std::size_t i = 0; i < elements.size() && errors.ok(); ++i) {
      const std::string where = json::indexed("entries", i);
      JournalEntry entry = read_entry(elements[i], where, errors);
      if (errors.ok() && !seen.insert(entry.key.text()).second)
        errors.add(where, "has a key that an earlier entry has");
      entries.push_back(std::move(entry));
    }
    if (!errors.ok()) return errors.status();
    return entries;
  });
}

std::vector<JournalEntry> merge_journals(std::vector<JournalEntry> into,
                                         const std::vector<JournalEntry>& more) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < into.size(); ++i) places[into[i].key.text()] = i;
  for (const JournalEntry& entry : more) {
    const auto [place, fresh] = places.try_emplace(entry.key.text(), into.size());
    if (fresh) {
      into.push_back(entry);
    } else {
      std::int64_t& misses = into[place->second].misses;
      misses = misses > kMaxCount - entry.misses ? kMaxCount : misses + entry.misses;
    }
  }
  return into;
}

}  // namespace scanjit::tuning
