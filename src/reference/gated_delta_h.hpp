#pragma once
/// \file
/// The gated-delta state scan on the CPU, from the equations of `scanjit/gated_delta_h.hpp`: the
/// oracle that kernels are held against. Multi-threaded over (sequence, value head, columns of V);
/// a result does not depend on the number of threads.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scanjit/gated_delta_h.hpp"
#include "scanjit/result.hpp"

namespace scanjit::reference {

/// Sizes and strides of a problem with every default filled in. In elements.
struct GatedDeltaHSizes {
  std::int64_t N = 0;               ///< sequences
  std::int64_t tokens = 0;          ///< B*T
  std::int64_t chunk_capacity = 0;  ///< dense: B*ceil(T/BT)
  std::int64_t h0_slots = 0, ht_slots = 0;
  std::int64_t k_stride = 0, w_stride = 0, u_stride = 0, g_stride = 0, gk_stride = 0,
               v_new_stride = 0;
  std::int64_t state = 0;  ///< K*V
  std::int64_t h0_slot_stride = 0, ht_slot_stride = 0;
  // Elements of the buffers, 0 for tensors that the problem has not. A token tensor has
  // tokens*stride.
  std::int64_t k = 0, w = 0, u = 0, g = 0, gk = 0, h0 = 0, h = 0, v_new = 0, ht = 0;
};

/// Errors: kInvalidArgument if the problem's sizes are out of range or their products exceed 2^62.
[[nodiscard]] Result<GatedDeltaHSizes> sizes_of(const GatedDeltaHProblem& problem);

/// A problem's inputs on the host, each in a buffer laid out as on the device (see
/// GatedDeltaHSizes). Elements that no kernel may use (between the rows of a strided tensor, tokens
/// of no sequence, gaps between states) are NaN when the generators made them.
struct GatedDeltaHInputs {
  GatedDeltaHProblem problem;
  std::vector<std::uint16_t> k, w, u;
  std::vector<float> g, gk, h0;
  std::vector<std::int64_t> cu_seqlens;              ///< [N+1] when packed
  std::vector<std::int64_t> chunk_offsets;           ///< [N] when has_chunk_offsets
  std::vector<std::int64_t> h0_indices, ht_indices;  ///< [N] when the problem has them
};

/// Outputs as doubles, laid out as on the device. `*_written` says which chunks, tokens and slots
/// the definition writes (all value heads of it); everything else, and the gaps between rows, must
/// keep what it held before, and is 0 here.
struct GatedDeltaHOutputs {
  std::vector<double> h, v_new, ht;
  std::vector<std::uint8_t> h_written;      ///< [chunk_capacity]
  std::vector<std::uint8_t> v_new_written;  ///< [tokens]
  std::vector<std::uint8_t> ht_written;     ///< [ht_slots]
  std::uint32_t status = 0;                 ///< 1 lengths, 2 h0_indices, 4 ht_indices
};

enum class Precision : int {
  kPure,  ///< f64 throughout, from the inputs as stored; outputs are not rounded
  /// f32 state and f32 arithmetic, rounding to the 16-bit type where the definition says so; 2^x is
  /// f32 and flushes results below 2^-126 to 0. The two dots sum exact products in f64, S as the
  /// first term of its update, and round to f32 once: a kernel that sums in f32 differs by its sums
  /// alone.
  kRounding,
};

/// What is computed: the definition, or one of three mistakes that a good tolerance must catch.
enum class Variant : int {
  kDefinition,
  kStateRounded,     ///< S itself is rounded to the 16-bit type after each chunk
  kLastGatePastEnd,  ///< gates of row BT-1 even of a partial chunk: the next rows', 0 past the
                     ///< buffer
  kNextKeyHead,  ///< value heads read the key head after theirs, cyclically (wrong only if H > 1)
};

struct OracleOptions {
  Precision precision = Precision::kPure;
  Variant variant = Variant::kDefinition;
  int threads = 0;  ///< 0: as many as the machine has
};

/// The scan. A sequence is bad, sets status bit 1 and writes nothing if its bounds are negative,
/// decreasing or beyond T, or if `h` exists and its chunks, be they none, do not lie from 0 to the
/// capacity. A sequence with bad bounds owns no chunk when offsets are counted. An index other than
/// -1 that is out of range sets its bit, of a bad sequence too; h0: start from zero; ht: write
/// nothing. Of equal ht_indices the last sequence's state is kept. Sequences whose
/// token or chunk ranges overlap (both fine by themselves) leave any of their values there. Errors:
/// kInvalidArgument (sizes, or a buffer of another size than the problem's), kOutOfMemory.
[[nodiscard]] Result<GatedDeltaHOutputs> gated_delta_h(const GatedDeltaHInputs& inputs,
                                                       const OracleOptions& options = {});

}  // namespace scanjit::reference
