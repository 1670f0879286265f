#pragma once
/// \file
/// Model presets (`configs/models/`, `configs/schema/model.schema.json`): the heads of a model's
/// layers, expanded into the problems that serving it meets. Heads divide by the tensor-parallel
/// size. Strict reading, as in record.hpp. Pure; thread-compatible values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::tuning {

struct ModelPreset {
  std::string name;                  ///< "qwen3.5-4b"
  std::vector<std::string> aliases;  ///< "Qwen/Qwen3.5-4B"
  std::vector<Shape>
      layers;  ///< one kind of layer each, at tensor parallel 1; N and T mean nothing
};

/// Errors: kCorrupt, the sentence names the field.
[[nodiscard]] Result<ModelPreset> model_preset_from_json(std::string_view text);

/// What a serving engine meets: for each layer every N in {1, 2, 4, ..., 64} crossed with a length
/// of each of the five chunk classes (1, 4, 16, 128 and 960 chunks), as far as N*T is at most
/// `max_tokens` (an engine's limit of tokens in one step). Layers with the same problems give them
/// once. Errors: kInvalidArgument (tp below 1 or not a divisor of H and HV; names layer and count).
[[nodiscard]] Result<std::vector<Shape>> expand(const ModelPreset& preset, std::int64_t tp,
                                                std::int64_t max_tokens = 131072);

}  // namespace scanjit::tuning
