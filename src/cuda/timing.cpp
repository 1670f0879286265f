#include "cuda/timing.hpp"

#include <string>
#include <utility>

#include "core/guard.hpp"
#include "cuda/context.hpp"

namespace scanjit::cuda {
namespace {

// Ends the capture whatever the work did: an open capture would leave the stream unusable.
Result<CUgraph> capture_graph(const DriverApi& api, CUstream stream, int repeats,
                              const GraphTimer::Work& work) {
  SCANJIT_TRY(check(api, api.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                    "cuStreamBeginCapture"));
  Status worked;
  for (int i = 0; i < repeats && worked.ok(); ++i) {
    worked = guard([&] { return work(stream); });
  }
  CUgraph graph = nullptr;
  const CUresult ended = api.cuStreamEndCapture(stream, &graph);
  if (worked.ok()) worked = check(api, ended, "cuStreamEndCapture");
  if (!worked.ok()) {
    if (graph != nullptr) api.cuGraphDestroy(graph);
    return worked;
  }
  return graph;
}

}  // namespace

Result<GraphTimer> GraphTimer::capture(const DriverApi& api, CUstream stream, int repeats,
                                       const Work& work) {
  if (repeats < 1)
    return invalid_argument("repeats is " + std::to_string(repeats) + ", at least 1 is needed");
  const RelaxedCaptureScope relaxed(api);
  SCANJIT_ASSIGN_OR_RETURN(Event start, Event::create(api, Event::Kind::kTiming));
  SCANJIT_ASSIGN_OR_RETURN(Event end, Event::create(api, Event::Kind::kTiming));
  SCANJIT_ASSIGN_OR_RETURN(const CUgraph graph, capture_graph(api, stream, repeats, work));
  CUgraphExec exec = nullptr;
  const CUresult instantiated = api.cuGraphInstantiateWithFlags(&exec, graph, 0);
  api.cuGraphDestroy(graph);
  SCANJIT_TRY(check(api, instantiated, "cuGraphInstantiateWithFlags"));
  GraphTimer timer(api, stream, repeats, exec, std::move(start), std::move(end));
  SCANJIT_TRY(check(api, api.cuGraphUpload(exec, stream), "cuGraphUpload"));
  return timer;
}

GraphTimer::GraphTimer(const DriverApi& api, CUstream stream, int repeats, CUgraphExec exec,
                       Event start, Event end) noexcept
    : api_(&api),
      stream_(stream),
      repeats_(repeats),
      exec_(exec),
      start_(std::move(start)),
      end_(std::move(end)) {}

GraphTimer::GraphTimer(GraphTimer&& other) noexcept
    : api_(other.api_),
      stream_(other.stream_),
      repeats_(other.repeats_),
      exec_(std::exchange(other.exec_, nullptr)),
      start_(std::move(other.start_)),
      end_(std::move(other.end_)) {}

GraphTimer& GraphTimer::operator=(GraphTimer&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(stream_, other.stream_);
  std::swap(repeats_, other.repeats_);
  std::swap(exec_, other.exec_);
  std::swap(start_, other.start_);
  std::swap(end_, other.end_);
  return *this;
}

GraphTimer::~GraphTimer() {
  if (exec_ != nullptr) api_->cuGraphExecDestroy(exec_);
}

Result<double> GraphTimer::run(int replays) {
  if (replays < 1)
    return invalid_argument("replays is " + std::to_string(replays) + ", at least 1 is needed");
  const RelaxedCaptureScope relaxed(*api_);
  // One replay runs ahead of the clock, so that the host has put everything timed on the stream
  // while the GPU was busy and no gap is measured.
  SCANJIT_TRY(check(*api_, api_->cuGraphLaunch(exec_, stream_), "cuGraphLaunch"));
  SCANJIT_TRY(start_.record(stream_));
  for (int i = 0; i < replays; ++i) {
    SCANJIT_TRY(check(*api_, api_->cuGraphLaunch(exec_, stream_), "cuGraphLaunch"));
  }
  SCANJIT_TRY(end_.record(stream_));
  SCANJIT_TRY(end_.synchronize());
  SCANJIT_ASSIGN_OR_RETURN(const double microseconds, end_.microseconds_since(start_));
  return microseconds / replays / repeats_;
}

}  // namespace scanjit::cuda
