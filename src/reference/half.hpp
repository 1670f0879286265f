#pragma once
/// \file
/// bf16 and f16 as bits. Every conversion rounds once, to nearest even, without saturation: too
/// large becomes infinity, a NaN stays a (quiet) NaN with its sign, zeros keep their sign,
/// subnormals are kept.

#include <bit>
#include <cstdint>

#include "scanjit/types.hpp"

namespace scanjit::reference {

namespace detail {

/// Rounds a double to a binary format with `kExponentBits` and `kMantissaBits` (stored ones).
template <int kExponentBits, int kMantissaBits>
[[nodiscard]] constexpr std::uint16_t round_double(double value) noexcept {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr std::uint64_t kInfinity = ((std::uint64_t{1} << kExponentBits) - 1) << kMantissaBits;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t sign = (bits >> 63) << (kExponentBits + kMantissaBits);
  const std::uint64_t magnitude = bits & 0x7fffffffffffffffULL;
  if (magnitude > 0x7ff0000000000000ULL) {
    return static_cast<std::uint16_t>(sign | kInfinity | (std::uint64_t{1} << (kMantissaBits - 1)));
  }
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent > kBias) return static_cast<std::uint16_t>(sign | kInfinity);
  // The target's smallest subnormal is 2^(1-kBias-kMantissaBits); below half of it all is zero.
  if (exponent < -kBias - kMantissaBits) return static_cast<std::uint16_t>(sign);
  // A normal double (the target's range lies inside): its 53-bit significand, cut after the bits
  // that the target keeps at this exponent. A carry out of the significand moves into the exponent
  // field.
  const std::uint64_t significand = (magnitude & 0xfffffffffffffULL) | 0x10000000000000ULL;
  const bool normal = exponent >= 1 - kBias;
  const int drop = 52 - kMantissaBits + (normal ? 0 : 1 - kBias - exponent);
  const std::uint64_t kept = significand >> drop;
  const std::uint64_t rest = significand & ((std::uint64_t{1} << drop) - 1);
  const std::uint64_t half = std::uint64_t{1} << (drop - 1);
  const std::uint64_t up = rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
  const std::uint64_t field =
      normal ? static_cast<std::uint64_t>(exponent + kBias - 1) << kMantissaBits : 0;
  return static_cast<std::uint16_t>(sign | (field + kept + up));
}

}  // namespace detail

[[nodiscard]] constexpr float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

[[nodiscard]] constexpr float f16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 31U;
  const std::uint32_t mantissa = bits & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // exact
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

[[nodiscard]] constexpr std::uint16_t double_to_bf16(double value) noexcept {
  return detail::round_double<8, 7>(value);
}
[[nodiscard]] constexpr std::uint16_t double_to_f16(double value) noexcept {
  return detail::round_double<5, 10>(value);
}
// Every float is a double, so rounding the double rounds the float once.
[[nodiscard]] constexpr std::uint16_t float_to_bf16(float value) noexcept {
  return double_to_bf16(static_cast<double>(value));
}
[[nodiscard]] constexpr std::uint16_t float_to_f16(float value) noexcept {
  return double_to_f16(static_cast<double>(value));
}

/// Of a 16-bit `dtype`: kBf16, and kF16 for anything else.
[[nodiscard]] constexpr float half_to_float(DType dtype, std::uint16_t bits) noexcept {
  return dtype == DType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}
[[nodiscard]] constexpr std::uint16_t double_to_half(DType dtype, double value) noexcept {
  return dtype == DType::kBf16 ? double_to_bf16(value) : double_to_f16(value);
}
/// The nearest number of the 16-bit type.
[[nodiscard]] constexpr double round_to(DType dtype, double value) noexcept {
  return static_cast<double>(half_to_float(dtype, double_to_half(dtype, value)));
}

}  // namespace scanjit::reference
