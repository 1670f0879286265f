// The CPU oracle against the definition written out once more, and its properties.
#include "reference/gated_delta_h.hpp"

#include <cmath>
#include <limits>

#include "reference/cases.hpp"
#include "reference/compare.hpp"
#include "reference/half.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::reference;

namespace {

constexpr Precision kBoth[] = {Precision::kPure, Precision::kRounding};

GatedDeltaHInputs made(const GatedDeltaHProblem& problem, const GeneratorOptions& options = {}) {
  Result<GatedDeltaHInputs> inputs = generate(problem, options);
  INFO(inputs.status().to_string());
  REQUIRE(inputs.ok());
  return std::move(inputs).value();
}

GatedDeltaHOutputs scanned(const GatedDeltaHInputs& inputs, Precision precision, int threads = 0) {
  Result<GatedDeltaHOutputs> outputs =
      gated_delta_h(inputs, {precision, Variant::kDefinition, threads});
  INFO(outputs.status().to_string());
  REQUIRE(outputs.ok());
  return std::move(outputs).value();
}

/// Dense, every optional tensor, a partial last chunk.
GatedDeltaHProblem whole_problem() {
  GatedDeltaHProblem p;
  p.B = 2;
  p.T = 75;
  p.H = 2;
  p.HV = 4;
  p.K = 9;
  p.V = 37;
  p.BT = 16;
  p.has_g = p.has_gk = p.has_h0 = p.has_ht = true;
  return p;
}

bool same(const std::vector<double>& a,
          const std::vector<double>& b) {  // bit for bit, NaN included
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
           return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
         });
}
bool same(const GatedDeltaHOutputs& a, const GatedDeltaHOutputs& b) {
  return same(a.h, b.h) && same(a.v_new, b.v_new) && same(a.ht, b.ht) &&
         a.h_written == b.h_written && a.v_new_written == b.v_new_written &&
         a.ht_written == b.ht_written && a.status == b.status;
}

/// The definition, one element after the other, for good lengths. Real: double (pure) or float
/// (rounding).
template <class Real>
class Plain {
 public:
  explicit Plain(const GatedDeltaHInputs& inputs)
      : in(inputs), p(inputs.problem), s(sizes_of(inputs.problem).value()) {
    out.h.resize(static_cast<std::size_t>(s.h));
    out.v_new.resize(static_cast<std::size_t>(s.v_new));
    out.ht.resize(static_cast<std::size_t>(s.ht));
    std::int64_t chunk = 0;
    for (std::int64_t n = 0; n < s.N; ++n) {
      const std::int64_t begin = p.packed ? in.cu_seqlens[at(n)] : n * p.T;
      const std::int64_t end = p.packed ? in.cu_seqlens[at(n + 1)] : begin + p.T;
      if (p.has_chunk_offsets) chunk = in.chunk_offsets[at(n)];
      for (std::int64_t head = 0; head < p.HV; ++head) sequence(n, head, begin, end, chunk);
      chunk += (end - begin + p.BT - 1) / p.BT;
    }
  }
  GatedDeltaHOutputs out;

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  static constexpr bool kRounds = std::is_same_v<Real, float>;
  double half(const std::vector<std::uint16_t>& tensor, std::int64_t i) const {
    return static_cast<double>(half_to_float(p.dtype, tensor[at(i)]));
  }
  double round(Real x) const {
    return kRounds ? round_to(p.dtype, static_cast<double>(x)) : static_cast<double>(x);
  }
  Real power(Real x) const {
    if constexpr (!kRounds) return std::pow(p.gate_base == GateBase::kTwo ? 2.0 : std::exp(1.0), x);
    const float y = p.gate_base == GateBase::kTwo
                        ? static_cast<float>(x)
                        : static_cast<float>(x) * std::log2(std::exp(1.0F));
    return static_cast<Real>(std::exp2(static_cast<double>(y)));
  }
  std::int64_t state(std::int64_t head, std::int64_t i, std::int64_t j) const {
    return p.layout == StateLayout::kKV ? (head * p.K + i) * p.V + j : (head * p.V + j) * p.K + i;
  }
  static std::int64_t slot(const std::vector<std::int64_t>& indices, bool has, std::int64_t n,
                           std::int64_t slots) {
    const std::int64_t index = has ? indices[at(n)] : n;
    return index >= 0 && index < slots ? index : -1;
  }

