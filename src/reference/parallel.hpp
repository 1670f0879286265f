#pragma once
/// \file
/// A loop over independent tasks on several threads.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "scanjit/result.hpp"

namespace scanjit::reference {

/// Threads for `count` tasks; `requested` 0: as many as the machine has. At least 1.
[[nodiscard]] inline int thread_count(int requested, std::int64_t count) noexcept {
  const std::int64_t most =
      requested > 0 ? requested : static_cast<std::int64_t>(std::thread::hardware_concurrency());
  return static_cast<int>(std::clamp<std::int64_t>(std::min(most, count), 1, 1024));
}

/// Calls body(task, worker) for every task in [0, count), worker < threads; the caller's thread is
/// worker 0. What a body throws ends the loop and becomes an error. Fewer threads than asked for
/// are used if the system refuses some.
template <class Body>
[[nodiscard]] Status parallel_for(std::int64_t count, int threads, const Body& body) noexcept {
  std::atomic<std::int64_t> next{0};
  std::atomic<int> failure{0};  // 1 out of memory, 2 anything else
  const auto work = [&](int worker) noexcept {
    try {
      for (std::int64_t task = next++; task < count && failure == 0; task = next++)
        body(task, worker);
    } catch (const std::bad_alloc&) {
      failure = 1;
    } catch (...) {
      failure = 2;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int worker = 1; worker < threads; ++worker) others.emplace_back(work, worker);
  } catch (const std::exception&) {
    // No thread or no memory for one: the threads that exist do its share.
  }
  work(0);
  for (std::thread& other : others) other.join();
  if (failure == 1) return Status(ErrorCode::kOutOfMemory, "the reference ran out of memory");
  if (failure == 2) return internal_error("a task of the reference threw an exception");
  return Status();
}

}  // namespace scanjit::reference
