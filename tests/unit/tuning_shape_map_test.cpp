#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "support/catch.hpp"
#include "tuning/model_preset.hpp"
#include "tuning/shape_key.hpp"
#include "tuning/shape_map.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;
using samples::says;

namespace {

const std::string kConfigs = SCANJIT_SOURCE_DIR "/configs/";

std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

ShapeMap shipped(const std::string& name) {
  const Result<ShapeMap> map =
      shape_map_from_json(read_text(kConfigs + "shapes/" + name + ".json"));
  INFO(map.status().message());
  REQUIRE(map.ok());
  REQUIRE(map->name == name);
  return *map;
}

double gigabytes(const Shape& s) {
  const double tokens = static_cast<double>(s.N * s.T),
               chunks = static_cast<double>(s.N * ((s.T + s.BT - 1) / s.BT));
  const double HV = static_cast<double>(s.HV), state = HV * static_cast<double>(s.K * s.V);
  const double k = tokens * static_cast<double>(s.H * s.K) * 2,
               w = tokens * HV * static_cast<double>(s.K) * 2;
  const double u_and_v_new = 2 * tokens * HV * static_cast<double>(s.V) * 2, g = tokens * HV * 4;
  return (k + w + u_and_v_new + g + chunks * state * 2 + 2 * static_cast<double>(s.N) * state * 4) /
         1e9;
}

}  // namespace

TEST_CASE("the shape map has its 69 shapes", "[tuning]") {
  const ShapeMap map = shipped("scan_map");
  REQUIRE(map.shapes.size() == 69);
  std::map<std::int64_t, std::map<std::int64_t, int>> counts;
  for (const Shape& shape : map.shapes) {
    REQUIRE((shape.op == "gated_delta_h" && shape.H == 16 && shape.K == 128 && shape.V == 128 &&
             shape.BT == 64));
    REQUIRE((shape.gate == "g" &&
             shape.optional == std::vector<std::string>{"h", "h0", "ht", "v_new"}));
    ++counts[shape.HV][shape.N];
  }
  REQUIRE(counts.size() == 3);
  for (const std::int64_t HV : {16, 32, 48}) {
    REQUIRE(counts[HV] ==
            std::map<std::int64_t, int>{{1, 7}, {2, 2}, {4, 4}, {8, 4}, {16, 4}, {32, 2}});
  }
  REQUIRE(shipped("beside").shapes.size() == 9);
  REQUIRE(shipped("small").shapes.size() == 6);
}

TEST_CASE("held-out shapes are those of the grid that fit in 64 GB, and none of the map's",
          "[tuning]") {
  std::set<std::string> expected;
  Shape shape = shipped("held_out").shapes.front();
  for (shape.HV = 16; shape.HV <= 48; shape.HV += 16) {
    for (const std::int64_t N : {3, 6, 12, 24, 48, 96}) {
      for (const std::int64_t T : {48, 256, 1536, 11648, 44800}) {
        shape.N = N;
        shape.T = T;
        if (gigabytes(shape) <= 64) expected.insert(shape.text());
      }
    }
  }
  std::set<std::string> held_out;
  for (const Shape& one : shipped("held_out").shapes) held_out.insert(one.text());
  REQUIRE(held_out == expected);
  for (const Shape& one : shipped("scan_map").shapes) REQUIRE(held_out.count(one.text()) == 0);
}

TEST_CASE("lists in a shape file stand for their products", "[tuning]") {
  const Result<ShapeMap> map = shape_map_from_json(
      R"({"schema":"scanjit-shapes/1","name":"x","common":{"op":"gated_delta_h","H":2,"HV":[2,4],"dtype":"f16"},
          "shapes":[{"N":[1,3],"T":[64,65]},{"N":7,"T":1,"HV":6,"packed":true,"K":96}]})");
  INFO(map.status().message());
  REQUIRE(map.ok());
  REQUIRE(map->shapes.size() == 9);
  REQUIRE(map->shapes[1].text() ==
          "gated_delta_h N=1 T=65 H=2 HV=2 K=128 V=128 BT=64 dtype=f16 gate=none optional= "
          "packed=false");
  REQUIRE(map->shapes[2].N == 3);
  REQUIRE(map->shapes[4].HV == 4);
  REQUIRE((map->shapes[8].packed && map->shapes[8].K == 96 && map->shapes[8].HV == 6));
}

