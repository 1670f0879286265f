#pragma once
/// \file
/// ABC (attention with bounded-memory control) and its derivatives on the CPU, in f64 from the
/// definition: the oracle that the kernels are held against. Per batch row and head, with
/// scale = K^-1/2 and a slot m of M:
///
///     z_t   = logsumexp(z0, s_0..s_t)          z0 absent: over s alone
///     p_t   = exp(s_t - z_t);   d_t = exp(z_{t-1} - z_t);   d_0 = exp(z0 - z_0), or 1 without z0
///     Hk_t  = Hk_{t-1} Diag(d_t) + k_t p_t^T                                [K,M]
///     a_t   = softmax over slots of scale * Hk_t^T q_t
///     Hv_t  = Diag(d_t) Hv_{t-1} + p_t v_t^T                                [M,V]
///     o_t   = Hv_t^T a_t
///
/// A slot whose s so far (and z0) is all -inf has p = 0 and d = 1, is constant for the derivative,
/// and takes part in the softmax with its computed score. Tasks are (batch row, head); a result
/// does not depend on the number of threads.

#include <cstdint>
#include <vector>

#include "scanjit/result.hpp"

namespace scanjit::reference {

struct AbcShape {
  std::int64_t B = 1, T = 0, H = 1;
  std::int64_t K = 1, M = 1, V = 1;  ///< key width, slots, value width
  bool has_hk0 = false, has_hv0 = false, has_z0 = false;

  friend bool operator==(const AbcShape&, const AbcShape&) = default;
};

/// Inputs as numbers, laid out as on the device; absent states are empty.
struct AbcInputs {
  std::vector<double> q, k;      ///< [B,T,H,K]
  std::vector<double> v;         ///< [B,T,H,V]
  std::vector<double> s;         ///< [B,T,H,M], -inf allowed
  std::vector<double> hk0, hv0;  ///< [B,H,K,M], [B,H,M,V]
  std::vector<double> z0;        ///< [B,H,M], -inf allowed
};

struct AbcOutputs {
  std::vector<double> o;         ///< [B,T,H,V]
  std::vector<double> hkt, hvt;  ///< [B,H,K,M], [B,H,M,V]
  std::vector<double> zt;        ///< [B,H,M]
};

/// What the loss's derivative is on the outputs. An empty dhkt or dhvt is zero.
struct AbcCotangents {
  std::vector<double> dout;        ///< [B,T,H,V]
  std::vector<double> dhkt, dhvt;  ///< [B,H,K,M], [B,H,M,V]
};

/// Derivatives of inputs; those of absent initial states are empty.
struct AbcGradients {
  std::vector<double> dq, dk, dv, ds;
  std::vector<double> dhk0, dhv0, dz0;
  /// Sums of the sizes of the terms that make up ds and dz0. Where p is nearly 1 they cancel to
  /// nothing, and no arithmetic with rounded terms can be right to a share of what is left.
  std::vector<double> ds_terms, dz0_terms;
};

/// Errors: kInvalidArgument (a size out of range, a tensor of another size than the shape's),
/// kOutOfMemory. `threads` 0: as many as the machine has.
[[nodiscard]] Result<AbcOutputs> abc_forward(const AbcShape& shape, const AbcInputs& inputs,
                                             int threads = 0);
[[nodiscard]] Result<AbcGradients> abc_backward(const AbcShape& shape, const AbcInputs& inputs,
                                                const AbcCotangents& cotangents, int threads = 0);

}  // namespace scanjit::reference
