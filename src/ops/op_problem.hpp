#pragma once
/// \file
/// An op as the engine and the tuner see it: one checked problem that says which configs can run
/// it, which kernels a config is made of, and what memory it works on. An op is a list of stages
/// run in order on one stream; a config belongs to the op as a whole. Everything here is pure: no
/// GPU, no file.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "jit/kernel_source.hpp"
#include "ops/device_limits.hpp"
#include "scanjit/result.hpp"
#include "scanjit/types.hpp"
#include "tuning/config_space.hpp"
#include "tuning/shape_key.hpp"

namespace scanjit::ops {

/// An op: its number in ProblemWords, which is its own for ever, and its name.
struct Op {
  std::int64_t number = 0;
  const char* name = "";
};
inline constexpr Op kGatedDeltaH{1, "gated_delta_h"};
inline constexpr Op kKdaForward{2, "kda_forward"};
inline constexpr Op kAbcForward{3, "abc_forward"};
inline constexpr Op kAbcBackward{4, "abc_backward"};

/// Everything that tells one problem from another, as numbers: what a plan is looked up by.
struct ProblemWords {
  static constexpr std::size_t kCount = 24;
  std::array<std::int64_t, kCount> words{};  ///< [0] holds the op's number and its flags
  friend bool operator==(const ProblemWords&, const ProblemWords&) = default;
};

/// A tensor as the copy engine of sm_90 sees it: the map of it that a stage's parameters hold.
/// 16-bit elements; boxes of 128 bytes a row, in the 128-byte swizzle.
struct TensorMap {
  static constexpr std::size_t kMaxRank = 5;
  std::size_t tensor = 0;  ///< place in Addresses
  std::size_t offset = 0;  ///< of the map's 128 bytes in the parameters
  std::uint32_t rank = 0;
  std::array<std::uint64_t, kMaxRank> extents{};      ///< fastest first
  std::array<std::uint64_t, kMaxRank - 1> strides{};  ///< bytes, of the second axis and so on
  std::array<std::uint32_t, kMaxRank> box{};
  friend bool operator==(const TensorMap&, const TensorMap&) = default;
};

/// What an op notes of a stage for `fill_params`: which of its kernels it is, and numbers of the
/// op's own, such as the slice of the problem that it works on.
struct StageNote {
  int kind = 0;
  std::array<std::int64_t, 4> numbers{};
  friend bool operator==(const StageNote&, const StageNote&) = default;
};

/// One kernel launch: `grid` blocks on x, `source.threads` threads, `source.smem_bytes` bytes.
struct Stage {
  jit::KernelSource source;
  std::int64_t grid = 0;
  std::vector<TensorMap> maps;
  StageNote note;
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// Device addresses of one launch, by the op's own tensor numbers; an absent tensor is null.
inline constexpr std::size_t kMaxTensors = 24;
struct Addresses {
  std::array<void*, kMaxTensors> tensor{};
  void* workspace = nullptr;
};

/// The parameter struct of one stage, byte for byte what its kernel takes.
struct alignas(64) StageParams {
  std::array<unsigned char, 1024> bytes{};
};

/// A tensor of a problem that is to be synthesised (see OpProblem::for_timing).
struct Tensor {
  std::size_t number = 0;  ///< place in Addresses
  const char* name = "";
  std::int64_t bytes = 0;  ///< > 0
  /// Of an input: its first `pattern_bytes` come from `fill_pattern`, the rest repeats them.
  std::int64_t pattern_bytes = 0;
  bool output = false;
};

/// One problem, checked when it was made. Immutable: usable from any thread.
class OpProblem {
 public:
  virtual ~OpProblem() = default;
  OpProblem(const OpProblem&) = delete;
  OpProblem& operator=(const OpProblem&) = delete;

  [[nodiscard]] const Op& op() const noexcept { return op_; }

