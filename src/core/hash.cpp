#include "core/hash.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace scanjit {
namespace {

// FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64
// primes.
constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// 5.3.3: the same of the square roots of the first 8 primes.
constexpr std::array<std::uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t load_big_endian(const std::uint8_t* bytes) noexcept {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) |
         (std::uint32_t{bytes[2]} << 8) | std::uint32_t{bytes[3]};
}

template <class Word>
void store_big_endian(Word word, std::uint8_t* bytes) noexcept {
  for (std::size_t i = 0; i < sizeof(Word); ++i) {
    bytes[i] = static_cast<std::uint8_t>(word >> (8 * (sizeof(Word) - 1 - i)));
  }
}

}  // namespace

Sha256::Sha256() noexcept : state_(kInitial) {}

void Sha256::compress(const std::uint8_t* block) noexcept {
  std::array<std::uint32_t, 64> schedule;
  for (std::size_t i = 0; i < 16; ++i) schedule[i] = load_big_endian(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t early = schedule[i - 15];
    const std::uint32_t late = schedule[i - 2];
    schedule[i] = schedule[i - 16] + schedule[i - 7] +
                  (std::rotr(early, 7) ^ std::rotr(early, 18) ^ (early >> 3)) +
                  (std::rotr(late, 17) ^ std::rotr(late, 19) ^ (late >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                             ((e & f) ^ (~e & g)) + kRound[i] + schedule[i];
    const std::uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += mixed[i];
}

Sha256& Sha256::update(std::string_view bytes) noexcept {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  std::size_t left = bytes.size();
  if (left == 0) return *this;
  const auto used = static_cast<std::size_t>(total_bytes_ % kBlockBytes);
  total_bytes_ += left;
  if (used > 0) {
    const std::size_t taken = std::min(left, kBlockBytes - used);
    std::memcpy(pending_.data() + used, data, taken);
    data += taken;
    left -= taken;
    if (used + taken < kBlockBytes) return *this;
    compress(pending_.data());
  }
  for (; left >= kBlockBytes; data += kBlockBytes, left -= kBlockBytes) compress(data);
  if (left > 0) std::memcpy(pending_.data(), data, left);
  return *this;
}

std::array<std::uint8_t, 32> Sha256::digest() const noexcept {
  Sha256 last = *this;
  const auto used = static_cast<std::size_t>(total_bytes_ % kBlockBytes);
  // One bit, zeros, and the length in bits in the last 8 bytes of a block.
  std::array<std::uint8_t, 2 * kBlockBytes> padding{};
  padding[0] = 0x80;
  const std::size_t zeros_end = (used < 56 ? 56 : 56 + kBlockBytes) - used;
  store_big_endian(total_bytes_ * 8, padding.data() + zeros_end);
  last.update({reinterpret_cast<const char*>(padding.data()), zeros_end + 8});
  std::array<std::uint8_t, 32> digest;
  for (std::size_t i = 0; i < 8; ++i) store_big_endian(last.state_[i], digest.data() + 4 * i);
  return digest;
}

std::string Sha256::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(64);
  for (const std::uint8_t byte : digest()) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string sha256_hex(std::string_view bytes) { return Sha256().update(bytes).hex(); }

}  // namespace scanjit
