#pragma once
/// \file
/// Small words of the command line: "bv=64,bk=128", "i/n", lists of numbers.
/// Errors are kInvalidArgument and name the word and what it should be.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit::cli {

using NameValues = std::vector<std::pair<std::string, std::string>>;

/// "a=1,b=x": names in order, none twice.
[[nodiscard]] Result<NameValues> parse_name_values(std::string_view text);
/// Several such words as one list, none twice.
[[nodiscard]] Result<NameValues> parse_name_values(const std::vector<std::string>& texts);

/// "bv=64,bk=128,stages=2,warps=4": all four, each from 1 to 1024; of a split form
/// ",segment_chunks=16" as well, from 1 to 65536.
[[nodiscard]] Result<Config> parse_config(std::string_view text);
/// The spelling that `parse_config` reads.
[[nodiscard]] std::string config_argument(const Config& config);

/// A whole decimal number in [low, high]. `what` begins the sentence.
[[nodiscard]] Result<std::int64_t> parse_integer(const std::string& what, std::string_view text,
                                                 std::int64_t low, std::int64_t high);
[[nodiscard]] Result<bool> parse_bool(const std::string& what,
                                      std::string_view text);  ///< true/false/1/0

/// Words between `separator`s; "" has none.
[[nodiscard]] std::vector<std::string> split(std::string_view text, char separator);

/// "i/n" with 0 <= i < n.
struct Shard {
  std::int64_t index = 0;
  std::int64_t count = 1;
};
[[nodiscard]] Result<Shard> parse_shard(std::string_view text);

}  // namespace scanjit::cli
