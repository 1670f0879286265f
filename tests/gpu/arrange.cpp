#include "gpu/arrange.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace scanjit::test {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

struct Span {
  std::int64_t begin = 0, tokens = 0, first_chunk = 0;
};

/// Where every sequence lies; lengths are good.
std::vector<Span> spans_of(const reference::GatedDeltaHInputs& in) {
  const GatedDeltaHProblem& p = in.problem;
  const std::int64_t N = p.packed ? p.sequences : p.B;
  std::vector<Span> spans;
  std::int64_t chunks = 0;
  for (std::int64_t n = 0; n < N; ++n) {
    Span span;
    span.begin = p.packed ? in.cu_seqlens[at(n)] : n * p.T;
    span.tokens = p.packed ? in.cu_seqlens[at(n + 1)] - span.begin : p.T;
    span.first_chunk = p.has_chunk_offsets ? in.chunk_offsets[at(n)] : chunks;
    chunks += (span.tokens + p.BT - 1) / p.BT;
    spans.push_back(span);
  }
  return spans;
}

/// Element (key, v) of a stored state.
std::int64_t state_place(const GatedDeltaHProblem& p, std::int64_t key, std::int64_t v) {
  return p.layout == StateLayout::kKV ? key * p.V + v : v * p.K + key;
}

std::int64_t slot_of(const std::vector<std::int64_t>& indices, std::int64_t n) {
  return indices.empty() ? n : indices[at(n)];
}

template <class T>
void copy_rows(const std::vector<T>& from, std::int64_t from_stride,
               const std::vector<Span>& from_spans, std::vector<T>* to, std::int64_t to_stride,
               const std::vector<Span>& to_spans, std::int64_t row) {
  if (to->empty()) return;
  for (std::size_t n = 0; n < from_spans.size(); ++n) {
    for (std::int64_t t = 0; t < from_spans[n].tokens; ++t) {
      std::copy_n(from.begin() + (from_spans[n].begin + t) * from_stride, row,
                  to->begin() + (to_spans[n].begin + t) * to_stride);
    }
  }
}

}  // namespace

std::vector<SequenceBits> sequence_bits(const reference::GatedDeltaHInputs& in,
                                        const RunResult& result) {
  const GatedDeltaHProblem& p = in.problem;
  const reference::GatedDeltaHSizes s = reference::sizes_of(p).value();
  std::vector<SequenceBits> all;
  std::int64_t n = 0;
  for (const Span& span : spans_of(in)) {
    SequenceBits bits;
    const auto take_state = [&](const auto& tensor, std::int64_t base, auto emit) {
      for (std::int64_t head = 0; head < p.HV; ++head) {
        for (std::int64_t key = 0; key < p.K; ++key) {
          for (std::int64_t v = 0; v < p.V; ++v)
            emit(tensor[at(base + head * s.state + state_place(p, key, v))]);
        }
      }
    };
    if (p.has_h) {
      for (std::int64_t c = 0; c < (span.tokens + p.BT - 1) / p.BT; ++c) {
        take_state(result.h, (span.first_chunk + c) * p.HV * s.state,
                   [&](std::uint16_t x) { bits.h.push_back(x); });
      }
    }
    if (p.has_v_new) {
      for (std::int64_t t = 0; t < span.tokens; ++t) {
        const auto row = result.v_new.begin() + (span.begin + t) * s.v_new_stride;
        bits.v_new.insert(bits.v_new.end(), row, row + p.HV * p.V);
      }
    }
    const std::int64_t slot = slot_of(in.ht_indices, n);
    if (p.has_ht && slot >= 0) {
      take_state(result.ht, slot * s.ht_slot_stride,
                 [&](float x) { bits.ht.push_back(std::bit_cast<std::uint32_t>(x)); });
    }
    all.push_back(std::move(bits));
    ++n;
  }
  return all;
}

