#include "reference/kda_forward.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "reference/half.hpp"
#include "reference/parallel.hpp"
#include "scanjit/types.hpp"

namespace scanjit::reference {
namespace {

constexpr std::int64_t kChunk = 64;
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

Status check_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return Status();
  return invalid_argument(std::string(name) + " is " + std::to_string(value) + "; it must be " +
                          std::to_string(least) + " to " + std::to_string(most));
}

Status check_size(const char* name, std::size_t got, std::int64_t wanted, bool optional) {
  if (got == at(wanted) || (optional && got == 0)) return Status();
  return invalid_argument(std::string(name) + " has " + std::to_string(got) +
                          " elements; the shape needs " + std::to_string(wanted));
}

std::int64_t total(const std::vector<std::int64_t>& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += length;
  return sum;
}

}  // namespace

Status check_kda_shape(const KdaInputs& in) {
  SCANJIT_TRY(check_range("H", in.H, 1, 1 << 20));
  SCANJIT_TRY(check_range("HV", in.HV, 1, 1 << 20));
  SCANJIT_TRY(check_range("K", in.K, 1, 1 << 12));
  SCANJIT_TRY(check_range("V", in.V, 1, 1 << 12));
  if (in.HV % in.H != 0) {
    return invalid_argument("HV is " + std::to_string(in.HV) + "; it must be a multiple of H, " +
                            std::to_string(in.H));
  }
  std::int64_t tokens = 0;
  for (const std::int64_t length : in.lengths) {
    SCANJIT_TRY(check_range("a length", length, 0, kMostElements));
    tokens += length;
    SCANJIT_TRY(check_range("the sum of the lengths", tokens, 0, kMostElements));
  }
  const std::int64_t row = in.HV * std::max(in.K, in.V);
  if (tokens > kMostElements / row) {
    return invalid_argument("the lengths add up to " + std::to_string(tokens) + " tokens of " +
                            std::to_string(row) + " elements, more than the reference takes");
  }
  return Status();
}

