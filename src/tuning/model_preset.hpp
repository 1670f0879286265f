#pragma once
/// \file
/// Model presets (`configs/models/`, `configs/schema/model.schema.json`): the heads of a model's layers,
/// expanded into the problems that serving it meets. Heads divide by the tensor-parallel size.
/// Strict reading, as in record.hpp. Pure; thread-compatible values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::tuning {

/// One kind of layer, at tensor parallel 1.
struct ModelLayer {
  std::string op;
  std::int64_t H = 0;
  std::int64_t HV = 0;
  std::int64_t K = 128;
  std::int64_t V = 128;
  std::int64_t BT = 64;
  DType dtype = DType::kBf16;
  std::string gate = "none";
  std::vector<std::string> optional;
  bool packed = false;
};

struct ModelPreset {
  std::string name;                  ///< "qwen3.5-4b"
  std::vector<std::string> aliases;  ///< "Qwen/Qwen3.5-4B"
  std::vector<ModelLayer> layers;
};

/// Errors: kCorrupt, the sentence names the field.
[[nodiscard]] Result<ModelPreset> model_preset_from_json(std::string_view text);

/// What a serving engine meets: for each layer every N in {1, 2, 4, ..., 64} crossed with the lengths
/// that stand for the five chunk classes (one chunk, 4, 16, 128 and 1024 chunks), as far as N*T is at
/// most `max_tokens` (an engine's limit of tokens in one step).
/// Errors: kInvalidArgument (tp below 1 or not a divisor of H and HV; names layer and count).
[[nodiscard]] Result<std::vector<Shape>> expand(const ModelPreset& preset, std::int64_t tp,
                                                std::int64_t max_tokens = 131072);

}  // namespace scanjit::tuning