  void sequence(std::int64_t n, std::int64_t head, std::int64_t begin, std::int64_t end,
                std::int64_t chunk) {
    std::vector<Real> S(at(p.K * p.V), Real{0});
    const std::int64_t from = p.has_h0 ? slot(in.h0_indices, p.has_h0_indices, n, s.h0_slots) : -1;
    for (std::int64_t i = 0; i < p.K; ++i) {
      for (std::int64_t j = 0; j < p.V && from >= 0; ++j) {
        S[at(i * p.V + j)] =
            static_cast<Real>(in.h0[at(from * s.h0_slot_stride + state(head, i, j))]);
      }
    }
    for (std::int64_t t = begin; t < end; t += p.BT, ++chunk) {
      const std::int64_t stop = std::min(end, t + p.BT), last = stop - 1,
                         key_head = head * p.H / p.HV;
      for (std::int64_t j = 0; j < p.V; ++j) {
        std::vector<double> values;
        for (std::int64_t i = 0; i < p.K && p.has_h; ++i) {
          out.h[at(chunk * p.HV * p.K * p.V + state(head, i, j))] = round(S[at(i * p.V + j)]);
        }
        for (std::int64_t r = t; r < stop; ++r) {
          double dot = 0;
          for (std::int64_t i = 0; i < p.K; ++i) {
            dot += half(in.w, r * s.w_stride + head * p.K + i) * round(S[at(i * p.V + j)]);
          }
          Real v = static_cast<Real>(half(in.u, r * s.u_stride + head * p.V + j)) -
                   static_cast<Real>(dot);
          if (p.has_v_new) out.v_new[at(r * s.v_new_stride + head * p.V + j)] = round(v);
          const auto gate = [&](std::int64_t row) {
            return static_cast<Real>(in.g[at(row * s.g_stride + head)]);
          };
          if (p.has_g) v *= power(gate(last) - gate(r));
          values.push_back(round(v));
        }
        for (std::int64_t i = 0; i < p.K; ++i) {
          Real& x = S[at(i * p.V + j)];
          if (p.has_g) x *= power(static_cast<Real>(in.g[at(last * s.g_stride + head)]));
          if (p.has_gk)
            x *= power(static_cast<Real>(in.gk[at(last * s.gk_stride + head * p.K + i)]));
          auto sum = static_cast<double>(x);
          for (std::int64_t r = t; r < stop; ++r) {
            sum += half(in.k, r * s.k_stride + key_head * p.K + i) * values[at(r - t)];
          }
          x = static_cast<Real>(sum);
        }
      }
    }
    const std::int64_t to = p.has_ht ? slot(in.ht_indices, p.has_ht_indices, n, s.ht_slots) : -1;
    for (std::int64_t i = 0; i < p.K; ++i) {
      for (std::int64_t j = 0; j < p.V && to >= 0; ++j) {
        out.ht[at(to * s.ht_slot_stride + state(head, i, j))] =
            static_cast<double>(S[at(i * p.V + j)]);
      }
    }
  }

  const GatedDeltaHInputs& in;
  const GatedDeltaHProblem& p;
  const GatedDeltaHSizes s;
};

}  // namespace

TEST_CASE("the oracle is the definition, whatever the options", "[reference]") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const GatedDeltaHCase c = random_case(seed, 100);
    INFO(to_string(c));
    const GatedDeltaHInputs in = made(c.problem, c.generator);
    const OutputErrors pure =
        compare(c.problem, Plain<double>(in).out, scanned(in, Precision::kPure));
    CHECK(pure.worst() < 1e-13);
    // The same operations in the same order: the same bits, but for the last one of 2^x.
    const OutputErrors rounding =
        compare(c.problem, Plain<float>(in).out, scanned(in, Precision::kRounding));
    CHECK(rounding.worst() < (c.problem.has_g || c.problem.has_gk ? 1e-4 : 1e-300));
  }
}

TEST_CASE("the number of threads changes nothing", "[reference]") {
  const GatedDeltaHInputs in = made(whole_problem());
  for (const Precision precision : kBoth)
    CHECK(same(scanned(in, precision, 1), scanned(in, precision, 7)));
}

