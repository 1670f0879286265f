#include "reference/gated_delta_h.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "reference/half.hpp"
#include "reference/parallel.hpp"

namespace scanjit::reference {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 62;

/// a * b, or -1 once anything exceeds kMostElements or was -1 before.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &out) || out > kMostElements) return -1;
  return out;
}

std::string text(std::int64_t value) { return std::to_string(value); }

Status check_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return Status();
  return invalid_argument(std::string(name) + " is " + text(value) + "; it must be " + text(least) +
                          " to " + text(most));
}

Status fill_stride(const char* name, std::int64_t given, std::int64_t row, std::int64_t* stride) {
  *stride = given == 0 ? row : given;
  if (*stride >= row) return Status();
  return invalid_argument(std::string(name) + " is " + text(given) + "; a row has " + text(row) +
                          " elements");
}

}  // namespace

Result<GatedDeltaHSizes> sizes_of(const GatedDeltaHProblem& p) {
  if (p.dtype != DType::kBf16 && p.dtype != DType::kF16) {
    return invalid_argument("dtype is " + text(static_cast<int>(p.dtype)) +
                            "; it must be bf16 or f16");
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  SCANJIT_TRY(check_range("B", p.B, p.packed ? 1 : 0, p.packed ? 1 : kMost));
  SCANJIT_TRY(check_range("T", p.T, 0, kMost));
  SCANJIT_TRY(check_range("H", p.H, 1, kMost));
  SCANJIT_TRY(check_range("HV", p.HV, 1, kMost));
  SCANJIT_TRY(check_range("K", p.K, 1, 256));
  SCANJIT_TRY(check_range("V", p.V, 1, kMost));
  if (p.HV % p.H != 0)
    return invalid_argument("HV is " + text(p.HV) + "; it must be a multiple of H, " + text(p.H));
  if (p.BT != 16 && p.BT != 32 && p.BT != 64)
    return invalid_argument("BT is " + text(p.BT) + "; it must be 16, 32 or 64");
  if (p.packed) {
    SCANJIT_TRY(check_range("sequences", p.sequences, 0, kMost));
  } else if (p.sequences != 0 && p.sequences != p.B) {
    return invalid_argument("sequences is " + text(p.sequences) +
                            "; without packing it must be 0 or B, " + text(p.B));
  }
  SCANJIT_TRY(check_range("h0_slots", p.h0_slots, 0, kMost));
  SCANJIT_TRY(check_range("ht_slots", p.ht_slots, 0, kMost));
  SCANJIT_TRY(check_range("chunk_capacity", p.chunk_capacity, 0, kMost));

  GatedDeltaHSizes s;
  s.N = p.packed ? p.sequences : p.B;
  s.tokens = product(p.B, p.T);
  s.state = product(p.K, p.V);
  const std::int64_t states = product(p.HV, s.state);
  const std::int64_t key_row = product(p.HV, p.K), value_row = product(p.HV, p.V);
  if (s.tokens < 0 || states < 0 || key_row < 0 || value_row < 0) {
    return invalid_argument("B*T or HV*K*V exceeds 2^62 elements");
  }
  if (!p.packed) {
    s.chunk_capacity = product(p.B, (p.T + p.BT - 1) / p.BT);
  } else {
    s.chunk_capacity = p.chunk_capacity != 0 ? p.chunk_capacity : (p.T + s.N * (p.BT - 1)) / p.BT;
  }
  s.h0_slots = p.h0_slots != 0 ? p.h0_slots : s.N;
  s.ht_slots = p.ht_slots != 0 ? p.ht_slots : s.N;
  if (p.has_h0 && !p.has_h0_indices) SCANJIT_TRY(check_range("h0_slots", s.h0_slots, s.N, kMost));
  if (p.has_ht && !p.has_ht_indices) SCANJIT_TRY(check_range("ht_slots", s.ht_slots, s.N, kMost));
  SCANJIT_TRY(fill_stride("k_stride", p.k_stride, p.H * p.K, &s.k_stride));
  SCANJIT_TRY(fill_stride("w_stride", p.w_stride, key_row, &s.w_stride));
  SCANJIT_TRY(fill_stride("u_stride", p.u_stride, value_row, &s.u_stride));
  SCANJIT_TRY(fill_stride("g_stride", p.g_stride, p.HV, &s.g_stride));
  SCANJIT_TRY(fill_stride("gk_stride", p.gk_stride, key_row, &s.gk_stride));
  SCANJIT_TRY(fill_stride("v_new_stride", p.v_new_stride, value_row, &s.v_new_stride));
  SCANJIT_TRY(fill_stride("h0_slot_stride", p.h0_slot_stride, states, &s.h0_slot_stride));
  SCANJIT_TRY(fill_stride("ht_slot_stride", p.ht_slot_stride, states, &s.ht_slot_stride));

  s.k = product(s.tokens, s.k_stride);
  s.w = product(s.tokens, s.w_stride);
  s.u = product(s.tokens, s.u_stride);
  if (p.has_g) s.g = product(s.tokens, s.g_stride);
  if (p.has_gk) s.gk = product(s.tokens, s.gk_stride);
  if (p.has_h0) s.h0 = product(s.h0_slots, s.h0_slot_stride);
  if (p.has_h) s.h = product(s.chunk_capacity, states);
  if (p.has_v_new) s.v_new = product(s.tokens, s.v_new_stride);
  if (p.has_ht) s.ht = product(s.ht_slots, s.ht_slot_stride);
  if (std::min({s.k, s.w, s.u, s.g, s.gk, s.h0, s.h, s.v_new, s.ht, s.chunk_capacity}) < 0) {
    return invalid_argument("a tensor exceeds 2^62 elements");
  }
  return s;
}

namespace {

/// A sequence, once its lengths and slots have been looked at.
struct Sequence {
  std::int64_t begin = 0, length = 0;
  std::int64_t first_chunk = 0;
  std::int64_t h0_slot = -1, ht_slot = -1;  // -1: none
  bool bad = false;
};

Status check_size(const char* name, std::size_t got, std::int64_t wanted) {
  if (got == static_cast<std::size_t>(wanted)) return Status();
  return invalid_argument(std::string(name) + " has " + std::to_string(got) +
                          " elements; the problem needs " + text(wanted));
}

Status check_inputs(const GatedDeltaHInputs& in, const GatedDeltaHSizes& s) {
  const GatedDeltaHProblem& p = in.problem;
  SCANJIT_TRY(check_size("k", in.k.size(), s.k));
  SCANJIT_TRY(check_size("w", in.w.size(), s.w));
  SCANJIT_TRY(check_size("u", in.u.size(), s.u));
  SCANJIT_TRY(check_size("g", in.g.size(), s.g));
  SCANJIT_TRY(check_size("gk", in.gk.size(), s.gk));
  SCANJIT_TRY(check_size("h0", in.h0.size(), s.h0));
  SCANJIT_TRY(check_size("cu_seqlens", in.cu_seqlens.size(), p.packed ? s.N + 1 : 0));
  SCANJIT_TRY(check_size("chunk_offsets", in.chunk_offsets.size(),
                         p.packed && p.has_chunk_offsets ? s.N : 0));
  SCANJIT_TRY(check_size("h0_indices", in.h0_indices.size(), p.has_h0_indices ? s.N : 0));
  SCANJIT_TRY(check_size("ht_indices", in.ht_indices.size(), p.has_ht_indices ? s.N : 0));
  return Status();
}

/// The slot that an index names, or -1; sets `bit` if the index is neither a slot nor -1.
std::int64_t slot_of(std::int64_t index, std::int64_t slots, std::uint32_t bit,
                     std::uint32_t* status) {
  if (index >= 0 && index < slots) return index;
  if (index != -1) *status |= bit;
  return -1;
}

std::vector<Sequence> find_sequences(const GatedDeltaHInputs& in, const GatedDeltaHSizes& s,
                                     std::uint32_t* status) {
  const GatedDeltaHProblem& p = in.problem;
  std::vector<Sequence> sequences(static_cast<std::size_t>(s.N));
  std::int64_t chunks_before = 0;
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    Sequence& sequence = sequences[n];
    const auto row = static_cast<std::int64_t>(n);
    std::int64_t end = (row + 1) * p.T;
    sequence.begin = row * p.T;
    if (p.packed) {
      sequence.begin = in.cu_seqlens[n];
      end = in.cu_seqlens[n + 1];
      sequence.bad = sequence.begin < 0 || end < sequence.begin || end > p.T;
    }
    if (!sequence.bad) {
      sequence.length = end - sequence.begin;
      const std::int64_t chunks = (sequence.length + p.BT - 1) / p.BT;
      sequence.first_chunk = p.packed && p.has_chunk_offsets ? in.chunk_offsets[n] : chunks_before;
      chunks_before += chunks;
      sequence.bad =
          p.has_h && (sequence.first_chunk < 0 || sequence.first_chunk > s.chunk_capacity - chunks);
    }
    if (sequence.bad) *status |= 1U;
    if (p.has_h0)
      sequence.h0_slot = p.has_h0_indices ? slot_of(in.h0_indices[n], s.h0_slots, 2U, status) : row;
    if (p.has_ht)
      sequence.ht_slot = p.has_ht_indices ? slot_of(in.ht_indices[n], s.ht_slots, 4U, status) : row;
  }
  return sequences;
}

/// Of sequences with the same ht slot only the last keeps it, so that no two tasks write one state.
void keep_last_writers(std::vector<Sequence>* sequences) {
  std::unordered_map<std::int64_t, Sequence*> writer;
  for (Sequence& sequence : *sequences) {
    if (sequence.bad || sequence.ht_slot < 0) continue;
    const auto [earlier, fresh] = writer.try_emplace(sequence.ht_slot, &sequence);
    if (!fresh) {
      earlier->second->ht_slot = -1;
      earlier->second = &sequence;
    }
  }
}

/// 2^x or e^x. In f32 as a kernel has it: one multiply brings base e to base 2, tiny results become
/// 0.
template <class Real>
Real gate_factor(Real x, GateBase base) {
  if constexpr (std::is_same_v<Real, float>) {
    constexpr float kLog2E = 1.44269504088896340736F;
    const float log2_factor = base == GateBase::kTwo ? x : x * kLog2E;
    const auto factor = static_cast<float>(std::exp2(static_cast<double>(log2_factor)));
    return factor < std::numeric_limits<float>::min() ? 0.0F : factor;
  } else {
    return base == GateBase::kTwo ? std::exp2(x) : std::exp(x);
  }
}

constexpr std::int64_t kColumns = 32;  // columns of V that one task owns
constexpr std::int64_t kTile =
    4;  // the products below work on kTile x kTile sums held in registers

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// out[r][c] = start[r][c] + sum_i a[i*a_inner + r*a_outer] * b[i][c] for r < rows (a multiple of
/// kTile) and c < kColumns, i from 0 to inner-1 in this order. b, start and out have rows of
/// kColumns.
void multiply(const double* a, std::int64_t a_outer, std::int64_t a_inner, const double* b,
              std::int64_t rows, std::int64_t inner, const double* start, double* out) {
  for (std::int64_t r = 0; r < rows; r += kTile) {
    for (std::int64_t c = 0; c < kColumns; c += kTile) {
      double sum[kTile][kTile];
      for (std::int64_t y = 0; y < kTile; ++y) {
        for (std::int64_t x = 0; x < kTile; ++x) {
          sum[y][x] = start == nullptr ? 0 : start[(r + y) * kColumns + c + x];
        }
      }
      for (std::int64_t i = 0; i < inner; ++i) {
        const double* a_column = a + i * a_inner + r * a_outer;
        const double* b_row = b + i * kColumns + c;
        for (std::int64_t y = 0; y < kTile; ++y) {
          for (std::int64_t x = 0; x < kTile; ++x) sum[y][x] += a_column[y * a_outer] * b_row[x];
        }
      }
      for (std::int64_t y = 0; y < kTile; ++y) {
        for (std::int64_t x = 0; x < kTile; ++x) out[(r + y) * kColumns + c + x] = sum[y][x];
      }
    }
  }
}

/// The scan of one (sequence, value head, kColumns columns of V). Real is the type of S and v'.
template <class Real>
class ColumnScan {
 public:
  ColumnScan(const GatedDeltaHInputs& in, const GatedDeltaHSizes& sizes, Variant variant,
             GatedDeltaHOutputs* out)
      : in_(in),
        p_(in.problem),
        s_(sizes),
        variant_(variant),
        out_(*out),
        k_rows_(round_up(p_.K, kTile)),
        state_(elements(k_rows_)),
        rounded_state_(elements(k_rows_)),
        values_(elements(p_.BT)),
        products_(elements(std::max(k_rows_, p_.BT))),
        keys_(static_cast<std::size_t>(p_.BT * k_rows_)) {}

  void run(const Sequence& sequence, std::int64_t head, std::int64_t first_column) {
    head_ = head;
    first_column_ = first_column;
    columns_ = std::min(kColumns, p_.V - first_column);
    load_state(sequence.h0_slot);
    for (std::int64_t start = 0; start < sequence.length; start += p_.BT) {
      token_ = sequence.begin + start;
      rows_ = std::min(p_.BT, sequence.length - start);
      round_state();
      if (p_.has_h) store_h(sequence.first_chunk + start / p_.BT);
      new_values();
      decay();
      update_state();
    }
    if (p_.has_ht && sequence.ht_slot >= 0) store_state(sequence.ht_slot);
  }

 private:
  static std::size_t elements(std::int64_t rows) {
    return static_cast<std::size_t>(rows * kColumns);
  }
  static constexpr bool kRounds = std::is_same_v<Real, float>;

  double rounded(Real value) const {
    return kRounds ? round_to(p_.dtype, static_cast<double>(value)) : static_cast<double>(value);
  }
  double decoded(const std::vector<std::uint16_t>& tensor, std::int64_t index) const {
    return static_cast<double>(half_to_float(p_.dtype, tensor[static_cast<std::size_t>(index)]));
  }
  /// Where S[i][column] of a head lies in a state of K*V elements.
  std::int64_t state_index(std::int64_t i, std::int64_t column) const {
    const std::int64_t j = first_column_ + column;
    return head_ * s_.state + (p_.layout == StateLayout::kKV ? i * p_.V + j : j * p_.K + i);
  }
  template <class Body>
  void for_state(const Body& body) const {  // body(element of state_, its place in a stored state)
    for (std::int64_t i = 0; i < p_.K; ++i) {
      for (std::int64_t c = 0; c < columns_; ++c) {
        body(static_cast<std::size_t>(i * kColumns + c), state_index(i, c));
      }
    }
  }

  void load_state(std::int64_t slot) {
    std::fill(state_.begin(), state_.end(), Real{0});
    if (slot < 0) return;
    for_state([&](std::size_t element, std::int64_t stored) {
      state_[element] =
          static_cast<Real>(in_.h0[static_cast<std::size_t>(slot * s_.h0_slot_stride + stored)]);
    });
  }
  void store_state(std::int64_t slot) {
    for_state([&](std::size_t element, std::int64_t stored) {
      out_.ht[static_cast<std::size_t>(slot * s_.ht_slot_stride + stored)] =
          static_cast<double>(state_[element]);
    });
  }
  void round_state() {
    for (std::size_t i = 0; i < state_.size(); ++i) rounded_state_[i] = rounded(state_[i]);
  }
  void store_h(std::int64_t chunk) {
    for_state([&](std::size_t element, std::int64_t stored) {
      out_.h[static_cast<std::size_t>(chunk * p_.HV * s_.state + stored)] = rounded_state_[element];
    });
  }

  /// Copies rows of k or w of the chunk to keys_, with zeros around them.
  void load_keys(const std::vector<std::uint16_t>& tensor, std::int64_t stride, std::int64_t head) {
    std::fill(keys_.begin(), keys_.end(), 0.0);
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t i = 0; i < p_.K; ++i) {
        keys_[static_cast<std::size_t>(r * k_rows_ + i)] =
            decoded(tensor, (token_ + r) * stride + head * p_.K + i);
      }
    }
  }

  /// v' = u - w . round(S), its rounding to v_new; leaves round(v'') without the gate in values_.
  void new_values() {
    load_keys(in_.w, s_.w_stride, head_);
    multiply(keys_.data(), k_rows_, 1, rounded_state_.data(), p_.BT, p_.K, nullptr,
             products_.data());
    std::fill(values_.begin(), values_.end(), 0.0);
    const Real last_gate = p_.has_g ? gate(last_row()) : Real{0};
    for (std::int64_t r = 0; r < rows_; ++r) {
      const Real factor =
          p_.has_g ? gate_factor<Real>(last_gate - gate(token_ + r), p_.gate_base) : Real{1};
      for (std::int64_t c = 0; c < columns_; ++c) {
        const auto element = static_cast<std::size_t>(r * kColumns + c);
        const std::int64_t column = head_ * p_.V + first_column_ + c;
        const auto u = static_cast<Real>(decoded(in_.u, (token_ + r) * s_.u_stride + column));
        const Real value = u - static_cast<Real>(products_[element]);
        if (p_.has_v_new) {
          out_.v_new[static_cast<std::size_t>((token_ + r) * s_.v_new_stride + column)] =
              rounded(value);
        }
        values_[element] = rounded(p_.has_g ? value * factor : value);
      }
    }
  }

  /// The row whose gates decay the state: the chunk's last valid one, or the mistaken BT-1.
  std::int64_t last_row() const {
    return token_ + (variant_ == Variant::kLastGatePastEnd ? p_.BT : rows_) - 1;
  }
  Real gate(std::int64_t token) const {
    if (token >= s_.tokens) return Real{0};
    return static_cast<Real>(in_.g[static_cast<std::size_t>(token * s_.g_stride + head_)]);
  }
  Real key_gate(std::int64_t token, std::int64_t i) const {
    if (token >= s_.tokens) return Real{0};
    return static_cast<Real>(
        in_.gk[static_cast<std::size_t>(token * s_.gk_stride + head_ * p_.K + i)]);
  }

  void decay() {
    if (!p_.has_g && !p_.has_gk) return;
    const Real all = p_.has_g ? gate_factor<Real>(gate(last_row()), p_.gate_base) : Real{1};
    for (std::int64_t i = 0; i < p_.K; ++i) {
      const Real row =
          p_.has_gk ? gate_factor<Real>(key_gate(last_row(), i), p_.gate_base) : Real{1};
      for (std::int64_t c = 0; c < kColumns; ++c) {
        Real& s = state_[static_cast<std::size_t>(i * kColumns + c)];
        if (p_.has_g) s *= all;
        if (p_.has_gk) s *= row;
      }
    }
  }

  void update_state() {
    const std::int64_t own = head_ / (p_.HV / p_.H);
    load_keys(in_.k, s_.k_stride, variant_ == Variant::kNextKeyHead ? (own + 1) % p_.H : own);
    for (std::size_t i = 0; i < state_.size(); ++i) products_[i] = static_cast<double>(state_[i]);
    multiply(keys_.data(), 1, k_rows_, values_.data(), k_rows_, rows_, products_.data(),
             products_.data());
    for (std::size_t i = 0; i < state_.size(); ++i) {
      state_[i] = static_cast<Real>(products_[i]);
      if (variant_ == Variant::kStateRounded) {
        state_[i] = static_cast<Real>(round_to(p_.dtype, static_cast<double>(state_[i])));
      }
    }
  }

  const GatedDeltaHInputs& in_;
  const GatedDeltaHProblem& p_;
  const GatedDeltaHSizes& s_;
  const Variant variant_;
  GatedDeltaHOutputs& out_;
  const std::int64_t k_rows_;          // K rounded up to kTile
  std::vector<Real> state_;            // [k_rows][kColumns]
  std::vector<double> rounded_state_;  // the same
  std::vector<double> values_;         // [BT][kColumns], round(v'')
  std::vector<double> products_;
  std::vector<double> keys_;  // [BT][k_rows], rows of w, then of k
  std::int64_t head_ = 0, first_column_ = 0, columns_ = 0;
  std::int64_t token_ = 0, rows_ = 0;  // of the chunk
};

