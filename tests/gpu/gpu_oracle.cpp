#include "gpu/gpu_oracle.hpp"

#include <cmath>

#include "gpu/memory.hpp"
#include "gpu/oracle_params.h"
#include "reference/gated_delta_h.hpp"

namespace scanjit::test {
namespace {

void add(OracleSums* sum, const OracleSums& one) {
  sum->elements += one.elements;
  sum->pure_difference += one.pure_difference;
  sum->rounding_difference += one.rounding_difference;
  sum->own_difference += one.own_difference;
  sum->pure_square += one.pure_square;
  sum->rounding_square += one.rounding_square;
  sum->non_finite += one.non_finite;
  sum->zeros += one.zeros;
}

reference::TensorError error_of(const OracleSums& sums, double difference, double square) {
  reference::TensorError error;
  error.elements = static_cast<std::int64_t>(sums.elements);
  error.reference_norm = std::sqrt(square);
  if (difference > 0) error.relative_l2 = std::sqrt(difference) / error.reference_norm;
  error.non_finite = static_cast<std::int64_t>(sums.non_finite);
  error.zeros = static_cast<std::int64_t>(sums.zeros);
  return error;
}

reference::TensorErrors errors_of(const OracleSums& sums) {
  return {error_of(sums, sums.pure_difference, sums.pure_square),
          error_of(sums, sums.rounding_difference, sums.rounding_square),
          error_of(sums, sums.own_difference, sums.pure_square)};
}

}  // namespace

Result<DeviceErrors> oracle_errors(Gpu& gpu, const GatedDeltaHProblem& p,
                                   const GatedDeltaHArgs& args, const SequencePlaces& places) {
  if (p.k_stride != 0 || p.w_stride != 0 || p.u_stride != 0 || p.g_stride != 0 ||
      p.gk_stride != 0 || p.v_new_stride != 0 || p.h0_slot_stride != 0 || p.ht_slot_stride != 0 ||
      p.has_h0_indices || p.has_ht_indices) {
    return invalid_argument("the GPU oracle takes contiguous tensors without pools");
  }
  const std::int64_t N = p.packed ? p.sequences : p.B;
  const auto HV = static_cast<int>(p.HV), V = static_cast<int>(p.V), K = static_cast<int>(p.K),
             BT = static_cast<int>(p.BT);
  const std::int64_t blocks = oracle_blocks(N, HV, V);
  SCANJIT_ASSIGN_OR_RETURN(
      const GuardedBuffer rows,
      GuardedBuffer::make(gpu, blocks * static_cast<std::int64_t>(sizeof(OracleRow)),
                          Guard::kBytes));
  GuardedBuffer begin, length, first_chunk;
  for (const auto& [buffer, values] :
       {std::pair{&begin, &places.begin}, std::pair{&length, &places.length},
        std::pair{&first_chunk, &places.first_chunk}}) {
    SCANJIT_ASSIGN_OR_RETURN(
        *buffer,
        GuardedBuffer::make(gpu, static_cast<std::int64_t>(values->size() * 8), Guard::kBytes));
    SCANJIT_TRY(buffer->upload(*values));
  }
  OracleParams params{};
  params.k = args.k;
  params.w = args.w;
  params.u = args.u;
  params.g = args.g;
  params.gk = args.gk;
  params.h0 = args.h0;
  params.h = args.h;
  params.v_new = args.v_new;
  params.ht = args.ht;
  params.begin = begin.as<long long>();
  params.length = length.as<long long>();
  params.first_chunk = first_chunk.as<long long>();
  params.sums = rows.as<OracleRow>();
  params.N = N;
  params.T = p.T;
  params.H = static_cast<int>(p.H);
  params.HV = HV;
  params.K = K;
  params.V = V;
  params.BT = BT;
  params.is_f16 = p.dtype == DType::kF16 ? 1 : 0;
  params.base_e = p.gate_base == GateBase::kE ? 1 : 0;
  params.state_vk = p.layout == StateLayout::kVK ? 1 : 0;
  SCANJIT_TRY(gpu.launch("oracle_gated_delta_h.cu", "oracle_gated_delta_h", blocks, kOracleThreads,
                         params, oracle_smem_bytes(K, BT)));
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<OracleRow> sums, rows.download_as<OracleRow>());
  OracleRow total{};
  for (const OracleRow& row : sums) {
    add(&total.h, row.h);
    add(&total.v_new, row.v_new);
    add(&total.ht, row.ht);
  }
  return DeviceErrors{errors_of(total.h), errors_of(total.v_new), errors_of(total.ht)};
}

std::string failures(const DeviceErrors& errors, const GatedDeltaHProblem& p,
                     reference::GateSet gates, std::int64_t longest_sequence) {
  const std::int64_t chunks = (longest_sequence + p.BT - 1) / p.BT;
  return reference::failure("h", errors.h, p.dtype, gates, p.K, chunks) +
         reference::failure("v_new", errors.v_new, p.dtype, gates, p.K, chunks) +
         reference::failure("ht", errors.ht, p.dtype, gates, p.K, chunks);
}

}  // namespace scanjit::test
