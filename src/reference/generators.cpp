#include "reference/generators.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "reference/half.hpp"
#include "reference/parallel.hpp"
#include "reference/random.hpp"

namespace scanjit::reference {
namespace {

// One stream of random numbers per tensor. The numbers are part of what a seed means: never change
// one.
enum Stream : std::uint64_t {
  kKeyStream = 1,
  kBetaStream = 2,
  kValueStream = 3,
  kGateStream = 4,
  kKeyGateStream = 5,
  kH0Stream = 6,
  kWStream = 7,
  kH0SlotStream = 8,
  kHtSlotStream = 9,
};

constexpr double kLn2 = 0.693147180559945309417;

/// A chunk of tokens; all of a problem's tokens that belong to sequences are in exactly one.
struct Chunk {
  std::int64_t token = 0, rows = 0;
};

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// Fills one (chunk, value head) of every token tensor.
class ChunkGenerator {
 public:
  ChunkGenerator(const GatedDeltaHSizes& sizes, const GeneratorOptions& options,
                 GatedDeltaHInputs* out)
      : p_(out->problem),
        s_(sizes),
        options_(options),
        out_(*out),
        group_(p_.HV / p_.H),
        key_(at(p_.BT * p_.K)),
        grown_(at(p_.BT * p_.K)),
        shrunk_(at(p_.BT * p_.K)),
        exponent_(at(p_.BT * p_.K)),
        beta_(at(p_.BT)),
        w_(at(p_.BT * p_.K)),
        u_(at(p_.BT * p_.V)) {}

  void run(const Chunk& chunk, std::int64_t head) {
    chunk_ = chunk;
    head_ = head;
    key_head_ = head / group_;
    unit_rows(kKeyStream, key_head_, p_.H, &key_);
    gates();
    for (std::int64_t r = 0; r < chunk_.rows; ++r) {
      const std::int64_t row = (chunk_.token + r) * p_.HV + head_;
      beta_[at(r)] = random_uniform(options_.seed, kBetaStream, element(row));
      for (std::int64_t j = 0; j < p_.V; ++j) {
        u_[at(r * p_.V + j)] = random_normal(options_.seed, kValueStream, element(row * p_.V + j));
      }
    }
    if (options_.kind == InputKind::kIndependent) {
      unit_rows(kWStream, head_, p_.HV, &w_);
    } else {
      solve();
    }
    store();
  }

 private:
  static std::uint64_t element(std::int64_t index) { return static_cast<std::uint64_t>(index); }

  /// Unit rows of `head` of `heads`, drawn by token, so that packing and chunk length do not
  /// matter.
  void unit_rows(Stream stream, std::int64_t head, std::int64_t heads,
                 std::vector<double>* rows) const {
    for (std::int64_t r = 0; r < chunk_.rows; ++r) {
      double* row = rows->data() + r * p_.K;
      double square = 0;
      for (std::int64_t i = 0; i < p_.K; ++i) {
        row[i] = random_normal(options_.seed, stream,
                               element(((chunk_.token + r) * heads + head) * p_.K + i));
        square += row[i] * row[i];
      }
      const double scale = square > 0 ? 1 / std::sqrt(square) : 0;
      for (std::int64_t i = 0; i < p_.K; ++i) row[i] *= scale;
    }
  }

  /// The gate of one token, in log2 units.
  double step(Stream stream, std::int64_t index) const {
    if (options_.gates == GateSet::kNone) return 0;
    const double range = options_.gates == GateSet::kStrong ? 0.1 : 0x1p-10;
    return -range * random_uniform(options_.seed, stream, element(index));
  }
  /// As stored, in the problem's base; and back, so that the equations see what the kernel sees.
  float stored_gate(double log2_gate) const {
    return static_cast<float>(p_.gate_base == GateBase::kTwo ? log2_gate : log2_gate * kLn2);
  }
  double log2_of(float gate) const {
    return p_.gate_base == GateBase::kTwo ? static_cast<double>(gate)
                                          : static_cast<double>(gate) / kLn2;
  }