Result<reference::GatedDeltaHInputs> rearranged(const reference::GatedDeltaHInputs& from,
                                                const GatedDeltaHProblem& to,
                                                const std::vector<std::int64_t>& h0_indices,
                                                const std::vector<std::int64_t>& ht_indices) {
  constexpr std::uint16_t kNaN16 = 0x7fff;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const GatedDeltaHProblem& p = from.problem;
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHSizes a, reference::sizes_of(p));
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHSizes b, reference::sizes_of(to));
  const std::vector<Span> from_spans = spans_of(from);
  reference::GatedDeltaHInputs out;
  out.problem = to;
  if (to.packed) {
    out.cu_seqlens.push_back(0);
    for (const Span& span : from_spans)
      out.cu_seqlens.push_back(out.cu_seqlens.back() + span.tokens);
  }
  out.h0_indices = h0_indices;
  out.ht_indices = ht_indices;
  const std::vector<Span> to_spans = spans_of(out);
  for (std::size_t n = 0; n < from_spans.size(); ++n) {
    if (from_spans.size() != to_spans.size() || from_spans[n].tokens != to_spans[n].tokens) {
      return invalid_argument("the arrangement has other lengths");
    }
  }
  out.k.assign(at(b.k), kNaN16);
  out.w.assign(at(b.w), kNaN16);
  out.u.assign(at(b.u), kNaN16);
  out.g.assign(at(b.g), kNaN);
  out.gk.assign(at(b.gk), kNaN);
  out.h0.assign(at(b.h0), kNaN);
  copy_rows(from.k, a.k_stride, from_spans, &out.k, b.k_stride, to_spans, p.H * p.K);
  copy_rows(from.w, a.w_stride, from_spans, &out.w, b.w_stride, to_spans, p.HV * p.K);
  copy_rows(from.u, a.u_stride, from_spans, &out.u, b.u_stride, to_spans, p.HV * p.V);
  copy_rows(from.g, a.g_stride, from_spans, &out.g, b.g_stride, to_spans, p.HV);
  copy_rows(from.gk, a.gk_stride, from_spans, &out.gk, b.gk_stride, to_spans, p.HV * p.K);
  if (to.has_h0) {
    for (std::int64_t n = 0; n < a.N; ++n) {
      const std::int64_t old_slot = slot_of(from.h0_indices, n), slot = slot_of(h0_indices, n);
      if (slot < 0 || old_slot < 0) continue;
      for (std::int64_t head = 0; head < p.HV; ++head) {
        for (std::int64_t key = 0; key < p.K; ++key) {
          for (std::int64_t v = 0; v < p.V; ++v) {
            out.h0[at(slot * b.h0_slot_stride + head * b.state + state_place(to, key, v))] =
                from.h0[at(old_slot * a.h0_slot_stride + head * a.state + state_place(p, key, v))];
          }
        }
      }
    }
  }
  return out;
}

Result<reference::GatedDeltaHInputs> alone(const reference::GatedDeltaHInputs& from, std::int64_t n,
                                           bool packed) {
  const Span span = spans_of(from)[at(n)];
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHSizes s, reference::sizes_of(from.problem));
  reference::GatedDeltaHInputs out;
  out.problem = from.problem;
  out.problem.B = 1;
  out.problem.T = span.tokens;
  out.problem.packed = packed;
  out.problem.sequences = packed ? 1 : 0;
  out.problem.has_chunk_offsets = false;
  out.problem.h0_slots = out.problem.ht_slots = 0;
  out.problem.chunk_capacity = out.problem.max_tokens = 0;
  if (packed) out.cu_seqlens = {0, span.tokens};
  const auto rows = [&](const auto& tensor, std::int64_t stride, auto* to) {
    if (tensor.empty()) return;
    to->assign(tensor.begin() + span.begin * stride,
               tensor.begin() + (span.begin + span.tokens) * stride);
  };
  rows(from.k, s.k_stride, &out.k);
  rows(from.w, s.w_stride, &out.w);
  rows(from.u, s.u_stride, &out.u);
  rows(from.g, s.g_stride, &out.g);
  rows(from.gk, s.gk_stride, &out.gk);
  if (!from.h0.empty()) {
    out.h0.assign(from.h0.begin() + n * s.h0_slot_stride,
                  from.h0.begin() + (n + 1) * s.h0_slot_stride);
  }
  return out;
}

}  // namespace scanjit::test
