#include <cmath>
#include <cstring>
#include <map>

#include "ops_samples.hpp"
#include "reference/gated_delta_h.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

std::int64_t total_bytes(const ops::OpProblem& problem) {
  std::int64_t bytes = problem.workspace_bound();
  for (const ops::Tensor& tensor : problem.tensors()) bytes += tensor.bytes;
  return bytes;
}

// The whole tensor: its pattern, repeated.
template <class T>
std::vector<T> synthesised(const ops::OpProblem& problem, std::size_t number) {
  for (const ops::Tensor& tensor : problem.tensors()) {
    if (tensor.number != number) continue;
    std::vector<unsigned char> pattern(static_cast<std::size_t>(tensor.pattern_bytes));
    problem.fill_pattern(number, pattern.data());
    std::vector<T> values(static_cast<std::size_t>(tensor.bytes) / sizeof(T));
    auto* to = reinterpret_cast<unsigned char*>(values.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.bytes); ++i)
      to[i] = pattern[i % pattern.size()];
    return values;
  }
  return {};
}

}  // namespace

TEST_CASE("a problem is timed whole where it fits, else on fewer chunks of as many sequences",
          "[ops]") {
  for (const bool packed : {false, true}) {
    const auto op = made(packed ? packed_layer(16, 16 * 4096) : layer(16, 4096));
    const auto whole = op->for_timing(std::int64_t{8} << 30);
    REQUIRE(whole != nullptr);
    CHECK(whole->tokens_per_sequence() == 4096);
    const std::int64_t all = total_bytes(*whole);
    std::int64_t last = 4096;
    for (const std::int64_t limit : {all - 1, all / 2, all / 5, all / 15}) {
      const auto part = op->for_timing(limit);
      REQUIRE(part != nullptr);
      CHECK(total_bytes(*part) <= limit);
      CHECK(part->key_query().sequences == 16);
      CHECK(part->tokens_per_sequence() % 64 == 0);
      CHECK(part->tokens_per_sequence() < last);
      last = part->tokens_per_sequence();
      // No more than a chunk of room is left.
      CHECK(static_cast<double>(total_bytes(*part)) > 0.9 * static_cast<double>(limit) - 16 * 4e6);
      CHECK(part->stages({64, 64, 2, 4}, h200()).back().source ==
            op->stages({64, 64, 2, 4}, h200()).back().source);
    }
    CHECK(op->for_timing(1 << 20) == nullptr);
  }
  CHECK(made(layer(16, 0))->for_timing(1 << 30) == nullptr);
  CHECK(made(layer(0, 64))->for_timing(1 << 30) == nullptr);
}

TEST_CASE("the longest sequence decides the length that is timed", "[ops]") {
  GatedDeltaHProblem problem = packed_layer(4, 1000);
  problem.max_tokens = 700;
  const auto timed = made(problem)->for_timing(1 << 30);
  REQUIRE(timed != nullptr);
  CHECK(timed->tokens_per_sequence() == 700);
  CHECK(timed->key_query().chunks == made(problem)->key_query().chunks);
}

TEST_CASE("strides, pools and alignment of a caller do not enlarge what is timed", "[ops]") {
  GatedDeltaHProblem problem = layer(4, 256);
  problem.k_stride = 100'000;
  problem.has_h0_indices = true;
  problem.h0_slots = 1'000'000;
  problem.u_stride = 4097;
  const auto op = made(problem);
  const auto timed = op->for_timing(256 << 20);
  REQUIRE(timed != nullptr);
  CHECK(timed->key_query().key.alignment == 2);
  CHECK(timed->stages({64, 64, 2, 4}, h200()).back().source ==
        op->stages({64, 64, 2, 4}, h200()).back().source);
  const auto indices = synthesised<std::int64_t>(*timed, ops::GatedDeltaH::kH0Indices);
  CHECK(indices == std::vector<std::int64_t>{0, 1, 2, 3});
}