TEST_CASE("a malformed shape file is refused by field", "[tuning]") {
  const auto message = [](const std::string& shapes) {
    const Result<ShapeMap> map =
        shape_map_from_json(R"({"schema":"scanjit-shapes/1","name":"x","shapes":)" + shapes + "}");
    REQUIRE(map.status().code() == ErrorCode::kCorrupt);
    return map.status().message();
  };
  CHECK(says(message("[]"), "shapes is empty"));
  CHECK(says(message(R"([{"N":1,"T":1,"H":1,"HV":1}])"), "shapes[0].op is missing"));
  CHECK(says(message(R"([{"op":"x","N":1,"H":1,"HV":1}])"), "shapes[0].T is missing"));
  CHECK(says(message(R"([{"op":"x","N":0,"T":1,"H":1,"HV":1}])"), "shapes[0].N is 0"));
  CHECK(says(message(R"([{"op":"x","N":[1,"2"],"T":1,"H":1,"HV":1}])"), "shapes[0].N[1]"));
  CHECK(says(message(R"([{"op":"x","N":[],"T":1,"H":1,"HV":1}])"), "shapes[0].N is an empty list"));
  CHECK(says(message(R"([{"op":"x","N":1,"T":1,"H":1,"HV":1,"tokens":3}])"), "shapes[0].tokens"));
  CHECK(says(message(R"([{"op":"x","N":[1,1],"T":1,"H":1,"HV":1}])"), "twice"));
  CHECK(says(message("3"), "shapes is 3"));
  CHECK(says(message("["), "line 1 column"));
  std::string many = "[1";
  for (int i = 2; i <= 400; ++i) many += "," + std::to_string(i);
  many += "]";
  CHECK(says(
      message(R"([{"op":"x","H":1,"HV":)" + many + R"(,"N":)" + many + R"(,"T":)" + many + "}]"),
      "100000"));
}

TEST_CASE("every preset reads and divides over tensor parallel sizes", "[tuning]") {
  const std::map<std::string, std::int64_t> value_heads = {
      {"qwen3.5-0.8b", 16}, {"qwen3.5-2b", 16},  {"qwen3.5-4b", 32},   {"qwen3.5-9b", 32},
      {"qwen3.5-35b", 32},  {"qwen3.5-27b", 48}, {"qwen3.5-122b", 64}, {"qwen3.5-397b", 64}};
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs + "models")) {
    const Result<ModelPreset> preset = model_preset_from_json(read_text(entry.path().string()));
    INFO(entry.path() << ": " << preset.status().message());
    REQUIRE(preset.ok());
    REQUIRE(preset->name == entry.path().stem());
    if (value_heads.count(preset->name) == 0) continue;
    ++files;
    REQUIRE(preset->layers.front().H == 16);
    REQUIRE(preset->layers.front().HV == value_heads.at(preset->name));
    for (const std::int64_t tp : {1, 2, 4, 8}) {
      const Result<std::vector<Shape>> shapes = expand(*preset, tp);
      REQUIRE(shapes.ok());
      std::set<std::pair<std::string, std::string>> keys;
      for (const Shape& shape : *shapes) {
        REQUIRE(shape.H == 16 / tp);
        REQUIRE(shape.HV == value_heads.at(preset->name) / tp);
        REQUIRE(shape.N * shape.T <= 131072);
        const WidthBuckets buckets{shape.HV, shape.V, default_width_starts(shape.HV, shape.V, 132)};
        keys.insert(
            {to_string(buckets.bucket(shape.N)), to_string(chunk_class(shape.T / shape.BT))});
      }
      // Every chunk class, and every width bucket that 64 sequences reach.
      std::set<std::string> widths, classes;
      for (const auto& [width, chunks] : keys) {
        widths.insert(width);
        classes.insert(chunks);
      }
      REQUIRE(classes.size() == 5);
      const WidthBuckets buckets{16 / tp, 128,
                                 default_width_starts(value_heads.at(preset->name) / tp, 128, 132)};
      for (const Range& bucket : buckets.all())
        REQUIRE((widths.count(to_string(bucket)) == 1 || bucket.min > 64));
    }
    REQUIRE(says(expand(*preset, 3).status().message(), "does not divide H 16"));
    REQUIRE_FALSE(expand(*preset, 0).ok());
    REQUIRE_FALSE(expand(*preset, 32).ok());
  }
  REQUIRE(files == value_heads.size());
}

TEST_CASE("a malformed preset is refused by field", "[tuning]") {
  const std::string head = R"({"schema":"scanjit-model/1","name":"m","aliases":[],"layers":)";
  const auto message = [&](const std::string& text) {
    const Result<ModelPreset> preset = model_preset_from_json(text);
    REQUIRE(preset.status().code() == ErrorCode::kCorrupt);
    return preset.status().message();
  };
  CHECK(says(message(head + "[]}"), "layers is empty"));
  CHECK(
      says(message(head + R"([{"op":"x","HV":1,"K":1,"V":1,"BT":1}]})"), "layers[0].H is missing"));
  CHECK(says(message(head + R"([{"H":1,"HV":1,"K":1,"V":1,"BT":1}]})"), "layers[0].op"));
  CHECK(says(message(head + R"([{"op":"x","H":1,"HV":1,"K":1,"V":1,"BT":1,"N":4}]})"),
             "layers[0].N"));
  CHECK(says(message(R"({"schema":"scanjit-model/1","name":"a b","aliases":[],"layers":[]})"),
             "name"));
}
