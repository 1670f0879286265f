#include "engine/config_choice.hpp"

#include <algorithm>

namespace scanjit::engine {
namespace {

void add_fallback(Choice& choice, const Config& config) {
  if (config == choice.config) return;
  if (std::find(choice.fallbacks.begin(), choice.fallbacks.end(), config) == choice.fallbacks.end())
    choice.fallbacks.push_back(config);
}

const char* phrase(PickSource source) {
  switch (source) {
    case PickSource::kForced: return "named by the caller";
    case PickSource::kExact: return "from the tuned entry of this key";
    case PickSource::kTimedNow: return "timed in this process";
    case PickSource::kOtherOptionalSet: return "from an entry with another set of optional tensors";
    case PickSource::kOtherDtype: return "from an entry of the other 16-bit type";
    case PickSource::kNeighbourChunks: return "from an entry of a neighbouring chunk class";
    case PickSource::kNeighbourWidth: return "from an entry of a neighbouring width";
    case PickSource::kNearestGpu: return "from an entry of another GPU model";
    case PickSource::kHeuristic: return "chosen by the heuristic, since nothing measured applies";
  }
  return "of unknown origin";
}

}  // namespace

Result<Choice> heuristic_choice(const ops::OpProblem& problem, const ops::DeviceLimits& limits) {
  Choice choice;
  SCANJIT_ASSIGN_OR_RETURN(choice.config, problem.heuristic(limits));
  return choice;
}

Choice choice_of(const tuning::Pick& pick, const ops::OpProblem& problem,
                 const ops::DeviceLimits& limits) {
  Choice choice;
  choice.config = pick.config;
  choice.source = pick.source;
  choice.layer = pick.layer;
  choice.stale_toolchain = pick.stale_toolchain;
  choice.record = pick.record;
  choice.partial = pick.record->partial;
  const auto& alternates = pick.record->alternates;
  const auto used = static_cast<std::size_t>(pick.alternate);
  choice.recorded_us = used == 0 ? pick.record->us.median : alternates[used - 1].us;
  if (used != 0) {
    choice.passed_over = "The entry's own pick is not legal here, its alternate " +
                         std::to_string(used) +
                         " serves: " + problem.legal(pick.record->config, limits).message() + ".";
  }
  for (std::size_t i = used; i < alternates.size(); ++i) {
    if (problem.legal(alternates[i].config, limits).ok())
      add_fallback(choice, alternates[i].config);
  }
  if (const auto heuristic = problem.heuristic(limits); heuristic.ok())
    add_fallback(choice, *heuristic);
  return choice;
}

std::string refused_entry(const tuning::TunedStore& store, const ops::OpProblem& problem,
                          const ops::DeviceLimits& limits) {
  const tuning::LegalFn legal = ops::legal_fn(problem, limits);
  const auto pick = store.find_exact(problem.key_query(), {});
  if (!pick) return {};
  if (limits.part_of_sms != 0) {
    return "The entry of this key (" + pick->layer + ") was measured on " +
           std::to_string(limits.part_of_sms) + " multiprocessors, this context has " +
           std::to_string(limits.sm_count) + ".";
  }
  if (store.find_exact(problem.key_query(), legal)) return {};
  return "The entry of this key (" + pick->layer +
         ") names no config that is legal here: " + legal(pick->record->config).message() + ".";
}

Result<Choice> choose(TuneMode mode, const tuning::TunedStore& store, const ops::OpProblem& problem,
                      const ops::DeviceLimits& limits) {
  if (mode == TuneMode::kOff) return heuristic_choice(problem, limits);
  const tuning::KeyQuery query = problem.key_query();
  const tuning::LegalFn legal = ops::legal_fn(problem, limits);
  if (limits.part_of_sms == 0) {
    if (const auto pick = store.find_exact(query, legal)) return choice_of(*pick, problem, limits);
  }
  const std::string refused = refused_entry(store, problem, limits);
  if (mode == TuneMode::kStrict) {
    return not_found("no tuned entry is for exactly " + store.key_of(query).text() +
                     ", and the tune mode is strict" + (refused.empty() ? "" : ". " + refused));
  }
  if (!refused.empty()) {
    SCANJIT_ASSIGN_OR_RETURN(Choice heuristic, heuristic_choice(problem, limits));
    heuristic.passed_over = refused;
    return heuristic;
  }
  if (limits.part_of_sms != 0) return heuristic_choice(problem, limits);
  const auto pick = store.find(query, legal);
  if (!pick) return heuristic_choice(problem, limits);
  // What is best changes with how much of the GPU a launch fills. An entry of another width or
  // length tells something of this problem only if the heuristic sees no difference between the
  // two.
  if (pick->source == PickSource::kNeighbourChunks || pick->source == PickSource::kNeighbourWidth) {
    SCANJIT_ASSIGN_OR_RETURN(Choice heuristic, heuristic_choice(problem, limits));
    if (heuristic.config != pick->record->default_config) return heuristic;
  }
  return choice_of(*pick, problem, limits);
}

Why why_of(const Choice& choice, const std::string& key) {
  Why why;
  why.key = key;
  why.config = choice.config;
  why.source = choice.source;
  why.layer = choice.layer;
  why.tuned = choice.source == PickSource::kExact || choice.source == PickSource::kTimedNow;
  why.stale_toolchain = choice.stale_toolchain;
  why.partial = choice.partial;
  why.provisional = choice.provisional;
  why.passed_over = choice.passed_over;
  why.recorded_us = choice.recorded_us;
  return why;
}

std::string describe(const Why& why) {
  std::string text = to_string(why.config) + " is " + phrase(why.source);
  if (why.source != PickSource::kHeuristic && why.source != PickSource::kForced)
    text += " (" + why.layer + ")";
  if (why.stale_toolchain) text += ", recorded under another NVRTC or driver";
  if (why.partial)
    text += ", whose tuning ended with its time budget before every config was timed";
  text += ".";
  if (why.provisional) text += " A later call may be served otherwise.";
  if (!why.passed_over.empty()) text += " " + why.passed_over;
  if (!why.binary_from.empty()) {
    text += " Machine code: " + why.binary_from;
    if (!why.binary_nvrtc.empty()) text += ", made by NVRTC " + why.binary_nvrtc;
    text += ".";
  }
  return text;
}

}  // namespace scanjit::engine
