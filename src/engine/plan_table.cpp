#include "engine/plan_table.hpp"

namespace scanjit::engine {
namespace {

constexpr std::size_t kFirstSlots = 64;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) noexcept {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
  return hash ^ (hash >> 29);
}

}  // namespace

std::uint64_t PlanKey::hash() const noexcept {
  // Two lanes, so that the multiplications overlap.
  std::uint64_t a = context, b = 1;
  static_assert(ops::ProblemWords::kCount % 2 == 0);
  for (std::size_t i = 0; i < ops::ProblemWords::kCount; i += 2) {
    a = mixed(a, static_cast<std::uint64_t>(problem.words[i]));
    b = mixed(b, static_cast<std::uint64_t>(problem.words[i + 1]));
  }
  return mixed(a, b);
}

PlanTable::PlanTable() : slots_(nullptr) {
  all_slots_.push_back(std::make_unique<Slots>(kFirstSlots));
  slots_.store(all_slots_.back().get(), std::memory_order_release);
}

PlanTable::~PlanTable() = default;

// The slot that holds the key, or the empty one where it belongs.
std::atomic<const PlanTable::Entry*>& PlanTable::slot_of(Slots& slots,
                                                         const PlanKey& key) noexcept {
  const std::size_t mask = slots.entries.size() - 1;
  for (std::size_t i = key.hash() & mask;; i = (i + 1) & mask) {
    const Entry* entry = slots.entries[i].load(std::memory_order_acquire);
    if (entry == nullptr || entry->key == key) return slots.entries[i];
  }
}

const PlanTable::Entry* PlanTable::find(const PlanKey& key) const noexcept {
  return slot_of(*slots_.load(std::memory_order_acquire), key).load(std::memory_order_acquire);
}

void PlanTable::put(Entry entry) {
  const std::lock_guard lock(mutex_);
  all_entries_.push_back(std::make_unique<const Entry>(std::move(entry)));
  const Entry* added = all_entries_.back().get();
  Slots* slots = slots_.load(std::memory_order_relaxed);
  if (2 * (used_ + 1) > slots->entries.size()) {
    auto grown = std::make_unique<Slots>(2 * slots->entries.size());
    for (const auto& slot : slots->entries) {
      if (const Entry* old = slot.load(std::memory_order_relaxed))
        slot_of(*grown, old->key).store(old, std::memory_order_relaxed);
    }
    slots = grown.get();
    all_slots_.push_back(std::move(grown));
    slots_.store(slots, std::memory_order_release);
  }
  std::atomic<const Entry*>& slot = slot_of(*slots, added->key);
  if (slot.load(std::memory_order_relaxed) == nullptr) ++used_;
  slot.store(added, std::memory_order_release);
}

}  // namespace scanjit::engine
