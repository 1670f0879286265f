#pragma once
/// \file
/// SHA-256 (FIPS 180-4): names of cached binaries, keys of records, checksums of stored files.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace scanjit {

/// Hash of bytes given piece by piece. A value: a copy continues from the same point. Not
/// thread-safe.
class Sha256 {
 public:
  Sha256() noexcept;
  Sha256& update(std::string_view bytes) noexcept;

  /// Hash of everything so far; more may follow.
  [[nodiscard]] std::array<std::uint8_t, 32> digest() const noexcept;
  [[nodiscard]] std::string hex() const;  ///< the digest as 64 lower-case digits

 private:
  static constexpr std::size_t kBlockBytes = 64;
  void compress(const std::uint8_t* block) noexcept;

  std::array<std::uint32_t, 8> state_;
  std::array<std::uint8_t, kBlockBytes> pending_{};  // first total_bytes_ % 64 bytes are in use
  std::uint64_t total_bytes_ = 0;
};

[[nodiscard]] std::string sha256_hex(std::string_view bytes);

}  // namespace scanjit