namespace {

Status check(const KdaInputs& in) {
  SCANJIT_TRY(check_kda_shape(in));
  const std::int64_t tokens = total(in.lengths), N = static_cast<std::int64_t>(in.lengths.size());
  const bool scalar = in.gate == KdaGate::kScalar;
  SCANJIT_TRY(check_size("q", in.q.size(), tokens * in.H * in.K, false));
  SCANJIT_TRY(check_size("k", in.k.size(), tokens * in.H * in.K, false));
  SCANJIT_TRY(check_size("v", in.v.size(), tokens * in.HV * in.V, false));
  SCANJIT_TRY(check_size("g", in.g.size(), tokens * in.HV * (scalar ? 1 : in.K), false));
  SCANJIT_TRY(check_size("beta", in.beta.size(), tokens * in.HV, false));
  SCANJIT_TRY(check_size("A_log", in.A_log.size(), in.HV, true));
  SCANJIT_TRY(check_size("dt_bias", in.dt_bias.size(), in.HV * in.K, true));
  return check_size("h0", in.h0.size(), N * in.HV * in.K * in.V, true);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// What the definition reads of a token, in f64.
class Tokens {
 public:
  explicit Tokens(const KdaInputs& in)
      : in_(in), scale_(in.scale != 0 ? in.scale : 1 / std::sqrt(static_cast<double>(in.K))) {}

  /// Row of q (times scale) or k of a value head's key head.
  void query(std::int64_t token, std::int64_t head, double* row) const {
    key_row(in_.q, token, head, scale_, row);
  }
  void key(std::int64_t token, std::int64_t head, double* row) const {
    key_row(in_.k, token, head, 1, row);
  }
  double value(std::int64_t token, std::int64_t head, std::int64_t column) const {
    return static_cast<double>(bf16_to_float(in_.v[at((token * in_.HV + head) * in_.V + column)]));
  }
  double beta(std::int64_t token, std::int64_t head) const {
    const auto stored = static_cast<double>(in_.beta[at(token * in_.HV + head)]);
    return in_.beta_sigmoid ? sigmoid(stored) : stored;
  }
  /// exp(a) of every key column.
  void decay(std::int64_t token, std::int64_t head, double* factor) const {
    const std::int64_t row = token * in_.HV + head;
    if (in_.gate == KdaGate::kScalar) {
      std::fill_n(factor, in_.K, std::exp(std::max(-60.0, static_cast<double>(in_.g[at(row)]))));
      return;
    }
    const double rate = in_.A_log.empty() ? 1 : std::exp(static_cast<double>(in_.A_log[at(head)]));
    for (std::int64_t i = 0; i < in_.K; ++i) {
      const auto g = static_cast<double>(in_.g[at(row * in_.K + i)]);
      const double x =
          g + (in_.dt_bias.empty() ? 0 : static_cast<double>(in_.dt_bias[at(head * in_.K + i)]));
      double a = g;
      if (in_.gate == KdaGate::kBounded) a = in_.lower_bound * sigmoid(rate * x);
      if (in_.gate == KdaGate::kSoftplus)
        a = -rate * (x > 30 ? x + std::exp(-x) : std::log1p(std::exp(x)));
      factor[i] = std::exp(std::max(-60.0, a));
    }
  }

 private:
  void key_row(const std::vector<std::uint16_t>& tensor, std::int64_t token, std::int64_t head,
               double factor, double* row) const {
    const std::int64_t key_head = head / (in_.HV / in_.H);
    double squares = 1e-6;
    for (std::int64_t i = 0; i < in_.K; ++i) {
      row[i] =
          static_cast<double>(bf16_to_float(tensor[at((token * in_.H + key_head) * in_.K + i)]));
      squares += row[i] * row[i];
    }
    if (in_.normalize_qk) factor /= std::sqrt(squares);
    for (std::int64_t i = 0; i < in_.K; ++i) row[i] *= factor;
  }

  const KdaInputs& in_;
  const double scale_;
};

std::vector<std::int64_t> first_tokens(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> first{0};
  for (const std::int64_t length : lengths) first.push_back(first.back() + length);
  return first;
}

void load_h0(const KdaInputs& in, std::int64_t n, std::int64_t head, std::int64_t column,
             std::int64_t columns, std::int64_t pitch, std::vector<double>* state) {
  std::fill(state->begin(), state->end(), 0.0);
  if (in.h0.empty()) return;
  for (std::int64_t i = 0; i < in.K; ++i) {
    for (std::int64_t c = 0; c < columns; ++c) {
      (*state)[at(i * pitch + c)] =
          static_cast<double>(in.h0[at(((n * in.HV + head) * in.K + i) * in.V + column + c)]);
    }
  }
}

// --- token by token ------------------------------------------------------------------------------

constexpr std::int64_t kColumns = 64;  // value columns that one task owns

class Recurrence {
 public:
  Recurrence(const KdaInputs& in, const std::vector<KdaCheckpoint>& checkpoints, KdaOutputs* out)
      : in_(in),
        tokens_(in),
        checkpoints_(checkpoints),
        out_(*out),
        state_(at(in.K * kColumns)),
        key_(at(in.K)),
        query_(at(in.K)),
        decay_(at(in.K)) {}

  void run(std::int64_t n, std::int64_t first, std::int64_t head, std::int64_t column) {
    const std::int64_t columns = std::min(kColumns, in_.V - column);
    load_h0(in_, n, head, column, columns, kColumns, &state_);
    for (std::int64_t t = 0; t < in_.lengths[at(n)]; ++t) {
      checkpoint(n, t, head, column, columns);
      step(first + t, head, column, columns);
    }
    checkpoint(n, in_.lengths[at(n)], head, column, columns);
    store(out_.ht, n, head, column, columns);
  }

 private:
  void step(std::int64_t token, std::int64_t head, std::int64_t column, std::int64_t columns) {
    tokens_.key(token, head, key_.data());
    tokens_.query(token, head, query_.data());
    tokens_.decay(token, head, decay_.data());
    double sum[kColumns] = {};
    for (std::int64_t i = 0; i < in_.K; ++i) {
      double* row = state_.data() + i * kColumns;
      for (std::int64_t c = 0; c < kColumns; ++c) {
        row[c] *= decay_[at(i)];
        sum[c] += key_[at(i)] * row[c];
      }
    }
    const double beta = tokens_.beta(token, head);
    for (std::int64_t c = 0; c < kColumns; ++c) {
      const double value = c < columns ? tokens_.value(token, head, column + c) : 0;
      sum[c] = beta * (value - sum[c]);
    }
    double o[kColumns] = {};
    for (std::int64_t i = 0; i < in_.K; ++i) {
      double* row = state_.data() + i * kColumns;
      for (std::int64_t c = 0; c < kColumns; ++c) {
        row[c] += key_[at(i)] * sum[c];
        o[c] += query_[at(i)] * row[c];
      }
    }
    for (std::int64_t c = 0; c < columns; ++c)
      out_.o[at((token * in_.HV + head) * in_.V + column + c)] = o[c];
  }

  void checkpoint(std::int64_t n, std::int64_t tokens, std::int64_t head, std::int64_t column,
                  std::int64_t columns) {
    for (std::size_t i = 0; i < checkpoints_.size(); ++i) {
      if (checkpoints_[i].sequence == n && checkpoints_[i].tokens == tokens)
        store(out_.checkpoints, static_cast<std::int64_t>(i), head, column, columns);
    }
  }

  void store(std::vector<double>& states, std::int64_t slot, std::int64_t head, std::int64_t column,
             std::int64_t columns) {
    for (std::int64_t i = 0; i < in_.K; ++i) {
      for (std::int64_t c = 0; c < columns; ++c) {
        states[at(((slot * in_.HV + head) * in_.K + i) * in_.V + column + c)] =
            state_[at(i * kColumns + c)];
      }
    }
  }

  const KdaInputs& in_;
  const Tokens tokens_;
  const std::vector<KdaCheckpoint>& checkpoints_;
  KdaOutputs& out_;
  std::vector<double> state_;  // [K][kColumns]
  std::vector<double> key_, query_, decay_;
};

Result<KdaOutputs> recur(const KdaInputs& in, const std::vector<KdaCheckpoint>& checkpoints,
                         int requested) {
  SCANJIT_TRY(check(in));
  const auto N = static_cast<std::int64_t>(in.lengths.size());
  for (const KdaCheckpoint& c : checkpoints) {
    SCANJIT_TRY(check_range("a checkpoint's sequence", c.sequence, 0, N - 1));
    SCANJIT_TRY(check_range("a checkpoint's tokens", c.tokens, 0, in.lengths[at(c.sequence)]));
  }
  const std::int64_t states = in.HV * in.K * in.V;
  KdaOutputs out;
  out.o.resize(at(total(in.lengths) * in.HV * in.V));
  out.ht.resize(at(N * states));
  out.checkpoints.resize(checkpoints.size() * at(states));
  const std::vector<std::int64_t> first = first_tokens(in.lengths);
  const std::int64_t slices = (in.V + kColumns - 1) / kColumns, tasks = N * in.HV * slices;
  const int threads = thread_count(requested, tasks);
  std::vector<Recurrence> workers;
  workers.reserve(at(threads));
  for (int i = 0; i < threads; ++i) workers.emplace_back(in, checkpoints, &out);
  SCANJIT_TRY(parallel_for(tasks, threads, [&](std::int64_t task, int worker) {
    const std::int64_t n = task / slices / in.HV;
    workers[at(worker)].run(n, first[at(n)], task / slices % in.HV, task % slices * kColumns);
  }));
  return out;
}

// --- chunk by chunk ------------------------------------------------------------------------------

/// Row-major, rows x columns.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;

  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), values(at(r * c)) {}
  double* row(std::int64_t r) { return values.data() + r * columns; }
  [[nodiscard]] const double* row(std::int64_t r) const { return values.data() + r * columns; }
};

