#pragma once
/// \file
/// Streams and events of our own, and what is asked of the caller's streams.

#include "cuda/driver.hpp"

namespace scanjit::cuda {

/// A private non-blocking stream of the current context. Destroyed without waiting for its work.
/// The context that it was made in must be current, or alive, when it ends.
class OwnedStream {
 public:
  enum class Priority { kLowest, kNormal };
  [[nodiscard]] static Result<OwnedStream> create(const DriverApi& api, Priority priority);
  OwnedStream(OwnedStream&& other) noexcept;
  OwnedStream& operator=(OwnedStream&& other) noexcept;
  ~OwnedStream();
  [[nodiscard]] CUstream get() const noexcept { return stream_; }
  /// Waits for the stream's work. Errors: kDeviceLost and kCudaError: also what earlier work did
  /// wrong.
  [[nodiscard]] Status synchronize() const;

 private:
  OwnedStream(const DriverApi& api, CUstream stream) noexcept : api_(&api), stream_(stream) {}
  const DriverApi* api_;
  CUstream stream_;
};

/// An event of the current context.
class Event {
 public:
  enum class Kind { kTiming, kOrder };
  [[nodiscard]] static Result<Event> create(const DriverApi& api, Kind kind);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();
  [[nodiscard]] CUevent get() const noexcept { return event_; }
  [[nodiscard]] Status record(CUstream stream) const;
  [[nodiscard]] Status synchronize() const;
  /// True once everything recorded before it is done.
  [[nodiscard]] Result<bool> done() const;
  /// GPU time from `start` to this event, both recorded and done.
  [[nodiscard]] Result<double> microseconds_since(const Event& start) const;

 private:
  Event(const DriverApi& api, CUevent event) noexcept : api_(&api), event_(event) {}
  const DriverApi* api_;
  CUevent event_;
};

/// Whether work put on `stream` would be captured, or would break a capture: an invalidated capture
/// counts as capturing, and so does the legacy stream while a blocking stream captures. Asking
/// invalidates nothing.
[[nodiscard]] Result<bool> is_capturing(const DriverApi& api, CUstream stream);

}  // namespace scanjit::cuda
