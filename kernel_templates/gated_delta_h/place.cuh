// What a block of a scan works on, read from lengths and indices that are not trusted.
#pragma once
#include "common/sequences.cuh"
#include "gated_delta_h/gated_delta_h_params.h"

namespace scanjit::dev {

struct ScanPlace {
  int hv, hk;       // value head, its key head
  int v0;           // first value column
  i64 row0;         // first token row of the sequence
  i64 tokens;
  int chunks;
  i64 chunk0;       // first chunk in h
  i64 h0_slot, ht_slot;  // -1: start from zero, write nothing
  bool bad;         // nothing of this sequence may be touched
};

template <class Cfg>
inline constexpr int kValueTiles = (Cfg::V + Cfg::BV - 1) / Cfg::BV;

// Item `item` of the N * HV * kValueTiles: those of one sequence and value head lie side by side, value tiles fastest.
// Whole warps take part. With `tell` set `p.status` learns what is wrong.
template <class Cfg>
__device__ __forceinline__ ScanPlace locate(const gated_delta_h::ScanParams& p, i64 item, bool tell) {
  const i64 head = item / kValueTiles<Cfg>;
  const i64 n = head / p.HV;
  ScanPlace place{};
  place.hv = static_cast<int>(head % p.HV);
  place.hk = place.hv / (p.HV / p.H);
  place.v0 = static_cast<int>(item % kValueTiles<Cfg>) * Cfg::BV;
  place.row0 = n * p.T;
  place.tokens = p.T;
  unsigned status = 0;
  if constexpr (Cfg::PACKED) {
    const Sequence sequence = load_sequence<Cfg::INDEX64>(p.cu_seqlens, n, p.T);
    if (sequence.bad) status |= gated_delta_h::kStatusLengths;
    place.row0 = sequence.begin;
    place.tokens = sequence.tokens;
    if constexpr (Cfg::HAS_H)
      place.chunk0 = p.chunk_offsets ? load_index<Cfg::INDEX64>(p.chunk_offsets, n) : chunks_before<Cfg::INDEX64, Cfg::BT>(p.cu_seqlens, n, p.T);
  } else {
    place.chunk0 = n * ((p.T + Cfg::BT - 1) / Cfg::BT);
  }
  place.chunks = static_cast<int>((place.tokens + Cfg::BT - 1) / Cfg::BT);
  if constexpr (Cfg::PACKED && Cfg::HAS_H)
    if (place.chunk0 < 0 || place.chunk0 > p.chunk_capacity - place.chunks) status |= gated_delta_h::kStatusLengths;
  place.h0_slot = place.ht_slot = n;
  if constexpr (Cfg::HAS_H0_INDICES) {
    place.h0_slot = load_index<Cfg::POOL_INDEX64>(p.h0_indices, n);
    if (place.h0_slot < -1 || place.h0_slot >= p.h0_slots) status |= gated_delta_h::kStatusH0Indices, place.h0_slot = -1;
  }
  if constexpr (Cfg::HAS_HT_INDICES) {
    place.ht_slot = load_index<Cfg::POOL_INDEX64>(p.ht_indices, n);
    if (place.ht_slot < -1 || place.ht_slot >= p.ht_slots) status |= gated_delta_h::kStatusHtIndices, place.ht_slot = -1;
  }
  if (status != 0 && p.status != nullptr && tell) atomicOr(p.status, status);
  place.bad = (status & gated_delta_h::kStatusLengths) != 0;
  return place;
}

}  // namespace scanjit::dev
