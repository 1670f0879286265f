// The judge: its figures, and that it lets the definition pass and the known mistakes fail.
#include "reference/compare.hpp"

#include <cmath>
#include <limits>

#include "reference/half.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::reference;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TensorError error_of(const std::vector<std::pair<double, double>>& got_and_reference) {
  ErrorSum sum;
  std::int64_t element = 0;
  for (const auto& [got, reference] : got_and_reference) sum.add(element++, got, reference);
  return sum.finish();
}

GatedDeltaHProblem controls_problem() {
  GatedDeltaHProblem p;
  p.B = 1;
  p.T = 4 * 700;  // no multiple of BT
  p.packed = true;
  p.sequences = 4;
  p.H = 2;
  p.HV = 4;
  p.K = p.V = 64;
  p.has_g = p.has_h0 = p.has_ht = true;
  return p;
}

}  // namespace

TEST_CASE("the relative L2 error, the worst element and the counts are as defined", "[reference]") {
  const TensorError error = error_of({{3, 3}, {4.5, 4}, {0, 0}, {-1, 0}});
  CHECK(error.relative_l2 == Approx(std::sqrt(0.25 + 1) / 5));
  CHECK(error.worst_element == 3);
  CHECK(error.worst_difference == 1);
  CHECK(error.zeros == 2);
  CHECK_FALSE(error.mistrusted());
  CHECK(error_of({{0, 0}, {0, 0}, {0, 0}, {1, 1}}).mistrusted());
  CHECK(error_of({{0, 0}, {0, 0}}).within(0));
  CHECK_FALSE(error_of({{1e-100, 0}}).within(1e6));  // not zero where the reference is
  CHECK(error_of({}).within(0));
}

TEST_CASE("an element that is wrongly finite or not finite is never within a limit",
          "[reference]") {
  CHECK(error_of({{kNaN, 1}}).non_finite == 1);
  CHECK(error_of({{1, kNaN}}).non_finite == 1);
  CHECK(error_of({{kInfinity, -kInfinity}}).non_finite == 1);
  CHECK(error_of({{kInfinity, kInfinity}, {kNaN, kNaN}, {1, 1}}).within(0));
  CHECK_FALSE(error_of({{kNaN, 1}, {1, 1}}).within(1e9));
  CHECK(error_of({{1, 2}, {5, 5}, {kNaN, 1}}).worst_element == 2);
}

