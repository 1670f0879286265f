#pragma once
/// \file
/// What flags take, each refused with a sentence of one line: CLI11's own checks read 010 as eight,
/// let NaN through every bound and print bounds of 309 digits.

#include <cstdint>
#include <limits>
#include <string>

#include <CLI/CLI.hpp>

namespace scanjit::cli {

/// A whole decimal number in [low, high].
[[nodiscard]] CLI::Validator whole_number(
    std::int64_t low, std::int64_t high = std::numeric_limits<std::int64_t>::max());

/// A finite decimal number in [low, high].
[[nodiscard]] CLI::Validator finite_number(double low, double high);

/// Any text but the empty one, which a shell makes of a variable that is not set.
[[nodiscard]] CLI::Validator not_empty();

/// A relative path as an absolute one, of the working directory of whoever typed it: a library
/// takes absolute ones alone. Links above the last name are followed, "." and ".." are gone.
[[nodiscard]] std::string absolute_path(const std::string& path);

/// A cache directory, made absolute here and nowhere else; "none" stays. It need not exist.
[[nodiscard]] CLI::Validator cache_directory();

/// A pack, made absolute; it must be a directory.
[[nodiscard]] CLI::Validator pack_directory();

}  // namespace scanjit::cli
