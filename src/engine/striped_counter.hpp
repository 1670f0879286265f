#pragma once
/// \file
/// A count that many threads raise at once: each thread adds to one of several cache lines, so that
/// they do not wait for each other.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace scanjit::engine {

class StripedCounter {
 public:
  void raise() noexcept { stripes_[stripe()].count.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::int64_t value() const noexcept {
    std::int64_t sum = 0;
    for (const Stripe& one : stripes_) sum += one.count.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  static constexpr std::size_t kStripes = 16;
  static constexpr std::size_t kLineBytes = 64;
  struct alignas(kLineBytes) Stripe {
    std::atomic<std::int64_t> count{0};
  };
  /// This thread's, the same for every counter.
  static std::size_t stripe() noexcept {
    static std::atomic<std::size_t> next{0};
    constexpr std::size_t kNone = kStripes;
    thread_local std::size_t mine = kNone;
    if (mine == kNone) mine = next.fetch_add(1, std::memory_order_relaxed) % kStripes;
    return mine;
  }

  std::array<Stripe, kStripes> stripes_;
};

}  // namespace scanjit::engine