/// out += sign * a b.
void add_product(const Matrix& a, const Matrix& b, double sign, Matrix* out) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    double* to = out->row(r);
    for (std::int64_t i = 0; i < a.columns; ++i) {
      const double factor = sign * a.row(r)[i];
      const double* from = b.row(i);
      for (std::int64_t c = 0; c < b.columns; ++c) to[c] += factor * from[c];
    }
  }
}
/// out += a^T b.
void add_transposed_product(const Matrix& a, const Matrix& b, Matrix* out) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const double* from = b.row(r);
    for (std::int64_t i = 0; i < a.columns; ++i) {
      double* to = out->row(i);
      for (std::int64_t c = 0; c < b.columns; ++c) to[c] += a.row(r)[i] * from[c];
    }
  }
}

void round_bf16(Matrix* m) {
  for (double& x : m->values) x = round_to(DType::kBf16, x);
}
void round_f32(Matrix* m) {
  for (double& x : m->values) x = static_cast<double>(static_cast<float>(x));
}

/// A chunk, independent of the state.
struct ChunkFactors {
  Matrix w, kg, qg, u, scores;
  std::vector<double> decay;  // [K], of the whole chunk
  ChunkFactors(std::int64_t K, std::int64_t V)
      : w(kChunk, K),
        kg(kChunk, K),
        qg(kChunk, K),
        u(kChunk, V),
        scores(kChunk, kChunk),
        decay(at(K)) {}
};