  /// Cumulative gates of the chunk to g and gk, and their sum e to exponent_.
  void gates() {
    std::fill(exponent_.begin(), exponent_.end(), 0.0);
    double sum = 0;
    for (std::int64_t r = 0; p_.has_g && r < chunk_.rows; ++r) {
      const std::int64_t token = chunk_.token + r;
      sum += step(kGateStream, token * p_.HV + head_);
      const float gate = stored_gate(sum);
      out_.g[at(token * s_.g_stride + head_)] = gate;
      for (std::int64_t i = 0; i < p_.K; ++i) exponent_[at(r * p_.K + i)] = log2_of(gate);
    }
    for (std::int64_t i = 0; p_.has_gk && i < p_.K; ++i) {
      sum = 0;
      for (std::int64_t r = 0; r < chunk_.rows; ++r) {
        const std::int64_t token = chunk_.token + r;
        sum += step(kKeyGateStream, (token * p_.H + key_head_) * p_.K + i);
        const float gate = stored_gate(sum);
        out_.gk[at(token * s_.gk_stride + head_ * p_.K + i)] = gate;
        exponent_[at(r * p_.K + i)] += log2_of(gate);
      }
    }
  }

  /// (I + A) u = beta v and (I + A) w = beta k 2^e, row by row. Inside a chunk the gates are small
  /// enough to write 2^(e_i - e_j) as 2^e_i * 2^-e_j in f64.
  void solve() {
    for (std::int64_t x = 0; x < chunk_.rows * p_.K; ++x) {
      const double factor = exponent_[at(x)] == 0 ? 1 : exact_exp2(exponent_[at(x)]);
      grown_[at(x)] = key_[at(x)] * factor;
      shrunk_[at(x)] = key_[at(x)] / factor;
    }
    for (std::int64_t r = 0; r < chunk_.rows; ++r) {
      const double beta = beta_[at(r)];
      double* u_row = u_.data() + r * p_.V;
      double* w_row = w_.data() + r * p_.K;
      const double* grown_row = grown_.data() + r * p_.K;
      for (std::int64_t j = 0; j < p_.V; ++j) u_row[j] *= beta;
      for (std::int64_t i = 0; i < p_.K; ++i) w_row[i] = beta * grown_row[i];
      for (std::int64_t q = 0; q < r; ++q) {
        double dot = 0;
        for (std::int64_t i = 0; i < p_.K; ++i) dot += grown_row[i] * shrunk_[at(q * p_.K + i)];
        const double a = beta * dot;
        for (std::int64_t j = 0; j < p_.V; ++j) u_row[j] -= a * u_[at(q * p_.V + j)];
        for (std::int64_t i = 0; i < p_.K; ++i) w_row[i] -= a * w_[at(q * p_.K + i)];
      }
    }
  }

  void store() {
    for (std::int64_t r = 0; r < chunk_.rows; ++r) {
      const std::int64_t token = chunk_.token + r;
      for (std::int64_t i = 0; i < p_.K; ++i) {
        out_.w[at(token * s_.w_stride + head_ * p_.K + i)] =
            double_to_half(p_.dtype, w_[at(r * p_.K + i)]);
      }
      for (std::int64_t j = 0; j < p_.V; ++j) {
        out_.u[at(token * s_.u_stride + head_ * p_.V + j)] =
            double_to_half(p_.dtype, u_[at(r * p_.V + j)]);
      }
      if (head_ % group_ != 0) continue;  // one value head of each group stores the group's key
      for (std::int64_t i = 0; i < p_.K; ++i) {
        double key = key_[at(r * p_.K + i)];
        if (p_.has_gk && options_.kind == InputKind::kWy) {
          const std::int64_t column = head_ * p_.K + i;
          const double last =
              log2_of(out_.gk[at((chunk_.token + chunk_.rows - 1) * s_.gk_stride + column)]);
          key *= exact_exp2(last - log2_of(out_.gk[at(token * s_.gk_stride + column)]));
        }
        out_.k[at(token * s_.k_stride + key_head_ * p_.K + i)] = double_to_half(p_.dtype, key);
      }
    }
  }

