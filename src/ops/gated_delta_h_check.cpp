// What may be asked of the gated-delta scan: shapes when a problem is made, addresses at each
// launch.
#include <array>
#include <limits>
#include <string>

#include "core/checked_math.hpp"
#include "gated_delta_h/gated_delta_h_params.h"
#include "ops/gated_delta_h.hpp"
#include "ops/problem_checks.hpp"
#include "ops/regions.hpp"

namespace scanjit::ops {
namespace {

constexpr std::int64_t kMaxV = std::int64_t{1} << 30;
constexpr int kLargestBv = 128;

}  // namespace

Status GatedDeltaH::check() {
  GatedDeltaHProblem& p = problem_;
  if (p.dtype == DType::kF32) return unsupported("dtype is f32; k, w and u must be bf16 or f16");
  if (p.dtype != DType::kBf16 && p.dtype != DType::kF16) {
    return invalid_argument("dtype is " + number(static_cast<int>(p.dtype)) +
                            "; it must be kBf16 (1) or kF16 (2)");
  }
  SCANJIT_TRY(check_layout(p.layout));
  if (p.gate_base != GateBase::kTwo && p.gate_base != GateBase::kE) {
    return invalid_argument("gate_base is " + number(static_cast<int>(p.gate_base)) +
                            "; it must be kTwo (1) or kE (2)");
  }
  SCANJIT_TRY(check_index_type("cu_seqlens_type", p.cu_seqlens_type));
  SCANJIT_TRY(check_index_type("index_type", p.index_type));
  if (p.numerics != "default" && p.numerics != "any") {
    return unsupported("numerics is \"" + p.numerics + "\"; the scan has no class but default");
  }
  p.numerics = "default";

  SCANJIT_TRY(check_range("K", p.K, 1, 256));
  SCANJIT_TRY(check_range("V", p.V, 1, kMaxV));
  SCANJIT_TRY(check_heads(p.H, p.HV));
  if (p.BT != 16 && p.BT != 32 && p.BT != 64)
    return invalid_argument("BT is " + number(p.BT) + "; it must be 16, 32 or 64");
  SCANJIT_TRY(check_not_negative("max_tokens", p.max_tokens));
  SCANJIT_TRY(check_not_negative("chunk_capacity", p.chunk_capacity));
  SCANJIT_ASSIGN_OR_RETURN(
      N_, check_lengths({p.B, p.T, p.packed, p.sequences, p.cu_seqlens_type, p.BT}));
  if (!p.packed && p.has_chunk_offsets)
    return invalid_argument("has_chunk_offsets is set, but chunk_offsets needs cu_seqlens");

  // Strides; absent tensors keep none.
  const auto rows = checked_multiply(p.B, p.T);
  if (!rows)
    return invalid_argument("B * T = " + number(p.B) + " * " + number(p.T) + " overflows 63 bits");
  rows_ = *rows;
  SCANJIT_TRY(check_stride("k_stride", p.k_stride, checked_multiply(p.H, p.K), "H*K"));
  SCANJIT_TRY(check_stride("w_stride", p.w_stride, checked_multiply(p.HV, p.K), "HV*K"));
  SCANJIT_TRY(check_stride("u_stride", p.u_stride, checked_multiply(p.HV, p.V), "HV*V"));
  SCANJIT_TRY(check_stride("g_stride", p.g_stride, p.HV, "HV"));
  SCANJIT_TRY(check_stride("gk_stride", p.gk_stride, checked_multiply(p.HV, p.K), "HV*K"));
  SCANJIT_TRY(check_stride("v_new_stride", p.v_new_stride, checked_multiply(p.HV, p.V), "HV*V"));
  const auto state = checked_product({p.HV, p.K, p.V});
  SCANJIT_TRY(check_stride("h0_slot_stride", p.h0_slot_stride, state, "HV*K*V"));
  SCANJIT_TRY(check_stride("ht_slot_stride", p.ht_slot_stride, state, "HV*K*V"));
  SCANJIT_TRY(check_extent("k", rows_, p.k_stride, 2));
  SCANJIT_TRY(check_extent("w", rows_, p.w_stride, 2));
  SCANJIT_TRY(check_extent("u", rows_, p.u_stride, 2));
  if (p.has_g) SCANJIT_TRY(check_extent("g", rows_, p.g_stride, 4));
  if (p.has_gk) SCANJIT_TRY(check_extent("gk", rows_, p.gk_stride, 4));
  if (p.has_v_new) SCANJIT_TRY(check_extent("v_new", rows_, p.v_new_stride, 2));

  SCANJIT_TRY(
      check_states({"h0", p.has_h0, p.has_h0_indices, p.h0_slot_stride, 4}, N_, p.h0_slots));
  SCANJIT_TRY(
      check_states({"ht", p.has_ht, p.has_ht_indices, p.ht_slot_stride, 4}, N_, p.ht_slots));

  // Chunks of h.
  if (p.packed) {
    const auto slack = checked_multiply(N_, p.BT - 1);
    const auto padded = slack ? checked_add(*slack, p.T) : std::nullopt;
    if (!padded) return invalid_argument("T + N*(BT-1) overflows 63 bits with N = " + number(N_));
    capacity_bound_ = *padded / p.BT;
    if (p.cu_seqlens_type == IndexType::kInt32 && p.has_h && capacity_bound_ > kMaxInt) {
      return invalid_argument(
          "h may have " + number(capacity_bound_) +
          " chunks, more than int32 chunk offsets can count; give cu_seqlens as int64");
    }
    capacity_ = p.chunk_capacity == 0 ? capacity_bound_ : p.chunk_capacity;
  } else {
    const auto chunks = checked_multiply(N_, ceil_divide(p.T, p.BT));
    if (!chunks)
      return invalid_argument("B * ceil(T/BT) overflows 63 bits with B = " + number(p.B));
    capacity_bound_ = capacity_ = *chunks;
    if (p.has_h && p.chunk_capacity != 0 && p.chunk_capacity < *chunks) {
      return invalid_argument("chunk_capacity is " + number(p.chunk_capacity) + "; h needs " +
                              number(*chunks) + " chunks");
    }
  }
  if (p.has_h) SCANJIT_TRY(check_extent("h", capacity_, *state, 2));

  const auto blocks = checked_product({N_, p.HV, ceil_divide(p.V, kLargestBv)});
  if (!blocks || *blocks > kMaxBlocks) {
    return unsupported("N * HV * ceil(V/" + number(kLargestBv) + ") with N = " + number(N_) +
                       ", HV = " + number(p.HV) + ", V = " + number(p.V) + " is more than " +
                       number(kMaxBlocks) + " blocks; split the batch");
  }
  // Neither may overflow where 4 or 8 bytes are added per sequence.
  if (N_ > std::numeric_limits<std::int64_t>::max() / 16)
    return invalid_argument("sequences is " + number(N_) + ", more than 63 bits can address");

  aligned_ = p.aligned16 && p.K % 8 == 0 && p.V % 8 == 0 && p.k_stride % 8 == 0 &&
             p.w_stride % 8 == 0 && p.u_stride % 8 == 0 &&
             (!p.has_v_new || p.v_new_stride % 8 == 0);
  return {};
}

Status GatedDeltaH::check_host_lengths(const std::int64_t* lengths) const {
  SCANJIT_TRY(check_host_cu_seqlens(lengths, N_, problem_.T));
  std::int64_t chunks = 0;
  for (std::int64_t n = 0; n < N_; ++n)
    chunks += ceil_divide(lengths[n + 1] - lengths[n], problem_.BT);
  if (problem_.has_h && chunks > capacity_) {
    return invalid_argument("h has room for " + number(capacity_) +
                            " chunks, but host_cu_seqlens makes " + number(chunks));
  }
  return {};
}

bool GatedDeltaH::plainly_fine(const GatedDeltaHArgs& args) const noexcept {
  const GatedDeltaHProblem& p = problem_;
  if (args.host_cu_seqlens != nullptr || args.status != nullptr || workspace_bound() != 0 ||
      rows_ == 0 || (p.has_h && (capacity_ == 0 || (p.packed && capacity_ < capacity_bound_))))
    return false;
  if ((!p.has_g && args.g != nullptr) || (!p.has_gk && args.gk != nullptr) ||
      (!p.has_h0 && args.h0 != nullptr) || (!p.has_h && args.h != nullptr) ||
      (!p.has_v_new && args.v_new != nullptr) || (!p.has_ht && args.ht != nullptr) ||
      (!p.has_h0_indices && args.h0_indices != nullptr) ||
      (!p.has_ht_indices && args.ht_indices != nullptr) ||
      (!p.packed && args.cu_seqlens != nullptr) ||
      (!p.has_chunk_offsets && args.chunk_offsets != nullptr))
    return false;
  // Everything that exists, outputs first.
  struct Span {
    std::uintptr_t begin, end;
  };
  std::array<Span, 13> spans;
  std::size_t count = 0;
  std::uintptr_t wrong = 0;
  const auto add = [&](const void* pointer, std::int64_t rows, std::int64_t row_bytes,
                       std::int64_t stride_bytes, int alignment) {
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    const std::uintptr_t end =
        begin + static_cast<std::uintptr_t>((rows - 1) * stride_bytes + row_bytes);
    wrong |= (begin & static_cast<std::uintptr_t>(alignment - 1)) |
             static_cast<std::uintptr_t>(begin == 0) | static_cast<std::uintptr_t>(end < begin);
    spans[count++] = {begin, end};
  };
  const int row = aligned_ ? 16 : 2;
  const std::int64_t state_bytes = p.HV * p.K * p.V * 4;
  const auto add_u = [&] { add(args.u, rows_, p.HV * p.V * 2, p.u_stride * 2, row); };
  const auto add_h0 = [&] {
    add(args.h0, p.has_h0_indices ? p.h0_slots : N_, state_bytes, p.h0_slot_stride * 4, 4);
  };
  // In place, exactly: one span stands for both tensors.
  const bool v_new_is_u = p.has_v_new && args.v_new == args.u && p.v_new_stride == p.u_stride;
  const bool ht_is_h0 = p.has_ht && p.has_h0 && args.ht == args.h0 &&
                        p.ht_slot_stride == p.h0_slot_stride && p.ht_slots == p.h0_slots &&
                        args.ht_indices == args.h0_indices;
  if (p.has_h) add(args.h, 1, capacity_ * (state_bytes / 2), 0, row);
  if (v_new_is_u) {
    add_u();
  } else if (p.has_v_new) {
    add(args.v_new, rows_, p.HV * p.V * 2, p.v_new_stride * 2, row);
  }
  if (ht_is_h0) {
    add_h0();
  } else if (p.has_ht) {
    add(args.ht, p.has_ht_indices ? p.ht_slots : N_, state_bytes, p.ht_slot_stride * 4, 4);
  }
  const std::size_t outputs = count;
  const int length = static_cast<int>(bytes_of(p.cu_seqlens_type)),
            index = static_cast<int>(bytes_of(p.index_type));
  add(args.k, rows_, p.H * p.K * 2, p.k_stride * 2, row);
  add(args.w, rows_, p.HV * p.K * 2, p.w_stride * 2, row);
  if (!v_new_is_u) add_u();
  if (p.has_g) add(args.g, rows_, p.HV * 4, p.g_stride * 4, 4);
  if (p.has_gk) add(args.gk, rows_, p.HV * p.K * 4, p.gk_stride * 4, 4);
  if (p.has_h0 && !ht_is_h0) add_h0();
  if (p.has_h0_indices) add(args.h0_indices, 1, N_ * index, 0, index);
  if (p.has_ht_indices) add(args.ht_indices, 1, N_ * index, 0, index);
  if (p.packed) add(args.cu_seqlens, 1, (N_ + 1) * length, 0, length);
  if (p.has_chunk_offsets) add(args.chunk_offsets, 1, N_ * length, 0, length);
  for (std::size_t output = 0; output < outputs; ++output) {
    for (std::size_t other = output + 1; other < count; ++other) {
      wrong |= static_cast<std::uintptr_t>(spans[output].end > spans[other].begin &&
                                           spans[other].end > spans[output].begin);
    }
  }
  return wrong == 0;
}

Status GatedDeltaH::check_args(const GatedDeltaHArgs& args, Workspace workspace,
                               std::int64_t workspace_bytes) const {
  const GatedDeltaHProblem& p = problem_;
  if (N_ == 0) return {};
  // What is wrong, or fine on a second look, is found below.
  if (plainly_fine(args)) return {};

  const bool tokens = rows_ > 0;
  const int row_alignment = aligned_ ? 16 : 2;
  const int length_alignment = static_cast<int>(bytes_of(p.cu_seqlens_type)),
            index_alignment = static_cast<int>(bytes_of(p.index_type));
  const std::array<Argument, 13> arguments = {{
      {"k", args.k, true, tokens, row_alignment},
      {"w", args.w, true, tokens, row_alignment},
      {"u", args.u, true, tokens, row_alignment},
      {"g", args.g, p.has_g, tokens, 4},
      {"gk", args.gk, p.has_gk, tokens, 4},
      {"h0", args.h0, p.has_h0, true, 4},
      {"h0_indices", args.h0_indices, p.has_h0_indices, true, index_alignment},
      {"cu_seqlens", args.cu_seqlens, p.packed, true, length_alignment},
      {"chunk_offsets", args.chunk_offsets, p.has_chunk_offsets, true, length_alignment},
      {"ht_indices", args.ht_indices, p.has_ht_indices, true, index_alignment},
      {"h", args.h, p.has_h, capacity_ > 0, row_alignment},
      {"v_new", args.v_new, p.has_v_new, tokens, row_alignment},
      {"ht", args.ht, p.has_ht, true, 4},
  }};
  for (const Argument& argument : arguments) SCANJIT_TRY(check_argument(argument));
  if (reinterpret_cast<std::uintptr_t>(args.status) % 4 != 0)
    return invalid_argument("status is not aligned to 4 bytes");

  if (args.host_cu_seqlens != nullptr) {
    if (!p.packed)
      return invalid_argument("host_cu_seqlens is given, but the problem is not packed");
    SCANJIT_TRY(check_host_lengths(args.host_cu_seqlens));
  } else if (p.packed && p.has_h && capacity_ < capacity_bound_) {
    return invalid_argument(
        "chunk_capacity is " + number(capacity_) +
        "; without host_cu_seqlens it must be at least floor((T + N*(BT-1))/BT) = " +
        number(capacity_bound_));
  }

  SCANJIT_TRY(check_workspace(workspace, workspace_bytes));
  return check_overlaps(args, workspace.data, workspace_bytes);
}

Status GatedDeltaH::check_overlaps(const GatedDeltaHArgs& args, const void* workspace,
                                   std::int64_t workspace_bytes) const {
  const GatedDeltaHProblem& p = problem_;
  struct Named {
    const char* name = "";
    Region region;
  };
  const auto address = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
  };
  const auto tokens = [&](const void* pointer, std::int64_t columns, std::int64_t stride,
                          std::int64_t size) {
    return pointer == nullptr ? Region{}
                              : Region{address(pointer), rows_, columns * size, stride * size};
  };
  const auto pool = [&](const void* pointer, bool indexed, std::int64_t slots,
                        std::int64_t stride) {
    return pointer == nullptr
               ? Region{}
               : Region{address(pointer), indexed ? slots : N_, p.HV * p.K * p.V * 4, stride * 4};
  };
  const auto piece = [&](const void* pointer, std::int64_t bytes) {
    return pointer == nullptr ? Region{} : Region{address(pointer), 1, bytes, bytes};
  };
  const std::int64_t length_bytes = bytes_of(p.cu_seqlens_type),
                     index_bytes = bytes_of(p.index_type);

