#include "tuning/shape_map.hpp"

#include <algorithm>
#include <set>

#include "core/guard.hpp"
#include "tuning/json_reader.hpp"
#include "tuning/key_json.hpp"
#include "tuning/shape_json.hpp"

namespace scanjit::tuning {
namespace {

constexpr const char* kShapesSchema = "scanjit-shapes/1";
constexpr std::size_t kMaxShapes = 100'000;

/// A shape whose numbers may each stand for several.
struct Pattern {
  Shape shape;
  std::vector<std::int64_t> HV, H, K, V, M, BT, N, T;
};

void read_numbers(json::Object& object, const char* name, std::int64_t high,
                  std::vector<std::int64_t>& numbers, json::Errors& errors) {
  const json::Value* value = object.member(name, /*required=*/false);
  if (value == nullptr) return;
  numbers.clear();
  if (!value->is_array()) {
    numbers.push_back(json::as_integer(*value, object.path(name), 1, high, errors));
    return;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    numbers.push_back(
        json::as_integer((*value)[i], json::indexed(object.path(name), i), 1, high, errors));
  }
  if (numbers.empty()) errors.add(object.path(name), "is an empty list");
}

void read_pattern(const json::Value& value, const std::string& where, Pattern& pattern,
                  json::Errors& errors) {
  json::Object object(value, where, errors);
  read_shared_fields(object, pattern.shape, errors);
  read_numbers(object, "HV", kMaxExtent, pattern.HV, errors);
  read_numbers(object, "H", kMaxExtent, pattern.H, errors);
  read_numbers(object, "K", kMaxExtent, pattern.K, errors);
  read_numbers(object, "V", kMaxExtent, pattern.V, errors);
  read_numbers(object, "M", kMaxExtent, pattern.M, errors);
  read_numbers(object, "BT", kMaxExtent, pattern.BT, errors);
  read_numbers(object, "N", kMaxTokens, pattern.N, errors);
  read_numbers(object, "T", kMaxTokens, pattern.T, errors);
  object.done();
}

void expand_into(std::vector<Shape>& shapes, const Pattern& pattern) {
  Shape shape = pattern.shape;
  for (const std::int64_t HV : pattern.HV) {
    for (const std::int64_t H : pattern.H) {
      for (const std::int64_t K : pattern.K) {
        for (const std::int64_t V : pattern.V) {
          for (const std::int64_t M : pattern.M) {
            for (const std::int64_t BT : pattern.BT) {
              for (const std::int64_t N : pattern.N) {
                for (const std::int64_t T : pattern.T) {
                  shape.HV = HV;
                  shape.H = H;
                  shape.K = K;
                  shape.V = V;
                  shape.M = M;
                  shape.BT = BT;
                  shape.N = N;
                  shape.T = T;
                  shapes.push_back(shape);
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace

void read_shared_fields(json::Object& object, Shape& shape, json::Errors& errors) {
  const auto read_word = [&](const char* name, std::string& word) {
    if (object.member(name, /*required=*/false) == nullptr) return;
    word = object.text(name);
    if (errors.ok() && !json::is_word(word)) {
      errors.add(object.path(name),
                 "is " + json::shown(word) + "; it must be 1 to 64 letters, digits or _+.-");
    }
  };
  read_word("op", shape.op);
  read_word("gate", shape.gate);
  if (object.member("dtype", false) != nullptr) shape.dtype = read_dtype(object);
  if (object.member("optional", false) != nullptr)
    shape.optional = read_words(object, "optional", errors);
  if (object.member("packed", false) != nullptr) shape.packed = object.boolean("packed");
  read_word("numerics", shape.numerics);
}

std::string Shape::text() const {
  std::string tensors;
  for (const std::string& name : optional) tensors += (tensors.empty() ? "" : ",") + name;
  return op + " N=" + std::to_string(N) + " T=" + std::to_string(T) + " H=" + std::to_string(H) +
         " HV=" + std::to_string(HV) + " K=" + std::to_string(K) + " V=" + std::to_string(V) +
         (M != 0 ? " M=" + std::to_string(M) : "") + " BT=" + std::to_string(BT) +
         " dtype=" + to_string(dtype) + " gate=" + gate + " optional=" + tensors +
         " packed=" + (packed ? "true" : "false") +
         (numerics == "default" ? "" : " numerics=" + numerics);
}

Result<ShapeMap> shape_map_from_json(std::string_view text) {
  return guard([&]() -> Result<ShapeMap> {
    SCANJIT_ASSIGN_OR_RETURN(const json::Value value, json::parse(text));
    json::Errors errors;
    json::Object object(value, "", errors);
    (void)object.one_of("schema", {kShapesSchema});
    ShapeMap map;
    map.name = object.text("name");
    Pattern common;
    common.K = {common.shape.K};
    common.V = {common.shape.V};
    common.M = {common.shape.M};
    common.BT = {common.shape.BT};
    if (const json::Value* shared = object.member("common", /*required=*/false)) {
      read_pattern(*shared, "common", common, errors);
    }
    const auto& elements = object.array("shapes");
    object.done();
    for (std::size_t i = 0; i < elements.size() && errors.ok(); ++i) {
      const std::string where = json::indexed("shapes", i);
      Pattern pattern = common;
      read_pattern(elements[i], where, pattern, errors);
      if (pattern.shape.op.empty())
        errors.add(where + ".op", "is missing, and \"common\" has none");
      for (const auto& [name, numbers] : {std::pair("HV", &pattern.HV), std::pair("H", &pattern.H),
                                          std::pair("N", &pattern.N), std::pair("T", &pattern.T)}) {
        if (numbers->empty()) errors.add(where + "." + name, "is missing, and \"common\" has none");
      }
      std::size_t count = 1;
      for (const auto* numbers : {&pattern.HV, &pattern.H, &pattern.K, &pattern.V, &pattern.M,
                                  &pattern.BT, &pattern.N, &pattern.T}) {
        count = std::min(kMaxShapes + 1, count * std::max<std::size_t>(1, numbers->size()));
      }
      if (map.shapes.size() + count > kMaxShapes)
        errors.add(where, "makes more than 100000 shapes of the file");
      if (errors.ok()) expand_into(map.shapes, pattern);
    }
    if (!errors.ok()) return errors.status();
    if (map.shapes.empty()) return corrupt("shapes is empty; a shape file has at least one");
    std::set<std::string> seen;
    for (const Shape& shape : map.shapes) {
      if (!seen.insert(shape.text()).second)
        return corrupt("shapes has the same problem twice: " + shape.text());
    }
    return map;
  });
}

}  // namespace scanjit::tuning
