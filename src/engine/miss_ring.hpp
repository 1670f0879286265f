#pragma once
/// \file
/// The keys that an engine served untuned or refused, until they are flushed to a journal. Bounded:
/// the latest keys stay.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "tuning/journal.hpp"

namespace scanjit::engine {

/// Thread-safe.
class MissRing {
 public:
  static constexpr std::size_t kMostKeys = 1024;

  /// Adds a key, or counts it again. A problem without a token has nothing to tune and is left out.
  void note(const tuning::ShapeKey& key, const tuning::MeasuredPoint& point);

  /// Writes what is held to the journal at `path`, together with what is in it already, and lets it
  /// go. Returns how many keys the file holds. Errors: kIoError, kCorrupt (a file that is no
  /// journal is left alone); then nothing is let go. One process at a time should write a file.
  [[nodiscard]] Result<std::int64_t> flush(os::FileSystem& files, const std::string& path);

  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t dropped() const;

 private:
  struct Held {
    tuning::JournalEntry entry;
    std::uint64_t last_met = 0;
  };
  [[nodiscard]] std::vector<tuning::JournalEntry> in_order() const;  // with mutex_ held

  std::mutex flushing_;               // one flush at a time
  mutable std::mutex mutex_;          // all below; not held while a file is read or written
  std::map<std::string, Held> held_;  // by key text
  std::uint64_t met_ = 0;
  std::int64_t dropped_ = 0;
};

}  // namespace scanjit::engine