TEST_CASE("packed equal lengths are the dense batch", "[reference]") {
  GatedDeltaHProblem p = whole_problem();
  const GatedDeltaHInputs dense = made(p);
  p.packed = true;
  p.sequences = p.B;
  p.T *= p.B;
  p.B = 1;
  const GatedDeltaHInputs packed = made(p);
  REQUIRE(packed.u == dense.u);
  for (const Precision precision : kBoth) {
    const GatedDeltaHOutputs a = scanned(dense, precision);
    GatedDeltaHOutputs b = scanned(packed, precision);
    b.h.resize(a.h.size());  // the capacity of packed chunks is a bound
    b.h_written.resize(a.h_written.size());
    CHECK(same(a, b));
  }
}

TEST_CASE("a scan that is cut between chunks and goes on from ht is the whole scan",
          "[reference]") {
  GatedDeltaHProblem p = whole_problem();
  p.B = 1;
  const GatedDeltaHInputs whole = made(p);
  const GatedDeltaHOutputs expected = scanned(whole, Precision::kRounding);
  for (const std::int64_t cut : {0, 16, 48, 64}) {
    GatedDeltaHInputs first = whole, second = whole;
    const auto part = [&](GatedDeltaHInputs* in, std::int64_t from, std::int64_t to) {
      in->problem.T = to - from;
      const auto slice = [&](auto* tensor) {
        const auto row = static_cast<std::ptrdiff_t>(tensor->size()) / p.T;
        *tensor = {tensor->begin() + from * row, tensor->begin() + to * row};
      };
      slice(&in->k);
      slice(&in->w);
      slice(&in->u);
      slice(&in->g);
      slice(&in->gk);
    };
    part(&first, 0, cut);
    part(&second, cut, p.T);
    const GatedDeltaHOutputs head = scanned(first, Precision::kRounding);
    second.h0.assign(head.ht.begin(), head.ht.end());
    const GatedDeltaHOutputs tail = scanned(second, Precision::kRounding);
    CHECK(same(tail.ht, expected.ht));
    std::vector<double> h = head.h, v_new = head.v_new;
    h.insert(h.end(), tail.h.begin(), tail.h.end());
    v_new.insert(v_new.end(), tail.v_new.begin(), tail.v_new.end());
    CHECK(same(h, expected.h));
    CHECK(same(v_new, expected.v_new));
  }
}

TEST_CASE("heads can be computed apart", "[reference]") {
  const GatedDeltaHProblem p = whole_problem();
  const GatedDeltaHInputs all = made(p);
  for (const Precision precision : kBoth) {
    const GatedDeltaHOutputs expected = scanned(all, precision);
    for (std::int64_t head = 0; head < p.HV; ++head) {
      GatedDeltaHInputs one = all;
      one.problem.H = one.problem.HV = 1;
      const auto pick = [](auto* tensor, std::int64_t heads,
                           std::int64_t which) {  // rows [..][heads][x]
        auto from = *tensor;
        const std::size_t row = from.size() / static_cast<std::size_t>(heads);
        tensor->clear();
        return [=, from = std::move(from)](std::size_t x) mutable {
          for (std::size_t r = 0; r < row / x; ++r) {
            const auto start =
                from.begin() +
                static_cast<std::ptrdiff_t>(
                    (r * static_cast<std::size_t>(heads) + static_cast<std::size_t>(which)) * x);
            tensor->insert(tensor->end(), start, start + static_cast<std::ptrdiff_t>(x));
          }
        };
      };
      const auto K = static_cast<std::size_t>(p.K), V = static_cast<std::size_t>(p.V);
      pick(&one.k, p.H, head / 2)(K);
      pick(&one.w, p.HV, head)(K);
      pick(&one.u, p.HV, head)(V);
      pick(&one.g, p.HV, head)(1);
      pick(&one.gk, p.HV, head)(K);
      pick(&one.h0, p.HV, head)(K * V);
      GatedDeltaHOutputs wanted = expected;
      pick(&wanted.h, p.HV, head)(K * V);
      pick(&wanted.v_new, p.HV, head)(V);
      pick(&wanted.ht, p.HV, head)(K * V);
      CHECK(same(scanned(one, precision), wanted));
    }
  }
}

