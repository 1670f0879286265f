#include "capi/structs.hpp"

#include <string>

namespace scanjit::capi {

Status check_struct(const void* from, std::size_t size, std::size_t known, const char* name) {
  constexpr std::size_t kMost = 4096;  // more is a size that nobody set
  if (size <= sizeof(std::size_t) || size > kMost) {
    return invalid_argument(std::string(name) + ".struct_size is " + std::to_string(size) +
                            ", it must be the struct's size, as its ..._init function sets it");
  }
  const auto* bytes = static_cast<const unsigned char*>(from);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] != 0) {
      return unsupported(std::string(name) + " has a field at byte " + std::to_string(i) +
                         " that this library does not know (its struct has " +
                         std::to_string(known) + " bytes)");
    }
  }
  return {};
}

}  // namespace scanjit::capi
