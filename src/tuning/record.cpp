#include "tuning/record.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "core/guard.hpp"
#include "core/hash.hpp"
#include "tuning/json_reader.hpp"
#include "tuning/key_json.hpp"

namespace scanjit::tuning {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int64_t>::max();
constexpr double kMaxUs = 1e12;
constexpr double kMaxRegret = 1e9;
constexpr int kMaxParameter = 1 << 16;  // of a Config: far above any legal value
constexpr std::size_t kMaxDetail = 4096;
constexpr const char* kReasons[] = {"illegal",    "compile_failed", "launch_failed",
                                    "wrong_bits", "timeout",        "device_fault"};

Config read_config(json::Object& parent, const char* name, json::Errors& errors) {
  Config config;
  const json::Value* value = parent.member(name);
  if (value == nullptr) return config;
  json::Object object(*value, parent.path(name), errors);
  config.bv = static_cast<int>(object.integer("bv", 1, kMaxParameter));
  config.bk = static_cast<int>(object.integer("bk", 1, kMaxParameter));
  config.stages = static_cast<int>(object.integer("stages", 1, kMaxParameter));
  config.warps = static_cast<int>(object.integer("warps", 1, kMaxParameter));
  if (const json::Value* chunks = object.member("segment_chunks", false); chunks != nullptr) {
    config.segment_chunks = static_cast<int>(
        json::as_integer(*chunks, object.path("segment_chunks"), 1, kMaxParameter, errors));
  }
  object.done();
  return config;
}

json::Ordered record_json(const Record& record) {
  json::Ordered entry;
  entry["key"] = key_json(record.key);
  entry["measured_at"] = json::Ordered::array();
  for (const MeasuredPoint& point : record.measured_at) {
    json::Ordered object;
    object["sequences"] = point.sequences;
    object["tokens"] = point.tokens;
    entry["measured_at"].push_back(std::move(object));
  }
  entry["config"] = config_json(record.config);
  json::Ordered us;
  us["median"] = record.us.median;
  us["ci95"] = {record.us.ci_low, record.us.ci_high};
  us["samples"] = record.us.samples;
  entry["us"] = std::move(us);
  entry["regret"] = record.regret;
  json::Ordered fallback;
  fallback["config"] = config_json(record.default_config);
  fallback["us"] = record.default_us;
  entry["default"] = std::move(fallback);
  entry["alternates"] = json::Ordered::array();
  for (const Alternate& alternate : record.alternates) {
    json::Ordered object;
    object["config"] = config_json(alternate.config);
    object["us"] = alternate.us;
    object["regret"] = alternate.regret;
    entry["alternates"].push_back(std::move(object));
  }
  entry["rejected"] = json::Ordered::array();
  for (const Rejected& rejected : record.rejected) {
    json::Ordered object;
    object["config"] = config_json(rejected.config);
    object["reason"] = to_string(rejected.reason);
    object["detail"] = rejected.detail;
    entry["rejected"].push_back(std::move(object));
  }
  json::Ordered policy;
  policy["l2"] = record.l2;
  policy["sm_clock_mhz"] = record.sm_clock_mhz;
  entry["policy"] = std::move(policy);
  json::Ordered toolchain;
  toolchain["nvrtc"] = record.toolchain.nvrtc;
  toolchain["driver"] = record.toolchain.driver;
  toolchain["scanjit"] = record.toolchain.scanjit;
  entry["toolchain"] = std::move(toolchain);
  entry["partial"] = record.partial;
  return entry;
}

Record read_record(const json::Value& value, const std::string& where, json::Errors& errors) {
  Record record;
  json::Object entry(value, where, errors);
  if (const json::Value* key = entry.member("key"))
    record.key = read_key(*key, entry.path("key"), errors);

  const auto& points = entry.array("measured_at");
  for (std::size_t i = 0; i < points.size() && errors.ok(); ++i) {
    json::Object object(points[i], json::indexed(entry.path("measured_at"), i), errors);
    record.measured_at.push_back(
        {object.integer("sequences", 1, kMaxCount), object.integer("tokens", 1, kMaxCount)});
    object.done();
  }
  record.config = read_config(entry, "config", errors);
  if (const json::Value* us = entry.member("us")) {
    json::Object object(*us, entry.path("us"), errors);
    record.us.median = object.number("median", 0, kMaxUs);
    const auto& interval = object.array("ci95");
    if (interval.size() == 2) {
      record.us.ci_low = json::as_number(interval[0], object.path("ci95[0]"), 0, kMaxUs, errors);
      record.us.ci_high = json::as_number(interval[1], object.path("ci95[1]"), 0, kMaxUs, errors);
    } else {
      errors.add(object.path("ci95"),
                 "has " + std::to_string(interval.size()) + " elements; it must have 2");
    }
    record.us.samples = static_cast<int>(object.integer("samples", 1, 1'000'000'000));
    object.done();
  }
  record.regret = entry.number("regret", 0, kMaxRegret);
  if (const json::Value* fallback = entry.member("default")) {
    json::Object object(*fallback, entry.path("default"), errors);
    record.default_config = read_config(object, "config", errors);
    record.default_us = object.number("us", 0, kMaxUs);
    object.done();
  }
  const auto& alternates = entry.array("alternates");
  for (std::size_t i = 0; i < alternates.size() && errors.ok(); ++i) {
    json::Object object(alternates[i], json::indexed(entry.path("alternates"), i), errors);
    Alternate alternate;
    alternate.config = read_config(object, "config", errors);
    alternate.us = object.number("us", 0, kMaxUs);
    alternate.regret = object.number("regret", 0, kMaxRegret);
    object.done();
    record.alternates.push_back(alternate);
  }
  const auto& rejected = entry.array("rejected");
  for (std::size_t i = 0; i < rejected.size() && errors.ok(); ++i) {
    json::Object object(rejected[i], json::indexed(entry.path("rejected"), i), errors);
    Rejected one;
    one.config = read_config(object, "config", errors);
    const std::string reason = object.one_of(
        "reason", {kReasons[0], kReasons[1], kReasons[2], kReasons[3], kReasons[4], kReasons[5]});
    one.reason = static_cast<RejectReason>(
        std::find(std::begin(kReasons), std::end(kReasons), reason) - std::begin(kReasons) + 1);
    one.detail = object.text("detail", kMaxDetail);
    object.done();
    record.rejected.push_back(std::move(one));
  }
  if (const json::Value* policy = entry.member("policy")) {
    json::Object object(*policy, entry.path("policy"), errors);
    record.l2 = object.one_of("l2", {"warm", "cold"});
    record.sm_clock_mhz = static_cast<int>(object.integer("sm_clock_mhz", 0, 100'000));
    object.done();
  }
  if (const json::Value* toolchain = entry.member("toolchain")) {
    json::Object object(*toolchain, entry.path("toolchain"), errors);
    record.toolchain = {object.text("nvrtc"), object.text("driver"), object.text("scanjit")};
    object.done();
  }
  record.partial = entry.boolean("partial");
  entry.done();
  if (errors.ok()) {
    if (const Status status = record.check(); !status.ok()) errors.add(where, status.message());
  }
  return record;
}

json::Ordered gpu_json(const GpuFacts& gpu) {
  json::Ordered object;
  object["names"] = gpu.names;
  object["compute_capability"] =
      std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor);
  object["sm_count"] = gpu.sm_count;
  object["l2_bytes"] = gpu.l2_bytes;
  object["smem_optin_bytes"] = gpu.smem_optin_bytes;
  object["memory_bus_bits"] = gpu.memory_bus_bits;
  return object;
}

GpuFacts read_gpu(const json::Value& value, const std::string& where, json::Errors& errors) {
  GpuFacts gpu;
  json::Object object(value, where, errors);
  const auto& names = object.array("names");
  for (std::size_t i = 0; i < names.size(); ++i) {
    gpu.names.push_back(
        json::as_text(names[i], json::indexed(object.path("names"), i), 256, errors));
  }
  const std::string capability = object.text("compute_capability", 8);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::size_t dot = capability.find('.');
  const bool written =
      dot != std::string::npos && dot >= 1 && dot <= 2 && capability.size() == dot + 2 &&
      std::all_of(capability.begin(), capability.begin() + static_cast<std::ptrdiff_t>(dot),
                  is_digit) &&
      is_digit(capability.back());
  if (written) {
    for (const char digit : capability.substr(0, dot))
      gpu.compute_major = gpu.compute_major * 10 + (digit - '0');
    gpu.compute_minor = capability.back() - '0';
  } else {
    errors.add(object.path("compute_capability"),
               "is " + json::shown(capability) + "; it must be like \"9.0\"");
  }
  gpu.sm_count = static_cast<int>(object.integer("sm_count", 1, 1 << 20));
  gpu.l2_bytes = object.integer("l2_bytes", 0, kMaxCount);
  gpu.smem_optin_bytes = object.integer("smem_optin_bytes", 0, kMaxCount);
  gpu.memory_bus_bits = static_cast<int>(object.integer("memory_bus_bits", 0, 1 << 20));
  object.done();
  return gpu;
}

json::Ordered buckets_json(const WidthBuckets& buckets) {
  json::Ordered object;
  object["HV"] = buckets.HV;
  object["V"] = buckets.V;
  object["starts"] = buckets.starts;
  return object;
}

WidthBuckets read_buckets(const json::Value& value, const std::string& where,
                          json::Errors& errors) {
  WidthBuckets buckets;
  json::Object object(value, where, errors);
  buckets.HV = object.integer("HV", 1, kMaxExtent);
  buckets.V = object.integer("V", 1, kMaxExtent);
  const auto& starts = object.array("starts");
  for (std::size_t i = 0; i < starts.size(); ++i) {
    buckets.starts.push_back(
        json::as_integer(starts[i], json::indexed(object.path("starts"), i), 1, kMaxCount, errors));
  }
  object.done();
  if (errors.ok()) {
    if (const Status status = buckets.check(); !status.ok()) errors.add(where, status.message());
  }
  return buckets;
}

/// Covers all that a file says, and nothing of how it is laid out.
std::string checksum_of(const TunedFile& file) {
  return "sha256:" + sha256_hex(to_json(file, Checksum::kWithout));
}

}  // namespace

json::Ordered config_json(const Config& config) {
  json::Ordered object;
  object["bv"] = config.bv;
  object["bk"] = config.bk;
  object["stages"] = config.stages;
  object["warps"] = config.warps;
  if (config.segment_chunks != 0) object["segment_chunks"] = config.segment_chunks;
  return object;
}

bool GpuFacts::same_model(const GpuFacts& other) const noexcept {
  return compute_major == other.compute_major && compute_minor == other.compute_minor &&
         sm_count == other.sm_count && l2_bytes == other.l2_bytes &&
         smem_optin_bytes == other.smem_optin_bytes && memory_bus_bits == other.memory_bus_bits;
}

std::string GpuFacts::directory() const {
  return "cc" + std::to_string(compute_major) + std::to_string(compute_minor) + "-sm" +
         std::to_string(sm_count) + "-l2." + std::to_string(l2_bytes) + "-smem." +
         std::to_string(smem_optin_bytes) + "-bus." + std::to_string(memory_bus_bits);
}

const char* to_string(RejectReason reason) noexcept {
  const int index = static_cast<int>(reason) - 1;
  return index >= 0 && index < static_cast<int>(std::size(kReasons)) ? kReasons[index] : "illegal";
}

RejectReason reject_reason(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kCompileFailed: return RejectReason::kCompileFailed;
    case ErrorCode::kTimeout: return RejectReason::kTimeout;
    case ErrorCode::kDeviceLost: return RejectReason::kDeviceFault;
    case ErrorCode::kUnsupported:
    case ErrorCode::kInvalidArgument: return RejectReason::kIllegal;
    default: return RejectReason::kLaunchFailed;
  }
}

Status Record::check() const {
  ShapeKey copy = key;
  if (const Status status = copy.normalise(); !status.ok()) return corrupt(status.message());
  if (copy != key) return corrupt("key field optional is not sorted, or names a tensor twice");
  if (measured_at.empty())
    return corrupt("measured_at is empty; an entry has at least one measured point");
  for (const MeasuredPoint& point : measured_at) {
    if (!key.sequences.contains(point.sequences)) {
      return corrupt("measured_at has " + std::to_string(point.sequences) +
                     " sequences, which is outside the key's " + to_string(key.sequences));
    }
    // A problem too large for its scratch memory is timed on fewer chunks, never on more.
    const std::int64_t chunks = class_chunks(point.tokens, 1, 0, key.BT);
    if (point.tokens < 1 || (key.chunks.max && chunks > *key.chunks.max)) {
      return corrupt("measured_at has " + std::to_string(point.tokens) + " tokens, " +
                     std::to_string(chunks) + " chunks, which is above the key's " +
                     to_string(key.chunks));
    }
  }
  const auto positive = [](const Config& one) {
    return std::min({one.bv, one.bk, one.stages, one.warps}) >= 1 && one.segment_chunks >= 0 &&
           std::max({one.bv, one.bk, one.stages, one.warps, one.segment_chunks}) <= kMaxParameter;
  };
  if (!positive(config))
    return corrupt("config is " + to_string(config) + "; each value must be from 1 to 65536");
  if (!positive(default_config)) {
    return corrupt("default config is " + to_string(default_config) +
                   "; each value must be from 1 to 65536");
  }
  const auto in = [](double value, double high) {
    return value >= 0 && value <= high;
  };  // false for NaN
  if (!in(us.median, kMaxUs) || !in(us.ci_low, kMaxUs) || !in(us.ci_high, kMaxUs) ||
      us.median <= 0 || us.ci_low > us.median || us.ci_high < us.median || us.samples < 1) {
    return corrupt("us is no positive median inside its ci95 with at least one sample");
  }
  if (!in(regret, kMaxRegret)) return corrupt("regret is negative or no number");
  if (!in(default_us, kMaxUs)) return corrupt("default us is negative or no number");
  std::set<Config> seen{config};
  for (const Alternate& alternate : alternates) {
    if (!positive(alternate.config) || !in(alternate.us, kMaxUs) ||
        !in(alternate.regret, kMaxRegret)) {
      return corrupt("alternate " + to_string(alternate.config) + " has a value out of range");
    }
    if (!seen.insert(alternate.config).second) {
      return corrupt("alternate " + to_string(alternate.config) +
                     " is there twice, or is the pick");
    }
  }
  for (const Rejected& one : rejected) {
    if (!positive(one.config))
      return corrupt("rejected config " + to_string(one.config) + " has a value out of range");
    if (!seen.insert(one.config).second) {
      return corrupt("rejected config " + to_string(one.config) +
                     " is there twice, or serves as well");
    }
    if (one.detail.size() > kMaxDetail)
      return corrupt("a rejected detail is longer than 4096 bytes");
  }
  if (l2 != "warm" && l2 != "cold")
    return corrupt("policy l2 is \"" + l2 + "\"; it must be warm or cold");
  if (sm_clock_mhz < 0) return corrupt("policy sm_clock_mhz is negative");
  return {};
}

WidthBuckets TunedFile::buckets(std::int64_t HV, std::int64_t V) const {
  for (const WidthBuckets& one : width_buckets) {
    if (one.HV == HV && one.V == V) return one;
  }
  return {HV, V, default_width_starts(HV, V, gpu.sm_count)};
}

std::string to_json(const TunedFile& file, Checksum checksum) {
  // Entries stay on one line each, so that a difference between two files reads entry by entry.
  std::string text = "{\n\"schema\": \"" + std::string(kTunedSchema) +
                     "\",\n\"gpu\": " + json::dump(gpu_json(file.gpu)) + ",\n\"width_buckets\": [";
  for (std::size_t i = 0; i < file.width_buckets.size(); ++i) {
    text += (i == 0 ? "\n" : ",\n") + json::dump(buckets_json(file.width_buckets[i]));
  }
  text += "],\n\"entries\": [";
  for (std::size_t i = 0; i < file.entries.size(); ++i) {
    text += (i == 0 ? "\n" : ",\n") + to_json(file.entries[i]);
  }
  text += "]";
  if (checksum == Checksum::kWith) text += ",\n\"checksum\": \"" + checksum_of(file) + "\"";
  return text + "\n}\n";
}

std::string only_entries(std::string_view text, const std::string& kernel, std::int64_t H,
                         std::int64_t HV) {
  constexpr std::string_view kBegin = "\n\"entries\": [\n", kEnd = "]\n}\n", kEntry = "{\"key\":{";
  const std::size_t begin = text.find(kBegin);
  if (begin == std::string_view::npos || text.size() < kEnd.size() ||
      text.substr(text.size() - kEnd.size()) != kEnd)
    return std::string(text);
  const std::string words[] = {"\"kernel\":\"" + kernel + "\"", "\"H\":" + std::to_string(H) + ",",
                               "\"HV\":" + std::to_string(HV) + ","};
  std::string kept(text.substr(0, begin + kBegin.size() - 1));
  std::size_t count = 0;
  std::string_view lines = text.substr(begin + kBegin.size());
  lines.remove_suffix(kEnd.size());
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (!lines.empty() && line.back() == ',') line.remove_suffix(1);
    if (line.substr(0, kEntry.size()) != kEntry) return std::string(text);
    const std::string_view key = line.substr(0, line.find("},\"measured_at\""));
    if (kernel.empty() || !std::all_of(std::begin(words), std::end(words), [&](const auto& word) {
          return key.find(word) != std::string_view::npos;
        }))
      continue;
    kept += (count++ == 0 ? "\n" : ",\n") + std::string(line);
  }
  return kept + std::string(kEnd);
}

Result<TunedFile> tuned_file_from_json(std::string_view text, Checksum checksum) {
  return guard([&]() -> Result<TunedFile> {
    SCANJIT_ASSIGN_OR_RETURN(const json::Value value, json::parse(text));
    json::Errors errors;
    json::Object object(value, "", errors);
    TunedFile file;
    (void)object.one_of("schema", {kTunedSchema});
    if (!errors.ok()) return errors.status();
    if (const json::Value* gpu = object.member("gpu")) file.gpu = read_gpu(*gpu, "gpu", errors);
    std::set<std::pair<std::int64_t, std::int64_t>> widths;
    const auto& buckets = object.array("width_buckets");
    for (std::size_t i = 0; i < buckets.size() && errors.ok(); ++i) {
      const std::string where = json::indexed("width_buckets", i);
      file.width_buckets.push_back(read_buckets(buckets[i], where, errors));
      if (!widths.insert({file.width_buckets.back().HV, file.width_buckets.back().V}).second) {
        errors.add(where, "gives HV and V that are there already");
      }
    }
    std::map<std::string, std::size_t> keys;
    const auto& entries = object.array("entries");
    for (std::size_t i = 0; i < entries.size() && errors.ok(); ++i) {
      const std::string where = json::indexed("entries", i);
      file.entries.push_back(read_record(entries[i], where, errors));
      if (!errors.ok()) break;
      const auto [first, fresh] = keys.insert({file.entries.back().key.text(), i});
      if (!fresh) errors.add(where, "has the key of " + json::indexed("entries", first->second));
    }
    const json::Value* stored = object.member("checksum", checksum == Checksum::kWith);
    std::string sum;
    if (stored != nullptr) sum = json::as_text(*stored, "checksum", 128, errors);
    object.done();
    if (!errors.ok()) return errors.status();
    if (stored != nullptr && sum != checksum_of(file))
      return corrupt("checksum does not match the content");
    return file;
  });
}

std::string to_json(const Record& record) { return json::dump(record_json(record)); }

Result<Record> record_from_json(std::string_view text) {
  return guard([&]() -> Result<Record> {
    SCANJIT_ASSIGN_OR_RETURN(const json::Value value, json::parse(text));
    json::Errors errors;
    Record record = read_record(value, "entry", errors);
    if (!errors.ok()) return errors.status();
    return record;
  });
}

}  // namespace scanjit::tuning
