// The kernel against the CPU oracles on random odd problems with every option, and the mistakes
// that the limits must catch.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/case.hpp"
#include "gpu/run.hpp"
#include "reference/cases.hpp"
#include "reference/compare.hpp"
#include "reference/parallel.hpp"
#include "reference/random.hpp"

namespace scanjit::test {
namespace {

/// What all problems together came to.
struct Table {
  std::mutex lock;
  std::int64_t runs = 0, elements = 0, other_configs = 0, mistrusted = 0;
  double worst[2][2] = {};  // [bf16, f16][against pure from 64 key columns on, against rounding]
  std::vector<std::string> failures;
  std::atomic<bool> lost{false};

  void fail(const std::string& what) {
    const std::lock_guard<std::mutex> guard(lock);
    failures.push_back(what);
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
  }
};

void add_errors(Table* table, const reference::GatedDeltaHInputs& inputs, const RunResult& result,
                const Oracles& oracles) {
  const GatedDeltaHProblem& p = inputs.problem;
  const Result<reference::GatedDeltaHOutputs> got =
      reference::decode(p, result.h, result.v_new, result.ht, result.status);
  if (!got.ok()) return;
  const reference::OutputErrors pure = reference::compare(p, *got, oracles.pure);
  const reference::OutputErrors rounding = reference::compare(p, *got, oracles.rounding);
  const std::lock_guard<std::mutex> guard(table->lock);
  ++table->runs;
  double* worst = table->worst[p.dtype == DType::kBf16 ? 0 : 1];
  constexpr double kMost = 1e30;  // JSON has no infinity
  if (p.K >= reference::kTableKeys) worst[0] = std::max(worst[0], std::min(pure.worst(), kMost));
  worst[1] = std::max(worst[1], std::min(rounding.worst(), kMost));
  for (const reference::TensorError* error : {&pure.h, &pure.v_new, &pure.ht}) {
    table->elements += error->elements;
    if (error->mistrusted()) ++table->mistrusted;
  }
}

/// Problem `number` with data seed `seed`: one run with the config that the engine picks, and for
/// the first data a second with another legal config, whose bits must be the same.
void one_run(Gpu& gpu, std::uint64_t number, std::int64_t seed, Table* table) {
  reference::GatedDeltaHCase random_case = reference::random_case(number);
  if (seed > 0) {
    random_case.generator.seed =
        reference::random_bits(random_case.generator.seed, 77, static_cast<std::uint64_t>(seed));
  }
  random_case.generator.threads = 1;
  const auto fail = [&](const std::string& what) {
    table->fail("FAILED: " + reference::to_string(random_case) + "\n  data seed " +
                std::to_string(seed) + ": " + what +
                "\n  again: SCANJIT_GPU_FIRST=" + std::to_string(number) +
                " SCANJIT_GPU_PROBLEMS=1 SCANJIT_GPU_SEEDS=" + std::to_string(seed + 1) +
                " scanjit_gpu_tests \"[oracle_table]\"");
  };
  const Result<reference::GatedDeltaHInputs> inputs =
      reference::generate(random_case.problem, random_case.generator);
  if (!inputs.ok()) return fail(inputs.status().to_string());
  const Result<Oracles> oracles = oracles_of(*inputs, 1);
  if (!oracles.ok()) return fail(oracles.status().to_string());

  RunOptions options = options_of(random_case, *inputs);
  constexpr Guard kGuards[] = {Guard::kPageBehind, Guard::kBytes, Guard::kPageBefore};
  options.inputs = options.outputs = kGuards[(number + static_cast<std::uint64_t>(seed)) % 3];
  const Result<RunResult> result = run(gpu, *inputs, options);
  if (!result.ok()) {
    if (result.status().code() == ErrorCode::kDeviceLost) table->lost = true;
    return fail(result.status().to_string());
  }
  add_errors(table, *inputs, *result, *oracles);
  const std::string what = wrong(*inputs, random_case.generator.gates, *result, *oracles);
  if (!what.empty()) fail("config " + to_string(result->config) + ": " + what);

  if (seed != 0) return;
  const Result<std::vector<Config>> legal = legal_configs(gpu, inputs->problem);
  if (!legal.ok()) return fail(legal.status().to_string());
  options.config = (*legal)[reference::random_bits(number, 78, 0) % legal->size()];
  if (*options.config == result->config) return;
  const Result<RunResult> other = run(gpu, *inputs, options);
  if (!other.ok()) {
    if (other.status().code() == ErrorCode::kDeviceLost) table->lost = true;
    return fail("config " + to_string(*options.config) + ": " + other.status().to_string());
  }
  const std::string difference = bit_difference(*result, *other) + other->damage;
  if (!difference.empty())
    fail(to_string(result->config) + " and " + to_string(other->config) + ": " + difference);
  const std::lock_guard<std::mutex> guard(table->lock);
  ++table->other_configs;
}

}  // namespace

TEST_CASE("Random problems of every kind agree with the oracles", "[gpu][oracle_table]") {
  SCANJIT_TEST_GPU(gpu);
  const std::int64_t problems = number_from_environment("SCANJIT_GPU_PROBLEMS", 200);
  const std::int64_t seeds = number_from_environment("SCANJIT_GPU_SEEDS", 5);
  const std::int64_t first = number_from_environment("SCANJIT_GPU_FIRST", 1);
  Table table;
  must(reference::parallel_for(
      problems * seeds, reference::thread_count(0, problems * seeds), [&](std::int64_t task, int) {
        if (table.lost || !gpu.make_current().ok()) return;
        one_run(gpu, static_cast<std::uint64_t>(first + task / seeds), task % seeds, &table);
      }));
  char figures[512];
  std::snprintf(
      figures, sizeof figures,
      "{\"what\":\"oracle_table\",\"problems\":%lld,\"seeds\":%lld,\"runs\":%lld,\"elements\":%lld,"
      "\"second_configs\":%lld,\"mostly_zero_tensors\":%lld,\"failed\":%zu,\"worst_pure\":{"
      "\"bf16\":%.3g,"
      "\"f16\":%.3g},\"worst_rounding\":{\"bf16\":%.3g,\"f16\":%.3g},\"guard_pages\":%s}",
      static_cast<long long>(problems), static_cast<long long>(seeds),
      static_cast<long long>(table.runs), static_cast<long long>(table.elements),
      static_cast<long long>(table.other_configs), static_cast<long long>(table.mistrusted),
      table.failures.size(), table.worst[0][0], table.worst[1][0], table.worst[0][1],
      table.worst[1][1], guard_pages_available(gpu) ? "true" : "false");
  report_counts(figures);
  CHECK(table.failures.empty());
  CHECK(table.runs == problems * seeds);
}

TEST_CASE("The limits catch three mistakes", "[gpu][negative_controls]") {
  SCANJIT_TEST_GPU(gpu);
  GatedDeltaHProblem p;
  p.T = 40 * 64 + 23;
  p.H = 2;
  p.HV = 4;
  p.has_g = p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
  const auto check = [&](reference::GateSet gates, reference::Variant variant) {
    reference::GeneratorOptions generator;
    generator.gates = gates;
    generator.seed = 9;
    const reference::GatedDeltaHInputs inputs = must(reference::generate(p, generator));
    const RunResult result = must(run(gpu, inputs, {}));
    const reference::GatedDeltaHOutputs got =
        must(reference::decode(p, result.h, result.v_new, result.ht, result.status));
    const double limit = reference::tolerance(p.dtype, gates).pure;
    reference::OracleOptions options;
    const reference::OutputErrors right =
        reference::compare(p, got, must(reference::gated_delta_h(inputs, options)));
    options.variant = variant;
    const reference::OutputErrors mistaken =
        reference::compare(p, got, must(reference::gated_delta_h(inputs, options)));
    INFO("right: " << reference::to_string(right)
                   << "\nmistaken: " << reference::to_string(mistaken));
    CHECK(right.within(limit));
    CHECK_FALSE(mistaken.within(limit));
  };
  SECTION("the state rounded after each chunk") {
    check(reference::GateSet::kSlow, reference::Variant::kStateRounded);
  }
  SECTION("the last gate of a partial chunk past its end") {
    check(reference::GateSet::kStrong, reference::Variant::kLastGatePastEnd);
  }
  SECTION("a key head off by one") {
    check(reference::GateSet::kStrong, reference::Variant::kNextKeyHead);
  }
}

}  // namespace scanjit::test
