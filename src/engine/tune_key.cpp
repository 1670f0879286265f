#include "engine/tune_key.hpp"

#include <algorithm>

#include "core/guard.hpp"

namespace scanjit::engine {
namespace {

class KeyTuner {
 public:
  KeyTuner(Internals& internals, const std::vector<Config>& candidates,
           const TuneKeyOptions& options)
      : internals_(internals), candidates_(candidates), options_(options), start_ms_(now_ms()) {}

  Result<TunedKey> tune(const std::vector<std::shared_ptr<const ops::OpProblem>>& problems) {
    if (problems.empty()) return invalid_argument("there is no problem to tune");
    if (candidates_.empty()) return invalid_argument("there is no config to tune with");
    const tuning::ShapeKey key = internals_.store->key_of(problems.front()->key_query());
    TunedKey tuned;
    std::string nvrtc, l2;
    for (const auto& problem : problems) {
      if (internals_.store->key_of(problem->key_query()) != key) {
        return invalid_argument("a problem of another key is among those of " + key.text());
      }
      SCANJIT_ASSIGN_OR_RETURN(OpTimer timer, OpTimer::create(internals_, problem, options_.timer));
      SCANJIT_ASSIGN_OR_RETURN(tuning::Selection selection, tune_point(timer));
      tuned.noise = std::max(tuned.noise, selection.noise);
      tuned.scratch_bytes = std::max(tuned.scratch_bytes, timer.taken_bytes());
      tuned.points.push_back(
          {{problem->key_query().sequences, problem->tokens_per_sequence()}, std::move(selection)});
      if (nvrtc.empty()) {
        l2 = timer.l2();
        if (const auto binary = timer.binary(candidates_.front())) nvrtc = binary->nvrtc;
      }
    }
    if (std::any_of(tuned.points.begin(), tuned.points.end(),
                    [](const auto& point) { return point.selection.busy; }))
      return tuned;
    SCANJIT_ASSIGN_OR_RETURN(tuning::Record record, tuning::combine(tuned.points));
    record.key = key;
    record.l2 = l2;
    record.toolchain = {nvrtc, internals_.facts.driver, version()};
    tuned.record = std::move(record);
    return tuned;
  }

 private:
  double now_ms() const { return static_cast<double>(internals_.parts.clock->now_us()) / 1000; }
  double left_ms() const { return options_.select.budget_ms - (now_ms() - start_ms_); }
  bool budget_ended() const { return options_.select.budget_ms > 0 && left_ms() <= 0; }
  bool stopped() const { return options_.stop && options_.stop(); }
  void report(const std::string& step) const {
    if (options_.progress) options_.progress(step);
  }

  Result<tuning::Selection> tune_point(OpTimer& timer) {
    report("compiling " + std::to_string(candidates_.size()) + " configs");
    std::vector<Config> too_late =
        timer.compile(candidates_, [&] { return budget_ended() || stopped(); });
    if (stopped()) return Status(ErrorCode::kCancelled, "tuning was stopped");
    // The default is compiled whatever the budget says: it serves in any case.
    std::erase(too_late, candidates_.front());
    std::vector<Config> live;
    for (const Config& config : candidates_) {
      if (std::find(too_late.begin(), too_late.end(), config) == too_late.end())
        live.push_back(config);
    }

    Status lost;  // a fault that ends everything
    const auto measure = [&](const Config& config) -> Result<double> {
      if (stopped()) return Status(ErrorCode::kCancelled, "tuning was stopped");
      if (!lost.ok()) return Status(ErrorCode::kCancelled, lost.message());
      report("timing " + to_string(config));
      Result<double> us = timer.measure(config);
      if (!us.ok() && us.status().code() == ErrorCode::kDeviceLost) lost = us.status();
      return us;
    };
    const auto bits_equal = [&](const Config& config) -> Result<bool> {
      // After a fault nothing more is begun: the last step told is the one to blame.
      if (!lost.ok()) return Status(ErrorCode::kCancelled, lost.message());
      report("comparing " + to_string(config));
      // Configs of another numerics class than the default's are held against the first of theirs.
      const auto reference = std::find_if(
          candidates_.begin(), candidates_.end(),
          [&](const Config& other) { return timer.problem().same_bits(other, config); });
      Result<bool> equal = timer.bits_equal(config, *reference);
      if (!equal.ok() && equal.status().code() == ErrorCode::kDeviceLost) lost = equal.status();
      return equal;
    };
    tuning::SelectOptions select = options_.select;
    if (select.budget_ms > 0) select.budget_ms = std::max(left_ms(), 1.0);
    Result<tuning::Selection> selection = tuning::select(
        live, measure, bits_equal, [this] { return now_ms(); }, select);
    if (!lost.ok()) return lost;
    if (selection.ok() && !too_late.empty()) selection->partial = true;
    return selection;
  }

  Internals& internals_;
  const std::vector<Config>& candidates_;
  const TuneKeyOptions& options_;
  double start_ms_;
};

}  // namespace

Result<TunedKey> tune_key(Internals& internals,
                          const std::vector<std::shared_ptr<const ops::OpProblem>>& problems,
                          const std::vector<Config>& candidates, const TuneKeyOptions& options) {
  return guard([&] { return KeyTuner(internals, candidates, options).tune(problems); });
}

}  // namespace scanjit::engine
