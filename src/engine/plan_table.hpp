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

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const noexcept { return key.hash(); }
};

/// Insert-only: entries, and tables outgrown, live until the table ends, so that a reader may hold
/// what it found. (Outgrown tables together are smaller than the present one.) It takes only so
/// many entries: where lengths change with every call, problems never end, and what does not fit is
/// made anew each time out of kernels that are loaded.
class PlanTable {
 public:
  static constexpr std::size_t kMostEntries = 1 << 14;
  struct Entry {
    PlanKey key;
    PlanPointer plan;
    /// Not to be sought again. A plan that is not serves captures, and others until it is replaced.
    bool settled = true;
  };

  PlanTable();
  ~PlanTable();
  PlanTable(const PlanTable&) = delete;
  PlanTable& operator=(const PlanTable&) = delete;

  [[nodiscard]] const Entry* find(const PlanKey& key) const noexcept;
  /// Adds an entry, or replaces the one of this key for later readers. False: the table is full.
  bool put(Entry entry);
  /// Changes with every `put`, once its entry can be found: what was found under an earlier version
  /// is to be looked up again.
  [[nodiscard]] std::uint64_t version() const noexcept {
    return version_.load(std::memory_order_acquire);
  }
  /// The present plan of every key.
  [[nodiscard]] std::vector<PlanPointer> plans() const;

 private:
  struct Slots {
    explicit Slots(std::size_t count) : entries(count) {}
    std::vector<std::atomic<const Entry*>> entries;  // a power of two, at most half full
  };
  struct Place {
    std::atomic<const Entry*>& slot;
    const Entry* entry;
  };
  static Place place_of(Slots& slots, const PlanKey& key) noexcept;

  std::atomic<Slots*> slots_;
  std::atomic<std::uint64_t> version_{1};
  mutable std::mutex mutex_;  // writers
  std::vector<std::unique_ptr<Slots>> all_slots_;
  std::vector<std::unique_ptr<const Entry>> all_entries_;
  std::size_t used_ = 0;
};

}  // namespace scanjit::engine
