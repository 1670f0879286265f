#pragma once
// What a server shows of scanjit: the engine's counters and its own delays, in the text form that
// Prometheus scrapes.

#include <string>
#include <vector>

#include "scanjit/engine.hpp"

namespace server {

/// How long a kind of request took from its arrival to its result, the first time and later.
struct Delay {
  std::string kind;  ///< "probe", "narrow", "wide"
  double first_ms = 0;
  double usual_ms = 0;  ///< median of the later ones
};

/// Text of the exposition format: "# HELP", "# TYPE" and one line for each value.
[[nodiscard]] std::string prometheus_text(const scanjit::EngineStats& stats,
                                          const std::vector<Delay>& delays);

}  // namespace server