  const GatedDeltaHProblem& p_;
  const GatedDeltaHSizes& s_;
  const GeneratorOptions& options_;
  GatedDeltaHInputs& out_;
  const std::int64_t group_;                             // value heads of a key head
  std::vector<double> key_, grown_, shrunk_, exponent_;  // [BT][K]: k, k 2^e, k 2^-e, e
  std::vector<double> beta_, w_, u_;                     // [BT], [BT][K], [BT][V]
  Chunk chunk_;
  std::int64_t head_ = 0, key_head_ = 0;
};

Status check_count(const char* name, std::size_t got, std::int64_t wanted) {
  if (got == static_cast<std::size_t>(wanted)) return Status();
  return invalid_argument(std::string(name) + " has " + std::to_string(got) +
                          " values; the problem needs " + std::to_string(wanted));
}

Result<std::vector<std::int64_t>> cut(const GatedDeltaHProblem& p, const GatedDeltaHSizes& s,
                                      const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> cu(at(s.N + 1), 0);
  if (!lengths.empty()) SCANJIT_TRY(check_count("lengths", lengths.size(), s.N));
  for (std::int64_t n = 0; n < s.N; ++n) {
    const std::int64_t length =
        lengths.empty() ? p.T / s.N + (n < p.T % s.N ? 1 : 0) : lengths[at(n)];
    if (length < 0 || length > p.T - cu[at(n)]) {
      return invalid_argument("lengths[" + std::to_string(n) + "] is " + std::to_string(length) +
                              "; it must be 0 to " + std::to_string(p.T - cu[at(n)]) +
                              ", the tokens that are left");
    }
    cu[at(n + 1)] = cu[at(n)] + length;
  }
  return cu;
}

/// A seeded order of the slots.
std::vector<std::int64_t> shuffled(std::int64_t slots, std::uint64_t seed, Stream stream) {
  std::vector<std::int64_t> order(at(slots));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::int64_t i = slots - 1; i > 0; --i) {
    const std::uint64_t other = random_bits(seed, stream, static_cast<std::uint64_t>(i)) %
                                static_cast<std::uint64_t>(i + 1);
    std::swap(order[at(i)], order[other]);
  }
  return order;
}

Result<std::vector<std::int64_t>> choose_slots(const char* name,
                                               const std::vector<std::int64_t>& given,
                                               std::int64_t N, std::int64_t slots, bool repeat,
                                               std::uint64_t seed, Stream stream) {
  if (!given.empty()) {
    SCANJIT_TRY(check_count(name, given.size(), N));
    return given;
  }
  const std::vector<std::int64_t> order = shuffled(slots, seed, stream);
  std::vector<std::int64_t> indices(at(N), -1);
  for (std::int64_t n = 0; n < N; ++n) {
    if (n < slots || (repeat && slots > 0)) indices[at(n)] = order[at(n % slots)];
  }
  return indices;
}

Result<GatedDeltaHInputs> fill(const GatedDeltaHProblem& p, const GeneratorOptions& options) {
  SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHSizes s, sizes_of(p));
  if (options.kind != InputKind::kWy && options.kind != InputKind::kIndependent) {
    return invalid_argument("the generator is " + std::to_string(static_cast<int>(options.kind)) +
                            "; it must be 1 or 2");
  }
  if (options.gates != GateSet::kStrong && options.gates != GateSet::kSlow &&
      options.gates != GateSet::kNone) {
    return invalid_argument("the gate set is " + std::to_string(static_cast<int>(options.gates)) +
                            "; it must be 1 to 3");
  }
  GatedDeltaHInputs out;
  out.problem = p;
  if (p.packed) {
    SCANJIT_ASSIGN_OR_RETURN(out.cu_seqlens, cut(p, s, options.lengths));
  } else if (!options.lengths.empty()) {
    return invalid_argument("lengths are given, but the problem is not packed");
  }