TEST_CASE("decode and trespass work on the buffers as they lie", "[reference]") {
  GatedDeltaHProblem p = controls_problem();
  p.T = 40;
  p.sequences = 2;
  p.K = 2;
  p.V = 3;
  p.v_new_stride = 4 * 3 + 2;
  p.ht_slots = 3;
  p.chunk_capacity = 3;
  GeneratorOptions options;
  options.lengths = {10, 20};
  const Result<GatedDeltaHInputs> in = generate(p, options);
  REQUIRE(in.ok());
  const Result<GatedDeltaHOutputs> reference = gated_delta_h(*in);
  REQUIRE(reference.ok());

  std::vector<std::uint16_t> h(reference->h.size(), 0xffff), v_new(reference->v_new.size(), 0xffff);
  std::vector<float> ht(reference->ht.size(), -1.0F);
  const auto written = [&](auto* to, const std::vector<double>& from, std::int64_t stride,
                           std::int64_t row, const std::vector<std::uint8_t>& rows) {
    for (std::size_t x = 0; x < from.size(); ++x) {
      const auto place = static_cast<std::int64_t>(x);
      if (place % stride >= row || rows[static_cast<std::size_t>(place / stride)] == 0) continue;
      if constexpr (std::is_same_v<std::remove_pointer_t<decltype(to)>, float>) {
        to[x] = static_cast<float>(from[x]);
      } else {
        to[x] = double_to_bf16(from[x]);
      }
    }
  };
  const std::vector<std::uint16_t> h_before = h, v_new_before = v_new;
  const std::vector<float> ht_before = ht;
  written(h.data(), reference->h, 4 * 2 * 3, 4 * 2 * 3, reference->h_written);
  written(v_new.data(), reference->v_new, 14, 12, reference->v_new_written);
  written(ht.data(), reference->ht, 4 * 2 * 3, 4 * 2 * 3, reference->ht_written);

  const Result<GatedDeltaHOutputs> got = decode(p, h, v_new, ht, 0);
  REQUIRE(got.ok());
  const OutputErrors errors = compare(p, *got, *reference);
  INFO(to_string(errors));
  CHECK(errors.v_new.elements == 30 * 12);
  CHECK(errors.ht.elements == 2 * 24);
  CHECK(errors.within(3e-3));
  CHECK(errors.worst() > 0);

  CHECK(trespass_h(p, *reference, h_before, h).elements == 0);
  CHECK(trespass_v_new(p, *reference, v_new_before, v_new).elements == 0);
  CHECK(trespass_ht(p, *reference, ht_before, ht).elements == 0);
  v_new[5 * 14 + 12] = 0;  // the gap behind a row
  v_new[30 * 14] = 0;      // a token of no sequence
  CHECK(trespass_v_new(p, *reference, v_new_before, v_new).elements == 2);
  CHECK(trespass_v_new(p, *reference, v_new_before, v_new).first == 5 * 14 + 12);
  ht[2 * 24] = 0;  // a slot of no sequence
  CHECK(trespass_ht(p, *reference, ht_before, ht).first == 48);
  h[2 * 24] = 0;  // a chunk beyond those of the sequences
  CHECK(trespass_h(p, *reference, h_before, h).first == 48);

  h.pop_back();
  CHECK(decode(p, h, v_new, ht, 0).status().code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("the definition passes the tolerance table and each mistake fails it", "[reference]") {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const GateSet gates : {GateSet::kStrong, GateSet::kSlow, GateSet::kNone}) {
      GatedDeltaHProblem p = controls_problem();
      p.dtype = dtype;
      GeneratorOptions options;
      options.gates = gates;
      options.seed = 99;
      const Result<GatedDeltaHInputs> in = generate(p, options);
      REQUIRE(in.ok());
      const auto scan = [&](Precision precision, Variant variant) {
        Result<GatedDeltaHOutputs> out = gated_delta_h(*in, {precision, variant, 0});
        REQUIRE(out.ok());
        return std::move(out).value();
      };
      const GatedDeltaHOutputs pure = scan(Precision::kPure, Variant::kDefinition);
      const GatedDeltaHOutputs rounding = scan(Precision::kRounding, Variant::kDefinition);
      INFO(to_string(dtype) << " " << to_string(gates));
      const OutputErrors own = compare(p, rounding, pure);
      INFO("the rounding oracle: " << to_string(own));
      CHECK(own.within(tolerance(dtype, gates).pure));
      CHECK(own.worst() > tolerance(dtype, gates).pure / 4);  // the limit is no barn door
      CHECK(failures(*in, gates, rounding, pure, rounding).empty());

      const auto fails = [&](Variant variant) {
        return !failures(*in, gates, scan(Precision::kRounding, variant), pure, rounding).empty();
      };
      CHECK(fails(Variant::kNextKeyHead));
      if (gates == GateSet::kSlow) CHECK(fails(Variant::kStateRounded));
      if (gates != GateSet::kNone) CHECK(fails(Variant::kLastGatePastEnd));
    }
  }
}

TEST_CASE("a kernel's error may exceed the rounding oracle's by a tenth", "[reference]") {
  const auto with_error = [](double relative) {
    TensorError error;
    error.elements = 1 << 24;
    error.relative_l2 = relative;
    error.reference_norm = 1;
    return error;
  };
  const auto verdict = [&](double pure, double rounding, double own, std::int64_t K,
                           std::int64_t chunks) {
    return failure("h", {with_error(pure), with_error(rounding), with_error(own)}, DType::kBf16,
                   GateSet::kStrong, K, chunks);
  };
  CHECK(verdict(2.0e-3, 1e-4, 2.0e-3, 128, 8).empty());
  CHECK(verdict(2.19e-3, 1e-4, 2.0e-3, 128, 8).empty());
  CHECK_FALSE(verdict(2.25e-3, 1e-4, 2.0e-3, 128, 8).empty());
  CHECK_FALSE(verdict(3.1e-3, 1e-4, 3.0e-3, 128, 8).empty());  // beyond the table
  CHECK(verdict(3.1e-3, 1e-4, 3.0e-3, 17, 8).empty());         // which few key columns cannot keep
  CHECK_FALSE(
      verdict(2.0e-3, 4e-4, 2.0e-3, 128, 8).empty());  // a short sequence must agree closely
  CHECK(verdict(2.0e-3, 2.4e-3, 2.0e-3, 128, 9).empty());
  CHECK_FALSE(verdict(1.5e-3, 2.6e-3, 1.5e-3, 128, 9).empty());
  // Two correct results drift apart, up to 1.45 times the rounding oracle's own error.
  CHECK(verdict(2.5e-3, 3.6e-3, 2.5e-3, 128, 9).empty());
  CHECK_FALSE(verdict(2.5e-3, 3.7e-3, 2.5e-3, 128, 9).empty());
  TensorError poisoned = with_error(0);
  poisoned.non_finite = 1;
  CHECK_FALSE(
      failure("h", {poisoned, poisoned, with_error(0)}, DType::kBf16, GateSet::kStrong, 128, 1)
          .empty());
}
