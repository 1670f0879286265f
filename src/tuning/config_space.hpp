#pragma once
/// \file
/// A config space: the values that the parameters of a Config may take for one op, and which of
/// their combinations are worth timing. What is legal and what looks fast is the op's knowledge and
/// comes in as callables, so this folder knows no op.
/// Pure; thread-compatible values. Nothing here fails except where a Status is returned.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit::tuning {

/// Ok, or a sentence that says why this config cannot run here.
using LegalFn = std::function<Status(const Config&)>;
/// Analytic guess of a config's time, in any unit; lower is better. Only the order is used.
using ScoreFn = std::function<double(const Config&)>;

/// At most so many configs of one key are ever timed.
inline constexpr std::size_t kMaxCandidates = 32;

/// Allowed values of each parameter; order and repetition do not matter.
struct ConfigSpace {
  std::vector<int> bv;
  std::vector<int> bk;
  std::vector<int> stages;
  std::vector<int> warps;
  std::vector<int> segment_chunks{0};

  /// 16 hex digits over the sorted values: another set of values is another space, and the entries
  /// of one space are never read for another. An axis of segment_chunks that is {0} is left out.
  [[nodiscard]] std::string hash() const;
  [[nodiscard]] bool contains(const Config& config) const;
  /// Every combination, in `fewer_resources` order.
  [[nodiscard]] std::vector<Config> all() const;
};

/// The fixed order that decides ties: fewer warps, then fewer stages, then a smaller bv, then a
/// smaller bk, then fewer segment_chunks. The config that leaves more of the GPU to others comes first.
[[nodiscard]] bool fewer_resources(const Config& a, const Config& b) noexcept;

/// What to time: `default_config` first, then the legal others in `fewer_resources` order. If more
/// than `limit` are legal, those with the lowest score are kept (ties: fewer resources).
/// `default_config` is always kept and need not lie in the space. `score` may be empty: then the
/// first in `fewer_resources` order are kept.
[[nodiscard]] std::vector<Config> enumerate(const ConfigSpace& space, const Config& default_config,
                                            const LegalFn& legal, const ScoreFn& score,
                                            std::size_t limit = kMaxCandidates);

}  // namespace scanjit::tuning
