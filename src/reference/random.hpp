#pragma once
/// \file
/// Random numbers by counter, and the elementary functions that turn them into inputs, made of only
/// + - * / and sqrt, which IEEE 754 fixes: the same bits from every compiler, libm and processor.
/// (Sources that include this are compiled without contraction to fused multiply-adds.)

#include <bit>
#include <cmath>
#include <cstdint>

namespace scanjit::reference {

/// 64 random bits of element `index` of stream `stream` under `seed`.
[[nodiscard]] constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream,
                                                  std::uint64_t index) noexcept {
  constexpr auto mix =
      [](std::uint64_t x) {  // a bijection in which every input bit moves every output bit
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
        return x ^ (x >> 31);
      };
  const std::uint64_t key =
      mix(mix(seed + 0x9e3779b97f4a7c15ULL) ^ (stream * 0xd1342543de82ef95ULL));
  return mix(mix(index * 0x9e3779b97f4a7c15ULL + key) ^ key);
}

/// In [0, 1), a multiple of 2^-53.
[[nodiscard]] constexpr double random_uniform(std::uint64_t seed, std::uint64_t stream,
                                              std::uint64_t index) noexcept {
  return static_cast<double>(random_bits(seed, stream, index) >> 11) * 0x1p-53;
}

/// 2^x to about 1e-16 relative, for |x| < 1000.
[[nodiscard]] inline double exact_exp2(double x) noexcept {
  const double whole = std::floor(x + 0.5);
  const double y = (x - whole) * 0.693147180559945309417;  // |y| <= ln(2)/2
  double sum = 1;
  for (int term = 15; term >= 1; --term) sum = 1 + sum * y / term;
  return sum * std::bit_cast<double>(
                   static_cast<std::uint64_t>(static_cast<std::int64_t>(whole) + 1023) << 52);
}

/// ln(x) of a normal x > 0.
[[nodiscard]] inline double exact_log(double x) noexcept {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;  // ln m = 2 atanh s, |s| < 0.172
  double sum = 0;
  for (int power = 23; power >= 1; power -= 2) sum = sum * s2 + 1.0 / power;
  return 2 * s * sum + static_cast<double>(exponent) * 0.693147180559945309417;
}

/// cos(2 pi x) for x in [0, 1).
[[nodiscard]] inline double exact_cos_turn(double x) noexcept {
  double folded = x > 0.5 ? 1 - x : x;  // cos(2 pi (1-x)) = cos(2 pi x)
  const bool negative = folded > 0.25;
  if (negative) folded = 0.5 - folded;
  const double angle = folded * 6.283185307179586477, square = angle * angle;  // at most pi/2
  double sum = 1;
  for (int term = 22; term >= 2; term -= 2) sum = 1 - sum * square / (term * (term - 1));
  return negative ? -sum : sum;
}

/// Normal with mean 0 and variance 1.
[[nodiscard]] inline double random_normal(std::uint64_t seed, std::uint64_t stream,
                                          std::uint64_t index) noexcept {
  const double radius = random_uniform(seed, stream, 2 * index) + 0x1p-54;  // never 0
  return std::sqrt(-2 * exact_log(radius)) *
         exact_cos_turn(random_uniform(seed, stream, 2 * index + 1));
}

}  // namespace scanjit::reference
