#pragma once
/// \file
/// The gated-delta state scan as an op: argument checks, kernels, config space. The definition is
/// in scanjit/gated_delta_h.hpp, the kernel in kernel_templates/gated_delta_h/.

#include <memory>

#include "gated_delta_h/gated_delta_h_params.h"
#include "ops/op_problem.hpp"
#include "scanjit/gated_delta_h.hpp"
#include "tuning/record.hpp"
#include "tuning/shape_map.hpp"

namespace scanjit::ops {

class GatedDeltaH final : public OpProblem {
 public:
  using Problem = GatedDeltaHProblem;
  using Args = GatedDeltaHArgs;
  static constexpr Op kOp = kGatedDeltaH;
  static constexpr int kRevision = scanjit::gated_delta_h::kKernelRevision;

  /// Places of the tensors in Addresses.
  enum TensorNumber : std::size_t {
    kK,
    kW,
    kU,
    kG,
    kGk,
    kH0,
    kH0Indices,
    kCuSeqlens,
    kChunkOffsets,
    kHtIndices,
    kH,
    kVNew,
    kHt,
    kStatus,
  };

  /// Checks everything that does not need addresses. Errors: kInvalidArgument, kUnsupported; the
  /// sentence names field, value and bound.
  [[nodiscard]] static Result<std::shared_ptr<const GatedDeltaH>> make(
      const GatedDeltaHProblem& problem);

  /// The problem of a shape, and of a key (its source fields decide) at a point of its box; `make`
  /// checks the rest. Errors: kInvalidArgument.
  [[nodiscard]] static Result<GatedDeltaHProblem> problem_of(const tuning::Shape& shape);
  [[nodiscard]] static Result<GatedDeltaHProblem> problem_of(const tuning::ShapeKey& key,
                                                             const tuning::MeasuredPoint& point);

  /// What plans are looked up by. Allocates nothing. Two problems have equal words only if they are
  /// equal, except that all unknown `numerics` look alike (`make` refuses them).
  [[nodiscard]] static ProblemWords words(const GatedDeltaHProblem& problem) noexcept;

  /// Checks the addresses of one launch: null, alignment, overlap, host lengths, chunk capacity,
  /// workspace, of which the plan needs `workspace_bytes`. Allocates nothing when ok. Errors:
  /// kInvalidArgument.
  [[nodiscard]] Status check_args(const GatedDeltaHArgs& args, Workspace workspace,
                                  std::int64_t workspace_bytes) const;
  [[nodiscard]] static Addresses addresses(const GatedDeltaHArgs& args,
                                           Workspace workspace) noexcept;

  [[nodiscard]] const GatedDeltaHProblem& problem() const noexcept { return problem_; }
  [[nodiscard]] std::int64_t sequences() const noexcept { return N_; }
  /// Chunks that `h` has room for.
  [[nodiscard]] std::int64_t chunk_capacity() const noexcept { return capacity_; }
  /// The kernel's fast path: rows, strides and pointers are all multiples of 16 bytes.
  [[nodiscard]] bool aligned() const noexcept { return aligned_; }

  [[nodiscard]] tuning::KeyQuery key_query() const override;
  [[nodiscard]] const tuning::ConfigSpace& space() const override;
  [[nodiscard]] Status legal(const Config& config, const DeviceLimits& limits) const override;
  [[nodiscard]] double score(const Config& config, const DeviceLimits& limits) const override;
  [[nodiscard]] Result<Config> heuristic(const DeviceLimits& limits) const override;
  [[nodiscard]] std::string source_class() const override;
  [[nodiscard]] std::vector<Stage> stages(const Config& config,
                                          const DeviceLimits& limits) const override;
  [[nodiscard]] std::vector<jit::KernelSource> kernels(const Config& config,
                                                       const DeviceLimits& limits) const override;
  [[nodiscard]] std::int64_t workspace_bytes(const Config&,
                                             const DeviceLimits&) const noexcept override {
    return workspace_bound();
  }
  [[nodiscard]] std::int64_t workspace_bound() const noexcept override;
  [[nodiscard]] bool same_bits(const Config&, const Config&) const noexcept override {
    return true;
  }
  void fill_params(const StageNote& note, const Addresses& addresses,
                   StageParams& params) const noexcept override;
  [[nodiscard]] std::int64_t tokens_per_sequence() const noexcept override;
  [[nodiscard]] std::shared_ptr<const OpProblem> for_timing(std::int64_t max_bytes) const override;
  [[nodiscard]] std::vector<Tensor> tensors() const override;
  void fill_pattern(std::size_t tensor, unsigned char* host) const override;
  [[nodiscard]] std::int64_t floor_bytes() const noexcept override;

 private:
  explicit GatedDeltaH(const GatedDeltaHProblem& problem) : OpProblem(kOp), problem_(problem) {}
  Status check();
  [[nodiscard]] bool needs_offsets() const noexcept;  // the prefix stage runs
  [[nodiscard]] jit::KernelSource scan_source(const Config& config,
                                              const DeviceLimits& limits) const;
  [[nodiscard]] bool by_warpgroups(const Config& config, const DeviceLimits& limits) const noexcept;
  [[nodiscard]] int smem_bytes(const Config& config, const DeviceLimits& limits) const noexcept;
  [[nodiscard]] std::vector<TensorMap> tensor_maps(const Config& config) const;
  [[nodiscard]] jit::KernelSource offsets_source() const;
  [[nodiscard]] std::int64_t pattern_tokens() const noexcept;
  /// True of most good arguments that need no workspace: everything whole, aligned, and apart from
  /// end to end or exactly in place. Takes a small part of the time of the full check.
  [[nodiscard]] bool plainly_fine(const GatedDeltaHArgs& args) const noexcept;
  Status check_host_lengths(const std::int64_t* lengths) const;
  Status check_overlaps(const GatedDeltaHArgs& args, const void* workspace,
                        std::int64_t workspace_bytes) const;

  GatedDeltaHProblem problem_;  // strides, slots and capacity filled in by `check`
  std::int64_t N_ = 0;
  std::int64_t rows_ = 0;  // of token tensors: B*T
  std::int64_t capacity_ = 0;
  std::int64_t capacity_bound_ = 0;  // chunks that N sequences of T tokens in all can have
  bool aligned_ = false;
};

}  // namespace scanjit::ops
