#include "shape_source.hpp"

#include <algorithm>
#include <set>

#include "core/embedded_file.hpp"
#include "name_values.hpp"
#include "ops/registry.hpp"
#include "os/posix_file_system.hpp"
#include "tuning/model_preset.hpp"

namespace scanjit {
// configs/models and configs/shapes, compiled in by tools/CMakeLists.txt.
extern const EmbeddedFile cli_configs[];
extern const std::size_t cli_configs_count;
}  // namespace scanjit

namespace scanjit::cli {
namespace {

constexpr std::int64_t kMaxShapeFileBytes = std::int64_t{16} << 20;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;

std::string joined(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::string_view text_of(const EmbeddedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes), file.size};
}

// "qwen3.5-4b" of "models/qwen3.5-4b.json".
std::vector<std::pair<std::string, std::string_view>> builtin(const std::string& folder) {
  std::vector<std::pair<std::string, std::string_view>> files;
  for (std::size_t i = 0; i < cli_configs_count; ++i) {
    std::string name = cli_configs[i].name;
    if (name.compare(0, folder.size() + 1, folder + "/") != 0 || !name.ends_with(".json")) continue;
    name = name.substr(folder.size() + 1, name.size() - folder.size() - 6);
    files.emplace_back(std::move(name), text_of(cli_configs[i]));
  }
  return files;
}

std::vector<std::string> names_of(const std::string& folder) {
  std::vector<std::string> names;
  for (auto& [name, text] : builtin(folder)) names.push_back(std::move(name));
  return names;
}

Result<std::vector<tuning::Shape>> shapes_of_file(const std::string& path) {
  for (const auto& [name, text] : builtin("shapes")) {
    if (name != path) continue;
    SCANJIT_ASSIGN_OR_RETURN(tuning::ShapeMap map, tuning::shape_map_from_json(text));
    return std::move(map.shapes);
  }
  Result<std::string> text = os::posix_file_system().read_file(path, kMaxShapeFileBytes);
  if (!text.ok() && text.status().code() == ErrorCode::kNotFound &&
      path.find('/') == std::string::npos) {
    return not_found("there is no shape file '" + path +
                         "', and no built-in map of that name (there are " +
                         joined(builtin_maps(), ", ") + ")",
                     path);
  }
  if (!text.ok()) return text.status();
  Result<tuning::ShapeMap> map = tuning::shape_map_from_json(*text);
  if (!map.ok())
    return Status(map.status().code(), "shape file " + path + ": " + map.status().message(),
                  {{}, path, 0});
  return std::move(map->shapes);
}

Result<std::vector<tuning::Shape>> shapes_of_model(const std::string& model, std::int64_t tp) {
  for (const auto& [name, text] : builtin("models")) {
    Result<tuning::ModelPreset> preset = tuning::model_preset_from_json(text);
    if (!preset.ok()) return preset.status().with_context("built-in model " + name);
    const auto& aliases = preset->aliases;
    if (preset->name != model && std::find(aliases.begin(), aliases.end(), model) == aliases.end())
      continue;
    return tuning::expand(*preset, tp);
  }
  return invalid_argument("unknown model '" + model + "': scanjit has " +
                          joined(builtin_models(), ", "));
}

// What a shape is where its words do not say.
tuning::Shape usual_shape(const std::string& op) {
  tuning::Shape shape;
  shape.op = op;
  shape.T = 1024;
  shape.HV = 0;
  if (is_abc(op)) {
    shape.H = 4;
    shape.K = 256;
    shape.M = 64;
    shape.V = 512;
  } else if (op == ops::kKdaForward.name) {
    shape.H = 32;
    shape.gate = "bounded";
    shape.optional = {"A_log", "beta_sigmoid", "dt_bias", "ht", "normalize_qk"};
  } else {
    shape.H = 16;
    shape.gate = "g";
    shape.optional = {"h", "h0", "ht", "v_new"};
  }
  return shape;
}

}  // namespace

Status check_op(const std::string& op) {
  const auto& names = ops::op_names();
  if (std::find(names.begin(), names.end(), op) != names.end()) return {};
  return invalid_argument("unknown op '" + op + "': scanjit has " + joined(names, ", "));
}

bool is_abc(const std::string& op) {
  return op == ops::kAbcForward.name || op == ops::kAbcBackward.name;
}

std::vector<std::string> builtin_maps() { return names_of("shapes"); }
std::vector<std::string> builtin_models() { return names_of("models"); }

