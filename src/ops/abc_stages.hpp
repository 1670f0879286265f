#pragma once
/// \file
/// The kernels of ABC in order, their scratch, and how large their grids are. The definition is in
/// reference/abc.hpp, the kernels are in kernel_templates/abc/ and docs/kernels/abc.md. Pure.

#include <cstdint>
#include <vector>

#include "abc/abc_params.h"
#include "ops/op_problem.hpp"
#include "scanjit/types.hpp"

namespace scanjit::ops {

/// Sizes within the kernels' range: K 1..256, M 1..128, V 1..512.
struct AbcDims {
  DType dtype = DType::kBf16;
  std::int64_t B = 1, T = 0, H = 1;
  int K = 1, M = 1, V = 1;
  bool aligned = false;  ///< every pointer at 16 bytes, K, M and V multiples of 8
};

struct AbcForm {
  int segment_chunks = 2;  ///< chunks of 64 tokens between two states; decides the bits
  int stages = 2;          ///< slabs of 64 columns that a chunk's kernel has in shared memory
  int slabs = 4;           ///< slabs of the states' columns that one summary block owns
  bool serial = false;     ///< one block takes a slab of the states through all segments
};

class AbcStages {
 public:
  AbcStages(const AbcDims& dims, const AbcForm& form);

  /// The states before every segment, z before every chunk and the final states: what `saved`
  /// holds.
  [[nodiscard]] std::vector<Stage> states() const;
  /// Outputs, after `states`.
  [[nodiscard]] std::vector<Stage> forward() const;
  /// Gradients, after `states` (or with what they have saved).
  [[nodiscard]] std::vector<Stage> backward() const;

  /// Shared memory of a block of the kernel that takes most.
  [[nodiscard]] int smem_bytes(bool backward) const noexcept;

  [[nodiscard]] std::int64_t saved_bytes() const noexcept { return saved_bytes_; }
  /// Beside `saved`. Multiples of 256.
  [[nodiscard]] std::int64_t forward_bytes() const noexcept { return forward_bytes_; }
  [[nodiscard]] std::int64_t backward_bytes() const noexcept { return backward_bytes_; }

  /// Parameters with sizes, and scratch from `saved` and `workspace` (256-byte aligned, of
  /// `forward_bytes` or `backward_bytes`); the caller adds the tensors.
  [[nodiscard]] scanjit::abc::AbcParams params(void* saved, void* workspace) const noexcept;

 private:
  enum Region : std::size_t {
    kZStarts,
    kStates,
    kFinals,
    // workspace, forward and backward
    kChunkLse,
    kSegmentLse,
    kSummaries,
    kSteepZ,
    // workspace, backward alone
    kWeightsA,
    kWeightsD,
    kDecayedA,
    kDecayedD,
    kDz,
    kChunkDz,
    kDzEnds,
    kDStates,
    kFirstDz,
    kRegions,
  };
  [[nodiscard]] jit::KernelSource kernel(const char* file, const char* entry, const char* traits,
                                         int stages) const;
  [[nodiscard]] jit::KernelSource chunk_kernel(const char* file, const char* entry,
                                               const char* traits, bool own_s) const;
  /// Whether two blocks that take so much shared memory each are to share a multiprocessor.
  [[nodiscard]] bool two_blocks(int smem_bytes) const noexcept;
  [[nodiscard]] int summary_stages() const noexcept;
  /// The states before, or their derivatives after, every segment.
  void add_states(bool backward, std::vector<Stage>& list) const;
  /// Without slabs: the logsumexps alone.
  [[nodiscard]] Stage summary(bool backward, int slabs) const;
  [[nodiscard]] Stage scan(bool backward, bool states) const;
  [[nodiscard]] Stage walk(bool backward) const;

  AbcDims dims_;
  AbcForm form_;
  std::int64_t heads_, chunks_, segments_;
  std::int64_t offset_[kRegions];  // in saved or in the workspace
  std::int64_t saved_bytes_ = 0, forward_bytes_ = 0, backward_bytes_ = 0;
};

}  // namespace scanjit::ops
