#include "metrics.hpp"

#include <cstdint>
#include <sstream>

namespace server {
namespace {

void counter(std::ostream& out, const char* name, const char* help, std::int64_t value) {
  out << "# HELP scanjit_" << name << "_total " << help << "\n# TYPE scanjit_" << name
      << "_total counter\nscanjit_" << name << "_total " << value << '\n';
}

void gauge(std::ostream& out, const char* name, const char* help, const std::vector<Delay>& delays,
           double Delay::*field) {
  out << "# HELP " << name << ' ' << help << "\n# TYPE " << name << " gauge\n";
  for (const Delay& delay : delays)
    out << name << "{kind=\"" << delay.kind << "\"} " << delay.*field / 1000 << '\n';
}

}  // namespace

std::string prometheus_text(const scanjit::EngineStats& stats, const std::vector<Delay>& delays) {
  std::ostringstream out;
  counter(out, "launches", "Operations launched.", stats.launches);
  counter(out, "plans", "Plans made, not looked up.", stats.plans);
  counter(out, "lookups", "Plans served from memory.", stats.lookups);
  counter(out, "plans_exact", "Plans whose config was tuned for their key.", stats.exact);
  counter(out, "plans_fallback", "Plans on a neighbour's config or the heuristic's.",
          stats.fallback);
  counter(out, "compiles", "Kernels compiled in this process.", stats.compiles);
  counter(out, "compile_errors", "Kernels that did not compile.", stats.compile_errors);
  counter(out, "binary_hits", "Kernels taken from the cache or a pack.", stats.binary_hits);
  counter(out, "first_uses", "Keys timed in this process.", stats.first_uses);
  counter(out, "first_uses_busy", "Timings thrown away because the GPU was busy.",
          stats.first_uses_busy);
  counter(out, "first_uses_no_scratch", "Timings left out for want of memory.",
          stats.first_uses_no_scratch);
  counter(out, "corrupt_files", "Stored files that were damaged.", stats.corrupt_files);
  gauge(out, "server_first_token_seconds", "Delay of the first request of a kind.", delays,
        &Delay::first_ms);
  gauge(out, "server_token_seconds", "Median delay of later requests of a kind.", delays,
        &Delay::usual_ms);
  return out.str();
}

}  // namespace server
