#pragma once
/// \file
/// 64-bit sizes that cannot wrap: an empty result says that the true one does not fit.

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace scanjit {

[[nodiscard]] inline std::optional<std::int64_t> checked_add(std::int64_t a,
                                                             std::int64_t b) noexcept {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

[[nodiscard]] inline std::optional<std::int64_t> checked_multiply(std::int64_t a,
                                                                  std::int64_t b) noexcept {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Product of all factors; 0 if one is 0, even where the others alone would not fit.
[[nodiscard]] inline std::optional<std::int64_t> checked_product(
    std::initializer_list<std::int64_t> factors) noexcept {
  for (const std::int64_t factor : factors) {
    if (factor == 0) return 0;
  }
  std::optional<std::int64_t> product = 1;
  for (const std::int64_t factor : factors) {
    product = checked_multiply(*product, factor);
    if (!product) return std::nullopt;
  }
  return product;
}

}  // namespace scanjit
