#pragma once
/// \file
/// KDA forward on the CPU in f64: the recurrence over tokens, which is the definition, and the form
/// over chunks and segments that kernels compute, with their roundings or without. Per sequence and
/// value head, S [K,V] = h0 or 0, a_t the log decay per key column:
///
///     S   = Diag(exp(a_t)) S
///     S   = S + beta_t k_t (v_t - S^T k_t)^T
///     o_t = scale * S^T q_t
///
/// Tensors here are contiguous and the sequences lie one after another; how a kernel's tensors lie
/// (strides, packing, pools, layouts) is a matter of copying. A result does not depend on the
/// number of threads.

#include <cstdint>
#include <vector>

#include "scanjit/result.hpp"

namespace scanjit::reference {

/// How the log decay a comes from g; natural logarithm, a below -60 counts as -60.
enum class KdaGate : int {
  kBounded = 1,      ///< lower_bound * sigmoid(exp(A_log) * (g + dt_bias))
  kSoftplus = 2,     ///< -exp(A_log) * softplus(g + dt_bias)
  kPrecomputed = 3,  ///< g
  kScalar = 4,       ///< g, one a token and value head
};

struct KdaInputs {
  std::int64_t H = 1, HV = 1, K = 128, V = 128;
  std::vector<std::int64_t> lengths;  ///< tokens of each of the N sequences
  KdaGate gate = KdaGate::kBounded;
  double lower_bound = -5;
  bool normalize_qk = true;  ///< rows of q and k divided by sqrt(sum of squares + 1e-6)
  bool beta_sigmoid = true;  ///< beta holds logits
  double scale = 0;          ///< 0: K^-1/2

  std::vector<std::uint16_t> q, k;  ///< bf16 [tokens,H,K]
  std::vector<std::uint16_t> v;     ///< bf16 [tokens,HV,V]
  /// As floats, also where the tensor is bf16 (its values are then bf16's). [tokens,HV,K]; kScalar:
  /// [tokens,HV].
  std::vector<float> g;
  std::vector<float> beta;     ///< [tokens,HV], likewise
  std::vector<float> A_log;    ///< [HV]; empty: 0
  std::vector<float> dt_bias;  ///< [HV,K]; empty: 0
  std::vector<float> h0;       ///< [N,HV,K,V]; empty: 0
};

/// Sizes and lengths within what the reference takes. Errors: kInvalidArgument.
[[nodiscard]] Status check_kda_shape(const KdaInputs& shape);

/// The state of all heads after so many tokens of a sequence.
struct KdaCheckpoint {
  std::int64_t sequence = 0;
  std::int64_t tokens = 0;
};

struct KdaOutputs {
  std::vector<double> o;            ///< [tokens,HV,V]
  std::vector<double> ht;           ///< [N,HV,K,V]
  std::vector<double> checkpoints;  ///< [as many as asked for,HV,K,V]
};

/// The definition, token by token. Errors: kInvalidArgument (a size, or a checkpoint that lies in
/// no sequence), kOutOfMemory. `threads` 0: as many as the machine has.
[[nodiscard]] Result<KdaOutputs> kda_forward(const KdaInputs& inputs,
                                             const std::vector<KdaCheckpoint>& checkpoints = {},
                                             int threads = 0);

/// Mistakes that the tolerances must catch.
enum class KdaMistake : int {
  kNone,
  kStateRounded,       ///< S itself is rounded to bf16 after each chunk
  kTransitionRounded,  ///< M is
  kTransitionZero,     ///< M = 0: segments forget what came before
  /// A segment's chunks are multiplied in the reverse order. On kSlow they commute but for squares
  /// of beta; it takes logits some 4 higher to see this.
  kTransitionWrongSide,
};

struct KdaChunkedOptions {
  /// Round where a kernel does: w, u, kg, qg and the scores, S as an operand, v' and o to bf16; S,
  /// M and b in f32.
  bool rounding = false;
  std::int64_t segment_chunks = 0;  ///< chunks of a segment; 0: not split
  KdaMistake mistake = KdaMistake::kNone;
  int threads = 0;
};

/// The form over chunks of 64 tokens. With A_ij = beta_i sum_c k_ic k_jc 2^(G_ic - G_jc) for j < i
/// and T = (I + A)^-1: u = T (beta v), w = T (beta k 2^G), kg = k 2^(G_last - G), qg = scale q 2^G,
/// scores_ij = scale sum_c q_ic k_jc 2^(G_ic - G_jc) for j <= i; v' = u - w S, o = qg S + scores
/// v', S = 2^G_last S + kg^T v'. A segment's M and b: S_out = M S_in + b. A segment that starts
/// from a zero state hands on its b. Errors: as above.
[[nodiscard]] Result<KdaOutputs> kda_forward_chunked(const KdaInputs& inputs,
                                                     const KdaChunkedOptions& options = {});

// --- inputs --------------------------------------------------------------------------------------

/// q, k, v, gates and beta logits are normal, log decays drawn as the names say. The raw gate of
/// kBounded and kSoftplus, and the beta logit, are solved from them. Unit q and k where they are
/// not normalised.
enum class KdaInputKind : int {
  kRandom = 1,  ///< raw gates and beta logits normal (precomputed, scalar: -softplus of a normal)
  kZero = 2,    ///< no decay
  kSaturated = 3,  ///< a = -5 everywhere
  kBurst = 4,      ///< -20 for 8 tokens, then 0 for 63: at every position of a chunk in turn
  kSlow = 5,       ///< -U(0, 2^-16); beta = sigmoid(N(-8, 1)); q and k unit
};
[[nodiscard]] const char* to_string(KdaInputKind kind) noexcept;  ///< "random", "zero", ...

struct KdaGeneratorOptions {
  KdaInputKind kind = KdaInputKind::kRandom;
  std::uint64_t seed = 0;
  bool g_bf16 = true;  ///< round g to bf16 (kScalar keeps f32)
  bool beta_bf16 = true;
  bool parameters = true;  ///< kBounded, kSoftplus: A_log and dt_bias exist
  bool h0 = false;         ///< h0 = 0.1 x normal
};

/// Fills in the tensors of `shape` (sizes, lengths, gate and flags). The same seed gives the same
/// bits on every machine. Errors: kInvalidArgument (a size; or kBurst with kBounded, whose decays
/// end at lower_bound), kOutOfMemory.
[[nodiscard]] Result<KdaInputs> generate_kda(const KdaInputs& shape,
                                             const KdaGeneratorOptions& options);

/// The largest relative L2 of o and ht.
struct KdaTolerance {
  double o, ht;
};
inline constexpr KdaTolerance kKdaSerial{5.5e-3, 4.5e-3};  ///< against the definition
inline constexpr KdaTolerance kKdaSplit{5e-3, 4e-3};       ///< split, on kSlow
inline constexpr double kKdaSplitRatio = 1.25;  ///< a split's error over the serial form's own
inline constexpr double kKdaSplitApart = 5e-3;  ///< split against serial, same data

}  // namespace scanjit::reference