  [[nodiscard]] virtual tuning::KeyQuery key_query() const = 0;
  [[nodiscard]] virtual const tuning::ConfigSpace& space() const = 0;

  /// Ok, or kUnsupported with a sentence that says why this config cannot run this problem there.
  [[nodiscard]] virtual Status legal(const Config& config, const DeviceLimits& limits) const = 0;
  /// An estimate of the time of a legal config, in microseconds; only the order is meant.
  [[nodiscard]] virtual double score(const Config& config, const DeviceLimits& limits) const = 0;
  /// What runs where nothing was measured: always legal. kUnsupported: no config is legal there.
  [[nodiscard]] virtual Result<Config> heuristic(const DeviceLimits& limits) const = 0;

  /// Which of an architecture's shortlists applies: "K128-V128-BT64-a16".
  [[nodiscard]] virtual std::string source_class() const = 0;

  /// The launches of a config that is legal there, in order; none if the problem has nothing to do.
  [[nodiscard]] virtual std::vector<Stage> stages(const Config& config,
                                                  const DeviceLimits& limits) const = 0;
  /// Every kernel that any problem of this key may need under this config: what a pack holds.
  [[nodiscard]] virtual std::vector<jit::KernelSource> kernels(
      const Config& config, const DeviceLimits& limits) const = 0;
  /// Bytes of workspace that the stages of a config that is legal there need.
  [[nodiscard]] virtual std::int64_t workspace_bytes(const Config& config,
                                                     const DeviceLimits& limits) const noexcept = 0;
  /// The most that any config needs which is legal anywhere; independent of tuning.
  [[nodiscard]] virtual std::int64_t workspace_bound() const noexcept = 0;
  /// Whether two legal configs are of one numerics class, and so give the same bits.
  [[nodiscard]] virtual bool same_bits(const Config& a, const Config& b) const noexcept = 0;
  /// The parameters of a stage of this problem, but for its tensor maps. Allocates nothing.
  virtual void fill_params(const StageNote& note, const Addresses& addresses,
                           StageParams& params) const noexcept = 0;

  /// Tokens of the longest sequence as far as they are known: what the chunk class of `key_query`
  /// comes from, and what a measurement is recorded under. 0: there is nothing to time.
  [[nodiscard]] virtual std::int64_t tokens_per_sequence() const noexcept = 0;
  /// The same kernels on synthetic memory: as many sequences, each of `tokens_per_sequence`,
  /// contiguous, and no more than `max_bytes` of tensors and workspace: fewer chunks where need be,
  /// never fewer sequences. Null if not even one chunk of each fits, or if there is nothing to
  /// time.
  [[nodiscard]] virtual std::shared_ptr<const OpProblem> for_timing(
      std::int64_t max_bytes) const = 0;
  /// The tensors that exist and have elements. Only of a problem from `for_timing`.
  [[nodiscard]] virtual std::vector<Tensor> tensors() const = 0;
  /// Writes a tensor's pattern to `host` (`pattern_bytes` long): values under which every output
  /// stays finite. Only of a problem from `for_timing`.
  virtual void fill_pattern(std::size_t tensor, unsigned char* host) const = 0;
  /// Bytes that the definition must read and write at least once.
  [[nodiscard]] virtual std::int64_t floor_bytes() const noexcept = 0;

 protected:
  explicit OpProblem(const Op& op) noexcept : op_(op) {}

 private:
  Op op_;
};

/// `legal` of this problem as the tuning folder takes it. Both must outlive the callable.
[[nodiscard]] tuning::LegalFn legal_fn(const OpProblem& problem, const DeviceLimits& limits);

/// What is worth timing here: the heuristic first, then the legal configs, at most kMaxCandidates,
/// chosen by score. Errors: kUnsupported if no config is legal.
[[nodiscard]] Result<std::vector<Config>> candidates(const OpProblem& problem,
                                                     const DeviceLimits& limits);

}  // namespace scanjit::ops
