#include "reference/abc.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <string>

#include "reference/parallel.hpp"

namespace scanjit::reference {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;
// The reverse pass keeps the states of so many tokens and rebuilds them from one in so many.
constexpr std::int64_t kKept = 16;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

Status check_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return Status();
  return invalid_argument(std::string(name) + " is " + std::to_string(value) + "; it must be " +
                          std::to_string(least) + " to " + std::to_string(most));
}

Status check_size(const char* name, std::size_t got, std::int64_t wanted) {
  if (got == at(wanted)) return Status();
  return invalid_argument(std::string(name) + " has " + std::to_string(got) +
                          " elements; the shape needs " + std::to_string(wanted));
}

Status check(const AbcShape& p, const AbcInputs& in) {
  SCANJIT_TRY(check_range("B", p.B, 0, 1 << 16));
  SCANJIT_TRY(check_range("T", p.T, 0, 1 << 24));
  SCANJIT_TRY(check_range("H", p.H, 1, 1 << 10));
  SCANJIT_TRY(check_range("K", p.K, 1, 1 << 12));
  SCANJIT_TRY(check_range("M", p.M, 1, 1 << 12));
  SCANJIT_TRY(check_range("V", p.V, 1, 1 << 12));
  const std::int64_t rows = p.B * p.T * p.H, heads = p.B * p.H;
  SCANJIT_TRY(check_range("B*T*H*max(K,M,V)", rows * std::max({p.K, p.M, p.V}), 0, kMostElements));
  SCANJIT_TRY(check_size("q", in.q.size(), rows * p.K));
  SCANJIT_TRY(check_size("k", in.k.size(), rows * p.K));
  SCANJIT_TRY(check_size("v", in.v.size(), rows * p.V));
  SCANJIT_TRY(check_size("s", in.s.size(), rows * p.M));
  SCANJIT_TRY(check_size("hk0", in.hk0.size(), p.has_hk0 ? heads * p.K * p.M : 0));
  SCANJIT_TRY(check_size("hv0", in.hv0.size(), p.has_hv0 ? heads * p.M * p.V : 0));
  SCANJIT_TRY(check_size("z0", in.z0.size(), p.has_z0 ? heads * p.M : 0));
  return Status();
}

/// State after a token.
struct State {
  std::vector<double> hk, hv, z;  // [K][M], [M][V], [M]
};

/// What a token's step computes beside the state.
struct Step {
  std::vector<double> p, d;  // [M]
  std::vector<double> score, a;
};

/// One batch row and head, token by token.
class Head {
 public:
  Head(const AbcShape& shape, const AbcInputs& inputs)
      : s_(shape), in_(inputs), scale_(1 / std::sqrt(static_cast<double>(shape.K))) {}

  void select(std::int64_t batch, std::int64_t head) {
    batch_ = batch;
    head_ = head;
  }
  [[nodiscard]] double scale() const { return scale_; }
  /// First element of token t's row of `width`.
  [[nodiscard]] std::int64_t row(std::int64_t t, std::int64_t width) const {
    return ((batch_ * s_.T + t) * s_.H + head_) * width;
  }
  /// First element of the head's state of `size`.
  [[nodiscard]] std::int64_t state(std::int64_t size) const {
    return (batch_ * s_.H + head_) * size;
  }

  void start(State* state) const {
    state->hk.assign(at(s_.K * s_.M), 0.0);
    state->hv.assign(at(s_.M * s_.V), 0.0);
    state->z.assign(at(s_.M), kNever);
    copy_in(in_.hk0, &state->hk);
    copy_in(in_.hv0, &state->hv);
    copy_in(in_.z0, &state->z);
  }

