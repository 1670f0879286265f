#pragma once
/// \file
/// What the ops share in making problems from the words of shape files and stored keys.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/checked_math.hpp"
#include "scanjit/result.hpp"

namespace scanjit::ops {

[[nodiscard]] inline bool has_word(const std::vector<std::string>& words, const char* word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// N sequences of T tokens each, dense or packed. Errors: kInvalidArgument.
template <class Problem>
[[nodiscard]] Status fill_lengths(std::int64_t N, std::int64_t T, bool packed, Problem& problem) {
  problem.packed = packed;
  if (!packed) {
    problem.B = N;
    problem.T = T;
    return {};
  }
  const auto tokens = checked_multiply(N, T);
  if (!tokens)
    return invalid_argument("N * T = " + std::to_string(N) + " * " + std::to_string(T) +
                            " overflows 63 bits");
  problem.B = 1;
  problem.sequences = N;
  problem.T = *tokens;
  return {};
}

}  // namespace scanjit::ops
