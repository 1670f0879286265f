#pragma once
/// \file
/// Whether two tensors share a byte: tested on their rows, not on their address ranges, since
/// slices of one fused buffer lie between each other's rows.

#include <cstdint>

namespace scanjit::ops {

/// `rows` rows of `row_bytes`, `stride_bytes` >= row_bytes apart. Empty if either is 0. The last
/// byte's offset fits in 63 bits.
struct Region {
  std::uintptr_t base = 0;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t stride_bytes = 0;
};

/// Exact. Constant time if the strides are equal or one region is one piece; else time in the rows
/// of the one with fewer rows, and only where the address ranges meet.
[[nodiscard]] bool overlap(const Region& a, const Region& b) noexcept;

}  // namespace scanjit::ops
