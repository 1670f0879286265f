#pragma once
/// \file
/// How far results are from a reference, and how far they may be.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "reference/gated_delta_h.hpp"
#include "reference/generators.hpp"

namespace scanjit::reference {

/// One tensor against its reference, over the elements that the definition writes.
struct TensorError {
  std::int64_t elements = 0;
  double relative_l2 = 0;  ///< |got - reference| / |reference|; 0 if both are all zero
  double reference_norm = 0;
  double worst_difference = 0;      ///< largest |got - reference|
  std::int64_t worst_element = -1;  ///< its index in the buffer
  double worst_got = 0, worst_reference = 0;
  std::int64_t non_finite =
      0;  ///< elements finite in the reference but not in the result, or the reverse
  std::int64_t zeros = 0;  ///< of the reference

  /// Three quarters or more of the reference are zeros: agreement proves little.
  [[nodiscard]] bool mistrusted() const noexcept {
    return elements > 0 && zeros * 4 >= elements * 3;
  }
  /// Within `limit`; never with a wrong non-finite element.
  [[nodiscard]] bool within(double limit) const noexcept {
    return non_finite == 0 && relative_l2 <= limit;
  }
};

/// Sums up pairs of one tensor.
class ErrorSum {
 public:
  void add(std::int64_t element, double got, double reference) noexcept;
  [[nodiscard]] TensorError finish() const noexcept;

 private:
  TensorError error_;
  double difference_squared_ = 0, reference_squared_ = 0;
};

/// Errors of the three outputs; those that the problem has not stay at 0 elements.
struct OutputErrors {
  TensorError h, v_new, ht;
  bool status_equal = true;

  [[nodiscard]] bool within(double limit) const noexcept {
    return status_equal && h.within(limit) && v_new.within(limit) && ht.within(limit);
  }
  [[nodiscard]] double worst()
      const noexcept;  ///< largest relative L2; infinity with wrong non-finites
};
[[nodiscard]] std::string to_string(const OutputErrors& errors);

/// Compares what `reference` says is written. Both must come from `problem`.
[[nodiscard]] OutputErrors compare(const GatedDeltaHProblem& problem, const GatedDeltaHOutputs& got,
                                   const GatedDeltaHOutputs& reference);

/// A kernel's buffers as outputs (`*_written` empty). Absent tensors: empty spans.
/// Errors: kInvalidArgument if a span has another size than the problem's tensor.
[[nodiscard]] Result<GatedDeltaHOutputs> decode(const GatedDeltaHProblem& problem,
                                                std::span<const std::uint16_t> h,
                                                std::span<const std::uint16_t> v_new,
                                                std::span<const float> ht, std::uint32_t status);

/// Elements of a kernel's buffers that differ from what they held before although the definition
/// does not write them. `before` and `after` have the sizes of the problem's tensor.
struct Trespass {
  std::int64_t elements = 0;
  std::int64_t first = -1;  ///< index in the buffer
};
[[nodiscard]] Trespass trespass_h(const GatedDeltaHProblem& problem,
                                  const GatedDeltaHOutputs& reference,
                                  std::span<const std::uint16_t> before,
                                  std::span<const std::uint16_t> after);
[[nodiscard]] Trespass trespass_v_new(const GatedDeltaHProblem& problem,
                                      const GatedDeltaHOutputs& reference,
                                      std::span<const std::uint16_t> before,
                                      std::span<const std::uint16_t> after);
[[nodiscard]] Trespass trespass_ht(const GatedDeltaHProblem& problem,
                                   const GatedDeltaHOutputs& reference,
                                   std::span<const float> before, std::span<const float> after);

/// The largest relative L2 of h, v_new and ht each.
struct Tolerance {
  double pure;            ///< against the pure f64 oracle, from kTableKeys key columns on
  double rounding_short;  ///< against the rounding oracle, sequences of at most kShortChunks chunks
  double rounding;        ///< against the rounding oracle, any length, or `apart` if that is more
  double ratio;           ///< error against the pure oracle over the rounding oracle's own
  /// Distance of two correct results over the rounding oracle's own error. A unit in the last
  /// place of f32 turns some roundings of the state over, and where nothing decays the two drift
  /// apart, to sqrt(2) times the own error in the end: 1.28 was seen on an H200 after 960 chunks
  /// without gates.
  double apart;
};
[[nodiscard]] constexpr Tolerance tolerance(DType dtype, GateSet gates) noexcept {
  const double bf16 = gates == GateSet::kStrong ? 3e-3 : 4e-3;
  return {dtype == DType::kBf16 ? bf16 : 5e-4, 3e-4, 2.5e-3, 1.1, 1.45};
}
inline constexpr std::int64_t kShortChunks = 8;
/// With fewer key columns the `wy` inputs are so ill-conditioned that the definition's own
/// roundings exceed `pure` (up to 3x at K = 1, 1.07x at K = 40, 0.98x from K = 64): there only
/// `ratio` is asked.
inline constexpr std::int64_t kTableKeys = 64;

/// The errors of one tensor that the rules above speak of.
struct TensorErrors {
  TensorError pure;      ///< the result against the pure oracle
  TensorError rounding;  ///< the result against the rounding oracle
  TensorError own;       ///< the rounding oracle against the pure one
};

/// "" if the tensor is as right as its types allow, else which rule it breaks, with figures.
/// Besides the table: f32 sums may differ by 2e-6, and one element of the tensor may round the
/// other way.
[[nodiscard]] std::string failure(const std::string& tensor, const TensorErrors& errors,
                                  DType dtype, GateSet gates, std::int64_t K,
                                  std::int64_t longest_sequence_chunks);

/// The same of all outputs, with the status word: "" or every rule that is broken.
[[nodiscard]] std::string failures(const GatedDeltaHInputs& inputs, GateSet gates,
                                   const GatedDeltaHOutputs& got, const GatedDeltaHOutputs& pure,
                                   const GatedDeltaHOutputs& rounding);

}  // namespace scanjit::reference
