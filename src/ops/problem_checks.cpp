#include "ops/problem_checks.hpp"

#include "core/checked_math.hpp"

namespace scanjit::ops {
namespace {

// Kernels count chunks, and parts of them, in an int.
constexpr std::int64_t kMaxChunks = std::int64_t{1} << 27;

}  // namespace

Status check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(std::string(name) + " is " + number(value) + "; it must be " +
                          number(low) + " to " + number(high));
}

Status check_not_negative(const char* name, std::int64_t value) {
  if (value >= 0) return {};
  return invalid_argument(std::string(name) + " is " + number(value) + "; it must not be negative");
}

Status check_index_type(const char* name, IndexType type) {
  if (type == IndexType::kInt32 || type == IndexType::kInt64) return {};
  return invalid_argument(std::string(name) + " is " + number(static_cast<int>(type)) +
                          "; it must be kInt32 or kInt64");
}

Status check_layout(StateLayout layout) {
  if (layout == StateLayout::kKV || layout == StateLayout::kVK) return {};
  return invalid_argument("layout is " + number(static_cast<int>(layout)) +
                          "; it must be kKV (1) or kVK (2)");
}

Status check_heads(std::int64_t H, std::int64_t HV) {
  SCANJIT_TRY(check_range("H", H, 1, kMaxInt));
  SCANJIT_TRY(check_range("HV", HV, 1, kMaxInt));
  if (HV % H == 0) return {};
  return invalid_argument("HV is " + number(HV) + "; it must be a multiple of H = " + number(H));
}

Status check_stride(const char* name, std::int64_t& stride, std::optional<std::int64_t> row,
                    const char* what) {
  if (!row) return invalid_argument(std::string(what) + " overflows 63 bits");
  if (stride == 0) stride = *row;
  if (stride >= *row) return {};
  return invalid_argument(std::string(name) + " is " + number(stride) +
                          " elements, less than one row of " + what + " = " + number(*row));
}

Status check_extent(const char* name, std::int64_t rows, std::int64_t stride, std::int64_t size) {
  if (checked_product({rows > 0 ? rows : 1, stride, size})) return {};
  return invalid_argument(std::string(name) + " has " + number(rows) + " rows of " +
                          number(stride) + " elements of " + number(size) +
                          " bytes, more than 63 bits can address");
}

Result<std::int64_t> check_lengths(const Lengths& p) {
  SCANJIT_TRY(check_not_negative("B", p.B));
  SCANJIT_TRY(check_not_negative("T", p.T));
  SCANJIT_TRY(check_not_negative("sequences", p.sequences));
  if (ceil_divide(p.T, p.BT) > kMaxChunks) {
    return invalid_argument("T is " + number(p.T) + "; it must be at most " + number(kMaxChunks) +
                            " chunks of BT = " + number(p.BT));
  }
  if (!p.packed) {
    if (p.sequences == 0 || p.sequences == p.B) return p.B;
    return invalid_argument("sequences is " + number(p.sequences) +
                            "; without cu_seqlens it must be 0 or B = " + number(p.B));
  }
  if (p.B != 1)
    return invalid_argument("B is " + number(p.B) + "; it must be 1 when cu_seqlens is given");
  if (p.cu_seqlens_type == IndexType::kInt32 && p.T > kMaxInt) {
    return invalid_argument("T is " + number(p.T) + ", but cu_seqlens is int32 and ends at " +
                            number(kMaxInt));
  }
  return p.sequences;
}

Status check_states(const States& states, std::int64_t sequences, std::int64_t& slots) {
  const std::string name = states.name;
  SCANJIT_TRY(check_not_negative((name + "_slots").c_str(), slots));
  if (slots == 0) slots = sequences;
  if (states.indexed && !states.exists)
    return invalid_argument("has_" + name + "_indices is set, but the problem has no " + name);
  if (!states.exists) return {};
  if (!states.indexed && slots < sequences) {
    return invalid_argument(name + "_slots is " + number(slots) + "; without " + name +
                            "_indices it must be at least the number of sequences, " +
                            number(sequences));
  }
  return check_extent(states.name, slots, states.stride, states.size);
}

Status check_host_cu_seqlens(const std::int64_t* lengths, std::int64_t N, std::int64_t T) {
  for (std::int64_t n = 0; n <= N; ++n) {
    const std::int64_t begin = n == 0 ? 0 : lengths[n - 1];
    const auto wrong = [&](const std::string& why) {
      return invalid_argument("host_cu_seqlens[" + number(n) + "] is " + number(lengths[n]) + why);
    };
    if (lengths[n] < 0) return wrong("; it must not be negative");
    if (lengths[n] < begin) return wrong(", less than the entry before it, " + number(begin));
    if (lengths[n] > T) return wrong(", past the end of T = " + number(T) + " tokens");
  }
  return {};
}

Status check_argument(const Argument& argument) {
  if (!argument.exists) {
    if (argument.address == nullptr) return {};
    return invalid_argument(std::string(argument.name) + " is given, but the problem has none");
  }
  if (argument.address == nullptr) {
    if (!argument.elements) return {};
    return invalid_argument(std::string(argument.name) + " is null, but the problem has it");
  }
  // Alignments are powers of two; a division would take longer than the rest of this.
  const std::uintptr_t off = reinterpret_cast<std::uintptr_t>(argument.address) &
                             static_cast<std::uintptr_t>(argument.alignment - 1);
  if (off == 0) return {};
  return invalid_argument(std::string(argument.name) + " lies " + std::to_string(off) +
                          " bytes past a multiple of " + std::to_string(argument.alignment) +
                          (argument.alignment == 16
                               ? "; give it 16-byte alignment, or set aligned16 to false"
                               : "; it must be aligned to its element"));
}

Status check_workspace(Workspace workspace, std::int64_t workspace_bytes) {
  if (workspace.bytes < workspace_bytes || (workspace_bytes > 0 && workspace.data == nullptr)) {
    return invalid_argument("workspace is " +
                            number(workspace.data == nullptr ? 0 : workspace.bytes) +
                            " bytes; this problem needs " + number(workspace_bytes));
  }
  if (workspace_bytes > 0 && reinterpret_cast<std::uintptr_t>(workspace.data) % 256 != 0)
    return invalid_argument("workspace is not aligned to 256 bytes");
  return {};
}

}  // namespace scanjit::ops