  /// Takes the state from after token t-1 to after token t.
  void advance(std::int64_t t, State* state, Step* step) const {
    const double* s = in_.s.data() + row(t, s_.M);
    step->p.resize(at(s_.M));
    step->d.resize(at(s_.M));
    for (std::size_t m = 0; m < at(s_.M); ++m) {
      const double before = state->z[m], most = std::max(before, s[m]);
      const double z = most == kNever
                           ? kNever
                           : most + std::log(std::exp(before - most) + std::exp(s[m] - most));
      const bool first = t == 0 && !s_.has_z0;
      step->p[m] = z == kNever ? 0 : std::exp(s[m] - z);
      step->d[m] = z == kNever || first ? 1 : std::exp(before - z);
      state->z[m] = z;
    }
    const double* k = in_.k.data() + row(t, s_.K);
    for (std::int64_t i = 0; i < s_.K; ++i) {
      double* hk = state->hk.data() + i * s_.M;
      for (std::size_t m = 0; m < at(s_.M); ++m) hk[m] = hk[m] * step->d[m] + k[i] * step->p[m];
    }
    const double* v = in_.v.data() + row(t, s_.V);
    for (std::int64_t m = 0; m < s_.M; ++m) {
      double* hv = state->hv.data() + m * s_.V;
      const double p = step->p[at(m)], d = step->d[at(m)];
      for (std::int64_t j = 0; j < s_.V; ++j) hv[j] = hv[j] * d + p * v[j];
    }
  }

  /// Scores and their softmax at token t, from the state after it.
  void attend(std::int64_t t, const State& state, Step* step) const {
    step->score.assign(at(s_.M), 0.0);
    step->a.resize(at(s_.M));
    const double* q = in_.q.data() + row(t, s_.K);
    for (std::int64_t i = 0; i < s_.K; ++i) {
      const double* hk = state.hk.data() + i * s_.M;
      for (std::size_t m = 0; m < at(s_.M); ++m) step->score[m] += q[i] * hk[m];
    }
    for (double& score : step->score) score *= scale_;
    const double most = *std::max_element(step->score.begin(), step->score.end());
    double sum = 0;
    for (std::size_t m = 0; m < at(s_.M); ++m) {
      step->a[m] = std::exp(step->score[m] - most);
      sum += step->a[m];
    }
    for (double& a : step->a) a /= sum;
  }

 private:
  void copy_in(const std::vector<double>& tensor, std::vector<double>* to) const {
    if (tensor.empty()) return;
    const auto size = static_cast<std::int64_t>(to->size());
    std::copy_n(tensor.begin() + state(size), size, to->begin());
  }

  const AbcShape& s_;
  const AbcInputs& in_;
  const double scale_;
  std::int64_t batch_ = 0, head_ = 0;
};

template <class Body>
Status for_heads(const AbcShape& s, int threads, const Body& body) {
  const std::int64_t tasks = s.B * s.H;
  return parallel_for(tasks, thread_count(threads, tasks),
                      [&](std::int64_t task, int) { body(task / s.H, task % s.H); });
}

Result<AbcOutputs> forward(const AbcShape& s, const AbcInputs& in, int threads) {
  SCANJIT_TRY(check(s, in));
  AbcOutputs out;
  out.o.resize(at(s.B * s.T * s.H * s.V));
  out.hkt.resize(at(s.B * s.H * s.K * s.M));
  out.hvt.resize(at(s.B * s.H * s.M * s.V));
  out.zt.resize(at(s.B * s.H * s.M));
  SCANJIT_TRY(for_heads(s, threads, [&](std::int64_t batch, std::int64_t which) {
    Head head(s, in);
    head.select(batch, which);
    State state;
    Step step;
    head.start(&state);
    for (std::int64_t t = 0; t < s.T; ++t) {
      head.advance(t, &state, &step);
      head.attend(t, state, &step);
      double* o = out.o.data() + head.row(t, s.V);
      for (std::int64_t m = 0; m < s.M; ++m) {
        const double* hv = state.hv.data() + m * s.V;
        for (std::int64_t j = 0; j < s.V; ++j) o[j] += step.a[at(m)] * hv[j];
      }
    }
    std::copy(state.hk.begin(), state.hk.end(), out.hkt.begin() + head.state(s.K * s.M));
    std::copy(state.hv.begin(), state.hv.end(), out.hvt.begin() + head.state(s.M * s.V));
    std::copy(state.z.begin(), state.z.end(), out.zt.begin() + head.state(s.M));
  }));
  return out;
}

/// The reverse pass of one batch row and head.
class Reverse {
 public:
  Reverse(const AbcShape& shape, const AbcInputs& inputs, const AbcCotangents& cotangents,
          AbcGradients* out)
      : s_(shape), in_(inputs), given_(cotangents), out_(*out), head_(shape, inputs) {}