TEST_CASE("layout vk stores the same states transposed", "[reference]") {
  GatedDeltaHProblem p = whole_problem();
  const GatedDeltaHOutputs kv = scanned(made(p), Precision::kRounding);
  p.layout = StateLayout::kVK;
  const GatedDeltaHOutputs vk = scanned(made(p), Precision::kRounding);
  CHECK(same(kv.v_new, vk.v_new));
  const auto transposed = [&](std::vector<double> states) {
    const std::vector<double> from = states;
    const auto K = static_cast<std::size_t>(p.K), V = static_cast<std::size_t>(p.V);
    for (std::size_t x = 0; x < from.size(); ++x) {
      const std::size_t i = x % (K * V) / V, j = x % V;
      states[x / (K * V) * K * V + j * K + i] = from[x];
    }
    return states;
  };
  CHECK(same(transposed(kv.h), vk.h));
  CHECK(same(transposed(kv.ht), vk.ht));
}

TEST_CASE("gates of zero are no gates", "[reference]") {
  GatedDeltaHProblem p = whole_problem();
  GeneratorOptions options;
  options.gates = GateSet::kNone;
  const GatedDeltaHInputs zero = made(p, options);
  p.has_g = p.has_gk = false;
  for (const Precision precision : kBoth) {
    CHECK(same(scanned(zero, precision), scanned(made(p, options), precision)));
  }
}

TEST_CASE("sequences of no tokens hand their state on, and no sequences are fine", "[reference]") {
  GatedDeltaHProblem p = whole_problem();
  p.T = 0;
  GatedDeltaHInputs in = made(p);
  GatedDeltaHOutputs out = scanned(in, Precision::kPure);
  CHECK(out.h.empty());
  CHECK(std::equal(out.ht.begin(), out.ht.end(), in.h0.begin(), in.h0.end(),
                   [](double a, float b) { return a == static_cast<double>(b); }));
  p.has_h0 = false;
  out = scanned(made(p), Precision::kPure);
  CHECK(std::all_of(out.ht.begin(), out.ht.end(), [](double x) { return x == 0; }));
  CHECK(out.ht_written == std::vector<std::uint8_t>{1, 1});
  p.B = 0;
  CHECK(scanned(made(p), Precision::kPure).ht.empty());
}

TEST_CASE("the smallest problems and lengths around a chunk", "[reference]") {
  for (const std::int64_t T : {1, 15, 16, 17, 31, 32, 33}) {
    GatedDeltaHProblem p = whole_problem();
    p.T = T;
    p.K = p.V = 1;
    const GatedDeltaHInputs in = made(p);
    const GatedDeltaHOutputs out = scanned(in, Precision::kPure);
    CHECK(out.h.size() == static_cast<std::size_t>(2 * ((T + 15) / 16) * p.HV));
    CHECK(compare(p, Plain<double>(in).out, out).worst() < 1e-13);
  }
}

