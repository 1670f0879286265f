#include "tuning/shape_key.hpp"

#include <algorithm>
#include <limits>

#include "core/checked_math.hpp"
#include "core/guard.hpp"
#include "core/hash.hpp"
#include "tuning/json_reader.hpp"
#include "tuning/key_json.hpp"

namespace scanjit::tuning {
namespace {

constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kClassEnds[] = {1, 8, 64, 512};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}

Status check_size(const char* name, std::int64_t value) {
  if (value >= 1 && value <= kMaxExtent) return {};
  return invalid_argument(std::string("key field ") + name + " is " + std::to_string(value) +
                          "; it must be from 1 to " + std::to_string(kMaxExtent));
}

Status check_word(const char* name, const std::string& value) {
  if (json::is_word(value)) return {};
  return invalid_argument(std::string("key field ") + name + " is \"" + value +
                          "\"; it must be 1 to 64 letters, digits or _+.-");
}

Status check_range(const char* name, const Range& range) {
  if (range.min >= 1 && (!range.max || *range.max >= range.min)) return {};
  return invalid_argument(std::string("key field ") + name + " is " + to_string(range) +
                          "; its lower end must be at least 1 and its upper end no less");
}

json::Ordered range_json(const Range& range) {
  json::Ordered object;
  object["min"] = range.min;
  if (range.max) {
    object["max"] = *range.max;
  } else {
    object["max"] = nullptr;
  }
  return object;
}

Range read_range(json::Object& parent, const char* name, json::Errors& errors) {
  Range range;
  const json::Value* value = parent.member(name);
  if (value == nullptr) return range;
  json::Object object(*value, parent.path(name), errors);
  range.min = object.integer("min", 1, kOpen);
  const json::Value* max = object.member("max");
  if (max != nullptr && !max->is_null()) {
    range.max = json::as_integer(*max, object.path("max"), range.min, kOpen, errors);
  }
  object.done();
  return range;
}

std::string read_word(json::Object& object, const char* name, json::Errors& errors) {
  std::string word = object.text(name);
  if (errors.ok() && !json::is_word(word)) {
    errors.add(object.path(name),
               "is " + json::shown(word) + "; it must be 1 to 64 letters, digits or _+.-");
  }
  return word;
}

}  // namespace

std::string to_string(const Range& range) {
  if (!range.max) return std::to_string(range.min) + "+";
  if (*range.max == range.min) return std::to_string(range.min);
  return std::to_string(range.min) + "-" + std::to_string(*range.max);
}

std::string ShapeKey::text() const {
  std::string tensors;
  for (const std::string& name : optional) tensors += (tensors.empty() ? "" : ",") + name;
  return "kernel=" + kernel + " kernel_revision=" + std::to_string(kernel_revision) +
         " space=" + space + " dtype=" + to_string(dtype) + " K=" + std::to_string(K) +
         " V=" + std::to_string(V) + (M != 0 ? " M=" + std::to_string(M) : "") +
         " BT=" + std::to_string(BT) + " gate=" + gate + " gate_base=" + to_string(gate_base) +
         " layout=" + to_string(layout) + " optional=" + tensors +
         " packed=" + (packed ? "true" : "false") + " index=" + index + " pool=" + pool +
         " alignment=" + std::to_string(alignment) + " numerics=" + numerics +
         " H=" + std::to_string(H) + " HV=" + std::to_string(HV) + " chunks=" + to_string(chunks) +
         " sequences=" + to_string(sequences);
}

std::string ShapeKey::file_name() const {
  return kernel + "-" + sha256_hex(text()).substr(0, 32) + ".json";
}

