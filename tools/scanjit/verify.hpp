#pragma once
/// \file
/// What `scanjit verify` is asked, and the parts of it that know an op.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flags.hpp"
#include "scanjit/engine.hpp"
#include "session.hpp"
#include "terminal.hpp"

namespace scanjit::cli {

struct VerifyOptions {
  std::string op, gates;  ///< gates "": all that the op is usually held to
  ShapeFlags shapes;
  std::int64_t random = 0;
  std::uint64_t seed = 1;
  std::int64_t max_tokens = 4096;
  bool all_configs = false, negative = false;
  EngineOptions engine;
};

/// What came of one case. Of PASSED: how far it was from f64, and how many configs gave its bits.
struct VerifyLine {
  std::string status = "PASSED";  ///< PASSED, FAILED, SKIPPED, MISTRUSTED
  std::string name, reason;
  Config config;    ///< the one that was held against the oracle
  int configs = 0;  ///< that ran
  double worst = 0;
  Json errors;
  std::vector<std::string> repeat;  ///< arguments behind "scanjit verify OP"
};

/// Counts lines and tells each as it comes.
class VerifyReport {
 public:
  VerifyReport(Session& session, const VerifyOptions& options, std::string gpu, std::size_t cases);
  ~VerifyReport();
  void add(const VerifyLine& line);
  /// Exit status.
  [[nodiscard]] int finish();

 private:
  Session& session_;
  const VerifyOptions& options_;
  const std::string gpu_;
  std::unique_ptr<Progress> progress_;
  std::int64_t passed_ = 0, failed_ = 0, skipped_ = 0, mistrusted_ = 0;
  double worst_ = 0;
  Json list_ = Json::array();
};

/// `scanjit verify abc_forward`, `scanjit verify abc_backward`
[[nodiscard]] int verify_abc(Session& session, const VerifyOptions& options);

}  // namespace scanjit::cli
