#include "tuning/regret.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "core/checked_math.hpp"
#include "core/guard.hpp"
#include "tuning/config_space.hpp"

namespace scanjit::tuning {
namespace {

struct ByResources {
  bool operator()(const Config& a, const Config& b) const noexcept { return fewer_resources(a, b); }
};

std::int64_t upper_end(const Range& range) { return range.max ? *range.max : range.min * 2; }

std::int64_t middle(std::int64_t low, std::int64_t high) {
  return std::llround(std::sqrt(static_cast<double>(low) * static_cast<double>(high)));
}

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", fraction * 100);
  return text;
}

double best_time(const std::vector<std::pair<Config, double>>& times) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [config, us] : times) best = std::min(best, us);
  return best;
}

}  // namespace

std::vector<MeasuredPoint> box_points(const ShapeKey& key, std::int64_t max_tokens) {
  const std::int64_t n0 = key.sequences.min, n1 = upper_end(key.sequences);
  const std::int64_t c0 = key.chunks.min, c1 = upper_end(key.chunks);
  std::vector<MeasuredPoint> points;
  const auto add = [&](std::int64_t n, std::int64_t chunks, bool always) {
    const std::int64_t room = max_tokens / n / key.BT;  // chunks that n sequences have room for
    const std::int64_t fitting = std::max(c0, std::min(chunks, room));
    if (fitting > room && !always) return;
    const std::optional<std::int64_t> tokens = checked_multiply(fitting, key.BT);
    if (!tokens) return;
    const MeasuredPoint point{n, *tokens};
    if (std::find(points.begin(), points.end(), point) == points.end()) points.push_back(point);
  };
  add(middle(n0, n1), middle(c0, c1), false);
  add(n0, c0, true);
  add(n1, c1, false);
  return points;
}

Result<Record> combine(const std::vector<PointSelection>& points) {
  return guard([&]() -> Result<Record> {
    if (points.empty()) return invalid_argument("there is no measured point to combine");
    Record record;
    record.default_config = points.front().selection.default_config;
    record.default_us = points.front().selection.default_us.median;
    double tie = 0;
    std::map<Config, Rejected> rejected;
    for (const PointSelection& point : points) {
      const std::string where = "the point of " + std::to_string(point.point.sequences) +
                                " sequences of " + std::to_string(point.point.tokens) + " tokens";
      if (point.selection.busy) return invalid_argument(where + " was measured on a busy GPU");
      if (point.selection.default_config != record.default_config) {
        return invalid_argument(where + " has the default " +
                                to_string(point.selection.default_config) + ", another has " +
                                to_string(record.default_config));
      }
      record.measured_at.push_back(point.point);
      record.partial = record.partial || point.selection.partial;
      tie = std::max(tie, point.selection.tie);
      for (const Rejected& one : point.selection.rejected) rejected.try_emplace(one.config, one);
    }
    for (auto& [config, one] : rejected) record.rejected.push_back(std::move(one));

    // Worst regret of each config that ran everywhere.
    std::map<Config, double, ByResources> regrets;
    for (const Measured& one : points.front().selection.measured) {
      if (rejected.count(one.config) == 0) regrets[one.config] = 0;
    }
    for (const PointSelection& point : points) {
      double best = std::numeric_limits<double>::infinity();
      std::map<Config, double> ratios;
      for (const Measured& one : point.selection.measured) {
        if (rejected.count(one.config) > 0) continue;
        ratios[one.config] = one.ratio;
        best = std::min(best, one.ratio);
      }
      for (auto it = regrets.begin(); it != regrets.end();) {
        const auto ratio = ratios.find(it->first);
        if (ratio == ratios.end()) {
          it = regrets.erase(it);
          continue;
        }
        it->second = std::max(it->second, ratio->second / best - 1);
        ++it;
      }
    }
    const auto default_regret = regrets.find(record.default_config);
    if (default_regret == regrets.end())
      return invalid_argument("the default config was not timed at every point");
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [config, regret] : regrets) least = std::min(least, regret);
    record.config = record.default_config;
    if (default_regret->second - least > tie) {
      for (const auto& [config, regret] : regrets) {  // fewest resources first
        if (regret - least <= tie) {
          record.config = config;
          break;
        }
      }
    }
    record.regret = regrets[record.config];
    for (const Measured& one : points.front().selection.measured) {
      const auto regret = regrets.find(one.config);
      if (regret == regrets.end()) continue;
      if (one.config == record.config) {
        record.us = one.us;
      } else {
        record.alternates.push_back({one.config, one.us.median, regret->second});
      }
    }
    std::sort(record.alternates.begin(), record.alternates.end(),
              [](const Alternate& a, const Alternate& b) {
                if (a.regret != b.regret) return a.regret < b.regret;
                return fewer_resources(a.config, b.config);
              });
    if (record.alternates.size() > kMaxAlternates) record.alternates.resize(kMaxAlternates);
    return record;
  });
}

MapPoint map_point(const Record& record) {
  MapPoint point{record.key.text(), {{record.config, 1 + record.regret}}};
  for (const Alternate& alternate : record.alternates)
    point.us.emplace_back(alternate.config, 1 + alternate.regret);
  return point;
}

