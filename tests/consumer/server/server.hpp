#pragma once
// One layer of a model as a server runs it: a pool of states on the device, requests from several
// threads, each with a stream and tensors of its own.

#include <cstdint>
#include <string>
#include <vector>

#include "gpu.hpp"
#include "metrics.hpp"
#include "scanjit/engine.hpp"

namespace server {

/// Some sequences that go through the layer together, packed; their states live in the pool.
struct Request {
  std::string kind;
  std::int64_t sequences = 1;
  std::int64_t tokens = 16;  ///< of each sequence
};

struct Layer {
  std::int64_t H = 4, HV = 8, K = 64, V = 64;
  std::int64_t most_sequences = 64, most_tokens = 4096;  ///< of a request, all sequences together
};

/// The op that a request needs: packed, gated, states in a pool and updated in place.
[[nodiscard]] scanjit::GatedDeltaHProblem problem_of(const Layer& layer, const Request& request,
                                                     std::int64_t slots);

/// What became of a request: a digest of every output and of its states, and how long it took.
struct Answer {
  std::string error;  ///< "" if there is none
  std::uint64_t digest = 0;
  double ms = 0;
  std::string pick;  ///< config and where it comes from
};

/// Holds the device's share of one thread. Make, use and destroy it on that thread.
class Worker {
 public:
  /// Slots [first_slot, first_slot + most_sequences) of `slots` are this worker's own.
  Worker(const Gpu& gpu, const Layer& layer, std::int64_t slots, std::int64_t first_slot,
         DeviceAddress pool);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] const std::string& error() const { return error_; }  ///< "" if all could be had

  /// Runs a request whose inputs follow from `seed`; waits for it.
  [[nodiscard]] Answer serve(scanjit::Engine& engine, const Request& request, std::uint64_t seed);

  /// The same in a graph, as serving engines probe: captured, instantiated, replayed. If no plan is
  /// loaded the engine says so and the capture stays whole; then it is planned outside and captured
  /// again. `missed`: that happened.
  [[nodiscard]] Answer probe(scanjit::Engine& engine, const Request& request, std::uint64_t seed,
                             bool* missed);

 private:
  bool failed(int result, const char* what);
  bool prepare(const Request& request, std::uint64_t seed);
  Answer finish(scanjit::Engine& engine, const Request& request, double started_ms);

  const Gpu& gpu_;
  Layer layer_;
  std::int64_t slots_, first_slot_;
  std::string error_;
  Handle stream_ = nullptr;
  DeviceAddress pool_ = 0, k_ = 0, w_ = 0, u_ = 0, g_ = 0, h_ = 0, v_new_ = 0, cu_seqlens_ = 0,
                indices_ = 0, workspace_ = 0;
  std::int64_t workspace_bytes_ = 0;
  std::vector<DeviceAddress> owned_;
  scanjit::GatedDeltaHArgs args_;
};

/// Milliseconds of a clock that only goes forward.
[[nodiscard]] double now_ms();

}  // namespace server
