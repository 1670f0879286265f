#pragma once
/// \file
/// The process that runs candidates, one per GPU: a config that hangs or takes its process down
/// costs a restart and is recorded, nothing else. It reads requests on standard input and answers
/// on standard output, one JSON object a line:
///
///     {"key": {...}, "points": [{"sequences": 16, "tokens": 1024}, ...],
///      "candidates": ["bv=64,...", ...], "budget_ms": 0}
///  -> {"step": "timing bv=64 ..."}           before each step, any number of times
///  -> {"done": {"record": {...} or null, "noise": 0.003,
///               "points": [{"sequences": 16, "tokens": 1024, "us": [["bv=64,...", 12.3], ...]},
///               ...]}}
///     or {"error": {"code": 7, "message": "..."}}
///
/// `candidates[0]` is the default. Both sides are of one build.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "os/process.hpp"
#include "scanjit/engine.hpp"
#include "session.hpp"
#include "tuning/record.hpp"
#include "tuning/regret.hpp"

namespace scanjit::cli {

struct TuneRequest {
  tuning::ShapeKey key;
  std::vector<tuning::MeasuredPoint> points;
  std::vector<Config> candidates;
  double budget_ms = 0;
};

/// Times at one point: medians, microseconds.
struct PointTimes {
  tuning::MeasuredPoint point;
  std::vector<std::pair<Config, double>> us;
};

struct TuneAnswer {
  std::optional<tuning::Record> record;  ///< nothing: the GPU was busy
  double noise = 0;
  std::vector<PointTimes> points;
};

[[nodiscard]] std::string to_line(const TuneRequest& request);
[[nodiscard]] Result<TuneRequest> request_from_line(const std::string& line);
[[nodiscard]] std::string to_line(const TuneAnswer& answer);
/// Also reads error lines: as that error.
[[nodiscard]] Result<TuneAnswer> answer_from_line(const std::string& line);

/// The worker's side: answers requests until the end of input, or until its parent dies, whatever
/// it is doing then. Returns the exit status; after a sticky device fault it ends without an
/// answer.
[[nodiscard]] int serve_tuning(Session& session, const EngineOptions& options);

/// The other side. One thread at a time.
class TuneWorker {
 public:
  /// `program`: this executable. Started when first needed and again after a death. `silence_ms`:
  /// longest that one step may take (compiling all candidates is one).
  TuneWorker(std::string program, std::string op, EngineOptions options, std::int64_t silence_ms)
      : program_(std::move(program)),
        op_(std::move(op)),
        options_(std::move(options)),
        silence_ms_(silence_ms) {}

  /// Tunes one key. A candidate under which the worker dies or is silent for longer than
  /// `silence_ms` is left out of the next try and comes back in the record's `rejected`.
  /// `step` is told what the worker does. Errors: as `engine::tune_key`; kIoError if no worker
  /// starts.
  [[nodiscard]] Result<TuneAnswer> tune(TuneRequest request,
                                        const std::function<void(const std::string&)>& step);

 private:
  Status start();
  Result<TuneAnswer> attempt(const TuneRequest& request,
                             const std::function<void(const std::string&)>& step,
                             std::optional<Config>* in_hand, bool* died);

  std::string program_, op_;
  EngineOptions options_;
  std::int64_t silence_ms_;
  std::unique_ptr<os::Process> process_;
};

}  // namespace scanjit::cli