Shortlist shortlist(const std::vector<MapPoint>& points, std::size_t limit, double enough) {
  // log(time / best) of each config at each point that has times.
  std::set<Config, ByResources> configs;
  std::vector<const MapPoint*> timed;
  for (const MapPoint& point : points) {
    if (point.us.empty()) continue;
    timed.push_back(&point);
    for (const auto& [config, us] : point.us) configs.insert(config);
  }
  std::map<Config, std::vector<double>, ByResources> costs;
  for (const Config& config : configs) costs[config].resize(timed.size());
  for (std::size_t p = 0; p < timed.size(); ++p) {
    const double best = best_time(timed[p]->us);
    double worst = best;
    for (const auto& [config, us] : timed[p]->us) worst = std::max(worst, us);
    for (auto& [config, cost] : costs) cost[p] = std::log(2 * worst / best);
    for (const auto& [config, us] : timed[p]->us) costs[config][p] = std::log(us / best);
  }

  Shortlist list;
  std::vector<double> covered(timed.size(), std::numeric_limits<double>::infinity());
  const auto worst = [&] {
    return covered.empty() ? 0.0 : *std::max_element(covered.begin(), covered.end());
  };
  while (!timed.empty() && list.configs.size() < limit && worst() > std::log1p(enough)) {
    const Config* chosen = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [config, cost] : costs) {
      double sum = 0;
      for (std::size_t p = 0; p < timed.size(); ++p) sum += std::min(covered[p], cost[p]);
      if (sum < least) {
        least = sum;
        chosen = &config;
      }
    }
    if (chosen == nullptr ||
        std::find(list.configs.begin(), list.configs.end(), *chosen) != list.configs.end())
      break;
    list.configs.push_back(*chosen);
    const std::vector<double>& cost = costs[*chosen];
    for (std::size_t p = 0; p < timed.size(); ++p) covered[p] = std::min(covered[p], cost[p]);
  }
  if (!list.configs.empty()) {
    double sum = 0;
    for (const double cost : covered) sum += cost;
    list.worst_regret = std::expm1(worst());
    list.mean_regret = std::expm1(sum / static_cast<double>(covered.size()));
  }
  return list;
}

Result<FoundBuckets> find_buckets(std::int64_t HV, std::int64_t V, std::vector<WidthPoint> points,
                                  double max_regret) {
  return guard([&]() -> Result<FoundBuckets> {
    if (points.empty())
      return invalid_argument("there is no measured sequence count to find buckets from");
    std::sort(points.begin(), points.end(),
              [](const WidthPoint& a, const WidthPoint& b) { return a.sequences < b.sequences; });
    const std::size_t n = points.size();
    // regrets[config][point]
    std::map<Config, std::vector<double>, ByResources> regrets;
    for (std::size_t p = 0; p < n; ++p) {
      const std::string count = std::to_string(points[p].sequences);
      if (points[p].sequences < 1)
        return invalid_argument("sequence count " + count + " is below 1");
      if (p > 0 && points[p].sequences == points[p - 1].sequences)
        return invalid_argument("sequence count " + count + " is there twice");
      const double best = best_time(points[p].us);
      for (const auto& [config, us] : points[p].us) {
        std::vector<double>& row = regrets[config];
        if (row.size() == p) row.push_back(us / best - 1);
      }
    }
    for (auto it = regrets.begin(); it != regrets.end();)
      it = it->second.size() == n ? std::next(it) : regrets.erase(it);
    if (regrets.empty()) return invalid_argument("no config was timed at every sequence count");

    // plans[i]: the best way to cut points [0, i); a cut is a bucket [from, i) with its config.
    struct Plan {
      std::size_t buckets = std::numeric_limits<std::size_t>::max();
      double worst = 0;
      std::size_t from = 0;
      Config config;
      double regret = 0;
    };
    std::vector<Plan> plans(n + 1);
    plans[0].buckets = 0;
    for (std::size_t end = 1; end <= n; ++end) {
      for (std::size_t from = 0; from < end; ++from) {
        Plan plan;
        plan.regret = std::numeric_limits<double>::infinity();
        for (const auto& [config, row] : regrets) {
          const double regret = *std::max_element(row.begin() + static_cast<std::ptrdiff_t>(from),
                                                  row.begin() + static_cast<std::ptrdiff_t>(end));
          if (regret < plan.regret) {
            plan.regret = regret;
            plan.config = config;
          }
        }
        // A single N is always a bucket, even if its best config was not timed at every N.
        if (plan.regret > max_regret && end - from > 1) continue;
        plan.buckets = plans[from].buckets + 1;
        plan.worst = std::max(plans[from].worst, plan.regret);
        plan.from = from;
        if (std::tie(plan.buckets, plan.worst) < std::tie(plans[end].buckets, plans[end].worst))
          plans[end] = plan;
      }
    }
    FoundBuckets found;
    found.buckets = {HV, V, {}};
    found.worst_regret = plans[n].worst;
    std::vector<const Plan*> chain;
    for (std::size_t end = n; end > 0; end = plans[end].from) chain.push_back(&plans[end]);
    std::reverse(chain.begin(), chain.end());
    for (const Plan* plan : chain)
      found.buckets.starts.push_back(plan->from == 0 ? 1 : points[plan->from].sequences);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      found.report.push_back(
          {found.buckets.bucket(found.buckets.starts[i]), chain[i]->config, chain[i]->regret});
    }
    return found;
  });
}

std::string FoundBuckets::to_text() const {
  std::string text = "width buckets of HV " + std::to_string(buckets.HV) + " V " +
                     std::to_string(buckets.V) + "\n";
  for (const BucketReport& one : report) {
    std::string range = to_string(one.sequences);
    range.resize(std::max<std::size_t>(range.size(), 12), ' ');
    text +=
        "  " + range + to_string(one.config) + "  worst regret " + percent(one.worst_regret) + "\n";
  }
  return text;
}

}  // namespace scanjit::tuning
