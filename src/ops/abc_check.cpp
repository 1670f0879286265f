// What may be asked of one launch of ABC: addresses.
#include <array>
#include <cstdint>
#include <string>

#include "ops/abc_op.hpp"

namespace scanjit::ops {
namespace {

constexpr std::array<const char*, AbcOp::kTensors> kNames{
    "q",   "k",   "v",  "s",  "hk0", "hv0", "z0", "dout", "dhkt", "dhvt", "o",
    "hkt", "hvt", "zt", "dq", "dk",  "dv",  "ds", "dhk0", "dhv0", "dz0",  "saved"};

constexpr std::uintptr_t kWorkspaceAlignment = 256;

// The input that an output may be exactly.
std::size_t in_place_of(std::size_t output) noexcept {
  switch (output) {
    case AbcOp::kHkt: return AbcOp::kHk0;
    case AbcOp::kHvt: return AbcOp::kHv0;
    case AbcOp::kZt: return AbcOp::kZ0;
    default: return AbcOp::kTensors;
  }
}

}  // namespace

const char* AbcOp::name_of(std::size_t tensor) noexcept { return kNames[tensor]; }

Status AbcOp::check_addresses(const Addresses& addresses, Workspace workspace,
                              std::int64_t workspace_bytes) const {
  if (problem_.B == 0) return {};
  const auto place = [&](std::size_t i) {
    return reinterpret_cast<std::uintptr_t>(addresses.tensor[i]);
  };
  for (std::size_t i = 0; i < kTensors; ++i) {
    const OneTensor& tensor = tensor_[i];
    const std::uintptr_t address = place(i);
    if (tensor.alignment == 0) {
      if (address != 0)
        return invalid_argument(std::string(kNames[i]) + " is given, but the problem has none");
      continue;
    }
    if (address == 0 && tensor.bytes > 0)
      return invalid_argument(std::string(kNames[i]) + " is null, but the problem has it");
    if (const auto off = address % static_cast<std::uintptr_t>(tensor.alignment); off != 0) {
      return invalid_argument(std::string(kNames[i]) + " lies " + std::to_string(off) +
                              " bytes past a multiple of " + std::to_string(tensor.alignment) +
                              (tensor.alignment == 16
                                   ? "; give it 16-byte alignment, or set aligned16 to false"
                               : i == kSaved ? "; it must be aligned like a workspace"
                                             : "; it must be aligned to its element"));
    }
  }
  const auto scratch = reinterpret_cast<std::uintptr_t>(workspace.data);
  if (workspace.bytes < workspace_bytes || (workspace_bytes > 0 && scratch == 0)) {
    return invalid_argument("workspace is " + std::to_string(scratch == 0 ? 0 : workspace.bytes) +
                            " bytes; this problem needs " + std::to_string(workspace_bytes));
  }
  if (workspace_bytes > 0 && scratch % kWorkspaceAlignment != 0)
    return invalid_argument("workspace is not aligned to 256 bytes");

  // Every tensor is one piece. The workspace comes last.
  struct Piece {
    std::uintptr_t begin, bytes;
  };
  const auto piece = [&](std::size_t i) -> Piece {
    if (i == kTensors) return {scratch, static_cast<std::uintptr_t>(workspace_bytes)};
    return {place(i), place(i) == 0 ? 0 : static_cast<std::uintptr_t>(tensor_[i].bytes)};
  };
  for (std::size_t output = 0; output <= kTensors; ++output) {
    if (output < kTensors && !tensor_[output].output) continue;
    const Piece a = piece(output);
    for (std::size_t other = 0; other < kTensors; ++other) {
      // Of two outputs once.
      if (other == output || (tensor_[other].output && other > output)) continue;
      const Piece b = piece(other);
      if (a.bytes == 0 || b.bytes == 0 || a.begin >= b.begin + b.bytes ||
          b.begin >= a.begin + a.bytes)
        continue;
      const bool may = in_place_of(output) == other;
      if (may && a.begin == b.begin) continue;
      return invalid_argument(
          std::string(output == kTensors ? "workspace" : kNames[output]) + " overlaps " +
          kNames[other] +
          (may ? std::string("; it may be exactly ") + kNames[other] + ", or share nothing with it"
               : std::string()) +
          (a.begin >= b.begin
               ? " (it begins " + std::to_string(a.begin - b.begin) + " bytes after it)"
               : " (it begins " + std::to_string(b.begin - a.begin) + " bytes before it)"));
    }
  }
  return {};
}

}  // namespace scanjit::ops
