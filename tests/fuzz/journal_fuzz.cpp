// Any text as a journal: an error that says something, or keys that survive writing and reading,
// and a count of misses that no merge turns negative.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "require.hpp"
#include "tuning/journal.hpp"

using scanjit::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scanjit;
  using namespace scanjit::tuning;
  const auto entries =
      journal_from_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!entries.ok()) {
    require(entries.status().code() == ErrorCode::kCorrupt && !entries.status().message().empty());
    return 0;
  }
  const auto again = journal_from_json(journal_to_json(*entries));
  require(again.ok() && *again == *entries);
  const std::vector<JournalEntry> merged = merge_journals(*entries, *entries);
  require(merged.size() == entries->size());
  for (std::size_t i = 0; i < merged.size(); ++i) {
    require(merged[i].key == (*entries)[i].key && merged[i].misses >= (*entries)[i].misses);
    require(merged[i].key.file_name().find('/') == std::string::npos);
  }
  return 0;
}
