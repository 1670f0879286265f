#include "tuning/model_preset.hpp"

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/guard.hpp"
#include "tuning/json_reader.hpp"
#include "tuning/key_json.hpp"
#include "tuning/shape_json.hpp"
#include "tuning/shape_key.hpp"

namespace scanjit::tuning {
namespace {

constexpr const char* kModelSchema = "scanjit-model/1";
constexpr std::int64_t kMostSequences = 64;
/// A length of each chunk class, in chunks.
constexpr std::int64_t kLengths[] = {1, 4, 16, 128, 960};

Status check_divides(const std::string& model, const char* name, std::int64_t heads,
                     std::int64_t tp) {
  if (heads % tp == 0) return {};
  return invalid_argument("tensor parallel size " + std::to_string(tp) + " does not divide " +
                          name + " " + std::to_string(heads) + " of model " + model);
}

}  // namespace

Result<ModelPreset> model_preset_from_json(std::string_view text) {
  return guard([&]() -> Result<ModelPreset> {
    SCANJIT_ASSIGN_OR_RETURN(const json::Value value, json::parse(text));
    json::Errors errors;
    json::Object object(value, "", errors);
    (void)object.one_of("schema", {kModelSchema});
    ModelPreset preset;
    preset.name = object.text("name");
    if (errors.ok() && !json::is_word(preset.name)) {
      errors.add("name",
                 "is " + json::shown(preset.name) + "; it must be 1 to 64 letters, digits or _+.-");
    }
    const auto& aliases = object.array("aliases");
    for (std::size_t i = 0; i < aliases.size(); ++i) {
      preset.aliases.push_back(json::as_text(aliases[i], json::indexed("aliases", i), 256, errors));
    }
    const auto& layers = object.array("layers");
    for (std::size_t i = 0; i < layers.size() && errors.ok(); ++i) {
      json::Object layer(layers[i], json::indexed("layers", i), errors);
      Shape shape;
      read_shared_fields(layer, shape, errors);
      if (shape.op.empty()) errors.add(layer.path("op"), "is missing");
      shape.H = layer.integer("H", 1, kMaxExtent);
      shape.HV = layer.integer("HV", 1, kMaxExtent);
      shape.K = layer.integer("K", 1, kMaxExtent);
      shape.V = layer.integer("V", 1, kMaxExtent);
      if (layer.member("M", false) != nullptr) shape.M = layer.integer("M", 1, kMaxExtent);
      shape.BT = layer.integer("BT", 1, kMaxExtent);
      layer.done();
      preset.layers.push_back(std::move(shape));
    }
    object.done();
    if (!errors.ok()) return errors.status();
    if (preset.layers.empty()) return corrupt("layers is empty; a preset has at least one");
    return preset;
  });
}

Result<std::vector<Shape>> expand(const ModelPreset& preset, std::int64_t tp,
                                  std::int64_t max_tokens) {
  return guard([&]() -> Result<std::vector<Shape>> {
    if (tp < 1)
      return invalid_argument("tensor parallel size is " + std::to_string(tp) +
                              "; it must be at least 1");
    std::vector<Shape> shapes;
    for (const Shape& layer : preset.layers) {
      SCANJIT_TRY(check_divides(preset.name, "H", layer.H, tp));
      SCANJIT_TRY(check_divides(preset.name, "HV", layer.HV, tp));
      Shape shape = layer;
      shape.H /= tp;
      shape.HV /= tp;
      for (shape.N = 1; shape.N <= kMostSequences; shape.N *= 2) {
        for (const std::int64_t chunks : kLengths) {
          shape.T = chunks * shape.BT;
          if (shape.N * shape.T > max_tokens) continue;
          if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end())
            shapes.push_back(shape);
        }
      }
    }
    return shapes;
  });
}

}  // namespace scanjit::tuning
