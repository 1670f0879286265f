// The ABC oracle against the definition as explicit sums, its derivative against finite
// differences.
#include "reference/abc.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "reference/random.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::reference;

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::vector<double> normals(std::uint64_t seed, std::uint64_t stream, std::int64_t size) {
  std::vector<double> out(at(size));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = random_normal(seed, stream, i);
  return out;
}

AbcInputs made(const AbcShape& p, std::uint64_t seed) {
  const std::int64_t rows = p.B * p.T * p.H, heads = p.B * p.H;
  AbcInputs in;
  in.q = normals(seed, 1, rows * p.K);
  in.k = normals(seed, 2, rows * p.K);
  in.v = normals(seed, 3, rows * p.V);
  in.s = normals(seed, 4, rows * p.M);
  if (p.has_hk0) in.hk0 = normals(seed, 5, heads * p.K * p.M);
  if (p.has_hv0) in.hv0 = normals(seed, 6, heads * p.M * p.V);
  if (p.has_z0) in.z0 = normals(seed, 7, heads * p.M);
  return in;
}

AbcCotangents cotangents(const AbcShape& p, std::uint64_t seed) {
  return {normals(seed, 8, p.B * p.T * p.H * p.V), normals(seed, 9, p.B * p.H * p.K * p.M),
          normals(seed, 10, p.B * p.H * p.M * p.V)};
}

AbcOutputs forward(const AbcShape& p, const AbcInputs& in, int threads = 0) {
  Result<AbcOutputs> out = abc_forward(p, in, threads);
  INFO(out.status().to_string());
  REQUIRE(out.ok());
  return std::move(out).value();
}
AbcGradients backward(const AbcShape& p, const AbcInputs& in, const AbcCotangents& given,
                      int threads = 0) {
  Result<AbcGradients> out = abc_backward(p, in, given, threads);
  INFO(out.status().to_string());
  REQUIRE(out.ok());
  return std::move(out).value();
}

/// Every slot of some tokens empty, one slot empty throughout, one from the start.
void empty_slots(const AbcShape& p, AbcInputs* in) {
  for (std::int64_t t = 0; t < p.T; ++t) {
    for (std::int64_t row = t * p.H; row < (t + 1) * p.H; ++row) {
      for (std::int64_t m = 0; m < p.M; ++m) {
        if (m == 0 || t == 3 || (m == 1 && t < 4)) in->s[at(row * p.M + m)] = kNever;
      }
    }
  }
}

/// The states after token t and o_t as sums over all tokens before, for B = H = 1.
struct Sums {
  std::vector<double> hk, hv, z, o;
};
Sums sums(const AbcShape& p, const AbcInputs& in, std::int64_t last) {
  Sums out{std::vector<double>(at(p.K * p.M)), std::vector<double>(at(p.M * p.V)),
           std::vector<double>(at(p.M), kNever), std::vector<double>(at(p.V))};
  std::vector<double> score(at(p.M));
  double norm = 0;
  for (std::int64_t m = 0; m < p.M; ++m) {
    double total = p.has_z0 ? std::exp(in.z0[at(m)]) : 0;
    for (std::int64_t i = 0; i <= last; ++i) total += std::exp(in.s[at(i * p.M + m)]);
    out.z[at(m)] = std::log(total);
    // Without z0 the initial states decay from the first token's normaliser on.
    double start = p.has_z0 ? std::exp(in.z0[at(m)]) / total : std::exp(in.s[at(m)]) / total;
    if (total == 0) start = 1;
    for (std::int64_t i = 0; i <= last; ++i) {
      const double w = total == 0 ? 0 : std::exp(in.s[at(i * p.M + m)]) / total;
      for (std::int64_t c = 0; c < p.K; ++c) out.hk[at(c * p.M + m)] += in.k[at(i * p.K + c)] * w;
      for (std::int64_t c = 0; c < p.V; ++c) out.hv[at(m * p.V + c)] += in.v[at(i * p.V + c)] * w;
    }
    for (std::int64_t c = 0; p.has_hk0 && c < p.K; ++c)
      out.hk[at(c * p.M + m)] += in.hk0[at(c * p.M + m)] * start;
    for (std::int64_t c = 0; p.has_hv0 && c < p.V; ++c)
      out.hv[at(m * p.V + c)] += in.hv0[at(m * p.V + c)] * start;
    double dot = 0;
    for (std::int64_t c = 0; c < p.K; ++c)
      dot += in.q[at(last * p.K + c)] * out.hk[at(c * p.M + m)];
    score[at(m)] = std::exp(dot / std::sqrt(static_cast<double>(p.K)));
    norm += score[at(m)];
  }
  for (std::int64_t m = 0; m < p.M; ++m)
    for (std::int64_t c = 0; c < p.V; ++c)
      out.o[at(c)] += score[at(m)] / norm * out.hv[at(m * p.V + c)];
  return out;
}