  void run(std::int64_t batch, std::int64_t which) {
    head_.select(batch, which);
    // The states before every kKept-th token, then backwards from the last of them.
    std::vector<State> starts(1);
    head_.start(&starts.front());
    State state = starts.front();
    Step step;
    for (std::int64_t t = 0; t < s_.T; ++t) {
      if (t != 0 && t % kKept == 0) starts.push_back(state);
      head_.advance(t, &state, &step);
    }
    take(given_.dhkt, s_.K * s_.M, &dhk_);
    take(given_.dhvt, s_.M * s_.V, &dhv_);
    dz_.assign(at(s_.M), 0.0);
    dz_terms_.assign(at(s_.M), 0.0);
    for (std::int64_t first = (s_.T - 1) / kKept * kKept; s_.T > 0 && first >= 0; first -= kKept) {
      const std::int64_t tokens = std::min(kKept, s_.T - first);
      states_.assign(1, std::move(starts[at(first / kKept)]));
      steps_.resize(at(tokens));
      for (std::int64_t t = 0; t < tokens; ++t) {
        states_.push_back(states_.back());
        head_.advance(first + t, &states_.back(), &steps_[at(t)]);
        head_.attend(first + t, states_.back(), &steps_[at(t)]);
      }
      for (std::int64_t t = tokens - 1; t >= 0; --t)
        token(first + t, states_[at(t)], states_[at(t + 1)], steps_[at(t)]);
    }
    if (s_.has_hk0) give(dhk_, &out_.dhk0);
    if (s_.has_hv0) give(dhv_, &out_.dhv0);
    if (s_.has_z0) {
      give(dz_, &out_.dz0);
      give(dz_terms_, &out_.dz0_terms);
    }
  }

 private:
  void take(const std::vector<double>& given, std::int64_t size, std::vector<double>* to) const {
    to->assign(at(size), 0.0);
    if (!given.empty()) std::copy_n(given.begin() + head_.state(size), size, to->begin());
  }
  void give(const std::vector<double>& from, std::vector<double>* to) const {
    std::copy(from.begin(), from.end(),
              to->begin() + head_.state(static_cast<std::int64_t>(from.size())));
  }

  /// Takes the derivatives by the state after token t to those by the state before it.
  void token(std::int64_t t, const State& before, const State& after, const Step& step) {
    const auto M = at(s_.M);
    const double* dout = given_.dout.data() + head_.row(t, s_.V);
    // o = Hv^T a
    std::vector<double> da(M), dscore(M), dp(M), dd(M);
    for (std::size_t m = 0; m < M; ++m) {
      const double* hv = after.hv.data() + static_cast<std::int64_t>(m) * s_.V;
      double* dhv = dhv_.data() + static_cast<std::int64_t>(m) * s_.V;
      for (std::int64_t j = 0; j < s_.V; ++j) {
        da[m] += dout[j] * hv[j];
        dhv[j] += step.a[m] * dout[j];
      }
    }
    // a = softmax(score)
    double mean = 0;
    for (std::size_t m = 0; m < M; ++m) mean += step.a[m] * da[m];
    for (std::size_t m = 0; m < M; ++m) dscore[m] = step.a[m] * (da[m] - mean);
    // score = scale Hk^T q;  Hk = Hk_before Diag(d) + k p^T
    const double* q = in_.q.data() + head_.row(t, s_.K);
    const double* k = in_.k.data() + head_.row(t, s_.K);
    double* dq = out_.dq.data() + head_.row(t, s_.K);
    double* dk = out_.dk.data() + head_.row(t, s_.K);
    for (std::int64_t i = 0; i < s_.K; ++i) {
      const double* hk = after.hk.data() + i * s_.M;
      const double* hk_before = before.hk.data() + i * s_.M;
      double* dhk = dhk_.data() + i * s_.M;
      double sum_q = 0, sum_k = 0;
      for (std::size_t m = 0; m < M; ++m) {
        sum_q += hk[m] * dscore[m];
        dhk[m] += head_.scale() * q[i] * dscore[m];
        sum_k += dhk[m] * step.p[m];
        dp[m] += dhk[m] * k[i];
        dd[m] += dhk[m] * hk_before[m];
        dhk[m] *= step.d[m];
      }
      dq[i] = head_.scale() * sum_q;
      dk[i] = sum_k;
    }
    // Hv = Diag(d) Hv_before + p v^T
    const double* v = in_.v.data() + head_.row(t, s_.V);
    double* dv = out_.dv.data() + head_.row(t, s_.V);
    for (std::size_t m = 0; m < M; ++m) {
      const double* hv_before = before.hv.data() + static_cast<std::int64_t>(m) * s_.V;
      double* dhv = dhv_.data() + static_cast<std::int64_t>(m) * s_.V;
      double sum_p = 0, sum_d = 0;
      for (std::int64_t j = 0; j < s_.V; ++j) {
        dv[j] += dhv[j] * step.p[m];
        sum_p += dhv[j] * v[j];
        sum_d += dhv[j] * hv_before[j];
        dhv[j] *= step.d[m];
      }
      dp[m] += sum_p;
      dd[m] += sum_d;
    }
    // p = exp(s - z);  d = exp(z_before - z), a constant where it is 1 by rule;  z = logsumexp(..)
    double* ds = out_.ds.data() + head_.row(t, s_.M);
    double* ds_terms = out_.ds_terms.data() + head_.row(t, s_.M);
    const bool first = t == 0 && !s_.has_z0;
    for (std::size_t m = 0; m < M; ++m) {
      const double by_p = dp[m] * step.p[m];
      if (after.z[m] == kNever) {
        dz_[m] = dz_terms_[m] = 0;
        continue;
      }
      const double by_d = first ? 0 : dd[m] * step.d[m];
      const double by_z = dz_[m] - by_p - by_d;
      ds[m] = by_p + by_z * step.p[m];
      ds_terms[m] = std::abs(by_p) + std::abs(by_z * step.p[m]);
      dz_terms_[m] = std::abs(by_d) + std::abs(by_z * step.d[m]);
      dz_[m] = first ? 0 : by_d + by_z * step.d[m];
    }
  }

