#pragma once
/// \file
/// Structs of callers that were built with another version of the header than this library.

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "scanjit/result.hpp"
#include "scanjit/scanjit.h"

namespace scanjit::capi {

/// Whether a struct of `size` bytes at `from`, of which the library knows `known`, can be taken.
/// Errors: kInvalidArgument (no size was set), kUnsupported (a field is set that is not known).
[[nodiscard]] Status check_struct(const void* from, std::size_t size, std::size_t known,
                                  const char* name);

/// The caller's struct with its missing fields zero.
template <class T>
[[nodiscard]] Result<T> read_struct(const T* from, const char* name) {
  if (from == nullptr) return invalid_argument(std::string(name) + " is null");
  SCANJIT_TRY(check_struct(from, from->struct_size, sizeof(T), name));
  T copy{};
  std::memcpy(&copy, from, std::min(from->struct_size, sizeof(T)));
  return copy;
}

/// As much of `value` as the caller's struct has room for; the rest of that becomes zero.
template <class T>
void write_struct(T value, T* to, std::size_t size) noexcept {
  value.struct_size = size;
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), &value, std::min(size, sizeof(T)));
}

}  // namespace scanjit::capi