Status ShapeKey::normalise() {
  std::sort(optional.begin(), optional.end());
  optional.erase(std::unique(optional.begin(), optional.end()), optional.end());
  SCANJIT_TRY(check_word("kernel", kernel));
  if (kernel.find('.') == 0)
    return invalid_argument("key field kernel is \"" + kernel + "\"; it must not begin with a dot");
  if (kernel_revision < 1) {
    return invalid_argument("key field kernel_revision is " + std::to_string(kernel_revision) +
                            "; it must be at least 1");
  }
  SCANJIT_TRY(check_word("space", space));
  if (dtype != DType::kBf16 && dtype != DType::kF16 && dtype != DType::kF32) {
    return invalid_argument("key field dtype is " + std::to_string(static_cast<int>(dtype)) +
                            "; it must be bf16, f16 or f32");
  }
  SCANJIT_TRY(check_size("K", K));
  SCANJIT_TRY(check_size("V", V));
  if (M != 0) SCANJIT_TRY(check_size("M", M));
  SCANJIT_TRY(check_size("BT", BT));
  SCANJIT_TRY(check_word("gate", gate));
  for (const std::string& name : optional) SCANJIT_TRY(check_word("optional", name));
  if (index != "none" && index != "i32" && index != "i64") {
    return invalid_argument("key field index is \"" + index + "\"; it must be none, i32 or i64");
  }
  if (pool != "none" && pool != "h0" && pool != "ht" && pool != "h0+ht") {
    return invalid_argument("key field pool is \"" + pool + "\"; it must be none, h0, ht or h0+ht");
  }
  if (alignment != 16 && alignment != 2) {
    return invalid_argument("key field alignment is " + std::to_string(alignment) +
                            "; it must be 16 or 2");
  }
  SCANJIT_TRY(check_word("numerics", numerics));
  SCANJIT_TRY(check_size("H", H));
  SCANJIT_TRY(check_size("HV", HV));
  SCANJIT_TRY(check_range("chunks", chunks));
  return check_range("sequences", sequences);
}

json::Ordered key_json(const ShapeKey& key) {
  json::Ordered object;
  object["kernel"] = key.kernel;
  object["kernel_revision"] = key.kernel_revision;
  object["space"] = key.space;
  object["dtype"] = to_string(key.dtype);
  object["H"] = key.H;
  object["HV"] = key.HV;
  object["K"] = key.K;
  object["V"] = key.V;
  if (key.M != 0) object["M"] = key.M;
  object["BT"] = key.BT;
  object["gate"] = key.gate;
  object["gate_base"] = to_string(key.gate_base);
  object["layout"] = to_string(key.layout);
  object["optional"] = key.optional;
  object["packed"] = key.packed;
  object["index"] = key.index;
  object["pool"] = key.pool;
  object["alignment"] = key.alignment;
  object["chunks"] = range_json(key.chunks);
  object["sequences"] = range_json(key.sequences);
  object["numerics"] = key.numerics;
  return object;
}

ShapeKey read_key(const json::Value& value, const std::string& where, json::Errors& errors) {
  ShapeKey key;
  json::Object object(value, where, errors);
  key.kernel = read_word(object, "kernel", errors);
  key.kernel_revision = static_cast<int>(object.integer("kernel_revision", 1, 1'000'000));
  key.space = read_word(object, "space", errors);
  key.dtype = read_dtype(object);
  key.H = object.integer("H", 1, kMaxExtent);
  key.HV = object.integer("HV", 1, kMaxExtent);
  key.K = object.integer("K", 1, kMaxExtent);
  key.V = object.integer("V", 1, kMaxExtent);
  if (object.member("M", false) != nullptr) key.M = object.integer("M", 1, kMaxExtent);
  key.BT = object.integer("BT", 1, kMaxExtent);
  key.gate = read_word(object, "gate", errors);
  key.gate_base = object.one_of("gate_base", {"2", "e"}) == "e" ? GateBase::kE : GateBase::kTwo;
  key.layout = object.one_of("layout", {"kv", "vk"}) == "vk" ? StateLayout::kVK : StateLayout::kKV;
  key.optional = read_words(object, "optional", errors);
  key.packed = object.boolean("packed");
  key.index = object.one_of("index", {"none", "i32", "i64"});
  key.pool = object.one_of("pool", {"none", "h0", "ht", "h0+ht"});
  const std::int64_t alignment = object.integer("alignment", 2, 16);
  if (errors.ok() && alignment != 2 && alignment != 16)
    errors.add(object.path("alignment"),
               "is " + std::to_string(alignment) + "; it must be 16 or 2");
  key.alignment = static_cast<int>(alignment);
  key.chunks = read_range(object, "chunks", errors);
  key.sequences = read_range(object, "sequences", errors);
  key.numerics = read_word(object, "numerics", errors);
  object.done();
  return key;
}

