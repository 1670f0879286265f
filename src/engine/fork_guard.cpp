#include "engine/fork_guard.hpp"

#include <pthread.h>

namespace scanjit::engine {

constinit std::atomic<std::uint64_t> fork_generation{0};

void watch_forks() noexcept {
  static const int registered = pthread_atfork(
      nullptr, nullptr, [] { fork_generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

}  // namespace scanjit::engine
