#include "os/clock.hpp"

#include <chrono>
#include <thread>

namespace scanjit::os {
namespace {

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] std::int64_t now_us() const noexcept override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void sleep_us(std::int64_t duration_us) noexcept override {
    if (duration_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(duration_us));
  }
};

}  // namespace

Clock& steady_clock() noexcept {
  static SteadyClock clock;
  return clock;
}

}  // namespace scanjit::os