class ChunkedForm {
 public:
  ChunkedForm(const KdaInputs& in, const KdaChunkedOptions& options, KdaOutputs* out)
      : in_(in),
        options_(options),
        tokens_(in),
        out_(*out),
        factors_(in.K, in.V),
        key_(kChunk, in.K),
        query_(kChunk, in.K),
        factor_(kChunk, in.K),
        row_(at(in.K)) {}

  void run(std::int64_t n, std::int64_t first, std::int64_t head) {
    first_ = first;
    length_ = in_.lengths[at(n)];
    head_ = head;
    const std::int64_t chunks = (length_ + kChunk - 1) / kChunk;
    const std::int64_t L =
        options_.segment_chunks > 0 ? options_.segment_chunks : std::max<std::int64_t>(chunks, 1);
    Matrix start(in_.K, in_.V);
    load_h0(in_, n, head, 0, in_.V, in_.V, &start.values);
    bool zero = in_.h0.empty();
    Matrix state = start;
    for (std::int64_t chunk = 0; chunk < chunks || chunk == 0; chunk += L) {
      const std::int64_t end = std::min(chunk + L, chunks);
      state = start;
      for (std::int64_t c = chunk; c < end; ++c) advance(c, true, &state);
      if (end < chunks) start = hand_on(chunk, end, start, zero);
      zero = false;
    }
    std::copy(state.values.begin(), state.values.end(),
              out_.ht.begin() + (n * in_.HV + head) * in_.K * in_.V);
  }

 private:
  /// The state at the end of chunks [begin, end), from the one at their start: M start + b.
  Matrix hand_on(std::int64_t begin, std::int64_t end, const Matrix& start, bool zero) {
    Matrix b(in_.K, in_.V);
    for (std::int64_t c = begin; c < end; ++c) advance(c, false, &b);
    if (zero || options_.mistake == KdaMistake::kTransitionZero) return b;
    Matrix M(in_.K, in_.K);
    for (std::int64_t i = 0; i < in_.K; ++i) M.row(i)[i] = 1;
    const bool reversed = options_.mistake == KdaMistake::kTransitionWrongSide;
    for (std::int64_t c = begin; c < end; ++c) {
      prepare(reversed ? begin + end - 1 - c : c);
      apply(&M, Columns::kTransition);
      if (options_.mistake == KdaMistake::kTransitionRounded) round_bf16(&M);
    }
    add_product(M, start, 1, &b);
    if (options_.rounding) round_f32(&b);
    return b;
  }

  void advance(std::int64_t chunk, bool output, Matrix* state) {
    prepare(chunk);
    apply(state, output ? Columns::kOutput : Columns::kValues);
    if (options_.mistake == KdaMistake::kStateRounded) round_bf16(state);
  }

  /// What the columns of the state are: values whose output is wanted, values, or M's, without u.
  enum class Columns { kOutput, kValues, kTransition };
  void apply(Matrix* state, Columns columns) {
    Matrix operand = *state;
    if (options_.rounding) round_bf16(&operand);
    Matrix values(kChunk, state->columns);
    if (columns != Columns::kTransition) values = factors_.u;
    add_product(factors_.w, operand, -1, &values);
    if (options_.rounding) round_bf16(&values);
    if (columns == Columns::kOutput) {
      Matrix o(kChunk, in_.V);
      add_product(factors_.qg, operand, 1, &o);
      add_product(factors_.scores, values, 1, &o);
      if (options_.rounding) round_bf16(&o);
      for (std::int64_t r = 0; r < rows_; ++r) {
        std::copy_n(o.row(r), in_.V, out_.o.begin() + ((token_ + r) * in_.HV + head_) * in_.V);
      }
    }
    for (std::int64_t i = 0; i < in_.K; ++i) {
      for (std::int64_t c = 0; c < state->columns; ++c) state->row(i)[c] *= factors_.decay[at(i)];
    }
    add_transposed_product(factors_.kg, values, state);
    if (options_.rounding) round_f32(state);
  }

