// Any bytes as a safetensors file: an error, or tensors that lie inside the bytes and match their
// shapes.
#include <cstddef>
#include <cstdint>

#include "io/safetensors.hpp"
#include "require.hpp"

using scanjit::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scanjit::io;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const scanjit::Result<Safetensors> file = Safetensors::parse(bytes);
  if (!file.ok()) {
    require(file.status().code() == scanjit::ErrorCode::kCorrupt &&
            !file.status().message().empty());
    return 0;
  }
  std::size_t covered = 0;
  std::uint64_t sum = 0;
  for (const TensorView& tensor : file->tensors()) {
    std::uint64_t elements = 1;
    for (const std::int64_t length : tensor.shape) {
      require(length >= 0);
      elements *= static_cast<std::uint64_t>(length);
    }
    require(elements * element_bytes(tensor.type) == tensor.data.size());
    require(file->find(tensor.name) == &tensor);
    for (const std::byte byte : tensor.data)
      sum += std::to_integer<std::uint64_t>(byte);  // a stray view faults
    covered += tensor.data.size();
  }
  require(covered <= size && sum <= 255 * static_cast<std::uint64_t>(size));
  return 0;
}