void require_close(const std::vector<double>& a, const std::vector<double>& b, std::int64_t first,
                   double limit) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double x = a[at(first) + i], y = b[i];
    INFO(i << ": " << x << " and " << y);
    if (std::isfinite(y)) {
      REQUIRE(std::abs(x - y) <= limit * (1 + std::abs(y)));
    } else {
      REQUIRE(x == y);
    }
  }
}

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
           return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
         });
}

/// Every set of initial states.
template <class Body>
void for_state_sets(const Body& body) {
  for (int set = 0; set < 8; ++set) body((set & 1) != 0, (set & 2) != 0, (set & 4) != 0);
}

double loss(const AbcShape& p, const AbcInputs& in, const AbcCotangents& given) {
  const AbcOutputs out = forward(p, in, 1);
  double sum = 0;
  const auto add = [&](const std::vector<double>& weights, const std::vector<double>& values) {
    for (std::size_t i = 0; i < weights.size(); ++i) sum += weights[i] * values[i];
  };
  add(given.dout, out.o);
  add(given.dhkt, out.hkt);
  add(given.dhvt, out.hvt);
  return sum;
}

/// Every element of one input moved both ways.
void check_gradient(const char* name, const AbcShape& p, AbcInputs in, const AbcCotangents& given,
                    std::vector<double> AbcInputs::*input, const std::vector<double>& gradient) {
  constexpr double kStep = 1e-5;
  REQUIRE((in.*input).size() == gradient.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double middle = (in.*input)[i];
    INFO(name << "[" << i << "] at " << middle);
    if (middle == kNever) {
      REQUIRE(gradient[i] == 0);
      continue;
    }
    (in.*input)[i] = middle + kStep;
    const double above = loss(p, in, given);
    (in.*input)[i] = middle - kStep;
    const double below = loss(p, in, given);
    (in.*input)[i] = middle;
    const double slope = (above - below) / (2 * kStep);
    REQUIRE(std::abs(slope - gradient[i]) <= 2e-8 * (1 + std::abs(slope)));
  }
}

void check_gradients(const AbcShape& p, const AbcInputs& in, const AbcCotangents& given) {
  const AbcGradients out = backward(p, in, given);
  check_gradient("q", p, in, given, &AbcInputs::q, out.dq);
  check_gradient("k", p, in, given, &AbcInputs::k, out.dk);
  check_gradient("v", p, in, given, &AbcInputs::v, out.dv);
  check_gradient("s", p, in, given, &AbcInputs::s, out.ds);
  check_gradient("hk0", p, in, given, &AbcInputs::hk0, out.dhk0);
  check_gradient("hv0", p, in, given, &AbcInputs::hv0, out.dhv0);
  check_gradient("z0", p, in, given, &AbcInputs::z0, out.dz0);
}

}  // namespace

TEST_CASE("ABC's oracle equals the definition as sums over all tokens before", "[reference]") {
  for_state_sets([](bool hk0, bool hv0, bool z0) {
    for (const bool empty : {false, true}) {
      const AbcShape p{1, 21, 1, 5, 4, 7, hk0, hv0, z0};
      AbcInputs in = made(p, 11);
      if (empty) empty_slots(p, &in);
      if (empty && z0) in.z0[0] = kNever;
      const AbcOutputs out = forward(p, in);
      for (std::int64_t t = 0; t < p.T; ++t) {
        const Sums wanted = sums(p, in, t);
        INFO("token " << t << " states " << hk0 << hv0 << z0 << " empty " << empty);
        require_close(out.o, wanted.o, t * p.V, 1e-12);
        if (t != p.T - 1) continue;
        require_close(out.hkt, wanted.hk, 0, 1e-12);
        require_close(out.hvt, wanted.hv, 0, 1e-12);
        require_close(out.zt, wanted.z, 0, 1e-12);
      }
    }
  });
}

TEST_CASE("ABC's oracle stays right where exp(s) alone would overflow", "[reference]") {
  const AbcShape p{1, 40, 1, 4, 3, 5, true, true, true};
  AbcInputs in = made(p, 12);
  const AbcOutputs small = forward(p, in);
  for (double& s : in.s) s += 5000;
  for (double& z : in.z0) z += 5000;
  const AbcOutputs large = forward(p, in);
  require_close(large.o, small.o, 0, 1e-9);
  require_close(large.hkt, small.hkt, 0, 1e-9);
  for (const double z : large.zt) REQUIRE(z > 4990);
}

TEST_CASE("ABC's reverse pass equals finite differences in every input", "[reference]") {
  for_state_sets([](bool hk0, bool hv0, bool z0) {
    const AbcShape p{1, 19, 2, 3, 4, 3, hk0, hv0, z0};
    const AbcInputs in = made(p, 21);
    INFO("states " << hk0 << hv0 << z0);
    check_gradients(p, in, cotangents(p, 22));
  });
}

