// The GPU oracle's source, compiled for the host: every thread of a block is a fiber here, and
// __syncthreads hands over to the next. It must agree with the CPU oracle, bit for bit in its
// rounding half, before it judges anything on a GPU.
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <vector>

#include "reference/compare.hpp"
#include "reference/half.hpp"
#include "support/catch.hpp"

namespace host_cuda {

struct Index {
  unsigned x = 0;
};
Index threadIdx, blockIdx;
ucontext_t scheduler;
std::vector<ucontext_t> fibers;     // one per thread of the block
extern "C" unsigned char memory[];  // the kernel's dynamic shared memory
alignas(16) unsigned char memory[256 * 1024];

void __syncthreads() { swapcontext(&fibers[threadIdx.x], &scheduler); }
float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
float __fmul_rn(float a, float b) { return a * b; }
float __fsub_rn(float a, float b) { return a - b; }
using std::exp;
using std::exp2;
using std::fabs;
using std::min;

#define __device__ [[maybe_unused]]
#define __global__
#define __shared__
#define __align__(bytes)
#define __launch_bounds__(threads)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-function"
}  // namespace host_cuda
#include "gpu/oracle_params.h"
namespace host_cuda {
#include "gpu/oracle_gated_delta_h.cu"
#pragma GCC diagnostic pop
#undef __device__
#undef __global__
#undef __shared__
#undef __align__
#undef __launch_bounds__

OracleParams launched;
unsigned finished = 0;  // threads of the block that have returned
void run_thread() {
  oracle_gated_delta_h(launched);
  ++finished;
}

/// Runs the blocks one after the other. A thread that returns while others wait at a barrier is an
/// error.
void launch(const OracleParams& params) {
  constexpr std::size_t kStackBytes = 64 * 1024;
  constexpr auto kThreads = static_cast<unsigned>(kOracleThreads);
  const auto stacks = std::make_unique<unsigned char[]>(kStackBytes * kThreads);
  launched = params;
  fibers.resize(kThreads);
  const auto blocks = static_cast<unsigned>(oracle_blocks(params.N, params.HV, params.V));
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    finished = 0;
    for (unsigned t = 0; t < kThreads; ++t) {
      getcontext(&fibers[t]);
      fibers[t].uc_stack.ss_sp = stacks.get() + t * kStackBytes;
      fibers[t].uc_stack.ss_size = kStackBytes;
      fibers[t].uc_link = &scheduler;
      makecontext(&fibers[t], run_thread, 0);
    }
    while (finished == 0) {
      for (threadIdx.x = 0; threadIdx.x < kThreads; ++threadIdx.x)
        swapcontext(&scheduler, &fibers[threadIdx.x]);
      REQUIRE((finished == 0 || finished == kThreads));
    }
  }
}

}  // namespace host_cuda

using namespace scanjit;
using namespace scanjit::reference;

namespace {

/// Inputs, the CPU's two scans, and the rounding one's outputs as a kernel would have written them.
struct Judged {
  GatedDeltaHInputs in;
  GatedDeltaHOutputs pure, rounding;
  std::vector<std::uint16_t> h, v_new;
  std::vector<float> ht;
  std::vector<long long> begin, length, first_chunk;

  Judged(const GatedDeltaHProblem& problem, const GeneratorOptions& options) {
    in = generate(problem, options).value();
    pure = gated_delta_h(in).value();
    rounding = gated_delta_h(in, {Precision::kRounding, Variant::kDefinition, 0}).value();
    const auto to_half = [&](double x) { return double_to_half(problem.dtype, x); };
    std::transform(rounding.h.begin(), rounding.h.end(), std::back_inserter(h), to_half);
    std::transform(rounding.v_new.begin(), rounding.v_new.end(), std::back_inserter(v_new),
                   to_half);
    std::transform(rounding.ht.begin(), rounding.ht.end(), std::back_inserter(ht),
                   [](double x) { return static_cast<float>(x); });
    long long chunks = 0;
    for (std::size_t n = 1; n < in.cu_seqlens.size(); ++n) {
      begin.push_back(in.cu_seqlens[n - 1]);
      length.push_back(in.cu_seqlens[n] - in.cu_seqlens[n - 1]);
      first_chunk.push_back(chunks);
      chunks += (length.back() + problem.BT - 1) / problem.BT;
    }
  }

