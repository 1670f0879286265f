#pragma once
// The 69 shapes of the map at full size, filled on the device.
//
// Generating `wy` inputs for 65,536 tokens and 48 heads on the host would take minutes. A chunk's
// inputs depend on no other chunk, so a bank of a few hundred chunks is generated
// (reference/generators.hpp), and every (sequence, chunk, key head) of a shape takes one of them by
// a hash of the three. The data are as stable as generated ones at any length, and a kernel that
// reads another chunk, head or sequence than its own gets another one of the bank (but for 1 in
// `kBankChunks`).

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/gpu.hpp"
#include "gpu/memory.hpp"
#include "reference/generators.hpp"
#include "scanjit/gated_delta_h.hpp"

namespace scanjit::test {

struct MapShape {
  std::int64_t HV = 0, N = 0, T = 0;
};
/// configs/shapes/scan_map.json: H = 16, K = V = 128, BT = 64.
[[nodiscard]] std::vector<MapShape> map_shapes();
/// configs/shapes/held_out.json: where picks are judged that were measured elsewhere.
[[nodiscard]] std::vector<MapShape> held_out_shapes();
[[nodiscard]] std::string to_string(const MapShape& shape);

/// Which gates a map problem has.
enum class MapGate { kG, kGk, kNone };
/// Dense bf16 with h0, h, v_new and ht.
[[nodiscard]] GatedDeltaHProblem map_problem(const MapShape& shape, MapGate gate);
/// Bytes of all its tensors.
[[nodiscard]] std::int64_t tensor_bytes(const GatedDeltaHProblem& problem);

inline constexpr int kBankChunks = 192;

/// Generated chunks on the device, for one ratio HV/H.
class ChunkBank {
 public:
  [[nodiscard]] static Result<ChunkBank> make(Gpu& gpu, std::int64_t group, MapGate gate,
                                              reference::GateSet gates, std::uint64_t seed);

 private:
  friend class MapTensors;
  GuardedBuffer k_, w_, u_, g_, gk_;
};

/// The tensors of one shape, dense and contiguous; `packed_args` are the same memory with
/// cu_seqlens.
class MapTensors {
 public:
  /// Fills the inputs from the bank, whose gates must be the problem's.
  [[nodiscard]] static Result<MapTensors> make(Gpu& gpu, const GatedDeltaHProblem& problem,
                                               const ChunkBank& bank, std::uint64_t seed);
  [[nodiscard]] const GatedDeltaHProblem& problem() const noexcept { return problem_; }
  [[nodiscard]] const GatedDeltaHArgs& args() const noexcept { return args_; }
  /// Every bit of the outputs set: NaN.
  [[nodiscard]] Status poison_outputs();
  [[nodiscard]] Status damage() const;
  /// Hashes of h, v_new and ht as they are on the device now.
  struct Hashes {
    std::uint64_t h = 0, v_new = 0, ht = 0;
    friend bool operator==(const Hashes&, const Hashes&) = default;
  };
  [[nodiscard]] Result<Hashes> hashes();

  GuardedBuffer k, w, u, g, gk, h0, h, v_new, ht;

 private:
  Gpu* gpu_ = nullptr;
  GatedDeltaHProblem problem_;
  GatedDeltaHArgs args_;
  GuardedBuffer sums_;
};

}  // namespace scanjit::test
