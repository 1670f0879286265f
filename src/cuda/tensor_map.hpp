#pragma once
/// \file
/// Tensor maps: how the copy engine of sm_90 is told the layout of a tensor.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "cuda/driver.hpp"

namespace scanjit::cuda {

/// 16-bit elements, boxes of 128 bytes a row in the 128-byte swizzle; what lies outside is read as
/// zero and not written.
struct TensorLayout {
  static constexpr std::size_t kMaxRank = 5;
  std::uint32_t rank = 0;
  std::array<std::uint64_t, kMaxRank> extents{};      ///< fastest first
  std::array<std::uint64_t, kMaxRank - 1> strides{};  ///< bytes, of the second axis and so on
  std::array<std::uint32_t, kMaxRank> box{};
};

/// The map of a tensor whose address is not known yet.
class AddresslessMap {
 public:
  /// Errors: kCudaError if the driver refuses the layout.
  [[nodiscard]] static Result<AddresslessMap> make(const DriverApi& api,
                                                   const TensorLayout& layout);

  /// Writes the map of the tensor at `address` (a multiple of 16) to `to`, 128 bytes. Allocates
  /// nothing.
  [[nodiscard]] Status write(const DriverApi& api, void* address, unsigned char* to) const;

 private:
  TensorLayout layout_;
  CUtensorMap map_{};
  /// The word that holds the address, if maps of two addresses differ in nothing else: then no
  /// driver call is needed.
  std::optional<std::size_t> address_word_;
};

}  // namespace scanjit::cuda
