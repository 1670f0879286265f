#pragma once
/// \file
/// The shapes that a command works on: from a file, from the command line, or from a model's heads.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"
#include "session.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::cli {

/// Ok, or "unknown op 'x': scanjit has gated_delta_h".
[[nodiscard]] Status check_op(const std::string& op);
/// abc_forward or abc_backward.
[[nodiscard]] bool is_abc(const std::string& op);

/// What the flags said.
struct ShapeFlags {
  std::string file;                 ///< --shapes: a JSON file, or the name of a built-in map
  std::vector<std::string> shapes;  ///< --shape, each "N=16,T=1024,HV=32"
  std::string model;                ///< --model: a built-in preset's name or alias
  std::int64_t tp = 1;              ///< --tp
  [[nodiscard]] bool any() const noexcept {
    return !file.empty() || !shapes.empty() || !model.empty();
  }
};

/// Shapes of `op` ("": of every op) from all flags, in order, none twice, each of which the op
/// takes; none only if no flag names any.
/// Errors: kInvalidArgument, kNotFound, kCorrupt, kIoError; the sentence names file and field.
[[nodiscard]] Result<std::vector<tuning::Shape>> load_shapes(const ShapeFlags& flags,
                                                             const std::string& op);

/// "N=16,T=1024,H=16,HV=32,K=128,V=128,BT=64,dtype=bf16,gate=g,optional=h+h0+ht+v_new,packed=true".
/// What is left out: N 1, T 1024, H 16, HV 32 (H where H is given), K and V 128, BT 64, bf16, gate
/// g, all optional tensors, dense.
[[nodiscard]] Result<tuning::Shape> parse_shape(const std::string& op, std::string_view text);
/// The spelling that `parse_shape` reads, every field.
[[nodiscard]] std::string shape_argument(const tuning::Shape& shape);
/// The shape's fields as they stand in benchmark files.
[[nodiscard]] Json shape_json(const tuning::Shape& shape);

/// Names of the built-in shape maps and models.
[[nodiscard]] std::vector<std::string> builtin_maps();
[[nodiscard]] std::vector<std::string> builtin_models();

}  // namespace scanjit::cli
