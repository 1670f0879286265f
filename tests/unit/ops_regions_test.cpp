#include <random>
#include <vector>

#include "ops/regions.hpp"
#include "support/catch.hpp"

using scanjit::ops::overlap;
using scanjit::ops::Region;

namespace {

bool overlap_by_bytes(const Region& a, const Region& b) {
  std::vector<bool> used(4096);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t i = 0; i < a.row_bytes; ++i)
      used[a.base + static_cast<std::size_t>(row * a.stride_bytes + i)] = true;
  }
  for (std::int64_t row = 0; row < b.rows; ++row) {
    for (std::int64_t i = 0; i < b.row_bytes; ++i) {
      if (used[b.base + static_cast<std::size_t>(row * b.stride_bytes + i)]) return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("overlap agrees with marking every byte", "[ops]") {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int overlapping = 0, apart = 0;
  for (int round = 0; round < 200000; ++round) {
    const auto region = [&](std::int64_t stride) {
      Region r;
      r.base = static_cast<std::uintptr_t>(pick(0, 200));
      r.rows = pick(0, 9);
      r.stride_bytes = stride;
      r.row_bytes = pick(0, static_cast<int>(stride));
      return r;
    };
    const std::int64_t stride = pick(1, 40);
    const Region a = region(stride), b = region(pick(0, 1) == 0 ? stride : pick(1, 40));
    const bool expected = overlap_by_bytes(a, b);
    (expected ? overlapping : apart) += 1;
    if (overlap(a, b) != expected || overlap(b, a) != expected) {
      FAIL("a: base " << a.base << " rows " << a.rows << " x " << a.row_bytes << " / "
                      << a.stride_bytes << ", b: base " << b.base << " rows " << b.rows << " x "
                      << b.row_bytes << " / " << b.stride_bytes << ", expected " << expected);
    }
  }
  CHECK(overlapping > 10000);
  CHECK(apart > 10000);
}

TEST_CASE("slices of one fused buffer lie between each other's rows", "[ops]") {
  // Rows of 4096 bytes: q 1024, k 1024, v 2048; 2^40 tokens.
  const std::int64_t rows = std::int64_t{1} << 40;
  const Region q{1 << 20, rows, 1024, 4096}, k{(1 << 20) + 1024, rows, 1024, 4096},
      v{(1 << 20) + 2048, rows, 2048, 4096};
  CHECK_FALSE(overlap(q, k));
  CHECK_FALSE(overlap(k, v));
  CHECK_FALSE(overlap(q, v));
  CHECK(overlap(q, Region{(1 << 20) + 1023, rows, 2, 4096}));
  CHECK(overlap(v, Region{(1 << 20) + 4096 * 77 + 4095, 1, 2, 2}));
}

TEST_CASE("regions at both ends of the address space do not meet", "[ops]") {
  const Region low{16, 4, 8, 16}, high{~std::uintptr_t{0} - 255, 4, 8, 16};
  CHECK_FALSE(overlap(low, high));
  CHECK_FALSE(overlap(high, low));
  CHECK(overlap(high, high));
}
