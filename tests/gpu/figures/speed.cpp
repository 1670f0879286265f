// Our times beside the widths that the kernel is built for; the peer's are measured by
// compare_peer.py.

#include <utility>

#include "gpu/figures/device_timer.hpp"
#include "gpu/figures/figures.hpp"
#include "gpu/shape_map.hpp"

namespace scanjit::test {
namespace {

Status time_problem(const std::string& name, Engine& engine, const GatedDeltaHProblem& problem,
                    Report& report) {
  SCANJIT_ASSIGN_OR_RETURN(const Plan plan, engine.plan(problem));
  SCANJIT_ASSIGN_OR_RETURN(const Problem op, op_of(problem));
  SCANJIT_ASSIGN_OR_RETURN(const Exhaustive times,
                           exhaustive(engine::internals(engine), op, {plan.why().config}));
  constexpr double kBytesPerMicrosecond = 4.3e6;
  report.row("time at HV=32 N=8 T=1024, " + name, times.wanted[0].us, "us", std::nullopt,
             {{"pick", to_string(plan.why().config)},
              {"source", to_string(plan.why().source)},
              {"best", to_string(times.best.config)},
              {"best_us", times.best.us},
              {"floor_us", static_cast<double>(op->floor_bytes()) / kBytesPerMicrosecond},
              {"l2", times.l2}});
  return {};
}

}  // namespace

void speed_rows(Gpu&, const FigureOptions& options, Report& report) {
  Result<Engine> engine = make_engine(TuneMode::kFirstUse, options.directory + "/speed", true);
  if (!engine.ok()) return report.failed("speed", engine.status());
  const GatedDeltaHProblem base = map_problem({32, 8, 1024}, MapGate::kG);
  std::pair<const char*, GatedDeltaHProblem> rows[] = {{"K=V=128 bf16 BT=64", base},
                                                       {"K=96 V=200", base},
                                                       {"K=64 V=64", base},
                                                       {"f16", base},
                                                       {"BT=16", base}};
  rows[1].second.K = 96;
  rows[1].second.V = 200;
  rows[2].second.K = rows[2].second.V = 64;
  rows[3].second.dtype = DType::kF16;
  rows[4].second.BT = 16;
  for (const auto& [name, problem] : rows) {
    const Status status = time_problem(name, *engine, problem, report);
    if (!status.ok()) report.failed(std::string("time, ") + name, status);
  }
}

}  // namespace scanjit::test
