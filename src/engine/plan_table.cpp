#include "engine/plan_table.hpp"

#include <array>

namespace scanjit::engine {
namespace {

constexpr std::size_t kFirstSlots = 64;

// Odd numbers without a pattern, one for each word.
constexpr auto kSecrets = [] {
  std::array<std::uint64_t, ops::ProblemWords::kCount> secrets{};
  std::uint64_t state = 0x9E3779B97F4A7C15U;
  for (std::uint64_t& secret : secrets) {  // splitmix64
    state += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    secret = (z ^ (z >> 31)) | 1;
  }
  return secrets;
}();

// Both halves of the product of two words.
std::uint64_t folded(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

std::uint64_t PlanKey::hash() const noexcept {
  // One product for two words, none waiting for another. No product may be 0 for all values of one
  // of its words, which the secrets see to as long as words are no secrets.
  std::uint64_t hash = context * kSecrets[0];
  static_assert(ops::ProblemWords::kCount % 2 == 0);
  for (std::size_t i = 0; i < ops::ProblemWords::kCount; i += 2) {
    hash ^= folded(static_cast<std::uint64_t>(problem.words[i]) ^ kSecrets[i],
                   static_cast<std::uint64_t>(problem.words[i + 1]) ^ kSecrets[i + 1]);
  }
  return folded(hash ^ kSecrets[1], kSecrets[2]);
}

PlanTable::PlanTable() : slots_(nullptr) {
  all_slots_.push_back(std::make_unique<Slots>(kFirstSlots));
  slots_.store(all_slots_.back().get(), std::memory_order_release);
}

PlanTable::~PlanTable() = default;

// The slot that holds the key, or the empty one where it belongs; and what was read there. The slot
// is not to be read again for that: an empty one may by then hold another key.
PlanTable::Place PlanTable::place_of(Slots& slots, const PlanKey& key) noexcept {
  const std::size_t mask = slots.entries.size() - 1;
  for (std::size_t i = key.hash() & mask;; i = (i + 1) & mask) {
    const Entry* entry = slots.entries[i].load(std::memory_order_acquire);
    if (entry == nullptr || entry->key == key) return {slots.entries[i], entry};
  }
}

const PlanTable::Entry* PlanTable::find(const PlanKey& key) const noexcept {
  return place_of(*slots_.load(std::memory_order_acquire), key).entry;
}

bool PlanTable::put(Entry entry) {
  const std::lock_guard lock(mutex_);
  if (all_entries_.size() == kMostEntries) return false;
  all_entries_.push_back(std::make_unique<const Entry>(std::move(entry)));
  const Entry* added = all_entries_.back().get();
  Slots* slots = slots_.load(std::memory_order_relaxed);
  if (2 * (used_ + 1) > slots->entries.size()) {
    auto grown = std::make_unique<Slots>(2 * slots->entries.size());
    for (const auto& slot : slots->entries) {
      if (const Entry* old = slot.load(std::memory_order_relaxed))
        place_of(*grown, old->key).slot.store(old, std::memory_order_relaxed);
    }
    slots = grown.get();
    all_slots_.push_back(std::move(grown));
    slots_.store(slots, std::memory_order_release);
  }
  const Place place = place_of(*slots, added->key);
  if (place.entry == nullptr) ++used_;
  place.slot.store(added, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

std::vector<PlanPointer> PlanTable::plans() const {
  const std::lock_guard lock(mutex_);
  std::vector<PlanPointer> plans;
  for (const auto& slot : slots_.load(std::memory_order_relaxed)->entries) {
    if (const Entry* entry = slot.load(std::memory_order_relaxed)) plans.push_back(entry->plan);
  }
  return plans;
}

}  // namespace scanjit::engine