TEST_CASE("bad lengths and indices set their bit and touch nothing else", "[reference]") {
  GatedDeltaHProblem p = whole_problem();
  p.B = 1;
  p.packed = true;
  p.sequences = 3;
  p.has_h0_indices = p.has_ht_indices = true;
  p.h0_slots = p.ht_slots = 5;
  const GatedDeltaHInputs good = made(p);  // lengths 25, 25, 25: two chunks each
  const GatedDeltaHOutputs expected = scanned(good, Precision::kRounding);
  REQUIRE(expected.status == 0);
  const auto row_of = [](const std::vector<double>& tensor, std::int64_t rows, std::int64_t row) {
    const auto size = static_cast<std::ptrdiff_t>(tensor.size()) / rows;
    return std::vector<double>(tensor.begin() + row * size, tensor.begin() + (row + 1) * size);
  };

  SECTION("lengths beyond the tokens, negative or decreasing") {
    for (const std::int64_t bad :
         {std::int64_t{76}, std::int64_t{49}, std::int64_t{-1}, std::int64_t{1} << 60}) {
      GatedDeltaHInputs in = good;
      in.cu_seqlens[3] = bad;
      const GatedDeltaHOutputs out = scanned(in, Precision::kRounding);
      CHECK(out.status == 1);
      CHECK(out.h_written == std::vector<std::uint8_t>{1, 1, 1, 1, 0, 0, 0});
      CHECK(out.v_new_written[49] == 1);
      CHECK(out.v_new_written[50] == 0);
      for (const std::size_t n : {std::size_t{0}, std::size_t{1}}) {
        const std::int64_t slot = good.ht_indices[n];
        CHECK(same(row_of(out.ht, 5, slot), row_of(expected.ht, 5, slot)));
      }
      CHECK(out.ht_written[static_cast<std::size_t>(good.ht_indices[2])] == 0);
    }
  }
  SECTION("chunks beyond the capacity of h, which matter only if h exists") {
    GatedDeltaHInputs in = good;
    in.problem.chunk_capacity = 5;
    CHECK(scanned(in, Precision::kRounding).status == 1);
    in.problem.chunk_capacity = 6;
    CHECK(scanned(in, Precision::kRounding).status == 0);
    in.problem.chunk_capacity = 5;
    in.problem.has_h = false;
    CHECK(scanned(in, Precision::kRounding).status == 0);
  }
  SECTION("chunk offsets that point outside") {
    for (const std::int64_t bad : {-1, 6, 7}) {
      GatedDeltaHInputs in = good;
      in.problem.has_chunk_offsets = true;
      in.chunk_offsets = {0, 2, bad};
      CHECK(scanned(in, Precision::kRounding).status == 1);
      in.chunk_offsets[2] = 5;
      const GatedDeltaHOutputs out = scanned(in, Precision::kRounding);
      CHECK(out.status == 0);
      CHECK(out.h_written == std::vector<std::uint8_t>{1, 1, 1, 1, 0, 1, 1});
    }
  }
  SECTION("an empty sequence owns no chunk, but its offset must lie in h like any other") {
    GatedDeltaHInputs in = good;
    in.cu_seqlens = {0, 25, 50, 50};
    in.problem.has_chunk_offsets = true;
    for (const std::int64_t offset :
         {std::int64_t{0}, std::int64_t{7}, std::int64_t{8}, std::int64_t{-1}}) {
      in.chunk_offsets = {0, 2, offset};
      const bool bad = offset < 0 || offset > 7;  // h has room for 7 chunks
      const GatedDeltaHOutputs out = scanned(in, Precision::kRounding);
      INFO(offset);
      CHECK(out.status == (bad ? 1U : 0U));
      CHECK(out.ht_written[static_cast<std::size_t>(good.ht_indices[2])] == (bad ? 0 : 1));
    }
  }
  SECTION("the indices of a sequence with bad lengths are reported as well") {
    GatedDeltaHInputs in = good;
    in.cu_seqlens[3] = 76;
    in.h0_indices[2] = 9;
    CHECK(scanned(in, Precision::kRounding).status == 3);
    in.ht_indices[2] = 9;
    CHECK(scanned(in, Precision::kRounding).status == 7);
    in.h0_indices[2] = -1;
    CHECK(scanned(in, Precision::kRounding).status == 5);
  }
  SECTION("an h0 slot that does not exist is a start from zero; -1 is no mistake") {
    for (const std::int64_t index : {-1, 5, -2}) {
      GatedDeltaHInputs in = good;
      in.h0_indices[1] = index;
      const GatedDeltaHOutputs out = scanned(in, Precision::kRounding);
      CHECK(out.status == (index == -1 ? 0U : 2U));
      const std::vector<double> start = row_of(out.h, 7, 2);
      CHECK(std::all_of(start.begin(), start.end(), [](double x) { return x == 0; }));
      CHECK(same(row_of(out.h, 7, 4), row_of(expected.h, 7, 4)));
    }
  }
  SECTION("an ht slot that does not exist is not written; -1 is no mistake") {
    for (const std::int64_t index : {-1, 5, -2}) {
      GatedDeltaHInputs in = good;
      in.ht_indices[1] = index;
      const GatedDeltaHOutputs out = scanned(in, Precision::kRounding);
      CHECK(out.status == (index == -1 ? 0U : 4U));
      CHECK(out.ht_written[static_cast<std::size_t>(good.ht_indices[1])] == 0);
      CHECK(same(out.h, expected.h));
    }
  }
}

