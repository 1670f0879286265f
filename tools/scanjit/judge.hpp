#pragma once
/// \file
/// Results against the f64 oracle and its limits.

#include <string>

#include "device_case.hpp"
#include "reference/compare.hpp"
#include "reference/generators.hpp"
#include "session.hpp"
#include "tensor_problem.hpp"

namespace scanjit::cli {

struct Verdict {
  std::string failure;               ///< "" or what is broken, with figures
  reference::OutputErrors pure;      ///< against the f64 oracle
  reference::OutputErrors rounding;  ///< against the oracle that rounds as the definition does
  bool mistrusted = false;           ///< mostly zeros: agreement proves little
};

/// The oracle's results for one problem; any number of results are held against them.
class Judge {
 public:
  /// Runs both oracles on all cores. `problem` must outlive this. Errors: kInvalidArgument,
  /// kOutOfMemory.
  [[nodiscard]] static Result<Judge> make(const TensorProblem& problem, reference::GateSet gates);
  [[nodiscard]] Verdict judge(const DeviceCase::Outputs& got) const;

  /// Whether each of the three mistakes that a good limit must catch is caught on this problem:
  /// pairs of a name and the verdict on outputs computed with that mistake.
  [[nodiscard]] Result<std::vector<std::pair<std::string, std::string>>> negative_controls() const;

 private:
  Judge(const TensorProblem& problem, reference::GateSet gates)
      : problem_(&problem), gates_(gates) {}
  const TensorProblem* problem_;
  reference::GateSet gates_;
  reference::GatedDeltaHOutputs pure_, rounding_;
};

/// "strong", "slow" or "none". Errors: kInvalidArgument.
[[nodiscard]] Result<reference::GateSet> parse_gates(const std::string& text);

/// {"h": {"pure": 1e-3, "rounding": 1e-4}, ...} of the outputs that exist.
[[nodiscard]] Json errors_json(const Verdict& verdict);

}  // namespace scanjit::cli