  /// factors_ of a chunk. Rows past the sequence's end are zero.
  void prepare(std::int64_t chunk) {
    token_ = first_ + chunk * kChunk;
    rows_ = std::min(kChunk, length_ - chunk * kChunk);
    ChunkFactors& f = factors_;
    for (Matrix* m : {&f.w, &f.kg, &f.qg, &f.u, &f.scores, &key_, &query_, &factor_})
      std::fill(m->values.begin(), m->values.end(), 0.0);
    for (std::int64_t r = 0; r < rows_; ++r) {
      tokens_.key(token_ + r, head_, key_.row(r));
      tokens_.query(token_ + r, head_, query_.row(r));
      tokens_.decay(token_ + r, head_, factor_.row(r));
    }
    Matrix A(kChunk, kChunk);
    // k_j decays token by token: no exponent of a difference can overflow.
    for (std::int64_t j = 0; j < rows_; ++j) {
      std::copy_n(key_.row(j), in_.K, row_.data());
      for (std::int64_t i = j; i < rows_; ++i) {
        double kk = 0, qk = 0;
        for (std::int64_t c = 0; c < in_.K; ++c) {
          if (i > j) row_[at(c)] *= factor_.row(i)[c];
          kk += key_.row(i)[c] * row_[at(c)];
          qk += query_.row(i)[c] * row_[at(c)];
        }
        if (i > j) A.row(i)[j] = tokens_.beta(token_ + i, head_) * kk;
        f.scores.row(i)[j] = qk;
      }
      std::copy_n(row_.data(), in_.K, f.kg.row(j));
    }
    std::fill(f.decay.begin(), f.decay.end(), 1.0);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const double beta = tokens_.beta(token_ + r, head_);
      for (std::int64_t c = 0; c < in_.K; ++c) {
        f.decay[at(c)] *= factor_.row(r)[c];
        f.qg.row(r)[c] = query_.row(r)[c] * f.decay[at(c)];
        f.w.row(r)[c] = beta * key_.row(r)[c] * f.decay[at(c)];
      }
      for (std::int64_t c = 0; c < in_.V; ++c)
        f.u.row(r)[c] = beta * tokens_.value(token_ + r, head_, c);
      for (std::int64_t j = 0; j < r; ++j) {
        for (std::int64_t c = 0; c < in_.K; ++c) f.w.row(r)[c] -= A.row(r)[j] * f.w.row(j)[c];
        for (std::int64_t c = 0; c < in_.V; ++c) f.u.row(r)[c] -= A.row(r)[j] * f.u.row(j)[c];
      }
    }
    if (!options_.rounding) return;
    for (Matrix* m : {&f.w, &f.kg, &f.qg, &f.u, &f.scores}) round_bf16(m);
  }

  const KdaInputs& in_;
  const KdaChunkedOptions& options_;
  const Tokens tokens_;
  KdaOutputs& out_;
  ChunkFactors factors_;
  Matrix key_, query_, factor_;  // rows of the chunk
  std::vector<double> row_;
  std::int64_t first_ = 0, length_ = 0, head_ = 0;  // of the sequence
  std::int64_t token_ = 0, rows_ = 0;               // of the chunk in factors_
};

Result<KdaOutputs> chunked(const KdaInputs& in, const KdaChunkedOptions& options) {
  SCANJIT_TRY(check(in));
  SCANJIT_TRY(check_range("segment_chunks", options.segment_chunks, 0, kMostElements));
  const auto N = static_cast<std::int64_t>(in.lengths.size());
  KdaOutputs out;
  out.o.resize(at(total(in.lengths) * in.HV * in.V));
  out.ht.resize(at(N * in.HV * in.K * in.V));
  const std::vector<std::int64_t> first = first_tokens(in.lengths);
  const int threads = thread_count(options.threads, N * in.HV);
  std::vector<ChunkedForm> workers;
  workers.reserve(at(threads));
  for (int i = 0; i < threads; ++i) workers.emplace_back(in, options, &out);
  SCANJIT_TRY(parallel_for(N * in.HV, threads, [&](std::int64_t task, int worker) {
    workers[at(worker)].run(task / in.HV, first[at(task / in.HV)], task % in.HV);
  }));
  return out;
}

}  // namespace

Result<KdaOutputs> kda_forward(const KdaInputs& inputs,
                               const std::vector<KdaCheckpoint>& checkpoints, int threads) {
  try {
    return recur(inputs, checkpoints, threads);
  } catch (const std::exception&) {  // bad_alloc, or length_error from a vector
    return Status(ErrorCode::kOutOfMemory, "no memory for the outputs of the reference");
  }
}

Result<KdaOutputs> kda_forward_chunked(const KdaInputs& inputs, const KdaChunkedOptions& options) {
  try {
    return chunked(inputs, options);
  } catch (const std::exception&) {
    return Status(ErrorCode::kOutOfMemory, "no memory for the outputs of the reference");
  }
}

}  // namespace scanjit::reference