  /// What the GPU oracle says of h, v_new and ht.
  test::OracleRow sums() {
    const GatedDeltaHProblem& p = in.problem;
    const auto given = [](auto& vector) { return vector.empty() ? nullptr : vector.data(); };
    test::OracleParams params{};
    params.k = in.k.data();
    params.w = in.w.data();
    params.u = in.u.data();
    params.g = given(in.g);
    params.gk = given(in.gk);
    params.h0 = given(in.h0);
    params.h = given(h);
    params.v_new = given(v_new);
    params.ht = given(ht);
    params.begin = given(begin);
    params.length = given(length);
    params.first_chunk = given(first_chunk);
    params.N = p.packed ? p.sequences : p.B;
    params.T = p.T;
    params.H = static_cast<int>(p.H);
    params.HV = static_cast<int>(p.HV);
    params.K = static_cast<int>(p.K);
    params.V = static_cast<int>(p.V);
    params.BT = static_cast<int>(p.BT);
    params.is_f16 = p.dtype == DType::kF16 ? 1 : 0;
    params.base_e = p.gate_base == GateBase::kE ? 1 : 0;
    params.state_vk = p.layout == StateLayout::kVK ? 1 : 0;
    std::vector<test::OracleRow> rows(
        static_cast<std::size_t>(test::oracle_blocks(params.N, params.HV, params.V)));
    params.sums = rows.data();
    REQUIRE(test::oracle_smem_bytes(params.K, params.BT) <=
            static_cast<int>(sizeof host_cuda::memory));
    host_cuda::launch(params);

    constexpr std::size_t kValues = sizeof(test::OracleRow) / sizeof(double);
    double total[kValues] = {};
    for (const test::OracleRow& row : rows) {
      double values[kValues];
      std::memcpy(values, &row, sizeof row);
      for (std::size_t i = 0; i < kValues; ++i) total[i] += values[i];
    }
    test::OracleRow sum;
    std::memcpy(&sum, total, sizeof sum);
    return sum;
  }
};

void check_agrees(const test::OracleSums& sums, const TensorError& own) {
  CHECK(sums.elements == static_cast<double>(own.elements));
  CHECK(sums.zeros == static_cast<double>(own.zeros));
  CHECK(sums.non_finite == 0);
  CHECK(sums.rounding_difference == 0);  // bit for bit
  CHECK(std::sqrt(sums.pure_square) == Approx(own.reference_norm).epsilon(1e-12));
  CHECK(std::sqrt(sums.own_difference) ==
        Approx(own.relative_l2 * own.reference_norm).epsilon(1e-6));
  CHECK(std::sqrt(sums.pure_difference) ==
        Approx(own.relative_l2 * own.reference_norm).epsilon(1e-6));
}

}  // namespace

TEST_CASE("the GPU oracle agrees with the CPU oracle", "[reference]") {
  for (int which = 0; which < 6; ++which) {
    GatedDeltaHProblem p;
    p.dtype = which % 2 == 0 ? DType::kBf16 : DType::kF16;
    p.layout = which % 3 == 0 ? StateLayout::kVK : StateLayout::kKV;
    p.gate_base = which == 4 ? GateBase::kE : GateBase::kTwo;
    p.has_g = which != 2 && which != 5;
    p.has_gk = which == 1 || which == 2 || which == 4;
    p.has_h0 = which != 3;
    p.has_ht = p.has_h = p.has_v_new = true;
    p.BT = which == 1 ? 16 : 64;
    p.H = 1;
    p.HV = which % 2 == 0 ? 2 : 1;
    p.K = which == 1 ? 256 : which == 2 ? 37 : 128;
    p.V = which == 0 ? 21 : 16;
    p.T = 130;
    GeneratorOptions options;
    options.seed = static_cast<std::uint64_t>(which);
    if (which >= 3) {
      p.packed = true;
      p.sequences = 3;
      options.lengths = {65, 0, 60};
      p.chunk_capacity = 3;
    } else {
      p.B = 2;
      p.T = 70;
    }
    INFO("problem " << which);
    Judged judged(p, options);
    const OutputErrors own = compare(p, judged.rounding, judged.pure);
    const test::OracleRow sums = judged.sums();
    check_agrees(sums.h, own.h);
    check_agrees(sums.v_new, own.v_new);
    check_agrees(sums.ht, own.ht);
  }
}

TEST_CASE("the GPU oracle sees one wrong element of each output", "[reference]") {
  GatedDeltaHProblem p;
  p.T = 40;
  p.H = p.HV = 1;
  p.K = 20;
  p.V = 18;
  p.BT = 32;
  p.has_ht = true;
  Judged judged(p, {});
  const auto half = [](double x) { return double_to_bf16(x); };
  judged.h[360 + 19 * 18 + 17] =
      half(judged.rounding.h[360 + 19 * 18 + 17] + 64);  // the last element of chunk 1
  judged.v_new[39 * 18 + 17] = half(100);
  judged.ht[0] += 0.5F;
  const test::OracleRow sums = judged.sums();
  CHECK(std::sqrt(sums.h.rounding_difference) == Approx(64).epsilon(0.01));
  CHECK(std::sqrt(sums.v_new.rounding_difference) == Approx(100).epsilon(0.2));
  CHECK(std::sqrt(sums.ht.rounding_difference) == Approx(0.5));
  judged.h[0] = judged.v_new[5] = 0x7fff;
  judged.ht[3] = std::numeric_limits<float>::infinity();
  const test::OracleRow poisoned = judged.sums();
  CHECK(poisoned.h.non_finite == 1);
  CHECK(poisoned.v_new.non_finite == 1);
  CHECK(poisoned.ht.non_finite == 1);
}
