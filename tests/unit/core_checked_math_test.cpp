#include <cstdint>
#include <limits>
#include <random>

#include "core/checked_math.hpp"
#include "support/catch.hpp"

using scanjit::checked_add;
using scanjit::checked_multiply;
using scanjit::checked_product;

namespace {
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
}  // namespace

TEST_CASE("Checked sums and products refuse exactly what does not fit", "[core]") {
  CHECK(checked_add(kMax, 0) == kMax);
  CHECK(checked_add(kMax, 1) == std::nullopt);
  CHECK(checked_add(kMin, -1) == std::nullopt);
  CHECK(checked_add(kMax, kMin) == -1);
  CHECK(checked_multiply(kMin, -1) == std::nullopt);
  CHECK(checked_multiply(std::int64_t{1} << 31, std::int64_t{1} << 31) == std::int64_t{1} << 62);
  CHECK(checked_multiply(std::int64_t{1} << 32, std::int64_t{1} << 31) == std::nullopt);
  CHECK(checked_product({}) == 1);
  CHECK(checked_product({kMax, kMax, 0}) == 0);
  CHECK(checked_product({kMax, 1, 1}) == kMax);
  CHECK(checked_product({kMax, 2}) == std::nullopt);

  std::mt19937_64 random(11);
  for (int i = 0; i < 10'000; ++i) {
    const auto a = static_cast<std::int64_t>(random()) >> (random() % 64);
    const auto b = static_cast<std::int64_t>(random()) >> (random() % 64);
    const __int128 sum = static_cast<__int128>(a) + b;
    const __int128 product = static_cast<__int128>(a) * b;
    const auto fits = [](__int128 value) { return value >= kMin && value <= kMax; };
    REQUIRE(checked_add(a, b).has_value() == fits(sum));
    REQUIRE(checked_multiply(a, b).has_value() == fits(product));
    if (fits(product)) REQUIRE(*checked_multiply(a, b) == static_cast<std::int64_t>(product));
  }
}
