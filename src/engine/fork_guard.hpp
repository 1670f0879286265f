#pragma once
#include <cstdint>

namespace scanjit::engine {

/// A number that differs between a process and its forked children: a CUDA context does not survive
/// a fork. Costs one load.
[[nodiscard]] std::uint64_t process_generation() noexcept;

}  // namespace scanjit::engine
