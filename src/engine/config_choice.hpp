#pragma once
/// \file
/// Which config a problem gets without timing anything.

#include <memory>
#include <string>
#include <vector>

#include "ops/op_problem.hpp"
#include "scanjit/engine.hpp"
#include "tuning/tuned_store.hpp"

namespace scanjit::engine {

struct Choice {
  Config config;
  PickSource source = PickSource::kHeuristic;
  std::string layer = "heuristic";
  bool stale_toolchain = false;
  bool partial = false;
  bool provisional = false;  ///< a later call may choose otherwise
  std::string passed_over;   ///< as Why::passed_over
  double recorded_us = 0;
  /// Legal configs to fall to, in order, if this one does not compile or load: the record's
  /// alternates, then the heuristic.
  std::vector<Config> fallbacks;
  std::shared_ptr<const tuning::Record> record;  ///< null for the heuristic
};

/// Errors: kUnsupported if nothing is legal there.
[[nodiscard]] Result<Choice> heuristic_choice(const ops::OpProblem& problem,
                                              const ops::DeviceLimits& limits);
[[nodiscard]] Choice choice_of(const tuning::Pick& pick, const ops::OpProblem& problem,
                               const ops::DeviceLimits& limits);

/// Why the entry of exactly this problem's key serves nothing here: none of its configs is legal,
/// or the context is a part of the GPU that entries were measured on. "" if there is no such entry,
/// or if it serves.
[[nodiscard]] std::string refused_entry(const tuning::TunedStore& store,
                                        const ops::OpProblem& problem,
                                        const ops::DeviceLimits& limits);

/// As the mode says, without timing: kOff the heuristic; kReplay and kFirstUse the stores in their
/// declared order, then the heuristic; kStrict an exact entry, else kNotFound. An exact entry
/// without a legal config leaves it to the heuristic. An entry of a neighbouring chunk class or
/// width serves only if the heuristic's choice for that entry is the heuristic's choice here. In a
/// part of a GPU no entry of the whole serves.
[[nodiscard]] Result<Choice> choose(TuneMode mode, const tuning::TunedStore& store,
                                    const ops::OpProblem& problem, const ops::DeviceLimits& limits);

/// Everything known of a choice but its machine code; `text` is made last, by `describe`.
[[nodiscard]] Why why_of(const Choice& choice, const std::string& key);
/// One or two sentences.
[[nodiscard]] std::string describe(const Why& why);

}  // namespace scanjit::engine
