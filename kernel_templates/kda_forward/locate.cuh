// Which sequence and segment a block works on, from its number: by arithmetic where all sequences are as
// long, by a search in the offsets where they are packed.
#pragma once
#include "common/sequences.cuh"
#include "kda_forward/kda_forward_params.h"

namespace scanjit::dev {

// The last n in [0, N) with offsets[n] <= place; offsets[N] > place.
__device__ __forceinline__ i64 owner_of(const i64* offsets, i64 N, i64 place) {
  i64 low = 0, high = N;
  while (high - low > 1) {
    const i64 middle = low + (high - low) / 2;
    if (offsets[middle] <= place) low = middle;
    else high = middle;
  }
  return low;
}

__device__ __forceinline__ i64 chunks_of(i64 tokens) {
  return (tokens + kda_forward::kChunkTokens - 1) / kda_forward::kChunkTokens;
}

// A sequence, and where its chunks and segments begin in the workspace. A bad one has no tokens: its lengths
// are, or, lengths that overlap making more chunks than there is room for, it has no room.
struct Place {
  i64 n;
  i64 row0, tokens;     // first token row, tokens
  i64 chunk0, chunks;   // first record, records
  i64 index;            // which chunk or segment of the sequence
  bool exists;          // false: the block is beyond the last
  bool bad;
};

template <class Cfg>
__device__ __forceinline__ Place place_of_sequence(const kda_forward::SequenceParams& p, i64 n) {
  Place place{n, n * p.T, p.T, n * chunks_of(p.T), chunks_of(p.T), 0, true, false};
  if constexpr (Cfg::PACKED) {
    const Sequence sequence = load_sequence<Cfg::INDEX64>(p.cu_seqlens, n, p.T);
    place.row0 = sequence.begin;
    place.tokens = sequence.tokens;
    place.chunk0 = p.chunk_offsets[n];
    place.chunks = chunks_of(sequence.tokens);
    place.bad = sequence.bad || place.chunk0 + place.chunks > p.chunk_capacity;
    if (place.bad) place.tokens = place.chunks = 0;
  }
  return place;
}

// Of chunk number `chunk` of all, or of the slice: where its record is.
template <class Cfg>
__device__ __forceinline__ Place place_of_chunk(const kda_forward::SequenceParams& p, i64 chunk) {
  if (p.slice_chunks > 0) {
    if (chunk / p.slice_chunks >= p.N) return {};
    Place place = place_of_sequence<Cfg>(p, chunk / p.slice_chunks);
    place.index = p.slice_begin + chunk % p.slice_chunks;
    place.exists = place.index < place.chunks;
    return place;
  }
  i64 n = 0;
  if constexpr (Cfg::PACKED) {
    if (chunk >= p.chunk_offsets[p.N]) return {};
    n = owner_of(p.chunk_offsets, p.N, chunk);
  } else {
    n = chunk / chunks_of(p.T);
    if (n >= p.N) return {};
  }
  Place place = place_of_sequence<Cfg>(p, n);
  place.index = chunk - place.chunk0;
  place.exists = place.index < place.chunks;
  return place;
}

// Of segment number `segment` of all; a sequence without chunks has one segment too.
template <class Cfg>
__device__ __forceinline__ Place place_of_segment(const kda_forward::SequenceParams& p, i64 segment) {
  i64 n = 0, first = 0;
  if constexpr (Cfg::PACKED) {
    if (segment >= p.segment_offsets[p.N]) return {};
    n = owner_of(p.segment_offsets, p.N, segment);
    first = p.segment_offsets[n];
  } else {
    const i64 chunks = chunks_of(p.T);
    const i64 segments = chunks <= p.segment_chunks ? 1 : (chunks + p.segment_chunks - 1) / p.segment_chunks;
    n = segment / segments;
    first = n * segments;
  }
  Place place = place_of_sequence<Cfg>(p, n);
  place.index = segment - first;
  return place;
}

// The state slot that sequence n starts from; -1: from zero.
template <class Cfg>
__device__ __forceinline__ i64 h0_slot_of(const void* indices, i64 n, i64 slots, unsigned& status) {
  if constexpr (!Cfg::HAS_H0) return -1;
  if constexpr (!Cfg::HAS_H0_INDICES) return n;
  const i64 slot = load_index<Cfg::POOL_INDEX64>(indices, n);
  if (slot >= -1 && slot < slots) return slot;
  status |= kda_forward::kStatusH0Indices;
  return -1;
}

// Element (key, value) of a state of one head.
template <class Cfg>
__device__ __forceinline__ i64 state_element(int key, int value) {
  return Cfg::LAYOUT_VK ? static_cast<i64>(value) * Cfg::K + key : static_cast<i64>(key) * Cfg::V + value;
}
template <class Cfg>
__device__ __forceinline__ float load_state(const void* states, i64 element) {
  if constexpr (Cfg::STATE_BF16) return low_value<kBf16>(static_cast<const u16*>(states)[element]);
  else return static_cast<const float*>(states)[element];
}
template <class Cfg>
__device__ __forceinline__ void store_state(void* states, i64 element, float value) {
  if constexpr (Cfg::STATE_BF16) static_cast<u16*>(states)[element] = static_cast<u16>(round_pair<kBf16>(value, 0));
  else static_cast<float*>(states)[element] = value;
}

}  // namespace scanjit::dev
