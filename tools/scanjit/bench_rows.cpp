#include "bench_rows.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "shape_source.hpp"
#include "tuning/key_json.hpp"

namespace scanjit::cli {
namespace {

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// To the nanosecond: digits below it are noise.
double rounded(double us) { return std::round(us * 1000) / 1000; }

Json rounded(const std::vector<double>& samples) {
  Json list = Json::array();
  for (const double us : samples) list.push_back(rounded(us));
  return list;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

const ConfigTimes* BenchRow::best() const {
  const ConfigTimes* best = nullptr;
  for (const ConfigTimes& times : configs) {
    if (!times.samples.empty() && (best == nullptr || times.us < best->us)) best = &times;
  }
  return best;
}

Json row_json(const BenchRow& row) {
  Json json;
  json["op"] = row.shape.op;
  json["shape"] = shape_json(row.shape);
  json["class"] = "default";
  json["gates"] = "strong";
  json["l2"] = row.l2;
  json["kernel_revision"] = row.kernel_revision;
  json["config"] = tuning::config_json(row.pick().config);
  json["source"] = row.source;
  json["us"] = rounded(row.pick().us);
  json["samples"] = rounded(row.pick().samples);
  if (!row.pick().failure.empty()) json["failure"] = row.pick().failure;
  if (row.timed_tokens != row.shape.T) json["timed_tokens"] = row.timed_tokens;
  if (row.peer)
    json["peer"] = {{"name", row.peer->name}, {"us", row.peer->us}, {"measured", "before"}};
  json["floor_us"] = rounded(row.floor_us);
  if (row.configs.size() > 1) {
    Json list = Json::array();
    for (const ConfigTimes& times : row.configs) {
      Json one = {{"config", tuning::config_json(times.config)}};
      if (times.samples.empty()) {
        one["failure"] = times.failure;
      } else {
        one["us"] = rounded(times.us);
        one["samples"] = rounded(times.samples);
      }
      list.push_back(std::move(one));
    }
    json["configs"] = std::move(list);
  }
  return json;
}

std::string csv_of(const std::vector<BenchRow>& rows) {
  std::ostringstream csv;
  csv << "op,N,T,H,HV,K,V,M,BT,dtype,gate,packed,l2,bv,bk,stages,warps,segment_chunks,us,served,"
         "floor_us,peer,peer_us\n";
  for (const BenchRow& row : rows) {
    const tuning::Shape& s = row.shape;
    for (std::size_t i = 0; i < row.configs.size(); ++i) {
      const ConfigTimes& times = row.configs[i];
      if (times.samples.empty()) continue;
      csv << s.op << ',' << s.N << ',' << s.T << ',' << s.H << ',' << s.HV << ',' << s.K << ','
          << s.V << ',' << s.M << ',' << s.BT << ',' << to_string(s.dtype) << ',' << s.gate << ','
          << (s.packed ? 1 : 0) << ',' << row.l2 << ',' << times.config.bv << ',' << times.config.bk
          << ',' << times.config.stages << ',' << times.config.warps << ','
          << times.config.segment_chunks << ',' << times.us << ',' << (i == row.served ? 1 : 0)
          << ',' << row.floor_us << ',';
      if (row.peer) {
        std::string name = row.peer->name;
        std::replace(name.begin(), name.end(), ',', ' ');
        std::replace(name.begin(), name.end(), '\n', ' ');
        csv << name << ',' << row.peer->us;
      } else {
        csv << ',';
      }
      csv << '\n';
    }
  }
  return csv.str();
}

Result<std::vector<std::pair<tuning::Shape, PeerTime>>> read_peers(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  const Json *schema = member(json, "schema"), *rows = member(json, "rows");
  if (schema == nullptr || *schema != "scanjit-bench/1" || rows == nullptr || !rows->is_array()) {
    return corrupt(
        "it is no benchmark file: \"schema\" must be \"scanjit-bench/1\" and \"rows\" a list");
  }
  std::vector<std::pair<tuning::Shape, PeerTime>> peers;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    const Json& row = (*rows)[i];
    const std::string where = "rows[" + std::to_string(i) + "].";
    const Json* peer = member(row, "peer");
    if (peer == nullptr) continue;
    const Json *op = member(row, "op"), *shape = member(row, "shape"),
               *name = member(*peer, "name"), *us = member(*peer, "us");
    if (op == nullptr || !op->is_string()) return corrupt(where + "op must be a word");
    if (shape == nullptr || !shape->is_object()) return corrupt(where + "shape must be an object");
    if (name == nullptr || !name->is_string()) return corrupt(where + "peer.name must be a word");
    if (us == nullptr || !us->is_number() || us->get<double>() <= 0)
      return corrupt(where + "peer.us must be a time above 0");
    std::string words;
    for (const auto& [field, value] : shape->items()) {
      if (field == "optional") continue;
      words += (words.empty() ? "" : ",") + field + "=" +
               (value.is_string() ? value.get<std::string>() : dump(value));
    }
    const Result<tuning::Shape> parsed = parse_shape(op->get<std::string>(), words);
    if (!parsed.ok()) return corrupt(where + "shape: " + parsed.status().message());
    peers.emplace_back(*parsed, PeerTime{name->get<std::string>(), us->get<double>()});
  }
  return peers;
}

bool same_problem(const tuning::Shape& a, const tuning::Shape& b) {
  return a.op == b.op && a.N == b.N && a.T == b.T && a.H == b.H && a.HV == b.HV && a.K == b.K &&
         a.V == b.V && a.M == b.M && a.BT == b.BT && a.dtype == b.dtype && a.gate == b.gate &&
         a.packed == b.packed;
}

}  // namespace scanjit::cli