Result<std::vector<tuning::Shape>> load_shapes(const ShapeFlags& flags, const std::string& op) {
  std::vector<tuning::Shape> all;
  if (!flags.file.empty()) {
    SCANJIT_ASSIGN_OR_RETURN(all, shapes_of_file(flags.file));
  }
  for (const std::string& text : flags.shapes) {
    SCANJIT_ASSIGN_OR_RETURN(tuning::Shape shape,
                             parse_shape(op.empty() ? ops::op_names().front() : op, text));
    all.push_back(std::move(shape));
  }
  if (!flags.model.empty()) {
    SCANJIT_ASSIGN_OR_RETURN(std::vector<tuning::Shape> shapes,
                             shapes_of_model(flags.model, flags.tp));
    all.insert(all.end(), shapes.begin(), shapes.end());
  }
  std::vector<tuning::Shape> kept;
  std::set<std::string> seen;
  for (tuning::Shape& shape : all) {
    if (!op.empty() && shape.op != op) continue;
    SCANJIT_TRY(check_op(shape.op));
    if (const Status status = ops::make_problem(shape).status(); !status.ok())
      return status.with_context(shape.text());
    if (seen.insert(shape.text()).second) kept.push_back(std::move(shape));
  }
  if (kept.empty() && flags.any()) {
    return invalid_argument("what was named holds no shape" +
                            (op.empty() ? std::string() : " of " + op));
  }
  return kept;
}

Result<tuning::Shape> parse_shape(const std::string& op, std::string_view text) {
  SCANJIT_ASSIGN_OR_RETURN(const NameValues values, parse_name_values(text));
  tuning::Shape shape = usual_shape(op);
  bool has_h = false;
  for (const auto& [name, value] : values) {
    std::int64_t* count = name == "N"    ? &shape.N
                          : name == "T"  ? &shape.T
                          : name == "H"  ? &shape.H
                          : name == "HV" ? &shape.HV
                          : name == "K"  ? &shape.K
                          : name == "V"  ? &shape.V
                          : name == "M"  ? &shape.M
                          : name == "BT" ? &shape.BT
                                         : nullptr;
    if (count != nullptr) {
      SCANJIT_ASSIGN_OR_RETURN(*count, parse_integer(name, value, 0, kMaxCount));
      has_h = has_h || name == "H";
    } else if (name == "dtype") {
      if (value != "bf16" && value != "f16")
        return invalid_argument("dtype is '" + value + "', it must be bf16 or f16");
      shape.dtype = value == "bf16" ? DType::kBf16 : DType::kF16;
    } else if (name == "gate") {
      shape.gate = value;
    } else if (name == "optional") {
      shape.optional = split(value, '+');
      std::sort(shape.optional.begin(), shape.optional.end());
    } else if (name == "numerics") {
      shape.numerics = value;
    } else if (name == "packed") {
      SCANJIT_ASSIGN_OR_RETURN(shape.packed, parse_bool(name, value));
    } else {
      return invalid_argument(
          "a shape has no '" + name +
          "': it has N, T, H, HV, K, V, M, BT, dtype, gate, optional, packed and numerics");
    }
  }
  if (shape.HV == 0) shape.HV = has_h || op != ops::kGatedDeltaH.name ? shape.H : 2 * shape.H;
  SCANJIT_TRY(ops::make_problem(shape).status());
  return shape;
}

std::string shape_argument(const tuning::Shape& shape) {
  std::string text = "N=" + std::to_string(shape.N) + ",T=" + std::to_string(shape.T) +
                     ",H=" + std::to_string(shape.H) + ",HV=" + std::to_string(shape.HV) +
                     ",K=" + std::to_string(shape.K) + ",V=" + std::to_string(shape.V) +
                     (shape.M != 0 ? ",M=" + std::to_string(shape.M) : "") +
                     ",BT=" + std::to_string(shape.BT) + ",dtype=" + to_string(shape.dtype) +
                     ",gate=" + shape.gate + ",optional=" + joined(shape.optional, "+");
  if (shape.packed) text += ",packed=true";
  if (shape.numerics != "default") text += ",numerics=" + shape.numerics;
  return text;
}

Json shape_json(const tuning::Shape& shape) {
  Json json;
  json["N"] = shape.N;
  json["T"] = shape.T;
  json["H"] = shape.H;
  json["HV"] = shape.HV;
  json["K"] = shape.K;
  json["V"] = shape.V;
  if (shape.M != 0) json["M"] = shape.M;
  json["BT"] = shape.BT;
  json["dtype"] = to_string(shape.dtype);
  json["gate"] = shape.gate;
  json["optional"] = shape.optional;
  if (shape.packed) json["packed"] = true;
  if (shape.numerics != "default") json["numerics"] = shape.numerics;
  return json;
}

}  // namespace scanjit::cli
