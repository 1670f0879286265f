#pragma once
/// \file
/// What forward and backward of ABC have in common as ops: sizes, numerics classes, config space,
/// tensors. The definition is in scanjit/abc.hpp, the kernels are in kernel_templates/abc/.
///
/// A config of ABC: bv: columns of a head's two states that one block of the summaries owns, or of
/// the serial form takes through all segments; bk: columns of a slab, 64; stages: slabs in shared
/// memory in a chunk's kernels; warps: 8; segment_chunks: chunks between two states, which decides
/// the bits, or 0: the serial form, with as many as the class "default".

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/abc_stages.hpp"
#include "ops/op_problem.hpp"
#include "scanjit/abc.hpp"

namespace scanjit::ops {

class AbcOp : public OpProblem {
 public:
  /// Places of the tensors in Addresses.
  enum TensorNumber : std::size_t {
    kQ,
    kK,
    kV,
    kS,
    kHk0,
    kHv0,
    kZ0,
    kDout,
    kDhkt,
    kDhvt,
    kO,
    kHkt,
    kHvt,
    kZt,
    kDq,
    kDk,
    kDv,
    kDs,
    kDhk0,
    kDhv0,
    kDz0,
    kSaved,
    kTensors,
  };

  /// Chunks a segment of the class "default", and of the serial form.
  static constexpr int kDefaultSegmentChunks = 2;

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
  [[nodiscard]] std::int64_t workspace_bytes(const Config& config,
                                             const DeviceLimits& limits) const noexcept override;
  [[nodiscard]] std::int64_t workspace_bound() const noexcept override;
  [[nodiscard]] bool same_bits(const Config& a, const Config& b) const noexcept override;
  void fill_params(const StageNote& note, const Addresses& addresses,
                   StageParams& params) const noexcept override;
  [[nodiscard]] std::int64_t tokens_per_sequence() const noexcept override;
  [[nodiscard]] std::shared_ptr<const OpProblem> for_timing(std::int64_t max_bytes) const override;
  [[nodiscard]] std::vector<Tensor> tensors() const override;
  void fill_pattern(std::size_t tensor, unsigned char* host) const override;
  [[nodiscard]] std::int64_t floor_bytes() const noexcept override;

  /// "q"
  [[nodiscard]] static const char* name_of(std::size_t tensor) noexcept;
  /// Bytes of workspace that every config with so long segments needs; 0: the serial form.
  [[nodiscard]] std::int64_t workspace_bytes(int segment_chunks) const noexcept;
  /// The most workspace of any class that the problem allows and that fits in `limit`.
  [[nodiscard]] Result<std::int64_t> workspace_bound_under(std::int64_t limit) const;
  /// Of the one class that the problem names.
  [[nodiscard]] Result<std::int64_t> saved_bytes() const;

 protected:
  AbcOp(const Op& op, const AbcProblem& problem) : OpProblem(op), problem_(problem) {}

  /// Checks and adds what both directions share; what follows must come after it.
  Status check();
  /// The problem has this tensor, [B,T,H,columns] of 16-bit elements or [B,H,elements] of f32.
  void add_tokens(TensorNumber number, std::int64_t columns, bool output);
  void add_states(TensorNumber number, std::int64_t elements, bool output);

  /// Addresses of one launch: null, alignment, overlap, workspace. A final state may be
  /// exactly the initial one. Allocates nothing when ok.
  Status check_addresses(const Addresses& addresses, Workspace workspace,
                         std::int64_t workspace_bytes) const;

  [[nodiscard]] static ProblemWords words(const Op& op, const AbcProblem& problem,
                                          std::initializer_list<bool> flags) noexcept;
  static void put_inputs(const AbcInputs& inputs, Addresses& addresses) noexcept;

  [[nodiscard]] bool is_backward() const noexcept { return op().number == kAbcBackward.number; }
  /// The same direction with the same tensors of its own.
  [[nodiscard]] virtual Result<std::shared_ptr<const AbcOp>> of(
      const AbcProblem& problem) const = 0;

  AbcProblem problem_;

 private:
  struct OneTensor {
    std::int64_t bytes = 0;
    int alignment = 0;  // 0: the problem has no such tensor
    bool output = false;
  };
  [[nodiscard]] AbcStages form(const Config& config) const;
  /// Whether configs with so long segments give the bits of the problem's class.
  [[nodiscard]] bool in_class(int segment_chunks) const noexcept;

  int segment_chunks_ = 0;  // of the class; 0: any
  AbcDims dims_;
  std::array<OneTensor, kTensors> tensor_{};
};

}  // namespace scanjit::ops