  enum : std::size_t { kUAt = 2, kH0At = 5, kInputs = 10, kVNewAt = 11, kHtAt = 12, kAll = 15 };
  const std::array<Named, kAll> all = {{
      {"k", tokens(args.k, p.H * p.K, p.k_stride, 2)},
      {"w", tokens(args.w, p.HV * p.K, p.w_stride, 2)},
      {"u", tokens(args.u, p.HV * p.V, p.u_stride, 2)},
      {"g", tokens(args.g, p.HV, p.g_stride, 4)},
      {"gk", tokens(args.gk, p.HV * p.K, p.gk_stride, 4)},
      {"h0", pool(args.h0, p.has_h0_indices, p.h0_slots, p.h0_slot_stride)},
      {"h0_indices", piece(args.h0_indices, N_ * index_bytes)},
      {"cu_seqlens", piece(args.cu_seqlens, (N_ + 1) * length_bytes)},
      {"chunk_offsets", piece(args.chunk_offsets, N_ * length_bytes)},
      {"ht_indices", piece(args.ht_indices, N_ * index_bytes)},
      {"h", piece(args.h, args.h == nullptr ? 0 : capacity_ * p.HV * p.K * p.V * 2)},
      {"v_new", tokens(args.v_new, p.HV * p.V, p.v_new_stride, 2)},
      {"ht", pool(args.ht, p.has_ht_indices, p.ht_slots, p.ht_slot_stride)},
      {"status", piece(args.status, 4)},
      {"workspace", piece(workspace, workspace_bytes)},
  }};

