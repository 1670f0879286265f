#pragma once
/// \file
/// What the ops share in synthesising problems to time: numbers, rows, and how much fits.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "ops/op_problem.hpp"
#include "scanjit/types.hpp"

namespace scanjit::ops {

/// The problem that `make` makes of so many tokens a sequence, or null: of `tokens`, or where its
/// tensors and workspace take more than `max_bytes`, of as many whole chunks of BT as fit. Null if
/// not even one does.
[[nodiscard]] std::shared_ptr<const OpProblem> largest_that_fits(
    const std::function<std::shared_ptr<const OpProblem>(std::int64_t tokens)>& make,
    std::int64_t tokens, std::int64_t BT, std::int64_t max_bytes);

/// The same numbers on every machine; quality does not matter here.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 1) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24F; }
  float normal() {  // sum of four uniforms, scaled to variance 1
    const std::uint64_t b = bits();
    const auto sum =
        static_cast<float>((b & 0xFFFF) + (b >> 16 & 0xFFFF) + (b >> 32 & 0xFFFF) + (b >> 48));
    return (sum - 131070.0F) * (1.0F / 37837.0F);
  }

 private:
  std::uint64_t state_;
};

[[nodiscard]] inline std::uint16_t to_16_bits(float value, DType dtype) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == DType::kBf16) return static_cast<std::uint16_t>((bits + 0x8000U) >> 16);
  // f16 of small normal values, rounded towards zero; what is too small for it becomes zero.
  const std::uint32_t sign = bits >> 16 & 0x8000U, exponent = bits >> 23 & 0xFFU;
  if (exponent < 113) return static_cast<std::uint16_t>(sign);
  return static_cast<std::uint16_t>(sign | (exponent - 112) << 10 | (bits >> 13 & 0x3FFU));
}

inline void put_index(unsigned char* host, std::int64_t place, std::int64_t value, IndexType type) {
  if (type == IndexType::kInt64) {
    std::memcpy(host + place * 8, &value, 8);
  } else {
    const auto narrow = static_cast<std::int32_t>(value);
    std::memcpy(host + place * 4, &narrow, 4);
  }
}

/// Unit rows, [tokens, H, K]; the same for every caller with this seed.
template <class Use>  // use(token, key head, row)
void for_each_key_row(std::uint64_t seed, std::int64_t tokens, std::int64_t H, std::int64_t K,
                      Use use) {
  Random random(seed);
  std::vector<float> row(static_cast<std::size_t>(K));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < H; ++h) {
      float squares = 1e-6F;
      for (float& x : row) {
        x = random.normal();
        squares += x * x;
      }
      const float scale = 1 / std::sqrt(squares);
      for (float& x : row) x *= scale;
      use(t, h, row);
    }
  }
}

}  // namespace scanjit::ops
