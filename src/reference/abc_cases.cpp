#include "reference/abc_cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <set>

#include "core/hash.hpp"
#include "reference/compare.hpp"
#include "reference/half.hpp"
#include "reference/random.hpp"

namespace scanjit::reference {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
// A random case stays small enough for the oracle to take a second or so.
constexpr std::int64_t kMostSteps = std::int64_t{200} << 20;  // B*T*H*M*(K+V)
constexpr std::int64_t kPeriod = 64;                          // rows after which steep slots repeat

// One stream of random numbers per tensor; part of what a seed means: never change one.
enum Stream : std::uint64_t {
  kQ = 1,
  kK = 2,
  kV = 3,
  kS = 4,
  kDout = 5,
  kHk0 = 6,
  kHv0 = 7,
  kZ0 = 8,
  kDhkt = 9,
  kDhvt = 10,
  kHole = 11,
};

std::uint64_t index_of(std::size_t element) { return static_cast<std::uint64_t>(element); }

/// s of one token and slot.
double slot_value(const AbcCase& c, std::size_t element) {
  const AbcShape& p = c.shape;
  const auto place = static_cast<std::int64_t>(element);
  const std::int64_t m = place % p.M, t = place / p.M / p.H % p.T;
  const double noise = random_normal(c.seed, kS, index_of(element));
  // Row of the slot's own period; its steps fall on row 0 of it.
  const std::int64_t row = (t + kPeriod - m / 2 % kPeriod) % kPeriod;
  const std::int64_t steps = (t + kPeriod - m / 2 % kPeriod) / kPeriod;
  const bool steep = m % 2 == 0;
  switch (c.slots) {
    case AbcSlots::kNormal: return noise;
    case AbcSlots::kWide: return 8 * noise;
    case AbcSlots::kRampUp: return steep ? noise + 50 * static_cast<double>(row) : noise;
    case AbcSlots::kRampDown: return steep ? noise - 50 * static_cast<double>(row) : noise;
    case AbcSlots::kStepUp: return steep ? noise + 50 * static_cast<double>(steps) : noise;
    case AbcSlots::kStepDown: return steep ? noise - 50 * static_cast<double>(steps) : noise;
    case AbcSlots::kPulse: return steep && row == 0 ? noise + 50 : noise;
    case AbcSlots::kEmpty:
      if (m % 8 == 1 || (m % 4 == 0 && t < 10 * m + 1)) return static_cast<double>(kNever);
      return random_uniform(c.seed, kHole, index_of(element)) < 0.2 ? static_cast<double>(kNever)
                                                                    : noise;
  }
  return noise;
}

std::vector<std::uint16_t> normals(const AbcCase& c, Stream stream, std::int64_t size) {
  std::vector<std::uint16_t> out(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = double_to_half(c.dtype, random_normal(c.seed, stream, index_of(i)));
  return out;
}
std::vector<float> normals(const AbcCase& c, Stream stream, std::int64_t size, double factor) {
  std::vector<float> out(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(factor * random_normal(c.seed, stream, index_of(i)));
  return out;
}

AbcTensors fill(const AbcCase& c) {
  const AbcShape& p = c.shape;
  const std::int64_t rows = p.B * p.T * p.H, heads = p.B * p.H;
  AbcTensors out;
  out.q = normals(c, kQ, rows * p.K);
  out.k = normals(c, kK, rows * p.K);
  out.v = normals(c, kV, rows * p.V);
  out.dout = normals(c, kDout, rows * p.V);
  out.s.resize(static_cast<std::size_t>(rows * p.M));
  for (std::size_t i = 0; i < out.s.size(); ++i)
    out.s[i] = double_to_half(c.dtype, slot_value(c, i));
  if (p.has_hk0) out.hk0 = normals(c, kHk0, heads * p.K * p.M, 0.5);
  if (p.has_hv0) out.hv0 = normals(c, kHv0, heads * p.M * p.V, 0.5);
  if (p.has_z0) {
    out.z0 = normals(c, kZ0, heads * p.M, 1);
    for (std::size_t i = 0; c.slots == AbcSlots::kEmpty && i < out.z0.size(); ++i)
      if (i % static_cast<std::size_t>(p.M) % 16 < 2) out.z0[i] = kNever;
  }
  if (c.has_dhkt) out.dhkt = normals(c, kDhkt, heads * p.K * p.M, 1);
  if (c.has_dhvt) out.dhvt = normals(c, kDhvt, heads * p.M * p.V, 1);
  return out;
}

std::vector<double> widened(DType dtype, const std::vector<std::uint16_t>& bits) {
  std::vector<double> out(bits.size());
  std::transform(bits.begin(), bits.end(), out.begin(),
                 [&](std::uint16_t x) { return static_cast<double>(half_to_float(dtype, x)); });
  return out;
}
std::vector<double> widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

AbcCase made(DType dtype, std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t K,
             std::int64_t M, std::int64_t V, bool states, AbcSlots slots) {
  AbcCase c;
  c.dtype = dtype;
  c.shape = {B, T, H, K, M, V, states, states, states};
  c.has_dhkt = c.has_dhvt = states;
  c.slots = slots;
  return c;
}

/// A value of a list, another at each turn.
template <std::size_t N>
std::int64_t turn(const std::int64_t (&values)[N], std::size_t step) {
  return values[step % N];
}

std::vector<AbcCase> made_fixture() {
  constexpr std::int64_t kBatches[] = {1, 2}, kHeads[] = {4, 1}, kKeys[] = {64, 128, 256};
  constexpr std::int64_t kSlots[] = {64, 32}, kValues[] = {64, 256, 512};
  constexpr std::int64_t kTokens[] = {63, 64, 65, 127, 257, 512};
  constexpr DType kTypes[] = {DType::kF16, DType::kBf16};
  constexpr auto normal = AbcSlots::kNormal;
  std::vector<AbcCase> cases = {
      // The four in which the peer fails: ds with initial states, final states of a partial chunk.
      made(DType::kF16, 1, 65, 4, 256, 32, 512, true, normal),
      made(DType::kBf16, 2, 127, 1, 64, 64, 256, true, normal),
      made(DType::kF16, 1, 257, 4, 128, 32, 64, false, normal),
      made(DType::kBf16, 2, 257, 1, 256, 64, 512, true, normal),
      // State-free and long.
      made(DType::kBf16, 1, 2048, 4, 256, 64, 512, false, normal),
      made(DType::kF16, 2, 2048, 4, 256, 64, 512, false, normal),
  };
  // Every length with each type, with and without states; the other sizes take turns, so that each
  // pair of K and V, and each size with each type, is met.
  for (std::size_t t = 0; t < std::size(kTokens); ++t) {
    for (std::size_t type = 0; type < 2; ++type) {
      for (std::size_t states = 0; states < 2; ++states) {
        const std::size_t step = 4 * t + 2 * type + states;
        cases.push_back(made(kTypes[type], turn(kBatches, step / 2 + states), kTokens[t],
                             turn(kHeads, step / 4 + type), turn(kKeys, step),
                             turn(kSlots, step / 3), turn(kValues, step / 3 + step), states == 1,
                             normal));
      }
    }
  }
  // Steep and empty slots, with and without states, over a partial last chunk.
  for (const AbcSlots slots :
       {AbcSlots::kWide, AbcSlots::kRampUp, AbcSlots::kRampDown, AbcSlots::kStepUp,
        AbcSlots::kStepDown, AbcSlots::kPulse, AbcSlots::kEmpty}) {
    cases.push_back(made(DType::kF16, 1, 257, 1, 64, 64, 64, false, slots));
    cases.push_back(made(DType::kF16, 1, 200, 1, 128, 64, 64, true, slots));
    cases.push_back(made(DType::kBf16, 1, 257, 1, 64, 64, 256, true, slots));
    cases.push_back(made(DType::kBf16, 1, 320, 1, 64, 128, 64, false, slots));
  }
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].seed = 1000 + i;
  return cases;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

template <class T>
void hash_in(Sha256* hash, const std::vector<T>& values) {
  hash->update({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

}  // namespace

const char* to_string(AbcSlots slots) noexcept {
  switch (slots) {
    case AbcSlots::kNormal: return "normal";
    case AbcSlots::kWide: return "wide";
    case AbcSlots::kRampUp: return "ramp_up";
    case AbcSlots::kRampDown: return "ramp_down";
    case AbcSlots::kStepUp: return "step_up";
    case AbcSlots::kStepDown: return "step_down";
    case AbcSlots::kPulse: return "pulse";
    case AbcSlots::kEmpty: return "empty";
  }
  return "unknown";
}

std::string to_string(const AbcCase& c) {
  const AbcShape& p = c.shape;
  std::string line = std::string("abc dtype=") + scanjit::to_string(c.dtype);
  const auto add = [&](const char* name, std::int64_t value) {
    line += std::string(" ") + name + "=" + std::to_string(value);
  };
  add("B", p.B);
  add("T", p.T);
  add("H", p.H);
  add("K", p.K);
  add("M", p.M);
  add("V", p.V);
  add("hk0", p.has_hk0 ? 1 : 0);
  add("hv0", p.has_hv0 ? 1 : 0);
  add("z0", p.has_z0 ? 1 : 0);
  add("dhkt", c.has_dhkt ? 1 : 0);
  add("dhvt", c.has_dhvt ? 1 : 0);
  line += std::string(" slots=") + to_string(c.slots);
  line += " seed=" + std::to_string(c.seed);
  return line;
}

Result<AbcTensors> generate(const AbcCase& abc_case) {
  try {
    return fill(abc_case);
  } catch (const std::exception&) {
    return Status(ErrorCode::kOutOfMemory, "no memory for the inputs of the case");
  }
}

AbcInputs inputs_of(DType dtype, const AbcTensors& t) {
  return {widened(dtype, t.q), widened(dtype, t.k), widened(dtype, t.v), widened(dtype, t.s),
          widened(t.hk0),      widened(t.hv0),      widened(t.z0)};
}
AbcCotangents cotangents_of(DType dtype, const AbcTensors& t) {
  return {widened(dtype, t.dout), widened(t.dhkt), widened(t.dhvt)};
}

const std::vector<AbcCase>& abc_fixture() {
  static const std::vector<AbcCase> cases = made_fixture();
  return cases;
}

AbcCase random_abc_case(std::uint64_t seed) {
  std::uint64_t draws = 0;
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_bits(seed, 100, draws++) %
                                           static_cast<std::uint64_t>(high - low + 1));
  };
  const auto chance = [&](int percent) { return between(1, 100) <= percent; };
  const auto width = [&](std::int64_t most) {
    return chance(50) ? 8 * between(1, most / 8) : between(1, most);
  };
  AbcCase c;
  AbcShape& p = c.shape;
  c.dtype = chance(50) ? DType::kBf16 : DType::kF16;
  p.B = between(1, 3);
  p.H = between(1, 4);
  p.K = width(256);
  p.M = width(128);
  p.V = width(512);
  p.T = chance(50) ? between(0, 4) * 64 + between(-1, 2) : between(1, 700);
  p.T = std::max<std::int64_t>(p.T, chance(50) ? 1 : 0);
  while (p.T > 3 && p.B * p.T * p.H * p.M * (p.K + p.V) > kMostSteps) p.T /= 2;
  p.has_hk0 = chance(50);
  p.has_hv0 = chance(50);
  p.has_z0 = chance(50);
  c.has_dhkt = chance(50);
  c.has_dhvt = chance(50);
  c.slots = chance(50) ? AbcSlots::kNormal : static_cast<AbcSlots>(between(1, 8));
  c.seed = seed;
  return c;
}

std::string abc_failure(const std::string& tensor, DType dtype, const std::vector<double>& got,
                        const std::vector<double>& reference, const std::vector<double>& terms) {
  if (got.size() != reference.size()) {
    return tensor + ": " + std::to_string(got.size()) + " elements for " +
           std::to_string(reference.size()) + "; ";
  }
  ErrorSum sum;
  double terms_squared = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    sum.add(static_cast<std::int64_t>(i), got[i], reference[i]);
  for (const double term : terms) terms_squared += term * term;
  const TensorError error = sum.finish();
  if (error.non_finite > 0) {
    return tensor + ": " + std::to_string(error.non_finite) + " wrongly (non-)finite, first at " +
           std::to_string(error.worst_element) + "; ";
  }
  const double half_ulp = dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
  const double allowed =
      std::max({abc_limit(dtype) * error.reference_norm, half_ulp * std::sqrt(terms_squared),
                1e-5 * std::sqrt(static_cast<double>(got.size()))});
  double difference_squared = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(reference[i])) continue;
    difference_squared += (got[i] - reference[i]) * (got[i] - reference[i]);
  }
  const double difference = std::sqrt(difference_squared);
  if (difference <= allowed) return {};
  return tensor + ": off by " + number(difference) + " in L2, of " + number(error.reference_norm) +
         ", allowed " + number(allowed) + " (worst at " + std::to_string(error.worst_element) +
         ": " + number(error.worst_got) + " for " + number(error.worst_reference) + "); ";
}

Result<std::string> abc_fixture_digest() {
  Sha256 hash;
  std::set<AbcSlots> seen;
  const auto add = [&](const AbcCase& c) -> Status {
    hash.update(to_string(c) + " limit=" + number(abc_limit(c.dtype)) + "\n");
    if (!seen.insert(c.slots).second) return Status();
    SCANJIT_ASSIGN_OR_RETURN(const AbcTensors tensors, generate(c));
    for (const auto* bits : {&tensors.q, &tensors.k, &tensors.v, &tensors.s, &tensors.dout})
      hash_in(&hash, *bits);
    for (const auto* values :
         {&tensors.hk0, &tensors.hv0, &tensors.z0, &tensors.dhkt, &tensors.dhvt})
      hash_in(&hash, *values);
    return Status();
  };
  for (const AbcCase& c : abc_fixture()) SCANJIT_TRY(add(c));
  for (std::uint64_t seed = 0; seed < kAbcRandomCases; ++seed)
    SCANJIT_TRY(add(random_abc_case(seed)));
  return hash.hex();
}

}  // namespace scanjit::reference
