#include "reference/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>

#include "reference/half.hpp"

namespace scanjit::reference {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// Where the rows of one output lie: `rows` rows of `row` elements, `stride` apart, some written.
struct Rows {
  std::int64_t row = 0, stride = 0;
  const std::vector<std::uint8_t>* written = nullptr;
};

Rows rows_of_h(const GatedDeltaHProblem& p, const GatedDeltaHOutputs& reference) {
  const std::int64_t row = p.HV * p.K * p.V;
  return {row, row, &reference.h_written};
}
Rows rows_of_v_new(const GatedDeltaHProblem& p, const GatedDeltaHOutputs& reference) {
  const std::int64_t row = p.HV * p.V;
  return {row, p.v_new_stride != 0 ? p.v_new_stride : row, &reference.v_new_written};
}
Rows rows_of_ht(const GatedDeltaHProblem& p, const GatedDeltaHOutputs& reference) {
  const std::int64_t row = p.HV * p.K * p.V;
  return {row, p.ht_slot_stride != 0 ? p.ht_slot_stride : row, &reference.ht_written};
}

TensorError compare_rows(const Rows& rows, const std::vector<double>& got,
                         const std::vector<double>& reference) {
  ErrorSum sum;
  for (std::size_t r = 0; r < rows.written->size(); ++r) {
    if ((*rows.written)[r] == 0) continue;
    const std::int64_t first = static_cast<std::int64_t>(r) * rows.stride;
    for (std::int64_t x = first; x < first + rows.row; ++x)
      sum.add(x, got[at(x)], reference[at(x)]);
  }
  return sum.finish();
}

/// Compares representations, so that a NaN equals itself.
template <class T>
Trespass trespass(const Rows& rows, std::span<const T> before, std::span<const T> after) {
  Trespass found;
  for (std::size_t x = 0; x < after.size(); ++x) {
    const auto place = static_cast<std::int64_t>(x);
    const bool may_change =
        place % rows.stride < rows.row && (*rows.written)[at(place / rows.stride)] != 0;
    if (may_change || std::memcmp(&before[x], &after[x], sizeof(T)) == 0) continue;
    if (found.elements++ == 0) found.first = place;
  }
  return found;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string line(const char* name, const TensorError& error) {
  if (error.elements == 0) return {};
  std::string out = std::string(name) + " " + number(error.relative_l2);
  if (error.worst_element >= 0) {
    out += " (worst at " + std::to_string(error.worst_element) + ": " + number(error.worst_got) +
           " for " + number(error.worst_reference) + ")";
  }
  if (error.non_finite > 0)
    out += ", " + std::to_string(error.non_finite) + " wrongly (non-)finite";
  if (error.mistrusted()) out += ", MISTRUSTED: the reference is mostly zeros";
  return out + "; ";
}

Status check_size(const char* name, std::size_t got, std::int64_t wanted) {
  if (got == static_cast<std::size_t>(wanted)) return Status();
  return invalid_argument(std::string(name) + " has " + std::to_string(got) +
                          " elements; the problem's has " + std::to_string(wanted));
}

Result<GatedDeltaHOutputs> decode_all(const GatedDeltaHProblem& p, std::span<const std::uint16_t> h,
                                      std::span<const std::uint16_t> v_new,
                                      std::span<const float> ht, std::uint32_t status) {
  SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHSizes s, sizes_of(p));
  SCANJIT_TRY(check_size("h", h.size(), s.h));
  SCANJIT_TRY(check_size("v_new", v_new.size(), s.v_new));
  SCANJIT_TRY(check_size("ht", ht.size(), s.ht));
  GatedDeltaHOutputs out;
  const auto to_double = [&](std::uint16_t bits) {
    return static_cast<double>(half_to_float(p.dtype, bits));
  };
  out.h.resize(h.size());
  out.v_new.resize(v_new.size());
  std::transform(h.begin(), h.end(), out.h.begin(), to_double);
  std::transform(v_new.begin(), v_new.end(), out.v_new.begin(), to_double);
  out.ht.assign(ht.begin(), ht.end());
  out.status = status;
  return out;
}

}  // namespace

void ErrorSum::add(std::int64_t element, double got, double reference) noexcept {
  ++error_.elements;
  if (reference == 0) ++error_.zeros;
  if (!std::isfinite(got) || !std::isfinite(reference)) {
    const bool same = got == reference || (std::isnan(got) && std::isnan(reference));
    if (same) return;
    if (error_.non_finite++ == 0) {
      error_.worst_difference = std::numeric_limits<double>::infinity();
      error_.worst_element = element;
      error_.worst_got = got;
      error_.worst_reference = reference;
    }
    return;
  }
  const double difference = std::abs(got - reference);
  difference_squared_ += difference * difference;
  reference_squared_ += reference * reference;
  if (difference > error_.worst_difference) {
    error_.worst_difference = difference;
    error_.worst_element = element;
    error_.worst_got = got;
    error_.worst_reference = reference;
  }
}

TensorError ErrorSum::finish() const noexcept {
  TensorError error = error_;
  error.reference_norm = std::sqrt(reference_squared_);
  if (difference_squared_ > 0)
    error.relative_l2 = std::sqrt(difference_squared_) / error.reference_norm;
  return error;
}

