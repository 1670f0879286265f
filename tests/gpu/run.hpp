#pragma once
// One launch of the gated-delta state scan on the GPU from inputs on the host, and everything that
// can be seen of it afterwards.

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan.hpp"
#include "gpu/gpu.hpp"
#include "gpu/memory.hpp"
#include "ops/gated_delta_h.hpp"
#include "reference/cases.hpp"
#include "reference/gated_delta_h.hpp"
#include "scanjit/gated_delta_h.hpp"

namespace scanjit::test {

struct RunOptions {
  std::optional<Config> config;  // none: what the engine picks
  bool ht_in_place = false;      // ht is the memory of h0
  bool v_new_in_place = false;   // v_new is the memory of u
  int misalign_elements = 0;  // every tensor starts this many elements past a multiple of 16 bytes
  /// Given to the launch as the host's copy of cu_seqlens; empty: none.
  std::vector<std::int64_t> host_cu_seqlens;
  Guard inputs = Guard::kBytes;
  Guard outputs = Guard::kBytes;
  /// The build for tests (Cfg::PERTURB): random delays, and arrivals that a race checker can follow.
  bool perturb = false;
};
/// What a random case says of its buffers.
[[nodiscard]] RunOptions options_of(const reference::GatedDeltaHCase& random_case,
                                    const reference::GatedDeltaHInputs& inputs);

/// A problem's tensors on the device. `inputs` and `options` must outlive it. Outputs hold what
/// they held before any launch: NaN everywhere (all bits set), except in place, where they hold the
/// input.
class DeviceTensors {
 public:
  [[nodiscard]] static Result<DeviceTensors> make(Gpu& gpu,
                                                  const reference::GatedDeltaHInputs& inputs,
                                                  const RunOptions& options);
  [[nodiscard]] const GatedDeltaHArgs& args() const noexcept { return args_; }
  /// Ok, or which buffer's surroundings were written.
  [[nodiscard]] Status damage() const;
  /// Writes the outputs' former content (and inputs that are overwritten in place) again.
  [[nodiscard]] Status poison_outputs();

  GuardedBuffer k, w, u, g, gk, h0, h0_indices, cu_seqlens, chunk_offsets, ht_indices, h, v_new, ht,
      status;

 private:
  GatedDeltaHArgs args_;
  const reference::GatedDeltaHInputs* inputs_ = nullptr;
};

/// Everything in the output buffers before and after a launch, bit for bit. Absent tensors are
/// empty.
struct RunResult {
  Config config;
  std::vector<std::uint16_t> h_before, h, v_new_before, v_new;
  std::vector<float> ht_before, ht;
  std::uint32_t status = 0;
  std::string damage;  // "" or which bytes outside of the buffers were written
};

/// Uploads, launches once, downloads. Takes the GPU's lock for its work there, but not while
/// compiling.
[[nodiscard]] Result<RunResult> run(Gpu& gpu, const reference::GatedDeltaHInputs& inputs,
                                    const RunOptions& options);

/// The plan for `options.config`, or the engine's own.
[[nodiscard]] Result<Plan> plan_for(Gpu& gpu, const GatedDeltaHProblem& problem,
                                    const std::optional<Config>& config);

/// Launches a plan on the tensors and waits. The workspace is allocated, guarded and full of NaN.
[[nodiscard]] Status launch_and_wait(Gpu& gpu, const Plan& plan, const GatedDeltaHArgs& args);

/// The launches of a problem under a config, loaded in the build for tests.
[[nodiscard]] Result<std::vector<engine::LaunchStage>> perturbed(Gpu& gpu,
                                                                 const ops::GatedDeltaH& op,
                                                                 const Config& config);

/// Every config of the space that is legal for this problem on this GPU.
[[nodiscard]] Result<std::vector<Config>> legal_configs(Gpu& gpu,
                                                        const GatedDeltaHProblem& problem);
/// Legal ones of every kernel that can run it, at most `of_each` of each, evenly spread; compiled.
[[nodiscard]] Result<std::vector<Config>> varied_configs(Gpu& gpu,
                                                         const GatedDeltaHProblem& problem,
                                                         std::size_t of_each = 3);
/// Compiles them on all cores, for cases that run many.
[[nodiscard]] Status compile_all(Gpu& gpu, const GatedDeltaHProblem& problem,
                                 const std::vector<Config>& configs);

/// Elements that differ between two buffers of the same size; -1 if their sizes differ.
template <class T>
[[nodiscard]] std::int64_t differing(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return -1;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if constexpr (sizeof(T) == 4) {
      if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) ++count;
    } else {
      if (a[i] != b[i]) ++count;
    }
  }
  return count;
}
/// "" if two runs of one problem wrote the same bits, else which output differs and in how many
/// elements.
[[nodiscard]] std::string bit_difference(const RunResult& a, const RunResult& b);

/// "" if a run is right: against the pure and the rounding oracle, with nothing written that the
/// definition does not write, no damage around the buffers and the right status word; else what is
/// wrong.
struct Oracles {
  reference::GatedDeltaHOutputs pure, rounding;
};
[[nodiscard]] Result<Oracles> oracles_of(const reference::GatedDeltaHInputs& inputs, int threads);
[[nodiscard]] std::string wrong(const reference::GatedDeltaHInputs& inputs,
                                reference::GateSet gates, const RunResult& result,
                                const Oracles& oracles);

}  // namespace scanjit::test