DType read_dtype(json::Object& object) {
  const std::string word = object.one_of("dtype", {"bf16", "f16", "f32"});
  return word == "f32" ? DType::kF32 : word == "f16" ? DType::kF16 : DType::kBf16;
}

std::vector<std::string> read_words(json::Object& object, const char* name, json::Errors& errors) {
  std::vector<std::string> words;
  const auto& elements = object.array(name);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::string where = json::indexed(object.path(name), i);
    std::string word = json::as_text(elements[i], where, 64, errors);
    if (!errors.ok()) return {};
    if (!json::is_word(word)) {
      errors.add(where, "is " + json::shown(word) + "; it must be 1 to 64 letters, digits or _+.-");
    } else if (!words.empty() && words.back() >= word) {
      errors.add(where,
                 "is " + json::shown(word) + "; the names must be sorted and none there twice");
    }
    words.push_back(std::move(word));
  }
  return words;
}

std::string to_json(const ShapeKey& key) { return json::dump(key_json(key)); }

Result<ShapeKey> shape_key_from_json(const std::string& text) {
  return guard([&]() -> Result<ShapeKey> {
    SCANJIT_ASSIGN_OR_RETURN(const json::Value value, json::parse(text));
    json::Errors errors;
    ShapeKey key = read_key(value, "key", errors);
    if (!errors.ok()) return errors.status();
    return key;
  });
}

Range chunk_class(std::int64_t chunks) noexcept {
  std::int64_t low = 1;
  for (const std::int64_t end : kClassEnds) {
    if (chunks <= end) return {low, end};
    low = end + 1;
  }
  return {low, std::nullopt};
}

std::vector<Range> chunk_classes() {
  std::vector<Range> classes{chunk_class(1)};
  while (classes.back().max) classes.push_back(chunk_class(*classes.back().max + 1));
  return classes;
}

std::int64_t class_chunks(std::int64_t tokens, std::int64_t sequences, std::int64_t max_tokens,
                          std::int64_t BT) noexcept {
  if (BT < 1) return 1;
  const std::int64_t length = max_tokens > 0  ? max_tokens
                              : sequences > 0 ? ceil_div(tokens, sequences)
                                              : tokens;
  return std::max<std::int64_t>(1, ceil_div(length, BT));
}

std::vector<std::int64_t> default_width_starts(std::int64_t HV, std::int64_t V,
                                               int sm_count) noexcept {
  std::vector<std::int64_t> starts{1};
  if (HV < 1 || V < 1 || sm_count < 1) return starts;
  const std::optional<std::int64_t> blocks = checked_multiply(HV, ceil_div(V, 64));
  if (!blocks) return starts;
  const std::int64_t full = 4 * std::int64_t{sm_count};
  while (starts.back() < ceil_div(full, *blocks)) starts.push_back(starts.back() * 2);
  return starts;
}

Range WidthBuckets::bucket(std::int64_t sequences) const noexcept {
  const auto after =
      std::upper_bound(starts.begin(), starts.end(), std::max<std::int64_t>(sequences, 1));
  Range range;
  if (after != starts.begin()) range.min = *(after - 1);
  if (after != starts.end()) range.max = *after - 1;
  return range;
}

std::vector<Range> WidthBuckets::all() const {
  std::vector<Range> buckets;
  for (const std::int64_t start : starts) buckets.push_back(bucket(start));
  return buckets;
}

Status WidthBuckets::check() const {
  const std::string name =
      "the width buckets of HV " + std::to_string(HV) + " V " + std::to_string(V);
  if (HV < 1 || HV > kMaxExtent || V < 1 || V > kMaxExtent) {
    return corrupt(name + ": HV and V must be from 1 to " + std::to_string(kMaxExtent));
  }
  if (starts.empty() || starts.front() != 1) return corrupt(name + " must start at 1");
  for (std::size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] <= starts[i - 1]) {
      return corrupt(name + ": start " + std::to_string(starts[i]) + " does not lie above " +
                     std::to_string(starts[i - 1]));
    }
  }
  return {};
}

ShapeKey KeyQuery::under(const WidthBuckets& buckets) const {
  ShapeKey whole = key;
  whole.chunks = chunk_class(chunks);
  whole.sequences = buckets.bucket(sequences);
  return whole;
}

}  // namespace scanjit::tuning
