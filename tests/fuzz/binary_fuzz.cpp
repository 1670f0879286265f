// Any bytes as a stored binary, as they are and under a right checksum: an error, or a binary that
// encodes to the same bytes. Then any bytes as the cubin inside.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/hash.hpp"
#include "jit/binary_format.hpp"
#include "jit/cubin.hpp"
#include "require.hpp"

using scanjit::fuzz::require;

namespace {

void check(const std::string& bytes) {
  using namespace scanjit;
  const Result<jit::StoredBinary> binary = jit::decode_binary(bytes);
  if (!binary.ok()) {
    require(binary.status().code() == ErrorCode::kCorrupt && !binary.status().message().empty());
    return;
  }
  require(jit::encode_binary(*binary) == bytes);
  const Result<std::string> code = jit::text_section(binary->cubin, binary->entry);
  if (code.ok()) require(binary->cubin.find(*code) != std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  const auto digest = scanjit::Sha256().update(bytes).digest();
  check(bytes + std::string(digest.begin(), digest.end()));
  static_cast<void>(scanjit::jit::text_section(bytes, "scale"));
  static_cast<void>(scanjit::jit::parse_resources(bytes, "scale"));
  return 0;
}
