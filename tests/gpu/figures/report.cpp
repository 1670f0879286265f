#include "gpu/figures/report.hpp"

#include <cstdio>
#include <fstream>

#include "cuda/nvrtc.hpp"

namespace scanjit {
extern const char gpu_source_digest[];
extern const char gpu_source_commit[];
}  // namespace scanjit

namespace scanjit::test {

const char* source_digest() noexcept { return gpu_source_digest; }
const char* source_commit() noexcept { return gpu_source_commit; }

void Report::row(const std::string& what, double value, const std::string& unit,
                 std::optional<double> limit, const Json& details) {
  judged(what, value, unit, limit, !limit || value <= *limit, details);
}

void Report::judged(const std::string& what, double value, const std::string& unit,
                    std::optional<double> limit, bool ok, const Json& details) {
  Json row = {{"what", what}, {"value", value}, {"unit", unit}};
  row["limit"] = limit ? Json(*limit) : Json(nullptr);
  row["ok"] = ok;
  for (const auto& [name, detail] : details.items()) row[name] = detail;
  add(row);
}

void Report::failed(const std::string& what, const Status& status) {
  add(Json{{"what", what},
           {"value", nullptr},
           {"unit", ""},
           {"limit", nullptr},
           {"ok", false},
           {"error", status.to_string()}});
}

void Report::add(const Json& row) {
  if (!row.value("ok", false)) ++misses_;
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
  rows_.push_back(row);
}

Status Report::write(const std::string& path, Gpu& gpu, const std::string& command) const {
  Json file = {{"schema", "scanjit-bench/1"},
               {"gpu", gpu.facts().name},
               {"driver", gpu.facts().driver},
               {"nvrtc", nullptr},
               {"commit", source_commit()},
               {"digest", source_digest()},
               {"command", command},
               {"l2", "auto: warm where the op moves less than half of L2, else cold"}};
  const Result<const cuda::NvrtcApi*> nvrtc = cuda::load_nvrtc(gpu.environment());
  if (nvrtc.ok()) file["nvrtc"] = (*nvrtc)->version;
  // One row a line, so that two files can be compared line by line.
  std::string text = file.dump(1);
  text.resize(text.size() - 2);  // "\n}"
  text += ",\n \"rows\": [";
  for (std::size_t i = 0; i < rows_.size(); ++i)
    text += (i == 0 ? "\n  " : ",\n  ") + rows_[i].dump();
  text += "\n ]\n}\n";
  std::ofstream out(path);
  out << text;
  out.flush();
  return out ? Status() : io_error("cannot write " + path, path);
}

}  // namespace scanjit::test
