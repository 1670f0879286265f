#include "tuning/json_reader.hpp"

#include <algorithm>

namespace scanjit::tuning::json {
namespace {

constexpr int kMaxDepth = 16;

const Value::array_t& no_elements() {
  static const Value::array_t none;
  return none;
}

/// Accepts everything and remembers where the text stops being JSON.
class PlaceOfError final : public nlohmann::json_sax<Value> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    byte = position;
    return false;
  }
  std::size_t byte = 0;
};

std::string place_of_error(std::string_view text) {
  PlaceOfError place;
  (void)Value::sax_parse(text.begin(), text.end(), &place);
  const std::size_t end = std::min(place.byte > 0 ? place.byte - 1 : 0, text.size());
  const std::string_view before = text.substr(0, end);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t column =
      newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return "line " + std::to_string(line) + " column " + std::to_string(column);
}

}  // namespace

Result<Value> parse(std::string_view text) {
  std::vector<std::set<std::string>> names;  // of the open objects, by depth
  std::string doubled;
  bool too_deep = false;
  const auto watch = [&](int depth, Value::parse_event_t event, Value& parsed) {
    if (depth > kMaxDepth) {
      too_deep = true;
      return false;  // not kept, so that no value ever nests deeper
    }
    const auto level = static_cast<std::size_t>(depth);
    if (event == Value::parse_event_t::object_start) {
      names.resize(std::max(names.size(), level + 2));
      names[level + 1].clear();
    } else if (event == Value::parse_event_t::key && level < names.size()) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names[level].insert(name).second && doubled.empty()) doubled = name;
    }
    return true;
  };
  Value value = Value::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (too_deep)
    return corrupt("the text nests deeper than " + std::to_string(kMaxDepth) + " levels");
  if (value.is_discarded()) return corrupt("the text is not JSON at " + place_of_error(text));
  if (!doubled.empty())
    return corrupt("the name " + shown(Value(doubled)) + " is there twice in one object");
  return value;
}

std::string dump(const Ordered& value) {
  return value.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

std::string shown(const Value& value) {
  std::string text = value.dump(-1, ' ', true, Value::error_handler_t::replace);
  constexpr std::size_t kLongest = 60;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

std::int64_t as_integer(const Value& value, const std::string& where, std::int64_t low,
                        std::int64_t high, Errors& errors) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <=
                         static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
  if (!fits || number < low || number > high) {
    errors.add(where, "is " + shown(value) + "; it must be an integer from " + std::to_string(low) +
                          " to " + std::to_string(high));
    return low;
  }
  return number;
}

double as_number(const Value& value, const std::string& where, double low, double high,
                 Errors& errors) {
  const double number =
      value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(number >= low && number <= high)) {
    errors.add(where, "is " + shown(value) + "; it must be a number from " + shown(Value(low)) +
                          " to " + shown(Value(high)));
    return low;
  }
  return number;
}

std::string as_text(const Value& value, const std::string& where, std::size_t max_bytes,
                    Errors& errors) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > max_bytes) {
    errors.add(where, "is " + shown(value) + "; it must be a string of at most " +
                          std::to_string(max_bytes) + " bytes");
    return {};
  }
  return value.get<std::string>();
}

Object::Object(const Value& value, std::string where, Errors& errors)
    : where_(std::move(where)), errors_(errors) {
  if (value.is_object()) {
    object_ = &value;
  } else {
    errors_.add(where_, "is " + shown(value) + "; it must be an object");
  }
}

const Value* Object::member(const char* name, bool required) {
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(name);
  if (found == object_->end()) {
    if (required) errors_.add(path(name), "is missing");
    return nullptr;
  }
  seen_.insert(name);
  return &*found;
}

std::int64_t Object::integer(const char* name, std::int64_t low, std::int64_t high) {
  const Value* value = member(name);
  return value != nullptr ? as_integer(*value, path(name), low, high, errors_) : low;
}

double Object::number(const char* name, double low, double high) {
  const Value* value = member(name);
  return value != nullptr ? as_number(*value, path(name), low, high, errors_) : low;
}

std::string Object::text(const char* name, std::size_t max_bytes) {
  const Value* value = member(name);
  return value != nullptr ? as_text(*value, path(name), max_bytes, errors_) : std::string();
}

bool Object::boolean(const char* name) {
  const Value* value = member(name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) {
    errors_.add(path(name), "is " + shown(*value) + "; it must be true or false");
    return false;
  }
  return value->get<bool>();
}

std::string Object::one_of(const char* name, std::initializer_list<const char*> words) {
  const Value* value = member(name);
  if (value == nullptr) return *words.begin();
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    for (const char* word : words) {
      if (text == word) return text;
    }
  }
  std::string allowed;
  for (const char* word : words)
    allowed += (allowed.empty() ? "\"" : ", \"") + std::string(word) + "\"";
  errors_.add(path(name), "is " + shown(*value) + "; it must be one of " + allowed);
  return *words.begin();
}

const Value::array_t& Object::array(const char* name, bool required) {
  const Value* value = member(name, required);
  if (value == nullptr) return no_elements();
  if (!value->is_array()) {
    errors_.add(path(name), "is " + shown(*value) + "; it must be a list");
    return no_elements();
  }
  return value->get_ref<const Value::array_t&>();
}

void Object::done() {
  if (object_ == nullptr) return;
  for (const auto& member : object_->items()) {
    if (seen_.find(member.key()) == seen_.end()) {
      errors_.add(where_.empty() ? shown(Value(member.key())) : where_ + "." + member.key(),
                  "is no known field");
    }
  }
}

std::string indexed(const std::string& where, std::size_t index) {
  return where + "[" + std::to_string(index) + "]";
}

bool is_word(std::string_view text) noexcept {
  if (text.empty() || text.size() > 64) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '+' || c == '.' || c == '-';
  });
}

}  // namespace scanjit::tuning::json
