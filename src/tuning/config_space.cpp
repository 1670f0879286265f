#include "tuning/config_space.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "core/hash.hpp"

namespace scanjit::tuning {
namespace {

std::string joined(const std::vector<int>& values) {
  std::string text;
  for (const int value : std::set<int>(values.begin(), values.end())) {
    if (!text.empty()) text += ',';
    text += std::to_string(value);
  }
  return text;
}

bool has(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

std::string ConfigSpace::hash() const {
  std::string text = "bv=" + joined(bv) + " bk=" + joined(bk) + " stages=" + joined(stages) +
                     " warps=" + joined(warps);
  if (const std::string segments = joined(segment_chunks); segments != "0")
    text += " segment_chunks=" + segments;
  return sha256_hex(text).substr(0, 16);
}

bool ConfigSpace::contains(const Config& config) const {
  return has(bv, config.bv) && has(bk, config.bk) && has(stages, config.stages) &&
         has(warps, config.warps) && has(segment_chunks, config.segment_chunks);
}

std::vector<Config> ConfigSpace::all() const {
  std::vector<Config> configs;
  for (const int w : std::set<int>(warps.begin(), warps.end())) {
    for (const int s : std::set<int>(stages.begin(), stages.end())) {
      for (const int v : std::set<int>(bv.begin(), bv.end())) {
        for (const int k : std::set<int>(bk.begin(), bk.end())) {
          for (const int c : std::set<int>(segment_chunks.begin(), segment_chunks.end()))
            configs.push_back({v, k, s, w, c});
        }
      }
    }
  }
  return configs;
}

bool fewer_resources(const Config& a, const Config& b) noexcept {
  return std::tie(a.warps, a.stages, a.bv, a.bk, a.segment_chunks) <
         std::tie(b.warps, b.stages, b.bv, b.bk, b.segment_chunks);
}

std::vector<Config> enumerate(const ConfigSpace& space, const Config& default_config,
                              const LegalFn& legal, const ScoreFn& score, std::size_t limit) {
  struct Scored {
    Config config;
    double score;
  };
  std::vector<Scored> others;
  for (const Config& config : space.all()) {
    if (config == default_config || (legal && !legal(config).ok())) continue;
    const double value = score ? score(config) : 0.0;
    others.push_back({config, std::isnan(value) ? std::numeric_limits<double>::infinity() : value});
  }
  const std::size_t room = limit > 0 ? limit - 1 : 0;
  if (others.size() > room) {
    std::stable_sort(others.begin(), others.end(),
                     [](const Scored& a, const Scored& b) { return a.score < b.score; });
    others.resize(room);
    std::sort(others.begin(), others.end(),
              [](const Scored& a, const Scored& b) { return fewer_resources(a.config, b.config); });
  }
  std::vector<Config> configs{default_config};
  for (const Scored& other : others) configs.push_back(other.config);
  return configs;
}

}  // namespace scanjit::tuning