double OutputErrors::worst() const noexcept {
  double worst = 0;
  for (const TensorError* error : {&h, &v_new, &ht}) {
    worst = std::max(worst, error->non_finite > 0 ? std::numeric_limits<double>::infinity()
                                                  : error->relative_l2);
  }
  return worst;
}

std::string to_string(const OutputErrors& errors) {
  std::string out = line("h", errors.h) + line("v_new", errors.v_new) + line("ht", errors.ht);
  out += errors.status_equal ? "status right" : "status WRONG";
  return out;
}

OutputErrors compare(const GatedDeltaHProblem& problem, const GatedDeltaHOutputs& got,
                     const GatedDeltaHOutputs& reference) {
  OutputErrors errors;
  errors.h = compare_rows(rows_of_h(problem, reference), got.h, reference.h);
  errors.v_new = compare_rows(rows_of_v_new(problem, reference), got.v_new, reference.v_new);
  errors.ht = compare_rows(rows_of_ht(problem, reference), got.ht, reference.ht);
  errors.status_equal = got.status == reference.status;
  return errors;
}

std::string failure(const std::string& tensor, const TensorErrors& errors, DType dtype,
                    GateSet gates, std::int64_t K, std::int64_t longest_sequence_chunks) {
  if (errors.pure.elements == 0) return {};
  if (errors.pure.non_finite > 0) return line(tensor.c_str(), errors.pure);
  const Tolerance limits = tolerance(dtype, gates);
  // Two roundings that fall to either side of a tie are one unit in the last place apart: up to
  // 2^-7 of a bf16 number. Only in a tensor of a few elements does one such pair matter.
  const double ulp = dtype == DType::kBf16 ? 0x1p-7 : 0x1p-10;
  const double slack = 2e-6 + ulp / std::sqrt(static_cast<double>(errors.pure.elements));
  const bool is_short = longest_sequence_chunks <= kShortChunks;
  std::string out;
  const auto check = [&](const char* what, double value, double limit) {
    if (value <= limit) return;
    out +=
        tensor + ": relative L2 " + number(value) + " " + what + ", limit " + number(limit) + "; ";
  };
  if (K >= kTableKeys) check("against the pure oracle", errors.pure.relative_l2, limits.pure);
  check("against the pure oracle, too far beyond the rounding oracle's", errors.pure.relative_l2,
        limits.ratio * errors.own.relative_l2 + slack);
  check("against the rounding oracle", errors.rounding.relative_l2,
        (is_short ? limits.rounding_short
                  : std::max(limits.rounding, limits.apart * errors.own.relative_l2)) +
            slack);
  return out;
}

std::string failures(const GatedDeltaHInputs& inputs, GateSet gates, const GatedDeltaHOutputs& got,
                     const GatedDeltaHOutputs& pure, const GatedDeltaHOutputs& rounding) {
  const GatedDeltaHProblem& p = inputs.problem;
  std::int64_t longest = p.packed ? 0 : p.T;
  for (std::size_t n = 1; n < inputs.cu_seqlens.size(); ++n) {
    longest = std::max(longest, inputs.cu_seqlens[n] - inputs.cu_seqlens[n - 1]);
  }
  const OutputErrors to_pure = compare(p, got, pure), to_rounding = compare(p, got, rounding);
  const OutputErrors own = compare(p, rounding, pure);
  std::string out;
  const auto judge = [&](const char* tensor, TensorError OutputErrors::*member) {
    out += failure(tensor, {to_pure.*member, to_rounding.*member, own.*member}, p.dtype, gates, p.K,
                   (longest + p.BT - 1) / p.BT);
  };
  judge("h", &OutputErrors::h);
  judge("v_new", &OutputErrors::v_new);
  judge("ht", &OutputErrors::ht);
  if (got.status != pure.status) {
    out += "status: " + std::to_string(got.status) + " for " + std::to_string(pure.status) + "; ";
  }
  return out;
}

Result<GatedDeltaHOutputs> decode(const GatedDeltaHProblem& problem,
                                  std::span<const std::uint16_t> h,
                                  std::span<const std::uint16_t> v_new, std::span<const float> ht,
                                  std::uint32_t status) {
  try {
    return decode_all(problem, h, v_new, ht, status);
  } catch (const std::exception&) {
    return Status(ErrorCode::kOutOfMemory, "no memory to decode the outputs");
  }
}

Trespass trespass_h(const GatedDeltaHProblem& problem, const GatedDeltaHOutputs& reference,
                    std::span<const std::uint16_t> before, std::span<const std::uint16_t> after) {
  return trespass(rows_of_h(problem, reference), before, after);
}
Trespass trespass_v_new(const GatedDeltaHProblem& problem, const GatedDeltaHOutputs& reference,
                        std::span<const std::uint16_t> before,
                        std::span<const std::uint16_t> after) {
  return trespass(rows_of_v_new(problem, reference), before, after);
}
Trespass trespass_ht(const GatedDeltaHProblem& problem, const GatedDeltaHOutputs& reference,
                     std::span<const float> before, std::span<const float> after) {
  return trespass(rows_of_ht(problem, reference), before, after);
}

}  // namespace scanjit::reference
