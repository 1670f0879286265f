#pragma once
/// \file
/// Strict reading of JSON objects into plain values. Internal to src/tuning: the only header here
/// that shows nlohmann/json. The first error sticks and names the field by its path
/// ("entries[3].key.dtype"); after it, getters return what they were given as a default, so that a
/// reader is a list of lines.

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "scanjit/result.hpp"

namespace scanjit::tuning::json {

using Value = nlohmann::json;            // sorted members: hostile objects cost n log n
using Ordered = nlohmann::ordered_json;  // for writing, in the documented order

/// Parses text; refuses doubled names and nesting deeper than any of our files has.
[[nodiscard]] Result<Value> parse(std::string_view text);

/// One line; bytes that are not UTF-8 are replaced.
[[nodiscard]] std::string dump(const Ordered& value);

/// The first error of a reading.
class Errors {
 public:
  void add(const std::string& where, const std::string& what) {
    if (status_.ok()) status_ = corrupt((where.empty() ? "the file" : where) + " " + what);
  }
  [[nodiscard]] bool ok() const noexcept { return status_.ok(); }
  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};

/// Short form of a value for a message.
[[nodiscard]] std::string shown(const Value& value);

[[nodiscard]] std::int64_t as_integer(const Value& value, const std::string& where,
                                      std::int64_t low, std::int64_t high, Errors& errors);
[[nodiscard]] double as_number(const Value& value, const std::string& where, double low,
                               double high, Errors& errors);
[[nodiscard]] std::string as_text(const Value& value, const std::string& where,
                                  std::size_t max_bytes, Errors& errors);

/// Members of one object. `done` reports those that nobody asked for.
class Object {
 public:
  Object(const Value& value, std::string where, Errors& errors);

  /// The member, or null (and an error if it is required).
  [[nodiscard]] const Value* member(const char* name, bool required = true);
  [[nodiscard]] std::string path(const char* name) const {
    return where_.empty() ? name : where_ + "." + name;
  }

  [[nodiscard]] std::int64_t integer(const char* name, std::int64_t low, std::int64_t high);
  [[nodiscard]] double number(const char* name, double low, double high);
  [[nodiscard]] std::string text(const char* name, std::size_t max_bytes = 256);
  [[nodiscard]] bool boolean(const char* name);
  [[nodiscard]] std::string one_of(const char* name, std::initializer_list<const char*> words);
  /// The member's elements; none if it is no array.
  [[nodiscard]] const Value::array_t& array(const char* name, bool required = true);

  void done();

 private:
  const Value* object_ = nullptr;
  std::string where_;
  Errors& errors_;
  std::set<std::string, std::less<>> seen_;
};

[[nodiscard]] std::string indexed(const std::string& where, std::size_t index);

/// 1 to 64 of [A-Za-z0-9_+.-]: words that keys are made of.
[[nodiscard]] bool is_word(std::string_view text) noexcept;

}  // namespace scanjit::tuning::json
