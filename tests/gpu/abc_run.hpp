#pragma once
// ABC forward and backward through the engine from inputs on the host, and everything that can be
// seen of them afterwards.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpu/gpu.hpp"
#include "gpu/memory.hpp"
#include "ops/abc_backward.hpp"
#include "ops/abc_forward.hpp"
#include "reference/abc_cases.hpp"

namespace scanjit::test {

struct AbcOptions {
  std::string numerics = "default";
  bool saved = false;         // the backward reads what the forward saved
  int misalign_elements = 0;  // every tensor starts so many elements past a multiple of 16 bytes
  std::optional<Config> forward, backward;  // none: what the engine picks
};

/// Both problems of a case, with every output.
[[nodiscard]] AbcForwardProblem abc_forward_of(const reference::AbcCase& c,
                                               const AbcOptions& options);
[[nodiscard]] AbcBackwardProblem abc_backward_of(const reference::AbcCase& c,
                                                 const AbcOptions& options);

/// Output buffers bit for bit, by name: "o", "hkt", .. "dz0".
using AbcBits = std::map<std::string, std::vector<unsigned char>>;
struct AbcRun {
  AbcBits outputs;
  Config forward, backward;
  std::string damage;  // "" or which bytes outside of the buffers were written
};

/// Uploads, runs forward, then backward, downloads. Outputs, what is saved and workspaces (of
/// exactly the plan's size) are full of NaN before.
[[nodiscard]] Result<AbcRun> run(Gpu& gpu, const reference::AbcCase& c,
                                 const reference::AbcTensors& in, const AbcOptions& options);

/// Compiles what the engine will pick for these cases, or the configs named, on all cores.
[[nodiscard]] Status compile_abc(
    Gpu& gpu, const std::vector<std::pair<reference::AbcCase, AbcOptions>>& cases);

/// An output as numbers.
[[nodiscard]] std::vector<double> abc_numbers(const AbcRun& run, const std::string& name,
                                              DType dtype);
/// "" or every output and gradient that is past its limit, with figures.
[[nodiscard]] Result<std::string> abc_failures(const AbcRun& run, const reference::AbcCase& c,
                                               const reference::AbcTensors& in);
/// "" or the outputs whose bits differ.
[[nodiscard]] std::string abc_difference(const AbcBits& a, const AbcBits& b);

}  // namespace scanjit::test