template <class Real>
Status scan(const GatedDeltaHInputs& in, const GatedDeltaHSizes& s, const OracleOptions& options,
            const std::vector<Sequence>& sequences, GatedDeltaHOutputs* out) {
  const std::int64_t slices = round_up(in.problem.V, kColumns) / kColumns;
  const std::int64_t tasks = s.N * in.problem.HV * slices;
  const int threads = thread_count(options.threads, tasks);
  std::vector<ColumnScan<Real>> workers;
  workers.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) workers.emplace_back(in, s, options.variant, out);
  return parallel_for(tasks, threads, [&](std::int64_t task, int worker) {
    const Sequence& sequence = sequences[static_cast<std::size_t>(task / slices / in.problem.HV)];
    if (sequence.bad) return;
    workers[static_cast<std::size_t>(worker)].run(sequence, task / slices % in.problem.HV,
                                                  task % slices * kColumns);
  });
}

Result<GatedDeltaHOutputs> compute(const GatedDeltaHInputs& in, const OracleOptions& options) {
  const GatedDeltaHProblem& p = in.problem;
  SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHSizes s, sizes_of(p));
  SCANJIT_TRY(check_inputs(in, s));
  GatedDeltaHOutputs out;
  std::vector<Sequence> sequences = find_sequences(in, s, &out.status);
  keep_last_writers(&sequences);
  out.h.resize(static_cast<std::size_t>(s.h));
  out.v_new.resize(static_cast<std::size_t>(s.v_new));
  out.ht.resize(static_cast<std::size_t>(s.ht));
  if (p.has_h) out.h_written.resize(static_cast<std::size_t>(s.chunk_capacity));
  if (p.has_v_new) out.v_new_written.resize(static_cast<std::size_t>(s.tokens));
  if (p.has_ht) out.ht_written.resize(static_cast<std::size_t>(s.ht_slots));
  for (const Sequence& sequence : sequences) {
    if (sequence.bad) continue;
    const std::int64_t chunks = (sequence.length + p.BT - 1) / p.BT;
    if (p.has_h) std::fill_n(out.h_written.begin() + sequence.first_chunk, chunks, std::uint8_t{1});
    if (p.has_v_new)
      std::fill_n(out.v_new_written.begin() + sequence.begin, sequence.length, std::uint8_t{1});
    if (p.has_ht && sequence.ht_slot >= 0)
      out.ht_written[static_cast<std::size_t>(sequence.ht_slot)] = 1;
  }
  const Status status = options.precision == Precision::kPure
                            ? scan<double>(in, s, options, sequences, &out)
                            : scan<float>(in, s, options, sequences, &out);
  if (!status.ok()) return status;
  return out;
}

}  // namespace

Result<GatedDeltaHOutputs> gated_delta_h(const GatedDeltaHInputs& inputs,
                                         const OracleOptions& options) {
  try {
    return compute(inputs, options);
  } catch (const std::exception&) {  // bad_alloc, or length_error from a vector
    return Status(ErrorCode::kOutOfMemory, "no memory for the outputs of the reference");
  }
}

}  // namespace scanjit::reference
