#pragma once
// Seeds of tests that draw: the same in every run, so that a change of nothing else fails nothing;
// others by SCANJIT_TEST_SEED.

#include <cstdlib>

namespace scanjit::test {

inline unsigned test_seed(unsigned usual) {
  const char* asked = std::getenv("SCANJIT_TEST_SEED");
  return asked != nullptr ? static_cast<unsigned>(std::strtoul(asked, nullptr, 10)) : usual;
}

}  // namespace scanjit::test
