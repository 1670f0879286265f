#include "cuda/tensor_map.hpp"

#include <array>
#include <cstring>

#include "support/catch.hpp"
#include "support/fake_driver.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

int encoded = 0;
bool scattered = false;

// A driver's encoding; `scattered` puts the address where it cannot be replaced.
cuda::CUresult encode(cuda::CUtensorMap* map, cuda::CUtensorMapDataType, std::uint32_t rank,
                      void* address, const std::uint64_t*, const std::uint64_t*,
                      const std::uint32_t*, const std::uint32_t*, cuda::CUtensorMapInterleave,
                      cuda::CUtensorMapSwizzle, cuda::CUtensorMapL2promotion,
                      cuda::CUtensorMapFloatOOBfill) {
  ++encoded;
  if (rank == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof(*map));
  const auto word = reinterpret_cast<std::uint64_t>(address);
  map->opaque[3] = scattered ? word >> 4 : word;
  map->opaque[7] = rank;
  return cuda::CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("a tensor map gets its address at launch, by the driver only where it must", "[cuda]") {
  FakeDriver driver;
  cuda::DriverApi api = driver.api();
  api.cuTensorMapEncodeTiled = encode;
  cuda::TensorLayout layout;
  layout.rank = 3;
  for (const bool odd : {false, true}) {
    scattered = odd;
    encoded = 0;
    const auto map = cuda::AddresslessMap::make(api, layout);
    REQUIRE(map.ok());
    const int before = encoded;
    const auto address = std::uint64_t{0x7F12'3456'7890};
    std::array<std::uint64_t, 16> words{};
    REQUIRE(map->write(api, reinterpret_cast<void*>(address),
                       reinterpret_cast<unsigned char*>(words.data()))
                .ok());
    CHECK(words[3] == (odd ? address >> 4 : address));
    CHECK(words[7] == 3);
    CHECK(encoded - before == (odd ? 1 : 0));
    // No elements, no address: nothing that a driver could refuse.
    CHECK(map->write(api, nullptr, reinterpret_cast<unsigned char*>(words.data())).ok());
    CHECK(encoded - before == (odd ? 1 : 0));
  }
  layout.rank = 0;
  CHECK(cuda::AddresslessMap::make(api, layout).status().code() == ErrorCode::kCudaError);
}
