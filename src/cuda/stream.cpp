#include "cuda/stream.hpp"

#include <utility>

namespace scanjit::cuda {

Result<OwnedStream> OwnedStream::create(const DriverApi& api, Priority priority) {
  int least = 0, greatest = 0;
  SCANJIT_TRY(check(api, api.cuCtxGetStreamPriorityRange(&least, &greatest),
                    "cuCtxGetStreamPriorityRange"));
  CUstream stream = nullptr;
  SCANJIT_TRY(check(api,
                    api.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING,
                                                   priority == Priority::kLowest ? least : 0),
                    "cuStreamCreateWithPriority"));
  return OwnedStream(api, stream);
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : api_(other.api_), stream_(std::exchange(other.stream_, nullptr)) {}

OwnedStream& OwnedStream::operator=(OwnedStream&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(stream_, other.stream_);
  return *this;
}

OwnedStream::~OwnedStream() {
  if (stream_ != nullptr) api_->cuStreamDestroy(stream_);
}

Status OwnedStream::synchronize() const {
  return check(*api_, api_->cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

Result<Event> Event::create(const DriverApi& api, Kind kind) {
  CUevent event = nullptr;
  SCANJIT_TRY(check(
      api,
      api.cuEventCreate(&event, kind == Kind::kTiming ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING),
      "cuEventCreate"));
  return Event(api, event);
}

Event::Event(Event&& other) noexcept
    : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_ != nullptr) api_->cuEventDestroy(event_);
}

Status Event::record(CUstream stream) const {
  return check(*api_, api_->cuEventRecord(event_, stream), "cuEventRecord");
}

Status Event::synchronize() const {
  return check(*api_, api_->cuEventSynchronize(event_), "cuEventSynchronize");
}

Result<bool> Event::done() const {
  const CUresult result = api_->cuEventQuery(event_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  SCANJIT_TRY(check(*api_, result, "cuEventQuery"));
  return true;
}

Result<double> Event::microseconds_since(const Event& start) const {
  float milliseconds = 0;
  SCANJIT_TRY(check(*api_, api_->cuEventElapsedTime(&milliseconds, start.event_, event_),
                    "cuEventElapsedTime"));
  return static_cast<double>(milliseconds) * 1e3;
}

Result<bool> is_capturing(const DriverApi& api, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = api.cuStreamIsCapturing(stream, &status);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  SCANJIT_TRY(check(api, result, "cuStreamIsCapturing"));
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace scanjit::cuda
