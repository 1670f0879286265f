#pragma once
/// \file
/// The parts of the JSON forms that several files share.

#include "tuning/json_reader.hpp"
#include "tuning/shape_key.hpp"

namespace scanjit::tuning {

/// Bound of every extent in a key or shape (K, V, BT, H, HV).
inline constexpr std::int64_t kMaxExtent = std::int64_t{1} << 20;

[[nodiscard]] json::Ordered key_json(const ShapeKey& key);
[[nodiscard]] ShapeKey read_key(const json::Value& value, const std::string& where,
                                json::Errors& errors);

/// segment_chunks only where it is not 0.
[[nodiscard]] json::Ordered config_json(const Config& config);

[[nodiscard]] DType read_dtype(json::Object& object);
/// A sorted list of words without repetition.
[[nodiscard]] std::vector<std::string> read_words(json::Object& object, const char* name,
                                                  json::Errors& errors);

}  // namespace scanjit::tuning
