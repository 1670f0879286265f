#pragma once
// How often this process has called operator new.

#include <cstdint>

namespace scanjit::test {

[[nodiscard]] std::int64_t allocations() noexcept;

}  // namespace scanjit::test
