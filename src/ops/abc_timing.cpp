// ABC on synthetic memory: sizes and contents of its tensors.
#include <algorithm>
#include <cstdint>

#include "ops/abc_op.hpp"
#include "ops/synthetic.hpp"

namespace scanjit::ops {
namespace {

constexpr std::int64_t kPatternBytes = 2 << 20;

}  // namespace

std::int64_t AbcOp::tokens_per_sequence() const noexcept {
  return problem_.B == 0 ? 0 : problem_.T;
}

std::int64_t AbcOp::floor_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const OneTensor& tensor : tensor_) bytes += tensor.bytes;
  return bytes;
}

std::vector<Tensor> AbcOp::tensors() const {
  std::vector<Tensor> list;
  for (std::size_t i = 0; i < kTensors; ++i) {
    const OneTensor& tensor = tensor_[i];
    if (tensor.bytes > 0) {
      list.push_back({i, name_of(i), tensor.bytes,
                      tensor.output ? 0 : std::min(tensor.bytes, kPatternBytes), tensor.output});
    }
  }
  return list;
}

std::shared_ptr<const OpProblem> AbcOp::for_timing(std::int64_t max_bytes) const {
  if (tokens_per_sequence() == 0) return nullptr;
  AbcProblem p = problem_;
  p.aligned16 = dims_.aligned;
  const auto make = [&](std::int64_t tokens) -> std::shared_ptr<const OpProblem> {
    p.T = tokens;
    const auto made = of(p);
    return made.ok() ? *made : nullptr;
  };
  auto timed = largest_that_fits(make, problem_.T, scanjit::abc::kTile, max_bytes);
  // Which class is fastest depends on the length itself.
  const bool whole = timed != nullptr && timed->tokens_per_sequence() == problem_.T;
  return segment_chunks_ == 0 && !whole ? nullptr : timed;
}

void AbcOp::fill_pattern(std::size_t tensor, unsigned char* host) const {
  const std::int64_t bytes = std::min(tensor_[tensor].bytes, kPatternBytes);
  Random random(tensor + 1);
  if (tensor_[tensor].alignment == 4) {
    auto* floats = reinterpret_cast<float*>(host);
    for (std::int64_t i = 0; i < bytes / 4; ++i) floats[i] = random.normal();
    return;
  }
  // What is saved is f32 as well as 16-bit numbers: two bf16 numbers side by side are a small one
  // of either type.
  const DType dtype = tensor == kSaved ? DType::kBf16 : problem_.dtype;
  auto* halves = reinterpret_cast<std::uint16_t*>(host);
  for (std::int64_t i = 0; i < bytes / 2; ++i) halves[i] = to_16_bits(random.normal(), dtype);
}

}  // namespace scanjit::ops
