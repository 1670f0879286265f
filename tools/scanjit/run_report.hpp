#pragma once
/// \file
/// What `scanjit run` reads and tells alike for every op.

#include <optional>
#include <string>
#include <vector>

#include "run_options.hpp"
#include "session.hpp"
#include "tensor_problem.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::cli {

/// Errors: kInvalidArgument if no input file is named.
[[nodiscard]] Status check_input(const RunOptions& options);
/// The config of --config, if there is one. Errors: kInvalidArgument.
[[nodiscard]] Result<std::optional<Config>> forced_config(const RunOptions& options);
/// The names of --want.
[[nodiscard]] std::vector<std::string> wanted_names(const RunOptions& options);

/// An example file was written: says so, and what to do with it.
void report_example(Session& session, const RunOptions& options, const tuning::Shape& shape,
                    const TensorFile& file);

/// What ran, as fields of the JSON object.
[[nodiscard]] Json run_fields(const RunOptions& options, const std::string& gpu, const Why& why,
                              const TensorFile& file);
/// The same as text.
void print_run(Session& session, const RunOptions& options, const Why& why, const TensorFile& file);

}  // namespace scanjit::cli
