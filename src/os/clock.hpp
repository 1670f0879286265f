#pragma once
/// \file
/// Time that only moves forward, and waiting; replaceable in tests.

#include <atomic>
#include <cstdint>

namespace scanjit::os {

/// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual std::int64_t now_us()
      const noexcept = 0;  ///< microseconds since some fixed point
  virtual void sleep_us(std::int64_t duration_us) noexcept = 0;  ///< nothing if <= 0

  [[nodiscard]] std::int64_t now_ms() const noexcept { return now_us() / 1000; }
  void sleep_ms(std::int64_t duration_ms) noexcept { sleep_us(duration_ms * 1000); }
};

/// The system's steady clock; lives as long as the process.
[[nodiscard]] Clock& steady_clock() noexcept;

/// A clock that moves only when told to, or by as much as somebody sleeps.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] std::int64_t now_us() const noexcept override { return now_us_.load(); }
  void sleep_us(std::int64_t duration_us) noexcept override {
    if (duration_us > 0) advance_us(duration_us);
  }
  void advance_us(std::int64_t duration_us) noexcept { now_us_ += duration_us; }

 private:
  std::atomic<std::int64_t> now_us_{0};
};

}  // namespace scanjit::os
