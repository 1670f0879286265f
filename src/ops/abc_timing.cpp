// ABC on synthetic memory: sizes and contents of its tensors.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "ops/abc_op.hpp"

namespace scanjit::ops {
namespace {

constexpr std::int64_t kPatternBytes = 2 << 20;
constexpr std::int64_t kTensorAlignment = 256;

// The same numbers on every machine; quality does not matter here.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 1) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24F; }
  float normal() {  // sum of four uniforms, scaled to variance 1
    const std::uint64_t b = bits();
    const auto sum =
        static_cast<float>((b & 0xFFFF) + (b >> 16 & 0xFFFF) + (b >> 32 & 0xFFFF) + (b >> 48));
    return (sum - 131070.0F) * (1.0F / 37837.0F);
  }

 private:
  std::uint64_t state_;
};

// A small normal number, rounded towards zero in f16; what is too small for that becomes zero.
std::uint16_t to_16_bits(float value, DType dtype) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == DType::kBf16) return static_cast<std::uint16_t>((bits + 0x8000U) >> 16);
  const std::uint32_t sign = bits >> 16 & 0x8000U, exponent = bits >> 23 & 0xFFU;
  if (exponent < 113) return static_cast<std::uint16_t>(sign);
  return static_cast<std::uint16_t>(sign | (exponent - 112) << 10 | (bits >> 13 & 0x3FFU));
}

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
  // Null if it does not fit.
  const auto fitting = [&](std::int64_t tokens) -> std::shared_ptr<const AbcOp> {
    p.T = tokens;
    const auto made = of(p);
    if (!made.ok()) return nullptr;
    std::int64_t bytes = (*made)->workspace_bound();
    for (const Tensor& tensor : (*made)->tensors()) bytes += tensor.bytes + kTensorAlignment;
    return bytes <= max_bytes ? *made : nullptr;
  };
  if (auto whole = fitting(problem_.T)) return whole;
  // Which class is fastest depends on the length itself.
  if (segment_chunks_ == 0) return nullptr;
  std::int64_t fits = 0, too_many = (problem_.T + scanjit::abc::kTile - 1) / scanjit::abc::kTile;
  std::shared_ptr<const OpProblem> largest;
  while (too_many - fits > 1) {
    const std::int64_t chunks = fits + (too_many - fits) / 2;
    if (auto made = fitting(chunks * scanjit::abc::kTile)) {
      largest = std::move(made);
      fits = chunks;
    } else {
      too_many = chunks;
    }
  }
  return largest;
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
