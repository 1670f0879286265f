#pragma once
/// \file
/// What the ops' argument checks have in common. Every sentence names field, value and bound.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit::ops {

inline constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
inline constexpr std::int64_t kMaxBlocks = kMaxInt;  ///< of a grid's x

[[nodiscard]] inline std::string number(std::int64_t value) { return std::to_string(value); }
[[nodiscard]] inline std::int64_t ceil_divide(std::int64_t a, std::int64_t b) noexcept {
  return a / b + (a % b != 0);
}
[[nodiscard]] inline std::int64_t bytes_of(IndexType type) noexcept {
  return type == IndexType::kInt32 ? 4 : 8;
}

[[nodiscard]] Status check_range(const char* name, std::int64_t value, std::int64_t low,
                                 std::int64_t high);
[[nodiscard]] Status check_not_negative(const char* name, std::int64_t value);
[[nodiscard]] Status check_index_type(const char* name, IndexType type);
[[nodiscard]] Status check_layout(StateLayout layout);
/// H, HV and that one is a multiple of the other.
[[nodiscard]] Status check_heads(std::int64_t H, std::int64_t HV);

/// Fills in a stride of 0 and checks the others; `row`: elements of one row, `what`: how it is made
/// up.
[[nodiscard]] Status check_stride(const char* name, std::int64_t& stride,
                                  std::optional<std::int64_t> row, const char* what);
/// rows * stride elements of `size` bytes have 63-bit addresses.
[[nodiscard]] Status check_extent(const char* name, std::int64_t rows, std::int64_t stride,
                                  std::int64_t size);

/// Batch, tokens and packing; the number of sequences.
struct Lengths {
  std::int64_t B, T;
  bool packed;
  std::int64_t sequences;
  IndexType cu_seqlens_type;
  std::int64_t BT;
};
[[nodiscard]] Result<std::int64_t> check_lengths(const Lengths& lengths);

/// A pool of states or one state a sequence; fills in `slots`.
struct States {
  const char* name;  ///< "h0"
  bool exists, indexed;
  std::int64_t stride;
  std::int64_t size;  ///< bytes of an element
};
[[nodiscard]] Status check_states(const States& states, std::int64_t sequences,
                                  std::int64_t& slots);

/// A host copy of `cu_seqlens` [N+1] for T tokens.
[[nodiscard]] Status check_host_cu_seqlens(const std::int64_t* lengths, std::int64_t N,
                                           std::int64_t T);

/// One tensor of a launch.
struct Argument {
  const char* name;
  const void* address;
  bool exists;    ///< the problem has this tensor
  bool elements;  ///< and it has elements
  int alignment;  ///< a power of two
};
[[nodiscard]] Status check_argument(const Argument& argument);
[[nodiscard]] Status check_workspace(Workspace workspace, std::int64_t workspace_bytes);

}  // namespace scanjit::ops
