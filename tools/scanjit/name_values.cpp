#include "name_values.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

namespace scanjit::cli {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> words;
  if (text.empty()) return words;
  while (true) {
    const std::size_t end = text.find(separator);
    words.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return words;
    text.remove_prefix(end + 1);
  }
}

Result<NameValues> parse_name_values(const std::vector<std::string>& texts) {
  NameValues values;
  for (const std::string& text : texts) {
    if (text.empty()) return invalid_argument("an empty word where NAME=VALUE is expected");
    for (const std::string& word : split(text, ',')) {
      const std::size_t equals = word.find('=');
      if (equals == 0 || equals == std::string::npos) {
        return invalid_argument("'" + word + "' is not of the form NAME=VALUE");
      }
      std::string name = word.substr(0, equals);
      if (std::any_of(values.begin(), values.end(),
                      [&](const auto& value) { return value.first == name; })) {
        return invalid_argument("'" + name + "' is given twice");
      }
      values.emplace_back(std::move(name), word.substr(equals + 1));
    }
  }
  return values;
}

Result<NameValues> parse_name_values(std::string_view text) {
  return parse_name_values(std::vector<std::string>{std::string(text)});
}

Result<std::int64_t> parse_integer(const std::string& what, std::string_view text, std::int64_t low,
                                   std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    const std::string bound = high == std::numeric_limits<std::int64_t>::max()
                                  ? "of at least " + std::to_string(low)
                                  : "from " + std::to_string(low) + " to " + std::to_string(high);
    return invalid_argument(what + " is '" + std::string(text) + "', it must be a whole number " +
                            bound);
  }
  return value;
}

Result<bool> parse_bool(const std::string& what, std::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return invalid_argument(what + " is '" + std::string(text) + "', it must be true or false");
}

Result<Config> parse_config(std::string_view text) {
  SCANJIT_ASSIGN_OR_RETURN(const NameValues values, parse_name_values(text));
  Config config;
  for (const auto& [name, value] : values) {
    int* field = name == "bv"               ? &config.bv
                 : name == "bk"             ? &config.bk
                 : name == "stages"         ? &config.stages
                 : name == "warps"          ? &config.warps
                 : name == "segment_chunks" ? &config.segment_chunks
                                            : nullptr;
    if (field == nullptr) {
      return invalid_argument("a config has no '" + name +
                              "': it is spelt bv=64,bk=128,stages=2,warps=4");
    }
    SCANJIT_ASSIGN_OR_RETURN(
        const std::int64_t number,
        parse_integer(name, value, 1, name == "segment_chunks" ? 65536 : 1024));
    *field = static_cast<int>(number);
  }
  if (config.bv == 0 || config.bk == 0 || config.stages == 0 || config.warps == 0) {
    return invalid_argument("the config '" + std::string(text) +
                            "' is not whole: it is spelt bv=64,bk=128,stages=2,warps=4");
  }
  return config;
}

std::string config_argument(const Config& config) {
  std::string text = to_string(config);
  std::replace(text.begin(), text.end(), ' ', ',');
  return text;
}

Result<Shard> parse_shard(std::string_view text) {
  const std::vector<std::string> parts = split(text, '/');
  if (parts.size() != 2)
    return invalid_argument("the shard is '" + std::string(text) +
                            "', it must be INDEX/COUNT, as 0/4");
  Shard shard;
  SCANJIT_ASSIGN_OR_RETURN(shard.count, parse_integer("the shard's count", parts[1], 1, 1'000'000));
  SCANJIT_ASSIGN_OR_RETURN(shard.index,
                           parse_integer("the shard's index", parts[0], 0, shard.count - 1));
  return shard;
}

}  // namespace scanjit::cli
