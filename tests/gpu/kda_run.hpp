#pragma once
// One run of KDA forward on the GPU, through the engine, in watched and poisoned memory.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu.hpp"
#include "reference/kda_forward.hpp"
#include "scanjit/kda_forward.hpp"

namespace scanjit::test {

/// How the tensors lie, and what is asked for beside o and ht.
struct KdaOptions {
  bool packed = false;
  std::int64_t pad = 0;     ///< elements between the rows of a token tensor
  int offset_elements = 0;  ///< of the token tensors' bases, from 16-byte alignment
  bool g_bf16 = true, beta_bf16 = true;
  StateLayout layout = StateLayout::kVK;
  std::string numerics = "default";
  std::int64_t workspace_limit = 0;
  std::optional<Config> config;  ///< else the heuristic's
  /// [N][Q]; empty: no checkpoints.
  std::vector<std::vector<std::int32_t>> checkpoint_offsets;
  /// Where h0 is (-1: from zero) and ht goes in pools of as many slots; empty: no pools.
  std::vector<std::int64_t> h0_indices, ht_indices;
  std::int64_t slots = 0;
  /// Device lengths that are not those of the inputs.
  std::vector<std::int64_t> cu_seqlens;
};

/// States as [..,HV,K,V], whatever the layout.
struct KdaRun {
  std::vector<std::uint16_t> o;    ///< [tokens,HV,V]
  std::vector<float> ht;           ///< [N or slots,HV,K,V]
  std::vector<float> checkpoints;  ///< [N,Q,HV,K,V]
  std::uint32_t status = 0;
  std::string damage;  ///< what was written outside of tensors; "": nothing
  Config config;
  std::int64_t workspace_bytes = 0;
};

[[nodiscard]] KdaForwardProblem problem_of(const reference::KdaInputs& inputs,
                                           const KdaOptions& options);
[[nodiscard]] Result<KdaRun> run(Gpu& gpu, const reference::KdaInputs& inputs,
                                 const KdaOptions& options);

/// Compiles what runs of these will need, all at once. No config: the heuristic's.
struct KdaWanted {
  KdaForwardProblem problem;
  std::optional<Config> config;
};
[[nodiscard]] Status compile_all(Gpu& gpu, const std::vector<KdaWanted>& wanted);
[[nodiscard]] Result<std::vector<Config>> legal_configs(Gpu& gpu, const KdaForwardProblem& problem);

/// Relative L2 of o and of ht; NaN where the result has one.
struct KdaErrors {
  double o = 0, ht = 0;
};
[[nodiscard]] KdaErrors errors_of(const KdaRun& run, const reference::KdaOutputs& oracle);
[[nodiscard]] KdaErrors errors_of(const KdaRun& run, const KdaRun& other);
/// "": the same bits; else which output differs first.
[[nodiscard]] std::string bit_difference(const KdaRun& a, const KdaRun& b);

}  // namespace scanjit::test
