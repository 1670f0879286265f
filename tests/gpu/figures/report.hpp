#pragma once
// Rows of figures: one JSON line each on stdout, and all of them in a benchmark file.

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "gpu/gpu.hpp"

namespace scanjit::test {

using Json = nlohmann::ordered_json;

class Report {
 public:
  /// `limit` none: the figure only informs. A value above its limit is a miss. `details` are
  /// appended.
  void row(const std::string& what, double value, const std::string& unit,
           std::optional<double> limit, const Json& details = Json::object());
  /// The same where more than a number decides.
  void judged(const std::string& what, double value, const std::string& unit,
              std::optional<double> limit, bool ok, const Json& details = Json::object());
  /// A figure that could not be had: a miss, with the reason.
  void failed(const std::string& what, const Status& status);
  /// A row as another process printed it.
  void add(const Json& row);

  [[nodiscard]] bool all_ok() const noexcept { return misses_ == 0; }
  /// docs/benchmarks/h200_runtime.json's form. Errors: kIoError.
  [[nodiscard]] Status write(const std::string& path, Gpu& gpu, const std::string& command) const;

 private:
  std::vector<Json> rows_;
  int misses_ = 0;
};

/// Digest and commit of the code that this program was built from.
[[nodiscard]] const char* source_digest() noexcept;
[[nodiscard]] const char* source_commit() noexcept;

}  // namespace scanjit::test
