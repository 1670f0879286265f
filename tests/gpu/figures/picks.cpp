// How good the picks are: the width story, held-out points, and whether tuning agrees with itself.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "gpu/figures/device_timer.hpp"
#include "gpu/figures/figures.hpp"
#include "gpu/shape_map.hpp"

namespace scanjit::test {
namespace {

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

/// A fresh cache; the first call has one sequence of 16 tokens. Served picks of the wider calls
/// against the best of all configs, and beside them the first call's pick: what a key without
/// sequence and chunk counts would serve.
Status tell_story(const std::string& name, Engine& engine, Report& report) {
  const MapShape first{32, 1, 16}, wider[] = {{32, 16, 1024}, {32, 32, 256}};
  SCANJIT_ASSIGN_OR_RETURN(const Plan narrow, engine.plan(map_problem(first, MapGate::kG)));
  for (const MapShape& shape : wider) {
    const GatedDeltaHProblem problem = map_problem(shape, MapGate::kG);
    SCANJIT_ASSIGN_OR_RETURN(const Plan plan, engine.plan(problem));
    SCANJIT_ASSIGN_OR_RETURN(const Problem op, op_of(problem));
    SCANJIT_ASSIGN_OR_RETURN(
        const Exhaustive times,
        exhaustive(engine::internals(engine), op, {plan.why().config, narrow.why().config}));
    const Json details = {{"shape", to_string(shape)},
                          {"pick", to_string(plan.why().config)},
                          {"source", to_string(plan.why().source)},
                          {"us", times.wanted[0].us},
                          {"best", to_string(times.best.config)},
                          {"best_us", times.best.us},
                          {"configs", times.legal},
                          {"l2", times.l2}};
    report.row(name + ": regret of the pick at " + to_string(shape), times.regret_percent(0), "%",
               3, details);
    report.row(
        name + ": regret with sequence and chunk counts left out of the key at " + to_string(shape),
        times.regret_percent(1), "%", std::nullopt,
        {{"pick", to_string(narrow.why().config)}, {"us", times.wanted[1].us}});
  }
  return {};
}

}  // namespace

void width_story(Gpu&, const FigureOptions& options, Report& report) {
  for (const bool shipped : {true, false}) {
    const std::string name = shipped ? "width story" : "width story without shipped picks";
    Result<Engine> engine = make_engine(
        TuneMode::kFirstUse, options.directory + (shipped ? "/story" : "/story-bare"), shipped);
    const Status status = engine.ok() ? tell_story(name, *engine, report) : engine.status();
    if (!status.ok()) report.failed(name, status);
  }
}

namespace {

struct Regrets {
  double log_sum = 0, worst = 0;
  std::string worst_at;
  std::int64_t points = 0;
  void add(double percent, const std::string& where) {
    log_sum += std::log1p(percent / 100);
    ++points;
    if (percent >= worst) {
      worst = percent;
      worst_at = where;
    }
  }
  [[nodiscard]] double mean() const {
    return points == 0 ? 0 : 100 * std::expm1(log_sum / static_cast<double>(points));
  }
};

}  // namespace

void held_out_regret(Gpu& gpu, const FigureOptions& options, Report& report) {
  Result<Engine> engine = make_engine(TuneMode::kReplay, "none", true);
  if (!engine.ok()) return report.failed("held-out regret", engine.status());
  engine::Internals& internals = engine::internals(*engine);
  Regrets shipped, heuristic;
  std::int64_t exact = 0, left_out = 0;
  const std::vector<MapShape> shapes = held_out_shapes();
  // In steps over the whole list, so that what a deadline leaves is still of every kind. 29 and the
  // number of shapes have no common factor.
  const std::size_t count = options.quick ? shapes.size() / 9 : shapes.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (options.late()) {
      left_out += static_cast<std::int64_t>(count - i);
      break;
    }
    const MapShape& shape = shapes[i * 29 % shapes.size()];
    const GatedDeltaHProblem problem = map_problem(shape, MapGate::kG);
    if (tensor_bytes(problem) + (std::int64_t{6} << 30) > gpu.free_bytes()) {
      ++left_out;
      continue;
    }
    const auto measure = [&]() -> Status {
      SCANJIT_ASSIGN_OR_RETURN(const Why why, engine->why(problem));
      SCANJIT_ASSIGN_OR_RETURN(const Problem op, op_of(problem));
      SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, internals.context());
      SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals.limits(context));
      SCANJIT_ASSIGN_OR_RETURN(const Config rule, op->heuristic(limits));
      SCANJIT_ASSIGN_OR_RETURN(const Exhaustive times,
                               exhaustive(internals, op, {why.config, rule}, 7));
      shipped.add(times.regret_percent(0), to_string(shape));
      heuristic.add(times.regret_percent(1), to_string(shape));
      if (why.source == PickSource::kExact) ++exact;
      report.row("regret at " + to_string(shape), times.regret_percent(0), "%", std::nullopt,
                 {{"pick", to_string(why.config)},
                  {"source", to_string(why.source)},
                  {"us", times.wanted[0].us},
                  {"best", to_string(times.best.config)},
                  {"best_us", times.best.us},
                  {"heuristic", to_string(rule)},
                  {"heuristic_regret", times.regret_percent(1)},
                  {"l2", times.l2}});
      return {};
    };
    const Status status = measure();
    if (!status.ok()) report.failed("regret at " + to_string(shape), status);
  }
  const Json details = {{"points", shipped.points}, {"exact", exact}, {"left_out", left_out}};
  report.row("held-out regret of shipped picks, geometric mean", shipped.mean(), "%", 2, details);
  report.row("held-out regret of shipped picks, worst", shipped.worst, "%", 8,
             {{"at", shipped.worst_at}});
  report.row("held-out regret of the heuristic alone, geometric mean", heuristic.mean(), "%",
             std::nullopt);
  report.row("held-out regret of the heuristic alone, worst", heuristic.worst, "%", std::nullopt,
             {{"at", heuristic.worst_at}});
}

