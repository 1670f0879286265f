// Any text as a tuned file or a single entry: an error that says something, or values that pass
// their own check and survive writing and reading.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "require.hpp"
#include "tuning/record.hpp"

using scanjit::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scanjit;
  using namespace scanjit::tuning;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Checksum checksum : {Checksum::kWithout, Checksum::kWith}) {
    const Result<TunedFile> file = tuned_file_from_json(text, checksum);
    if (!file.ok()) {
      require(file.status().code() == ErrorCode::kCorrupt && !file.status().message().empty());
      continue;
    }
    for (const Record& record : file->entries) {
      require(record.check().ok());
      // What becomes a file's name and a folder's: no way out of the directory.
      require(record.key.file_name().find('/') == std::string::npos);
    }
    require(file->gpu.directory().find('/') == std::string::npos);
    const Result<TunedFile> again = tuned_file_from_json(to_json(*file, checksum), checksum);
    require(again.ok() && *again == *file);
  }
  const Result<Record> record = record_from_json(text);
  if (record.ok()) {
    require(record->check().ok());
    const Result<Record> again = record_from_json(to_json(*record));
    require(again.ok() && *again == *record);
  } else {
    require(record.status().code() == ErrorCode::kCorrupt);
  }
  return 0;
}
