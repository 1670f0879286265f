#pragma once
/// \file
/// The constants of a kernel's `Cfg`, as the ops write them.

#include "jit/kernel_source.hpp"

namespace scanjit::ops {

[[nodiscard]] inline jit::Constant integer(const char* name, std::int64_t value) {
  return {name, jit::Constant::Type::kInt, value};
}
[[nodiscard]] inline jit::Constant boolean(const char* name, bool value) {
  return {name, jit::Constant::Type::kBool, value ? 1 : 0};
}

}  // namespace scanjit::ops
