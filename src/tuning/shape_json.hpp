#pragma once
/// \file
/// What shape files and model presets have in common. Internal to src/tuning.

#include "tuning/json_reader.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::tuning {

/// Bound of N and T in a file.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

/// op, gate, dtype, optional, packed, numerics: those that are there replace `shape`'s.
void read_shared_fields(json::Object& object, Shape& shape, json::Errors& errors);

}  // namespace scanjit::tuning
