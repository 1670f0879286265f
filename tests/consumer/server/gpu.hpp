#pragma once
// The few driver calls that a server makes itself. A real one links libcuda; this one opens it, so
// that it builds and starts where there is none.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace server {

using DeviceAddress = unsigned long long;
using Handle = void*;  // CUcontext, CUstream, CUgraph, CUgraphExec

/// One device and its primary context. Every call returns 0 or the CUresult; `text` names it.
class Gpu {
 public:
  /// Opens the driver and makes the primary context of `device`. Empty: ok; else a sentence.
  [[nodiscard]] std::string open(int device);
  void close();

  [[nodiscard]] int enter() const;  ///< makes the context current on this thread
  [[nodiscard]] int allocate(std::size_t bytes, DeviceAddress* address) const;
  void free(DeviceAddress address) const;
  [[nodiscard]] int make_stream(Handle* stream) const;
  void free_stream(Handle stream) const;
  [[nodiscard]] int upload(DeviceAddress to, const void* from, std::size_t bytes,
                           Handle stream) const;
  [[nodiscard]] int download(void* to, DeviceAddress from, std::size_t bytes, Handle stream) const;
  [[nodiscard]] int fill(DeviceAddress to, unsigned char value, std::size_t bytes,
                         Handle stream) const;
  [[nodiscard]] int wait(Handle stream) const;

  [[nodiscard]] int begin_capture(Handle stream) const;
  [[nodiscard]] int end_capture(Handle stream, Handle* graph) const;
  [[nodiscard]] int instantiate(Handle graph, Handle* exec) const;
  [[nodiscard]] int replay(Handle exec, Handle stream) const;
  void free_graph(Handle graph, Handle exec) const;

  [[nodiscard]] std::string text(int result) const;

 private:
  struct Functions;
  const Functions* cu_ = nullptr;
  int device_ = 0;
  Handle context_ = nullptr;
};

}  // namespace server