void tuning_agreement(Gpu&, const FigureOptions& options, Report& report) {
  constexpr const char* kWhat = "tunes that agree, of 20, worst of 10 keys";
  // Ten keys over the chunk classes and width buckets.
  std::vector<MapShape> shapes = {{16, 1, 64},   {16, 4, 256}, {16, 16, 1024}, {16, 1, 16384},
                                  {32, 1, 1024}, {32, 8, 256}, {32, 32, 64},   {32, 16, 1024},
                                  {48, 4, 1024}, {48, 2, 4096}};
  int tunes = 20;
  if (options.quick) {
    shapes.resize(3);
    tunes = 5;
  }
  const std::string cache = options.directory + "/agreement";
  std::vector<std::map<Config, int>> picks(shapes.size());
  std::int64_t timed = 0;
  double slowest_ms = 0;
  for (int tune = 0; tune < tunes; ++tune) {
    if (options.late()) {
      tunes = tune;
      break;
    }
    std::error_code ignored;
    std::filesystem::remove_all(cache + "/tuned", ignored);
    Result<Engine> engine = make_engine(TuneMode::kFirstUse, cache, false);
    if (!engine.ok()) return report.failed(kWhat, engine.status());
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const std::int64_t start_us = os::steady_clock().now_us();
      const Result<Plan> plan = engine->plan(map_problem(shapes[i], MapGate::kG));
      if (!plan.ok()) return report.failed(kWhat, plan.status());
      if (tune > 0)
        slowest_ms = std::max(slowest_ms,
                              static_cast<double>(os::steady_clock().now_us() - start_us) / 1000);
      ++picks[i][plan->why().config];
    }
    timed += engine->stats().first_uses;
  }

  if (tunes == 0) return report.failed(kWhat, Status(ErrorCode::kTimeout, "no time was left"));
  Result<Engine> engine = make_engine(TuneMode::kOff, cache, false);
  if (!engine.ok()) return report.failed(kWhat, engine.status());
  int fewest = tunes;
  double furthest = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto most =
        std::max_element(picks[i].begin(), picks[i].end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    fewest = std::min(fewest, most->second);
    Json others = Json::object();
    double key_furthest = 0;
    if (picks[i].size() > 1) {
      std::vector<Config> configs = {most->first};
      for (const auto& [config, count] : picks[i]) {
        if (config != most->first) configs.push_back(config);
      }
      const Result<Problem> op = op_of(map_problem(shapes[i], MapGate::kG));
      if (!op.ok()) return report.failed(kWhat, op.status());
      const Result<std::vector<ConfigTime>> times =
          time_configs(engine::internals(*engine), *op, configs, 15);
      if (!times.ok()) return report.failed(kWhat, times.status());
      for (std::size_t c = 1; c < times->size(); ++c) {
        const double percent = 100 * ((*times)[c].us / times->front().us - 1);
        key_furthest = std::max(key_furthest, percent);
        others[to_string((*times)[c].config)] = std::to_string(picks[i][(*times)[c].config]) +
                                                " times, " + text_of(percent) + "% slower";
      }
      furthest = std::max(furthest, key_furthest);
    }
    report.row("tunes that agree at " + to_string(shapes[i]), most->second,
               "of " + std::to_string(tunes), std::nullopt,
               {{"pick", to_string(most->first)}, {"others", others}});
  }
  const int needed = tunes - tunes / 20;
  report.judged(kWhat, fewest, "tunes", needed, fewest >= needed,
                {{"tunes", tunes}, {"keys", shapes.size()}, {"timed", timed}, {"at_least", true}});
  report.row("how much slower the picks are that do not agree", furthest, "%", 2);
  report.row("first use of a key, cubins cached, slowest", slowest_ms, "ms", std::nullopt);
}

}  // namespace scanjit::test
