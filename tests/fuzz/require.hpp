#pragma once
// How a fuzz target tells of a finding.

#include <cstdlib>

namespace scanjit::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace scanjit::fuzz