  std::vector<Chunk> chunks;
  std::vector<std::int64_t> offsets(at(s.N));
  for (std::int64_t n = 0; n < s.N; ++n) {
    offsets[at(n)] = static_cast<std::int64_t>(chunks.size());
    const std::int64_t begin = p.packed ? out.cu_seqlens[at(n)] : n * p.T;
    const std::int64_t end = p.packed ? out.cu_seqlens[at(n + 1)] : (n + 1) * p.T;
    for (std::int64_t token = begin; token < end; token += p.BT) {
      chunks.push_back({token, std::min(p.BT, end - token)});
    }
  }
  if (p.packed && p.has_chunk_offsets) {
    if (!options.chunk_offsets.empty()) {
      SCANJIT_TRY(check_count("chunk_offsets", options.chunk_offsets.size(), s.N));
      offsets = options.chunk_offsets;
    }
    out.chunk_offsets = std::move(offsets);
  }
  if (p.has_h0_indices) {
    SCANJIT_ASSIGN_OR_RETURN(out.h0_indices,
                             choose_slots("h0_indices", options.h0_indices, s.N, s.h0_slots, true,
                                          options.seed, kH0SlotStream));
  }
  if (p.has_ht_indices) {
    SCANJIT_ASSIGN_OR_RETURN(out.ht_indices,
                             choose_slots("ht_indices", options.ht_indices, s.N, s.ht_slots, false,
                                          options.seed, kHtSlotStream));
  }

  constexpr std::uint16_t kNaN16 = 0x7fff;  // of both types
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  out.k.assign(at(s.k), kNaN16);
  out.w.assign(at(s.w), kNaN16);
  out.u.assign(at(s.u), kNaN16);
  out.g.assign(at(s.g), kNaN);
  out.gk.assign(at(s.gk), kNaN);
  out.h0.assign(at(s.h0), kNaN);

  const auto count = static_cast<std::int64_t>(chunks.size()) * p.HV;
  const int threads = thread_count(options.threads, count);
  std::vector<ChunkGenerator> workers;
  workers.reserve(at(threads));
  for (int i = 0; i < threads; ++i) workers.emplace_back(s, options, &out);
  SCANJIT_TRY(parallel_for(count, threads, [&](std::int64_t task, int worker) {
    workers[at(worker)].run(chunks[at(task / p.HV)], task % p.HV);
  }));

  const std::int64_t states = p.has_h0 ? s.h0_slots * p.HV : 0;
  SCANJIT_TRY(
      parallel_for(states, thread_count(options.threads, states), [&](std::int64_t task, int) {
        float* state = out.h0.data() + task / p.HV * s.h0_slot_stride + task % p.HV * s.state;
        for (std::int64_t x = 0; x < s.state; ++x) {
          // Drawn by [K,V] whatever the layout, so that layouts can be compared.
          const std::int64_t element = p.layout == StateLayout::kKV ? x : x % p.K * p.V + x / p.K;
          state[x] = static_cast<float>(
              0.1 * random_normal(options.seed, kH0Stream,
                                  static_cast<std::uint64_t>(task * s.state + element)));
        }
      }));
  return out;
}

}  // namespace

const char* to_string(InputKind kind) noexcept {
  return kind == InputKind::kWy ? "wy" : "independent";
}

const char* to_string(GateSet gates) noexcept {
  return gates == GateSet::kStrong ? "strong" : gates == GateSet::kSlow ? "slow" : "none";
}

Result<GatedDeltaHInputs> generate(const GatedDeltaHProblem& problem,
                                   const GeneratorOptions& options) {
  try {
    return fill(problem, options);
  } catch (const std::exception&) {  // bad_alloc, or length_error from a vector
    return Status(ErrorCode::kOutOfMemory, "no memory for the generated inputs");
  }
}

}  // namespace scanjit::reference
