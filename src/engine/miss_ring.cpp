#include "engine/miss_ring.hpp"

#include <algorithm>

namespace scanjit::engine {
namespace {

constexpr std::int64_t kMostFileBytes = std::int64_t{64} << 20;

}  // namespace

void MissRing::note(const tuning::ShapeKey& key, const tuning::MeasuredPoint& point) {
  if (point.sequences < 1 || point.tokens < 1) return;
  std::string text = key.text();
  const std::lock_guard lock(mutex_);
  const auto [place, fresh] = held_.try_emplace(std::move(text));
  Held& held = place->second;
  held.last_met = ++met_;
  if (!fresh) {
    ++held.entry.misses;
    return;
  }
  held.entry = {key, point, 1};
  if (held_.size() <= kMostKeys) return;
  held_.erase(std::min_element(held_.begin(), held_.end(), [](const auto& a, const auto& b) {
    return a.second.last_met < b.second.last_met;
  }));
  ++dropped_;
}

std::vector<tuning::JournalEntry> MissRing::in_order() const {
  std::vector<const Held*> order;
  order.reserve(held_.size());
  for (const auto& [text, held] : held_) order.push_back(&held);
  std::sort(order.begin(), order.end(),
            [](const Held* a, const Held* b) { return a->last_met < b->last_met; });
  std::vector<tuning::JournalEntry> entries;
  entries.reserve(order.size());
  for (const Held* held : order) entries.push_back(held->entry);
  return entries;
}

Result<std::int64_t> MissRing::flush(os::FileSystem& files, const std::string& path) {
  const std::lock_guard one_at_a_time(flushing_);
  std::vector<tuning::JournalEntry> known;
  if (const Result<std::string> text = files.read_file(path, kMostFileBytes); text.ok()) {
    auto read = tuning::journal_from_json(*text);
    if (!read.ok()) {
      return corrupt(path + " is no journal and is left as it is: " + read.status().message(),
                     path);
    }
    known = std::move(*read);
  } else if (text.status().code() != ErrorCode::kNotFound) {
    return text.status();
  }
  std::vector<tuning::JournalEntry> now;
  {
    const std::lock_guard lock(mutex_);
    now = in_order();
  }
  const std::vector<tuning::JournalEntry> all = tuning::merge_journals(std::move(known), now);
  if (const Status written = files.publish(path, tuning::journal_to_json(all)); !written.ok())
    return io_error("the journal was not written: " + written.message(), path);
  const std::lock_guard lock(mutex_);
  for (const tuning::JournalEntry& written : now) {
    const auto place = held_.find(written.key.text());
    if (place == held_.end()) continue;
    // What was met while the file was written stays for the next one.
    place->second.entry.misses -= written.misses;
    if (place->second.entry.misses < 1) held_.erase(place);
  }
  return static_cast<std::int64_t>(all.size());
}

std::int64_t MissRing::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(held_.size());
}

std::int64_t MissRing::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace scanjit::engine
