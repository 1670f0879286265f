#pragma once
/// \file
/// The key under which a config is tuned. Two kinds of field: *source* fields change the generated
/// code; *class* fields change only the speed. The sequence count N is part of it, as the bucket
/// that N falls into. Everything here is known on the host. Pure; thread-compatible values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit::tuning {

/// A closed range of counts; no `max`: open to above.
struct Range {
  std::int64_t min = 1;
  std::optional<std::int64_t> max;

  [[nodiscard]] bool contains(std::int64_t value) const noexcept {
    return value >= min && (!max || value <= *max);
  }
  friend bool operator==(const Range&, const Range&) = default;
};
[[nodiscard]] std::string to_string(const Range& range);  ///< "9-64", "16+", "1"

struct ShapeKey {
  // Source fields.
  std::string kernel;  ///< "gated_delta_h"
  int kernel_revision = 1;
  std::string space;  ///< ConfigSpace::hash()
  DType dtype = DType::kBf16;
  std::int64_t K = 0;
  std::int64_t V = 0;
  std::int64_t M = 0;  ///< slots; 0: the op has none, and neither text nor JSON shows it
  std::int64_t BT = 0;
  std::string gate = "none";  ///< "none", "g", "gk", "g+gk" (an op may have words of its own)
  GateBase gate_base = GateBase::kTwo;
  StateLayout layout = StateLayout::kKV;
  std::vector<std::string>
      optional;  ///< optional tensors that exist, sorted: {"h","h0","ht","v_new"}
  bool packed = false;
  std::string index = "none";  ///< width of device lengths and indices: "none", "i32", "i64"
  std::string pool = "none";   ///< states kept in pools: "none", "h0", "ht", "h0+ht"
  int alignment = 16;          ///< bytes that every base, stride and row is a multiple of: 16 or 2
  std::string numerics = "default";
  // Class fields.
  std::int64_t H = 0;
  std::int64_t HV = 0;
  Range chunks;     ///< chunk class, of the longest sequence
  Range sequences;  ///< width bucket

  friend bool operator==(const ShapeKey&, const ShapeKey&) = default;

  /// Every field in a fixed order, on one line; equal keys have equal texts and the reverse.
  [[nodiscard]] std::string text() const;
  /// "gated_delta_h-<32 hex digits of the text's hash>.json"
  [[nodiscard]] std::string file_name() const;
  /// Sorts and deduplicates `optional` and checks every field's range and words.
  /// Errors: kInvalidArgument, the sentence names field, value and bound.
  [[nodiscard]] Status normalise();
};

/// The key's JSON object, on one line.
[[nodiscard]] std::string to_json(const ShapeKey& key);
/// Strict: every field must be there with its type, and no other. Errors: kCorrupt, names the
/// field.
[[nodiscard]] Result<ShapeKey> shape_key_from_json(const std::string& text);

/// The chunk class of a count: 1, 2-8, 9-64, 65-512, 513+. Counts below 1 are of class 1.
[[nodiscard]] Range chunk_class(std::int64_t chunks) noexcept;
/// All five, ascending.
[[nodiscard]] std::vector<Range> chunk_classes();

/// Chunks of the sequence that decides the class: ceil(max_tokens/BT) if max_tokens > 0, else
/// ceil(ceil(tokens/sequences)/BT). `tokens` counts all sequences together.
[[nodiscard]] std::int64_t class_chunks(std::int64_t tokens, std::int64_t sequences,
                                        std::int64_t max_tokens, std::int64_t BT) noexcept;

/// Powers of two up to the first N with N*HV*ceil(V/64) >= 4*sm_count, which opens the last bucket.
[[nodiscard]] std::vector<std::int64_t> default_width_starts(std::int64_t HV, std::int64_t V,
                                                             int sm_count) noexcept;

/// Where the width buckets of one (HV, V) start: strictly ascending, the first is 1; the last is
/// open.
struct WidthBuckets {
  std::int64_t HV = 0;
  std::int64_t V = 0;
  std::vector<std::int64_t> starts;

  /// The bucket that holds `sequences` (below 1: the first).
  [[nodiscard]] Range bucket(std::int64_t sequences) const noexcept;
  [[nodiscard]] std::vector<Range> all() const;
  [[nodiscard]] Status check() const;  ///< kCorrupt: which start breaks the order
  friend bool operator==(const WidthBuckets&, const WidthBuckets&) = default;
};

/// What is asked of a store: a key whose two class ranges are not filled in yet, because each store
/// layer cuts N into its own buckets.
struct KeyQuery {
  ShapeKey key;                ///< `chunks` and `sequences` are ignored
  std::int64_t sequences = 1;  ///< N
  std::int64_t chunks = 1;     ///< class_chunks(...)

  /// The whole key under these buckets.
  [[nodiscard]] ShapeKey under(const WidthBuckets& buckets) const;
};

}  // namespace scanjit::tuning
