// The ABC fixture: what it covers, that it is frozen, and that its judgement can fail.
#include "reference/abc_cases.hpp"

#include <cmath>
#include <set>

#include "reference/half.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::reference;

namespace {

AbcTensors made(const AbcCase& c) {
  Result<AbcTensors> tensors = generate(c);
  REQUIRE(tensors.ok());
  return std::move(tensors).value();
}

/// s of slot m of a case with B = H = 1, row by row.
std::vector<double> slot(const AbcCase& c, std::int64_t m) {
  const AbcTensors tensors = made(c);
  std::vector<double> out;
  for (std::int64_t t = 0; t < c.shape.T; ++t) {
    out.push_back(static_cast<double>(
        half_to_float(c.dtype, tensors.s[static_cast<std::size_t>(t * c.shape.M + m)])));
  }
  return out;
}

AbcCase steep(AbcSlots slots) {
  AbcCase c;
  c.dtype = DType::kF16;
  c.shape = {1, 130, 1, 8, 16, 8, false, false, false};
  c.slots = slots;
  c.seed = 5;
  return c;
}

}  // namespace

TEST_CASE("the ABC fixture does not change", "[reference]") {
  const Result<std::string> digest = abc_fixture_digest();
  REQUIRE(digest.ok());
  REQUIRE(digest.value() == "977b2ac117dfd37d86205aa8893b225b17baf52e3e78a0b84e658bc830fe49d9");
}

TEST_CASE("the ABC fixture meets every size, type, length and kind of slots", "[reference]") {
  std::set<std::int64_t> B, T, H, K, M, V;
  std::set<std::tuple<DType, std::int64_t, bool>> lengths;
  std::set<std::pair<std::int64_t, std::int64_t>> widths;
  std::set<AbcSlots> slots;
  std::set<std::uint64_t> seeds;
  for (const AbcCase& c : abc_fixture()) {
    INFO(to_string(c));
    const AbcShape& p = c.shape;
    B.insert(p.B);
    T.insert(p.T);
    H.insert(p.H);
    K.insert(p.K);
    M.insert(p.M);
    V.insert(p.V);
    widths.insert({p.K, p.V});
    lengths.insert({c.dtype, p.T, p.has_z0});
    slots.insert(c.slots);
    REQUIRE(seeds.insert(c.seed).second);
    REQUIRE(c.has_dhkt == p.has_hk0);
  }
  REQUIRE(B == std::set<std::int64_t>{1, 2});
  REQUIRE(H == std::set<std::int64_t>{1, 4});
  REQUIRE(K == std::set<std::int64_t>{64, 128, 256});
  REQUIRE(M == std::set<std::int64_t>{32, 64, 128});
  REQUIRE(V == std::set<std::int64_t>{64, 256, 512});
  REQUIRE(widths.size() == 9);
  REQUIRE(slots.size() == 8);
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    for (const std::int64_t tokens : {63, 64, 65, 127, 257, 512})
      for (const bool states : {false, true}) REQUIRE(lengths.count({dtype, tokens, states}) == 1);
    REQUIRE(lengths.count({dtype, 2048, false}) == 1);
  }
}

TEST_CASE("random ABC cases differ and stay small", "[reference]") {
  std::set<std::string> lines;
  std::set<std::int64_t> odd;
  for (std::uint64_t seed = 0; seed < kAbcRandomCases; ++seed) {
    const AbcCase c = random_abc_case(seed);
    const AbcShape& p = c.shape;
    INFO(to_string(c));
    REQUIRE(lines.insert(to_string(c)).second);
    REQUIRE((p.K >= 1 && p.K <= 256 && p.M >= 1 && p.M <= 128 && p.V >= 1 && p.V <= 512));
    REQUIRE(p.B * p.T * p.H * p.M * (p.K + p.V) <= (std::int64_t{200} << 20));
    odd.insert(p.K % 8);
  }
  REQUIRE(odd.size() == 8);
}

TEST_CASE("steep ABC slots move by 50 at every row, empty ones are empty", "[reference]") {
  std::set<std::int64_t> rows;
  for (std::int64_t m = 0; m < 16; m += 2) {
    const std::vector<double> up = slot(steep(AbcSlots::kRampUp), m);
    const std::vector<double> down = slot(steep(AbcSlots::kRampDown), m);
    const std::vector<double> pulse = slot(steep(AbcSlots::kPulse), m);
    const std::vector<double> step = slot(steep(AbcSlots::kStepUp), m);
    for (std::size_t t = 1; t < up.size(); ++t) {
      const bool wraps = t % 64 == static_cast<std::size_t>(m / 2);
      REQUIRE(std::abs(up[t] - up[t - 1] - (wraps ? -50 * 63 : 50)) < 10);
      REQUIRE(std::abs(down[t] - down[t - 1] + (wraps ? -50 * 63 : 50)) < 10);
      REQUIRE(std::abs(step[t] - step[t - 1] - (wraps ? 50 : 0)) < 10);
      if (pulse[t] > 25) rows.insert(static_cast<std::int64_t>(t % 64));
    }
  }
  REQUIRE(rows.size() == 8);
  const std::vector<double> late = slot(steep(AbcSlots::kEmpty), 4);
  const std::vector<double> never = slot(steep(AbcSlots::kEmpty), 9);
  for (std::size_t t = 0; t < 41; ++t) REQUIRE(std::isinf(late[t]));
  REQUIRE(std::any_of(late.begin(), late.end(), [](double x) { return std::isfinite(x); }));
  REQUIRE(std::all_of(never.begin(), never.end(), [](double x) { return std::isinf(x); }));
}

TEST_CASE("an ABC result is judged by its relative error, its terms and a floor", "[reference]") {
  const std::vector<double> ones(100, 1.0), tiny(100, 1e-9);
  std::vector<double> off(100, 1.0 + 4e-3);
  REQUIRE(abc_failure("o", DType::kF16, off, ones).empty());
  off.assign(100, 1.0 + 6e-3);
  REQUIRE_FALSE(abc_failure("o", DType::kF16, off, ones).empty());
  REQUIRE(abc_failure("o", DType::kBf16, off, ones).empty());
  // Where terms of size 1 cancel, half a unit in the last place of them is allowed, no more.
  REQUIRE(abc_failure("ds", DType::kF16, std::vector<double>(100, 4e-4), tiny, ones).empty());
  REQUIRE_FALSE(abc_failure("ds", DType::kF16, std::vector<double>(100, 6e-4), tiny, ones).empty());
  REQUIRE_FALSE(abc_failure("ds", DType::kF16, std::vector<double>(100, 4e-4), tiny).empty());
  REQUIRE(abc_failure("ds", DType::kF16, std::vector<double>(100, 9e-6), tiny).empty());
  off = ones;
  off[3] = std::nan("");
  REQUIRE_FALSE(abc_failure("o", DType::kF16, off, ones).empty());
  REQUIRE_FALSE(abc_failure("o", DType::kF16, std::vector<double>(99, 1.0), ones).empty());
}
