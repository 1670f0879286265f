#pragma once
#include <cstddef>

namespace scanjit {

/// A file that was compiled into the library (kernel templates, shipped configs).
struct EmbeddedFile {
  const char* name;            // path relative to its root, '/' separated
  const unsigned char* bytes;  // `size` bytes, followed by one zero
  std::size_t size;
};

}  // namespace scanjit
