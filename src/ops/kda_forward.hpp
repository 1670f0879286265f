#pragma once
/// \file
/// KDA forward as an op: argument checks, stages, config space. The definition is in
/// scanjit/kda_forward.hpp, the kernels are in kernel_templates/kda_forward/. A config means the
/// state scan's block: bv value columns, all key columns (bk = K), `stages` chunks in shared
/// memory, bv/16 warps; and segment_chunks. What the other kernels take follows from it and the
/// problem (docs/kernels/kda_forward.md).

#include <memory>
#include <optional>

#include "kda_forward/kda_forward_params.h"
#include "ops/op_problem.hpp"
#include "scanjit/kda_forward.hpp"
#include "tuning/record.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::ops {

class KdaForward final : public OpProblem {
 public:
  using Problem = KdaForwardProblem;
  using Args = KdaForwardArgs;
  static constexpr Op kOp = kKdaForward;
  static constexpr int kRevision = scanjit::kda_forward::kKernelRevision;

  /// Places of the tensors in Addresses.
  enum TensorNumber : std::size_t {
    kQ,
    kK,
    kV,
    kG,
    kBeta,
    kALog,
    kDtBias,
    kH0,
    kH0Indices,
    kCuSeqlens,
    kHtIndices,
    kCheckpointOffsets,
    kO,
    kHt,
    kCheckpoints,
    kStatus,
  };

  /// Checks everything that does not need addresses. Errors: kInvalidArgument, kUnsupported; the
  /// sentence names field, value and bound.
  [[nodiscard]] static Result<std::shared_ptr<const KdaForward>> make(
      const KdaForwardProblem& problem);

  /// The problem of a shape, and of a key (its source fields decide) at a point of its box; `make`
  /// checks the rest. Errors: kInvalidArgument.
  [[nodiscard]] static Result<KdaForwardProblem> problem_of(const tuning::Shape& shape);
  [[nodiscard]] static Result<KdaForwardProblem> problem_of(const tuning::ShapeKey& key,
                                                            const tuning::MeasuredPoint& point);

  /// What plans are looked up by. Allocates nothing. Two problems have equal words only if they are
  /// equal, except that all unknown `numerics` look alike (`make` refuses them).
  [[nodiscard]] static ProblemWords words(const KdaForwardProblem& problem) noexcept;

  /// Checks the addresses of one launch: null, alignment, overlap, host lengths, workspace, of
  /// which the plan needs `workspace_bytes`. Allocates nothing when ok. Errors: kInvalidArgument.
  [[nodiscard]] Status check_args(const KdaForwardArgs& args, Workspace workspace,
                                  std::int64_t workspace_bytes) const;
  [[nodiscard]] static Addresses addresses(const KdaForwardArgs& args,
                                           Workspace workspace) noexcept;

  [[nodiscard]] const KdaForwardProblem& problem() const noexcept { return problem_; }
  [[nodiscard]] std::int64_t sequences() const noexcept { return N_; }
  /// Chunks of all sequences together; packed: the most that there can be.
  [[nodiscard]] std::int64_t chunks() const noexcept { return chunks_; }
  /// The kernels' fast path: rows, strides and pointers are all multiples of 16 bytes.
  [[nodiscard]] bool aligned() const noexcept { return aligned_; }

  [[nodiscard]] tuning::KeyQuery key_query() const override;
  [[nodiscard]] const tuning::ConfigSpace& space() const override { return space_; }
  [[nodiscard]] Status legal(const Config& config, const DeviceLimits& limits) const override;
  [[nodiscard]] double score(const Config& config, const DeviceLimits& limits) const override;
  [[nodiscard]] Result<Config> heuristic(const DeviceLimits& limits) const override;
  [[nodiscard]] std::string source_class() const override;
  [[nodiscard]] std::vector<Stage> stages(const Config& config,
                                          const DeviceLimits& limits) const override;
  [[nodiscard]] std::vector<jit::KernelSource> kernels(const Config& config,
                                                       const DeviceLimits& limits) const override;
  [[nodiscard]] std::int64_t workspace_bytes(const Config& config,
                                             const DeviceLimits& limits) const noexcept override;
  [[nodiscard]] std::int64_t workspace_bound() const noexcept override;
  [[nodiscard]] bool same_bits(const Config& a, const Config& b) const noexcept override {
    return a.segment_chunks == b.segment_chunks;
  }
  void fill_params(const StageNote& note, const Addresses& addresses,
                   StageParams& params) const noexcept override;
  [[nodiscard]] std::int64_t tokens_per_sequence() const noexcept override;
  [[nodiscard]] std::shared_ptr<const OpProblem> for_timing(std::int64_t max_bytes) const override;
  [[nodiscard]] std::vector<Tensor> tensors() const override;
  void fill_pattern(std::size_t tensor, unsigned char* host) const override;
  [[nodiscard]] std::int64_t floor_bytes() const noexcept override;

 private:
  explicit KdaForward(const KdaForwardProblem& problem) : OpProblem(kOp), problem_(problem) {}
  Status check();
  Status check_numerics();
  Status check_tensors();
  Status check_overlaps(const KdaForwardArgs& args, const void* workspace,
                        std::int64_t workspace_bytes) const;

  /// How the chunks are gone through: serial in one go, in slices of so many chunks of every
  /// sequence, or in segments. And what of the workspace that takes, in bytes from its start.
  struct Form {
    std::int64_t segment_chunks = 0, slice_chunks = 0;  // 0: not so
    std::int64_t records = 0, states = 0, summaries = 0, bytes = 0;
  };
  [[nodiscard]] Form form(std::int64_t segment_chunks, std::int64_t slice_chunks) const noexcept;
  /// The serial form in the largest slices that the limit allows; nothing if not even one chunk
  /// of each sequence fits.
  [[nodiscard]] std::optional<Form> form_of(int segment_chunks) const noexcept;

  [[nodiscard]] std::int64_t longest_chunks() const noexcept;  // that a sequence can have
  [[nodiscard]] std::int64_t segments(std::int64_t segment_chunks) const noexcept;
  [[nodiscard]] int prescan_bv(std::int64_t segment_chunks,
                               const DeviceLimits& limits) const noexcept;
  [[nodiscard]] int prescan_stages(int bv, const DeviceLimits& limits) const noexcept;
  [[nodiscard]] double prescan_us(int bv, std::int64_t segment_chunks,
                                  const DeviceLimits& limits) const noexcept;
  [[nodiscard]] double scan_us(const Config& config, const DeviceLimits& limits) const noexcept;

  [[nodiscard]] std::int64_t pattern_tokens() const noexcept;

  [[nodiscard]] jit::KernelSource offsets_source() const;
  [[nodiscard]] jit::KernelSource prepare_source(const DeviceLimits& limits) const;
  [[nodiscard]] jit::KernelSource scan_source(int bv, int stages, bool split) const;
  [[nodiscard]] jit::KernelSource prescan_source(int bv, const DeviceLimits& limits) const;
  [[nodiscard]] jit::KernelSource merge_source() const;

  KdaForwardProblem problem_;  // strides and slots filled in by `check`
  tuning::ConfigSpace space_;
  std::int64_t N_ = 0;
  std::int64_t rows_ = 0;    // of token tensors: B*T
  std::int64_t chunks_ = 0;  // at most
  bool aligned_ = false;
};

}  // namespace scanjit::ops
