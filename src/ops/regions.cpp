#include "ops/regions.hpp"

#include <algorithm>

namespace scanjit::ops {
namespace {

std::int64_t floor_divide(std::int64_t a, std::int64_t b) noexcept {
  return a / b - (a % b < 0 ? 1 : 0);  // b > 0
}

// One piece where rows touch, so that its stride no longer matters.
Region joined(Region region) noexcept {
  if (region.rows > 1 && region.stride_bytes == region.row_bytes) {
    region.row_bytes *= region.rows;
    region.rows = 1;
  }
  return region;
}

// Rows of `a` and `b`, both `stride` apart, b `distance` bytes after a. Rows i of a and j of b meet
// iff (i - j) * stride lies strictly between distance - a.row_bytes and distance + b.row_bytes.
bool meet(const Region& a, const Region& b, std::int64_t distance, std::int64_t stride) noexcept {
  const std::int64_t first = floor_divide(distance - a.row_bytes, stride) + 1;
  const std::int64_t last = -floor_divide(-(distance + b.row_bytes), stride) - 1;
  return std::max(first, -(b.rows - 1)) <= std::min(last, a.rows - 1);
}

std::int64_t extent(const Region& region) noexcept {
  return (region.rows - 1) * region.stride_bytes + region.row_bytes;
}

}  // namespace

bool overlap(const Region& first, const Region& second) noexcept {
  if (first.rows <= 0 || second.rows <= 0 || first.row_bytes <= 0 || second.row_bytes <= 0)
    return false;
  const Region a = joined(first), b = joined(second);
  // Unsigned differences: addresses may lie on both sides of 2^63.
  const bool b_after = b.base >= a.base;
  const std::uintptr_t gap = b_after ? b.base - a.base : a.base - b.base;
  if (gap >= static_cast<std::uintptr_t>(extent(b_after ? a : b))) return false;
  const std::int64_t distance =
      b_after ? static_cast<std::int64_t>(gap) : -static_cast<std::int64_t>(gap);

  if (a.rows == 1 && b.rows == 1) return true;
  if (a.rows == 1) return meet(a, b, distance, b.stride_bytes);
  if (b.rows == 1 || a.stride_bytes == b.stride_bytes) return meet(a, b, distance, a.stride_bytes);
  // Different strides: every row of the one with fewer rows against the other.
  const bool walk_a = a.rows <= b.rows;
  const Region& walked = walk_a ? a : b;
  const Region& other = walk_a ? b : a;
  Region row = walked;
  row.rows = 1;
  for (std::int64_t i = 0; i < walked.rows; ++i) {
    const std::int64_t to_other = (walk_a ? distance : -distance) - i * walked.stride_bytes;
    if (meet(row, other, to_other, other.stride_bytes)) return true;
  }
  return false;
}

}  // namespace scanjit::ops