TEST_CASE("synthetic lengths and gates are those of equal sequences", "[ops]") {
  GatedDeltaHProblem problem = packed_layer(3, 300);
  problem.has_chunk_offsets = true;
  problem.cu_seqlens_type = IndexType::kInt32;
  const auto timed = made(problem)->for_timing(1 << 28);
  REQUIRE(timed != nullptr);
  CHECK(synthesised<std::int32_t>(*timed, ops::GatedDeltaH::kCuSeqlens) ==
        std::vector<std::int32_t>{0, 100, 200, 300});
  CHECK(synthesised<std::int32_t>(*timed, ops::GatedDeltaH::kChunkOffsets) ==
        std::vector<std::int32_t>{0, 2, 4});
  const auto g = synthesised<float>(*timed, ops::GatedDeltaH::kG);
  REQUIRE(g.size() == 300 * 32);
  for (std::size_t t = 0; t < 300; ++t) {
    const std::size_t in_chunk = t % 100 % 64;
    const float before = in_chunk == 0 ? 0.0F : g[(t - 1) * 32 + 5], now = g[t * 32 + 5];
    CHECK((now <= before && now > before - 0.1001F));
  }
}

TEST_CASE("outputs of synthetic inputs stay finite and useful, with and without gates", "[ops]") {
  struct Shape {
    std::int64_t K, V, BT;
    bool g, gk;
    DType dtype;
  };
  for (const Shape& shape :
       {Shape{128, 32, 64, false, false, DType::kBf16},
        Shape{128, 32, 64, true, false, DType::kF16}, Shape{64, 16, 64, false, false, DType::kF16},
        Shape{16, 16, 64, false, false, DType::kBf16}, Shape{1, 16, 64, false, false, DType::kF16},
        Shape{200, 16, 16, false, true, DType::kBf16}}) {
    GatedDeltaHProblem problem = layer(1, 8192);
    problem.H = 1;
    problem.HV = 2;
    problem.K = shape.K;
    problem.V = shape.V;
    problem.BT = shape.BT;
    problem.has_g = shape.g;
    problem.has_gk = shape.gk;
    problem.dtype = shape.dtype;
    const auto op = made(problem)->for_timing(1 << 28);
    REQUIRE(op != nullptr);
    reference::GatedDeltaHInputs inputs;
    inputs.problem = static_cast<const ops::GatedDeltaH&>(*op).problem();
    inputs.k = synthesised<std::uint16_t>(*op, ops::GatedDeltaH::kK);
    inputs.w = synthesised<std::uint16_t>(*op, ops::GatedDeltaH::kW);
    inputs.u = synthesised<std::uint16_t>(*op, ops::GatedDeltaH::kU);
    inputs.g = synthesised<float>(*op, ops::GatedDeltaH::kG);
    inputs.gk = synthesised<float>(*op, ops::GatedDeltaH::kGk);
    inputs.h0 = synthesised<float>(*op, ops::GatedDeltaH::kH0);
    const auto outputs = reference::gated_delta_h(
        inputs, {reference::Precision::kRounding, reference::Variant::kDefinition, 2});
    REQUIRE(outputs.ok());
    double largest = 0, squares = 0;
    for (const auto* values : {&outputs->h, &outputs->v_new, &outputs->ht}) {
      for (const double value : *values) {
        REQUIRE(std::isfinite(value));
        largest = std::max(largest, std::abs(value));
      }
    }
    for (const double value : outputs->v_new) squares += value * value;
    INFO("K " << shape.K << " largest " << largest);
    CHECK(largest < 1000);
    CHECK(std::sqrt(squares / static_cast<double>(outputs->v_new.size())) > 0.1);
  }
}

TEST_CASE("the floor counts what the definition must move", "[ops]") {
  // k 16*128, w 32*128, u and v_new 32*128 each, bf16; g 32 f32; h 1/64 of 32*128*128 bf16; h0 and
  // ht.
  const std::int64_t tokens = 4 * 1024;
  const std::int64_t expected = tokens * (16 * 128 + 3 * 32 * 128) * 2 + tokens * 32 * 4 +
                                tokens / 64 * 32 * 128 * 128 * 2 + 2 * 4 * 32 * 128 * 128 * 4;
  CHECK(made(layer(4, 1024))->floor_bytes() == expected);
  CHECK(made(packed_layer(4, 4096))->floor_bytes() == expected);
}
