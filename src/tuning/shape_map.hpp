#pragma once
/// \file
/// Lists of problems to tune or bench, in JSON (`configs/shapes/`,
/// `configs/schema/shapes.schema.json`). Plain numbers and words: which are legal for an op is the
/// op's to say. Strict reading, as in record.hpp. Pure; thread-compatible values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit::tuning {

/// One problem: N sequences of T tokens each.
struct Shape {
  std::string op;  ///< "gated_delta_h"
  std::int64_t N = 1;
  std::int64_t T = 0;  ///< tokens of each sequence
  std::int64_t H = 0;
  std::int64_t HV = 0;
  std::int64_t K = 128;
  std::int64_t V = 128;
  std::int64_t M = 0;  ///< slots; 0: the op has none
  std::int64_t BT = 64;
  DType dtype = DType::kBf16;
  std::string gate = "none";          ///< as ShapeKey::gate
  std::vector<std::string> optional;  ///< as ShapeKey::optional, sorted
  bool packed = false;                ///< N sequences on one token axis, by `cu_seqlens`
  std::string numerics = "default";   ///< as ShapeKey::numerics

  friend bool operator==(const Shape&, const Shape&) = default;
  [[nodiscard]] std::string text() const;  ///< "gated_delta_h N=16 T=1024 H=16 HV=32 K=128 ..."
};

struct ShapeMap {
  std::string name;
  std::vector<Shape> shapes;  ///< in file order, none twice
};

/// A shape file: shared fields ("common") and a list of shapes that add to or replace them. A
/// number given as a list stands for each of its values: HV varies slowest, then H, K, V, M, BT,
/// N, and T fastest. Errors: kCorrupt, the sentence names the shape and field.
[[nodiscard]] Result<ShapeMap> shape_map_from_json(std::string_view text);

}  // namespace scanjit::tuning
