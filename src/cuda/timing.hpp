#pragma once
/// \file
/// GPU time of work that a callable enqueues, free of host overhead: the work is captured into a
/// graph that repeats it, and replays of the graph are timed with events.

#include <functional>

#include "cuda/stream.hpp"

namespace scanjit::cuda {

/// One prepared measurement. It holds a graph of the current context; the stream and everything
/// that the work uses must outlive it. Not thread-safe.
class GraphTimer {
 public:
  /// Enqueues the work once on the stream; called while the stream captures, so it may only launch,
  /// copy and set memory.
  using Work = std::function<Status(CUstream)>;

  /// Captures `repeats` >= 1 runs of `work` on `stream`, which must not be capturing, and uploads
  /// the graph. Errors: whatever `work` returns (the capture is ended first), kInvalidArgument,
  /// kCudaError.
  [[nodiscard]] static Result<GraphTimer> capture(const DriverApi& api, CUstream stream,
                                                  int repeats, const Work& work);
  GraphTimer(GraphTimer&& other) noexcept;
  GraphTimer& operator=(GraphTimer&& other) noexcept;
  ~GraphTimer();

  /// Replays the graph once untimed and `replays` >= 1 times timed, back to back, and waits:
  /// microseconds of GPU time per repeat.
  [[nodiscard]] Result<double> run(int replays);
  [[nodiscard]] int repeats() const noexcept { return repeats_; }

 private:
  GraphTimer(const DriverApi& api, CUstream stream, int repeats, CUgraphExec exec, Event start,
             Event end) noexcept;
  const DriverApi* api_;
  CUstream stream_;
  int repeats_;
  CUgraphExec exec_;
  Event start_;
  Event end_;
};

}  // namespace scanjit::cuda
