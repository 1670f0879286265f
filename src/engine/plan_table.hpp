#pragma once
/// \file
/// Plans by problem and context. Looking up takes no lock and allocates nothing.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/plan.hpp"

namespace scanjit::engine {

struct PlanKey {
  ops::ProblemWords problem;
  unsigned long long context = 0;  ///< cuCtxGetId
  friend bool operator==(const PlanKey&, const PlanKey&) = default;
  [[nodiscard]] std::uint64_t hash() const noexcept;
};

/// Insert-only: entries, and tables outgrown, live until the table ends, so that a reader may hold
/// what it found. (Outgrown tables together are smaller than the present one.)
class PlanTable {
 public:
  struct Entry {
    PlanKey key;
    std::shared_ptr<const Plan::Impl> plan;
    /// Not to be sought again. A plan that is not serves captures, and others until it is replaced.
    bool settled = true;
  };

  PlanTable();
  ~PlanTable();
  PlanTable(const PlanTable&) = delete;
  PlanTable& operator=(const PlanTable&) = delete;

  [[nodiscard]] const Entry* find(const PlanKey& key) const noexcept;
  /// Adds an entry, or replaces the one of this key for later readers.
  void put(Entry entry);

 private:
  struct Slots {
    explicit Slots(std::size_t count) : entries(count) {}
    std::vector<std::atomic<const Entry*>> entries;  // a power of two, at most half full
  };
  static std::atomic<const Entry*>& slot_of(Slots& slots, const PlanKey& key) noexcept;

  std::atomic<Slots*> slots_;
  std::mutex mutex_;  // writers
  std::vector<std::unique_ptr<Slots>> all_slots_;
  std::vector<std::unique_ptr<const Entry>> all_entries_;
  std::size_t used_ = 0;
};

}  // namespace scanjit::engine
