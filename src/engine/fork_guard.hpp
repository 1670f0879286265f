#pragma once
#include <atomic>
#include <cstdint>

namespace scanjit::engine {

extern constinit std::atomic<std::uint64_t> fork_generation;

/// Counts the forks from here on; called once an engine is made.
void watch_forks() noexcept;

/// A number that differs between a process and its forked children: a CUDA context does not survive
/// a fork. Costs one load.
[[nodiscard]] inline std::uint64_t process_generation() noexcept {
  return fork_generation.load(std::memory_order_relaxed);
}

}  // namespace scanjit::engine
