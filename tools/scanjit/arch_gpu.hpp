#pragma once
/// \file
/// The GPU that stands for an architecture where there is none to ask.

#include <string>

#include "tuning/record.hpp"

namespace scanjit::cli {

/// Facts of the GPU of the shipped tuned file for `arch` ("sm_90a"), else of the largest known GPU
/// of that compute capability, without a name. For limits and packs; never for a claim about a
/// machine.
[[nodiscard]] tuning::GpuFacts gpu_of_arch(const std::string& arch);

}  // namespace scanjit::cli
