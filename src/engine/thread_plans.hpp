#pragma once
/// \file
/// What one thread has looked up lately. A plan that many threads look up at once is counted here
/// in each thread's own place, so that they do not pass one cache line around; and what is here
/// needs no hashing.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/plan_table.hpp"

namespace scanjit::engine {

class ThreadPlans {
 public:
  /// Holds the first plan that came, until its engine has a new plan of anything, or it was long of
  /// no use: in between nothing is allocated, whichever keys and engines take turns.
  struct Slot {
    std::uint64_t planner = 0;  ///< Planner::id()
    std::uint64_t version = 0;  ///< of its table
    int misses = 0;             ///< since it was of use
    PlanKey key;
    PlanPointer plan;  ///< with a count of its own; keeps the table's plan alive

    [[nodiscard]] bool holds(std::uint64_t of, std::uint64_t now, const PlanKey& wanted) noexcept {
      if (planner != of || version != now || !(key == wanted)) return false;
      misses = 0;
      return true;
    }
    /// The table gave `found`, looked up after `now` was read.
    void missed(std::uint64_t of, std::uint64_t now, const PlanKey& wanted,
                const PlanPointer& found) {
      constexpr int kPatience = 1000;
      const bool outdated = planner == of && version != now;
      if (planner != 0 && !outdated && ++misses < kPatience) return;
      const auto own = std::make_shared<const PlanPointer>(found);
      plan = PlanPointer(own, own->get());
      planner = of;
      version = now;
      misses = 0;
      key = wanted;
    }
  };

  /// The calling thread's place of a key.
  [[nodiscard]] static Slot& slot_of(const PlanKey& key) noexcept {
    thread_local std::array<Slot, kSlots> slots;
    const auto& words = key.problem.words;  // batch, tokens, heads and sequences differ most
    const auto mixed = static_cast<std::uint64_t>(words[1] + 5 * words[2] + (words[2] >> 6) +
                                                  words[4] + 3 * words[8]);
    return slots[mixed % kSlots];
  }

 private:
  static constexpr std::size_t kSlots = 16;
};

}  // namespace scanjit::engine
