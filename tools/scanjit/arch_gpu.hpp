#pragma once
/// \file
/// The GPU that stands for an architecture where there is none to ask.

#include <string>

#include "ops/op_problem.hpp"
#include "scanjit/result.hpp"
#include "tuning/record.hpp"

namespace scanjit::cli {

/// Ok for an architecture that an engine on some GPU asks for ("sm_90a"), else kInvalidArgument
/// with the list of them: code for another would never be looked for.
[[nodiscard]] Status check_arch(const std::string& arch);

/// Facts of the GPU of the shipped tuned file for `arch` ("sm_90a"), else of the largest known GPU
/// of that compute capability, without a name. For limits and packs; never for a claim about a
/// machine.
[[nodiscard]] tuning::GpuFacts gpu_of_arch(const std::string& arch);

/// Ok if the config is legal for the problem on some GPU that is known: else it is a mistake,
/// whatever GPU is there. The sentence is the H200's.
[[nodiscard]] Status legal_somewhere(const ops::OpProblem& problem, const Config& config);

}  // namespace scanjit::cli
