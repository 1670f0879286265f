#include "cuda/tensor_map.hpp"

#include <cstring>

namespace scanjit::cuda {
namespace {

Result<CUtensorMap> encode(const DriverApi& api, const TensorLayout& layout, void* address) {
  constexpr std::array<std::uint32_t, TensorLayout::kMaxRank> kDense{1, 1, 1, 1, 1};
  CUtensorMap map;
  SCANJIT_TRY(check(api,
                    api.cuTensorMapEncodeTiled(
                        &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, layout.rank, address,
                        layout.extents.data(), layout.strides.data(), layout.box.data(),
                        kDense.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                    "cuTensorMapEncodeTiled"));
  return map;
}

}  // namespace

Result<AddresslessMap> AddresslessMap::make(const DriverApi& api, const TensorLayout& layout) {
  // Two addresses that have no bit in common.
  const std::uint64_t first = 0x0000'5555'5555'5000, second = 0x0000'2AAA'AAAA'A800;
  const auto at = [](std::uint64_t address) { return reinterpret_cast<void*>(address); };
  AddresslessMap made;
  made.layout_ = layout;
  SCANJIT_ASSIGN_OR_RETURN(made.map_, encode(api, layout, at(first)));
  SCANJIT_ASSIGN_OR_RETURN(const CUtensorMap other, encode(api, layout, at(second)));
  std::size_t differing = 0;
  for (std::size_t i = 0; i < std::size(other.opaque); ++i) {
    if (made.map_.opaque[i] == other.opaque[i]) continue;
    ++differing;
    if (made.map_.opaque[i] == first && other.opaque[i] == second) made.address_word_ = i;
  }
  if (differing != 1) made.address_word_.reset();
  return made;
}

Status AddresslessMap::write(const DriverApi& api, void* address, unsigned char* to) const {
  // A tensor without elements may be null, and is never looked at.
  if (!address_word_ && address != nullptr) {
    SCANJIT_ASSIGN_OR_RETURN(const CUtensorMap map, encode(api, layout_, address));
    std::memcpy(to, map.opaque, sizeof(map.opaque));
    return {};
  }
  std::memcpy(to, map_.opaque, sizeof(map_.opaque));
  if (address_word_) {
    const auto word = reinterpret_cast<std::uint64_t>(address);
    std::memcpy(to + *address_word_ * sizeof(word), &word, sizeof(word));
  }
  return {};
}

}  // namespace scanjit::cuda
