// What may be asked of KDA forward: shapes when a problem is made, addresses at each launch.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/checked_math.hpp"
#include "ops/kda_forward.hpp"
#include "ops/problem_checks.hpp"
#include "ops/regions.hpp"

namespace scanjit::ops {
namespace {

namespace params = scanjit::kda_forward;

constexpr float kLowestBound = -5;  // 16 tokens decay by less than 2^126

Status check_width(const char* name, std::int64_t value) {
  if (value == 64 || value == 128 || value == 256) return {};
  return unsupported(std::string(name) + " is " + number(value) + "; it must be 64, 128 or 256");
}

Status check_dtype(const char* name, DType type) {
  if (type == DType::kBf16 || type == DType::kF32) return {};
  const std::string sentence = std::string(name) + " is " +
                               (type == DType::kF16 ? "f16" : number(static_cast<int>(type))) +
                               "; it must be kBf16 (1) or kF32 (3)";
  return type == DType::kF16 ? unsupported(sentence) : invalid_argument(sentence);
}

std::int64_t size_of(DType type) { return type == DType::kF32 ? 4 : 2; }

Status check_gate(const KdaForwardProblem& p) {
  const int gate = static_cast<int>(p.gate);
  if (gate < static_cast<int>(KdaGate::kBounded) || gate > static_cast<int>(KdaGate::kScalar))
    return invalid_argument("gate is " + number(gate) + "; it must be kBounded (1) to kScalar (4)");
  const bool raw = p.gate == KdaGate::kBounded || p.gate == KdaGate::kSoftplus;
  for (const auto& [has, name] : {std::pair{p.has_A_log, "A_log"}, {p.has_dt_bias, "dt_bias"}}) {
    if (has && !raw) {
      return invalid_argument(std::string("has_") + name + " is set, but gate " +
                              to_string(p.gate) + " takes g as it is");
    }
  }
  if (p.gate == KdaGate::kBounded && !(p.lower_bound >= kLowestBound && p.lower_bound < 0)) {
    return invalid_argument("lower_bound is " + std::to_string(p.lower_bound) +
                            "; it must be from -5 to less than 0");
  }
  if (p.gate == KdaGate::kScalar && p.g_dtype != DType::kF32)
    return invalid_argument("g_dtype is not f32; a scalar gate is f32");
  if (!std::isfinite(p.scale))
    return invalid_argument("scale is " + std::to_string(p.scale) + "; it must be finite");
  return {};
}

}  // namespace

Status KdaForward::check() {
  KdaForwardProblem& p = problem_;
  SCANJIT_TRY(check_layout(p.layout));
  SCANJIT_TRY(check_index_type("cu_seqlens_type", p.cu_seqlens_type));
  SCANJIT_TRY(check_index_type("index_type", p.index_type));
  SCANJIT_TRY(check_dtype("g_dtype", p.g_dtype));
  SCANJIT_TRY(check_dtype("beta_dtype", p.beta_dtype));
  SCANJIT_TRY(check_dtype("state_dtype", p.state_dtype));
  SCANJIT_TRY(check_gate(p));
  SCANJIT_TRY(check_width("K", p.K));
  SCANJIT_TRY(check_width("V", p.V));
  SCANJIT_TRY(check_heads(p.H, p.HV));
  SCANJIT_TRY(check_range("checkpoints", p.checkpoints, 0, kMaxInt));
  SCANJIT_TRY(check_not_negative("max_tokens", p.max_tokens));
  SCANJIT_TRY(check_not_negative("workspace_limit", p.workspace_limit));
  SCANJIT_TRY(check_numerics());
  SCANJIT_ASSIGN_OR_RETURN(N_, check_lengths({p.B, p.T, p.packed, p.sequences, p.cu_seqlens_type,
                                              params::kChunkTokens}));
  if (p.scale == 0) p.scale = 1 / std::sqrt(static_cast<float>(p.K));
  SCANJIT_TRY(check_tensors());

  // Chunks, and that nothing of the workspace overflows under any form.
  const auto padded = p.packed ? checked_product({N_, params::kChunkTokens - 1}) : 0;
  const auto tokens = padded ? checked_add(*padded, p.T) : std::nullopt;
  if (!tokens) return invalid_argument("T + N*63 overflows 63 bits with N = " + number(N_));
  const auto chunks = p.packed ? std::optional<std::int64_t>(*tokens / params::kChunkTokens)
                               : checked_multiply(N_, ceil_divide(p.T, params::kChunkTokens));
  if (!chunks) return invalid_argument("B * ceil(T/64) overflows 63 bits with B = " + number(p.B));
  chunks_ = *chunks;
  const auto pieces = checked_add(chunks_, N_);
  if (!pieces || !checked_product({*pieces + 1, p.HV, 1 << 21})) {
    return unsupported("records of " + number(chunks_) + " chunks and " + number(p.HV) +
                       " heads, and states of " + number(N_) +
                       " sequences, are more than 63 bits can address; split the batch");
  }
  if (N_ > 0 && N_ > kMaxBlocks / p.HV / (p.V / 64)) {
    return unsupported("N * HV * V/64 with N = " + number(N_) + ", HV = " + number(p.HV) +
                       ", V = " + number(p.V) + " is more than " + number(kMaxBlocks) +
                       " blocks; split the batch");
  }
  if (std::none_of(space_.segment_chunks.begin(), space_.segment_chunks.end(),
                   [&](int segment_chunks) { return form_of(segment_chunks).has_value(); })) {
    const int segment_chunks = space_.segment_chunks.front();
    return unsupported("workspace_limit is " + number(p.workspace_limit) +
                       " bytes; with numerics " + p.numerics + " the least is " +
                       number(form(segment_chunks, segment_chunks > 0 ? 0 : 1).bytes) +
                       ", or what makes no more than 1024 slices");
  }
  const std::int64_t g_unit = p.g_dtype == DType::kF32 ? 4 : 8;
  aligned_ = p.aligned16 && p.q_stride % 8 == 0 && p.k_stride % 8 == 0 && p.v_stride % 8 == 0 &&
             p.o_stride % 8 == 0 && (p.gate == KdaGate::kScalar || p.g_stride % g_unit == 0);
  return {};
}

// Strides and extents.
Status KdaForward::check_tensors() {
  KdaForwardProblem& p = problem_;
  const auto rows = checked_multiply(p.B, p.T);
  if (!rows)
    return invalid_argument("B * T = " + number(p.B) + " * " + number(p.T) + " overflows 63 bits");
  rows_ = *rows;
  const bool scalar = p.gate == KdaGate::kScalar;
  struct Row {
    const char *name, *stride_name;
    std::int64_t& stride;
    std::optional<std::int64_t> row;
    const char* what;
    std::int64_t size;
  };
  const auto key_row = checked_multiply(p.HV, p.K), value_row = checked_multiply(p.HV, p.V);
  const Row all[] = {{"q", "q_stride", p.q_stride, checked_multiply(p.H, p.K), "H*K", 2},
                     {"k", "k_stride", p.k_stride, checked_multiply(p.H, p.K), "H*K", 2},
                     {"v", "v_stride", p.v_stride, value_row, "HV*V", 2},
                     {"g", "g_stride", p.g_stride, scalar ? p.HV : key_row, scalar ? "HV" : "HV*K",
                      size_of(p.g_dtype)},
                     {"beta", "beta_stride", p.beta_stride, p.HV, "HV", size_of(p.beta_dtype)},
                     {"o", "o_stride", p.o_stride, value_row, "HV*V", 2}};
  for (const Row& one : all) {
    SCANJIT_TRY(check_stride(one.stride_name, one.stride, one.row, one.what));
    SCANJIT_TRY(check_extent(one.name, rows_, one.stride, one.size));
  }
  const auto state = checked_product({p.HV, p.K, p.V});
  SCANJIT_TRY(check_stride("h0_slot_stride", p.h0_slot_stride, state, "HV*K*V"));
  SCANJIT_TRY(check_stride("ht_slot_stride", p.ht_slot_stride, state, "HV*K*V"));
  const std::int64_t size = size_of(p.state_dtype);
  SCANJIT_TRY(
      check_states({"h0", p.has_h0, p.has_h0_indices, p.h0_slot_stride, size}, N_, p.h0_slots));
  SCANJIT_TRY(
      check_states({"ht", p.has_ht, p.has_ht_indices, p.ht_slot_stride, size}, N_, p.ht_slots));
  if (p.checkpoints == 0) return {};
  const auto count = checked_multiply(N_, p.checkpoints);
  if (!count) return invalid_argument("N * checkpoints overflows 63 bits with N = " + number(N_));
  return check_extent("checkpoints", *count, *state, size);
}

Status KdaForward::check_args(const KdaForwardArgs& args, Workspace workspace,
                              std::int64_t workspace_bytes) const {
  const KdaForwardProblem& p = problem_;
  if (N_ == 0) return {};
  const bool tokens = rows_ > 0, scalar = p.gate == KdaGate::kScalar;
  const auto bytes = [](std::int64_t size) { return static_cast<int>(size); };
  const int row = aligned_ ? 16 : 2, g_size = bytes(size_of(p.g_dtype)),
            state = bytes(size_of(p.state_dtype)), index = bytes(bytes_of(p.index_type));
  const std::array<Argument, 15> arguments = {{
      {"q", args.q, true, tokens, row},
      {"k", args.k, true, tokens, row},
      {"v", args.v, true, tokens, row},
      {"g", args.g, true, tokens, aligned_ && !scalar ? 16 : g_size},
      {"beta", args.beta, true, tokens, bytes(size_of(p.beta_dtype))},
      {"A_log", args.A_log, p.has_A_log, true, 4},
      {"dt_bias", args.dt_bias, p.has_dt_bias, true, 4},
      {"h0", args.h0, p.has_h0, true, state},
      {"h0_indices", args.h0_indices, p.has_h0_indices, true, index},
      {"cu_seqlens", args.cu_seqlens, p.packed, true, bytes(bytes_of(p.cu_seqlens_type))},
      {"ht_indices", args.ht_indices, p.has_ht_indices, true, index},
      {"checkpoint_offsets", args.checkpoint_offsets, p.checkpoints > 0, true, 4},
      {"o", args.o, true, tokens, row},
      {"ht", args.ht, p.has_ht, true, state},
      {"checkpoints", args.checkpoints, p.checkpoints > 0, true, state},
  }};
  for (const Argument& argument : arguments) SCANJIT_TRY(check_argument(argument));
  if (reinterpret_cast<std::uintptr_t>(args.status) % 4 != 0)
    return invalid_argument("status is not aligned to 4 bytes");
  if (args.host_cu_seqlens != nullptr) {
    if (!p.packed)
      return invalid_argument("host_cu_seqlens is given, but the problem is not packed");
    SCANJIT_TRY(check_host_cu_seqlens(args.host_cu_seqlens, N_, p.T));
  }
  SCANJIT_TRY(check_workspace(workspace, workspace_bytes));
  return check_overlaps(args, workspace.data, workspace_bytes);
}

Status KdaForward::check_overlaps(const KdaForwardArgs& args, const void* workspace,
                                  std::int64_t workspace_bytes) const {
  const KdaForwardProblem& p = problem_;
  struct Named {
    const char* name = "";
    Region region;
  };
  const auto rows = [](const void* pointer, std::int64_t count, std::int64_t columns,
                       std::int64_t stride, std::int64_t size) {
    return pointer == nullptr ? Region{}
                              : Region{reinterpret_cast<std::uintptr_t>(pointer), count,
                                       columns * size, stride * size};
  };
  const auto piece = [&](const void* pointer, std::int64_t bytes) {
    return rows(pointer, 1, bytes, bytes, 1);
  };
  const std::int64_t state = p.HV * p.K * p.V, size = size_of(p.state_dtype),
                     index_bytes = N_ * bytes_of(p.index_type),
                     columns = p.gate == KdaGate::kScalar ? p.HV : p.HV * p.K;
  enum : std::size_t { kH0At = 7, kInputs = 12, kHtAt = 13, kAll = 17 };
  const std::array<Named, kAll> all = {{
      {"q", rows(args.q, rows_, p.H * p.K, p.q_stride, 2)},
      {"k", rows(args.k, rows_, p.H * p.K, p.k_stride, 2)},
      {"v", rows(args.v, rows_, p.HV * p.V, p.v_stride, 2)},
      {"g", rows(args.g, rows_, columns, p.g_stride, size_of(p.g_dtype))},
      {"beta", rows(args.beta, rows_, p.HV, p.beta_stride, size_of(p.beta_dtype))},
      {"A_log", piece(args.A_log, p.HV * 4)},
      {"dt_bias", piece(args.dt_bias, p.HV * p.K * 4)},
      {"h0", rows(args.h0, p.has_h0_indices ? p.h0_slots : N_, state, p.h0_slot_stride, size)},
      {"h0_indices", piece(args.h0_indices, index_bytes)},
      {"cu_seqlens", piece(args.cu_seqlens, (N_ + 1) * bytes_of(p.cu_seqlens_type))},
      {"ht_indices", piece(args.ht_indices, index_bytes)},
      {"checkpoint_offsets", piece(args.checkpoint_offsets, N_ * p.checkpoints * 4)},
      {"o", rows(args.o, rows_, p.HV * p.V, p.o_stride, 2)},
      {"ht", rows(args.ht, p.has_ht_indices ? p.ht_slots : N_, state, p.ht_slot_stride, size)},
      {"checkpoints", piece(args.checkpoints, N_ * p.checkpoints * state * size)},
      {"status", piece(args.status, 4)},
      {"workspace", piece(workspace, workspace_bytes)},
  }};
  const bool ht_is_h0 = args.ht == args.h0 && p.ht_slot_stride == p.h0_slot_stride &&
                        p.ht_slots == p.h0_slots && args.ht_indices == args.h0_indices;
  for (std::size_t output = kInputs; output < kAll; ++output) {
    for (std::size_t other = 0; other < output; ++other) {
      const bool states = output == kHtAt && other == kH0At;
      if ((states && ht_is_h0) || !overlap(all[output].region, all[other].region)) continue;
      const std::uintptr_t from = all[output].region.base, to = all[other].region.base;
      std::string sentence = std::string(all[output].name) + " overlaps " + all[other].name;
      if (states) {
        sentence +=
            "; it may be exactly h0, with the same slot stride, slots and indices, or share "
            "nothing with it";
      }
      sentence += from >= to ? " (it begins " + std::to_string(from - to) + " bytes after it)"
                             : " (it begins " + std::to_string(to - from) + " bytes before it)";
      return invalid_argument(sentence);
    }
  }
  return {};
}

}  // namespace scanjit::ops
