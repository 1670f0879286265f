#include "engine/fork_guard.hpp"

#include <pthread.h>

#include <atomic>

namespace scanjit::engine {
namespace {

std::atomic<std::uint64_t> generation{0};

void count_fork() noexcept { generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::uint64_t process_generation() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace scanjit::engine