  const AbcShape& s_;
  const AbcInputs& in_;
  const AbcCotangents& given_;
  AbcGradients& out_;
  Head head_;
  std::vector<State> states_;
  std::vector<Step> steps_;
  std::vector<double> dhk_, dhv_, dz_, dz_terms_;
};

Result<AbcGradients> backward(const AbcShape& s, const AbcInputs& in, const AbcCotangents& given,
                              int threads) {
  SCANJIT_TRY(check(s, in));
  SCANJIT_TRY(check_size("dout", given.dout.size(), s.B * s.T * s.H * s.V));
  if (!given.dhkt.empty())
    SCANJIT_TRY(check_size("dhkt", given.dhkt.size(), s.B * s.H * s.K * s.M));
  if (!given.dhvt.empty())
    SCANJIT_TRY(check_size("dhvt", given.dhvt.size(), s.B * s.H * s.M * s.V));
  AbcGradients out;
  out.dq.resize(in.q.size());
  out.dk.resize(in.k.size());
  out.dv.resize(in.v.size());
  out.ds.resize(in.s.size());
  out.dhk0.resize(in.hk0.size());
  out.dhv0.resize(in.hv0.size());
  out.dz0.resize(in.z0.size());
  out.ds_terms.resize(in.s.size());
  out.dz0_terms.resize(in.z0.size());
  SCANJIT_TRY(for_heads(s, threads, [&](std::int64_t batch, std::int64_t head) {
    Reverse(s, in, given, &out).run(batch, head);
  }));
  return out;
}

}  // namespace

Result<AbcOutputs> abc_forward(const AbcShape& shape, const AbcInputs& inputs, int threads) {
  try {
    return forward(shape, inputs, threads);
  } catch (const std::exception&) {  // bad_alloc, or length_error from a vector
    return Status(ErrorCode::kOutOfMemory, "no memory for the outputs of the reference");
  }
}

Result<AbcGradients> abc_backward(const AbcShape& shape, const AbcInputs& inputs,
                                  const AbcCotangents& cotangents, int threads) {
  try {
    return backward(shape, inputs, cotangents, threads);
  } catch (const std::exception&) {  // bad_alloc, or length_error from a vector
    return Status(ErrorCode::kOutOfMemory, "no memory for the gradients of the reference");
  }
}

}  // namespace scanjit::reference
