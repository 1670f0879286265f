// bf16 and f16 against their definitions, exhaustively: every number, and every decision between
// two.
#include "reference/half.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::reference;

namespace {

struct Format {
  DType dtype;
  int exponent_bits, mantissa_bits;
  std::uint16_t infinity;
};
constexpr Format kBf16{DType::kBf16, 8, 7, 0x7f80};
constexpr Format kF16{DType::kF16, 5, 10, 0x7c00};

/// A finite number by the formula of its format.
double value_of(const Format& format, std::uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> format.mantissa_bits;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - format.mantissa_bits)
                                         : std::ldexp(mantissa + (1 << format.mantissa_bits),
                                                      exponent - bias - format.mantissa_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t negative(std::uint16_t bits) { return static_cast<std::uint16_t>(bits | 0x8000); }

/// Counts instead of thousands of assertions; the first failure is named.
struct Tally {
  long failures = 0;
  std::string first;
  void expect(bool right, double input, std::uint16_t got, std::uint16_t wanted) {
    if (right) return;
    if (failures++ == 0) {
      first = std::to_string(input) + " gives " + std::to_string(got) + ", not " +
              std::to_string(wanted);
    }
  }
  void expect_rounds(const Format& format, double input, std::uint16_t wanted) {
    const std::uint16_t got = double_to_half(format.dtype, input);
    expect(got == wanted, input, got, wanted);
    const std::uint16_t mirrored = double_to_half(format.dtype, -input);
    expect(mirrored == negative(wanted), -input, mirrored, negative(wanted));
    const auto as_float = static_cast<float>(input);
    if (static_cast<double>(as_float) != input) return;
    const std::uint16_t from_float =
        format.dtype == DType::kBf16 ? float_to_bf16(as_float) : float_to_f16(as_float);
    expect(from_float == wanted, input, from_float, wanted);
  }
};

}  // namespace

TEST_CASE("every 16-bit number decodes to its formula and encodes to itself", "[reference]") {
  for (const Format& format : {kBf16, kF16}) {
    Tally tally;
    for (int b = 0; b <= 0xffff; ++b) {
      const auto bits = static_cast<std::uint16_t>(b);
      const float decoded = half_to_float(format.dtype, bits);
      const std::uint16_t magnitude = bits & 0x7fff;
      if (magnitude < format.infinity) {
        tally.expect(static_cast<double>(decoded) == value_of(format, bits),
                     static_cast<double>(decoded), bits, bits);
        tally.expect(std::signbit(decoded) == (bits >= 0x8000), static_cast<double>(decoded), bits,
                     bits);
        tally.expect_rounds(format, static_cast<double>(std::abs(decoded)), magnitude);
      } else if (magnitude == format.infinity) {
        tally.expect(std::isinf(decoded) && std::signbit(decoded) == (bits >= 0x8000), 0, bits,
                     bits);
      } else {
        tally.expect(std::isnan(decoded), 0, bits, bits);
      }
    }
    INFO(to_string(format.dtype) << ": " << tally.first);
    CHECK(tally.failures == 0);
  }
}

TEST_CASE("between two neighbours the nearer one is chosen, at the middle the even one",
          "[reference]") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Format& format : {kBf16, kF16}) {
    Tally tally;
    for (std::uint16_t low = 0; low < format.infinity; ++low) {
      const auto high = static_cast<std::uint16_t>(low + 1);
      const double from = value_of(format, low);
      // Above the largest number the next one would have been infinity's bits read as a number.
      const double to = high == format.infinity
                            ? 2 * from - value_of(format, static_cast<std::uint16_t>(low - 1))
                            : value_of(format, high);
      const double middle = from + (to - from) / 2;  // exact: a double has many more bits
      tally.expect_rounds(format, std::nextafter(middle, 0), low);
      tally.expect_rounds(format, middle, (low & 1) == 0 ? low : high);
      // Rounding by way of f32 would put this one on the middle, and then to even.
      tally.expect_rounds(format, std::nextafter(middle, kInfinity), high);
      tally.expect_rounds(format, from + (to - from) * 0.25, low);
      tally.expect_rounds(format, from + (to - from) * 0.75, high);
    }
    INFO(to_string(format.dtype) << ": " << tally.first);
    CHECK(tally.failures == 0);
  }
}

TEST_CASE("nothing saturates, a NaN stays one, zeros keep their sign", "[reference]") {
  for (const Format& format : {kBf16, kF16}) {
    for (const double large :
         {std::numeric_limits<double>::max(), std::numeric_limits<double>::infinity(), 1e40}) {
      CHECK(double_to_half(format.dtype, large) == format.infinity);
      CHECK(double_to_half(format.dtype, -large) == negative(format.infinity));
    }
    CHECK(double_to_half(format.dtype, 0.0) == 0);
    CHECK(double_to_half(format.dtype, -0.0) == 0x8000);
    CHECK(double_to_half(format.dtype, std::numeric_limits<double>::denorm_min()) == 0);
    CHECK(double_to_half(format.dtype, -std::numeric_limits<double>::denorm_min()) == 0x8000);
    const double signalling =
        std::bit_cast<double>(std::uint64_t{0x7ff0000000000001});  // its payload would be cut off
    for (const double nan : {std::numeric_limits<double>::quiet_NaN(), signalling}) {
      CHECK(std::isnan(half_to_float(format.dtype, double_to_half(format.dtype, nan))));
      CHECK(double_to_half(format.dtype, std::copysign(nan, -1.0)) >= 0x8000);
    }
  }
}