  const bool v_new_is_u = args.v_new == args.u && p.v_new_stride == p.u_stride;
  const bool ht_is_h0 = args.ht == args.h0 && p.ht_slot_stride == p.h0_slot_stride &&
                        p.ht_slots == p.h0_slots && args.ht_indices == args.h0_indices;
  for (std::size_t output = kInputs; output < kAll; ++output) {
    for (std::size_t other = 0; other < output; ++other) {
      if (output == kVNewAt && other == kUAt && v_new_is_u) continue;
      if (output == kHtAt && other == kH0At && ht_is_h0) continue;
      if (!overlap(all[output].region, all[other].region)) continue;
      std::string sentence = std::string(all[output].name) + " overlaps " + all[other].name;
      if (output == kVNewAt && other == kUAt)
        sentence += "; it may be exactly u, with the same stride, or share nothing with it";
      if (output == kHtAt && other == kH0At) {
        sentence +=
            "; it may be exactly h0, with the same slot stride, slots and indices, or share "
            "nothing with it";
      }
      const std::uintptr_t from = all[output].region.base, to = all[other].region.base;
      sentence += from >= to ? " (it begins " + std::to_string(from - to) + " bytes after it)"
                             : " (it begins " + std::to_string(to - from) + " bytes before it)";
      return invalid_argument(sentence);
    }
  }
  return {};
}

}  // namespace scanjit::ops
