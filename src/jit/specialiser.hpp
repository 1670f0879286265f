#pragma once
/// \file
/// Writes the few lines of CUDA that turn a template and a `Cfg` into one kernel.

#include <string>

#include "jit/kernel_source.hpp"
#include "scanjit/result.hpp"

namespace scanjit::jit {

/// The translation unit: includes the template, defines `Cfg` with one line per constant, asserts
/// that shared memory and threads are what the host believes, and defines the entry. Only checked
/// identifiers, checked file names and decimal integers get into it. The same input gives the same
/// bytes. Errors: kInvalidArgument, naming the field and its value.
[[nodiscard]] Result<std::string> generate_source(const KernelSource& kernel);

}  // namespace scanjit::jit