TEST_CASE("a NaN in one sequence and head changes no bit of another", "[reference]") {
  const GatedDeltaHProblem p = whole_problem();
  const GatedDeltaHInputs clean = made(p);
  GatedDeltaHInputs poisoned = clean;
  // Sequence 0, value head 1: a NaN in u, an infinity in w.
  poisoned.u[static_cast<std::size_t>(20 * p.HV * p.V + p.V + 3)] = 0x7fff;
  poisoned.w[static_cast<std::size_t>(40 * p.HV * p.K + p.K)] = 0x7f80;
  for (const Precision precision : kBoth) {
    const GatedDeltaHOutputs a = scanned(clean, precision), b = scanned(poisoned, precision);
    int strays = 0, hits = 0;
    for (std::size_t x = 0; x < a.v_new.size(); ++x) {
      const auto place = static_cast<std::int64_t>(x);
      const bool own = place / (p.HV * p.V) < p.T && place / p.V % p.HV == 1;
      if (std::isnan(b.v_new[x])) ++hits;
      if (!own &&
          std::bit_cast<std::uint64_t>(a.v_new[x]) != std::bit_cast<std::uint64_t>(b.v_new[x]))
        ++strays;
    }
    for (std::size_t x = 0; x < a.ht.size(); ++x) {
      if (static_cast<std::int64_t>(x) / (p.K * p.V) == 1) continue;
      if (std::bit_cast<std::uint64_t>(a.ht[x]) != std::bit_cast<std::uint64_t>(b.ht[x])) ++strays;
    }
    CHECK(hits > 0);
    CHECK(strays == 0);
  }
}

TEST_CASE("a state too large for f16 becomes infinity in h, not the largest number",
          "[reference]") {
  GatedDeltaHProblem p = whole_problem();
  p.dtype = DType::kF16;
  GatedDeltaHInputs in = made(p);
  in.h0[0] = 65519.0F;
  in.h0[1] = 65520.0F;
  const GatedDeltaHOutputs out = scanned(in, Precision::kRounding);
  CHECK(out.h[0] == 65504);
  CHECK(std::isinf(out.h[1]));
}

TEST_CASE("factors below the smallest normal f32 are flushed to zero", "[reference]") {
  GatedDeltaHProblem p = whole_problem();
  p.T = 1;
  p.has_gk = false;
  GatedDeltaHInputs in = made(p);
  std::fill(in.k.begin(), in.k.end(), std::uint16_t{0});
  std::fill(in.h0.begin(), in.h0.end(), 0x1p100F);
  std::fill(in.g.begin(), in.g.end(), -126.0F);
  CHECK(scanned(in, Precision::kRounding).ht[0] == 0x1p-26);
  std::fill(in.g.begin(), in.g.end(), -127.0F);
  CHECK(scanned(in, Precision::kRounding).ht[0] == 0);
  CHECK(scanned(in, Precision::kPure).ht[0] == 0x1p-27);
}

TEST_CASE("buffers and sizes that do not fit the problem are refused", "[reference]") {
  const GatedDeltaHInputs good = made(whole_problem());
  const auto code_of = [](const GatedDeltaHInputs& in) {
    return gated_delta_h(in).status().code();
  };
  const auto with = [&](const auto& change) {
    GatedDeltaHInputs in = good;
    change(in);
    return code_of(in);
  };
  CHECK(with([](GatedDeltaHInputs& in) { in.k.pop_back(); }) == ErrorCode::kInvalidArgument);
  CHECK(with([](GatedDeltaHInputs& in) { in.gk.clear(); }) == ErrorCode::kInvalidArgument);
  CHECK(with([](GatedDeltaHInputs& in) { in.problem.K = 0; }) == ErrorCode::kInvalidArgument);
  CHECK(with([](GatedDeltaHInputs& in) { in.problem.BT = 48; }) == ErrorCode::kInvalidArgument);
  CHECK(with([](GatedDeltaHInputs& in) { in.problem.HV = 3; }) == ErrorCode::kInvalidArgument);
  CHECK(with([](GatedDeltaHInputs& in) { in.problem.w_stride = 4; }) ==
        ErrorCode::kInvalidArgument);
  CHECK(with([](GatedDeltaHInputs& in) { in.problem.dtype = DType::kF32; }) ==
        ErrorCode::kInvalidArgument);
  CHECK(with([](GatedDeltaHInputs& in) { in.problem.h0_slots = 1; }) ==
        ErrorCode::kInvalidArgument);
  CHECK(with([](GatedDeltaHInputs& in) { in.problem.packed = true; }) ==
        ErrorCode::kInvalidArgument);
  CHECK(with([](GatedDeltaHInputs& in) {
          in.problem.T = std::int64_t{1} << 40, in.problem.B = std::int64_t{1} << 40;
        }) == ErrorCode::kInvalidArgument);
}