TEST_CASE("ABC's reverse pass equals finite differences beside empty slots", "[reference]") {
  for_state_sets([](bool hk0, bool hv0, bool z0) {
    const AbcShape p{1, 9, 1, 2, 3, 2, hk0, hv0, z0};
    AbcInputs in = made(p, 23);
    empty_slots(p, &in);
    if (z0) in.z0[0] = kNever;
    INFO("states " << hk0 << hv0 << z0);
    check_gradients(p, in, cotangents(p, 24));
  });
}

TEST_CASE("ABC's reverse pass without derivatives by final states takes them as zero",
          "[reference]") {
  const AbcShape p{2, 17, 1, 3, 2, 4, true, true, true};
  const AbcInputs in = made(p, 25);
  AbcCotangents given = cotangents(p, 26), zeros = given;
  given.dhkt.clear();
  given.dhvt.clear();
  std::fill(zeros.dhkt.begin(), zeros.dhkt.end(), 0.0);
  std::fill(zeros.dhvt.begin(), zeros.dhvt.end(), 0.0);
  const AbcGradients a = backward(p, in, given), b = backward(p, in, zeros);
  REQUIRE(same(a.ds, b.ds));
  REQUIRE(same(a.dk, b.dk));
  REQUIRE(same(a.dz0, b.dz0));
  check_gradients(p, in, given);
}

TEST_CASE("ABC of a cut sequence, continued from hk, hv and z, is ABC of the whole",
          "[reference]") {
  const AbcShape whole{1, 50, 2, 6, 5, 4, true, true, true};
  const AbcInputs in = made(whole, 31);
  const AbcOutputs all = forward(whole, in);
  const std::int64_t cut = 23;
  AbcShape head = whole, tail = whole;
  head.T = cut;
  tail.T = whole.T - cut;
  const auto part = [&](const std::vector<double>& x, std::int64_t first, std::int64_t tokens) {
    const auto row = static_cast<std::int64_t>(x.size()) / whole.T;
    return std::vector<double>(x.begin() + first * row, x.begin() + (first + tokens) * row);
  };
  const auto tokens = [&](std::int64_t first, std::int64_t count) {
    AbcInputs out = in;
    for (auto member : {&AbcInputs::q, &AbcInputs::k, &AbcInputs::v, &AbcInputs::s})
      out.*member = part(in.*member, first, count);
    return out;
  };
  const AbcOutputs first = forward(head, tokens(0, cut));
  AbcInputs rest = tokens(cut, tail.T);
  rest.hk0 = first.hkt;
  rest.hv0 = first.hvt;
  rest.z0 = first.zt;
  const AbcOutputs second = forward(tail, rest);
  REQUIRE(same(second.hkt, all.hkt));
  REQUIRE(same(second.zt, all.zt));
  REQUIRE(same(second.o, part(all.o, cut, tail.T)));
}

TEST_CASE("ABC's oracle gives the same bits with any number of threads", "[reference]") {
  const AbcShape p{2, 20, 3, 4, 3, 5, true, true, true};
  const AbcInputs in = made(p, 41);
  const AbcCotangents given = cotangents(p, 42);
  REQUIRE(same(forward(p, in, 1).o, forward(p, in, 4).o));
  const AbcGradients one = backward(p, in, given, 1), four = backward(p, in, given, 4);
  REQUIRE(same(one.ds, four.ds));
  REQUIRE(same(one.dhk0, four.dhk0));
  for (std::size_t i = 0; i < one.ds.size(); ++i)
    REQUIRE(one.ds_terms[i] >= std::abs(one.ds[i]) * (1 - 1e-12));
}

TEST_CASE("ABC of no token passes states and their derivatives through", "[reference]") {
  const AbcShape p{1, 0, 2, 3, 2, 4, true, true, true};
  const AbcInputs in = made(p, 51);
  const AbcOutputs out = forward(p, in);
  REQUIRE(same(out.hkt, in.hk0));
  REQUIRE(same(out.zt, in.z0));
  const AbcCotangents given = cotangents(p, 52);
  REQUIRE(same(backward(p, in, given).dhv0, given.dhvt));
}

TEST_CASE("ABC's oracle refuses tensors of another size by name", "[reference]") {
  const AbcShape p{1, 4, 1, 3, 2, 4, false, true, false};
  const AbcInputs in = made(p, 61);
  AbcInputs wrong = in;
  wrong.hv0.pop_back();
  REQUIRE(abc_forward(p, wrong).status().message() == "hv0 has 7 elements; the shape needs 8");
  AbcShape bad = p;
  bad.M = 0;
  REQUIRE(abc_forward(bad, in).status().message() == "M is 0; it must be 1 to 4096");
  AbcCotangents given = cotangents(p, 62);
  given.dhkt.push_back(0);
  REQUIRE(abc_backward(p, in, given).status().message() ==
          "dhkt has 7 elements; the shape needs 6");
}
