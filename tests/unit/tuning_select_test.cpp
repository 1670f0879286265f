#include <cmath>
#include <map>
#include <random>
#include <set>

#include "support/catch.hpp"
#include "tuning/config_space.hpp"
#include "tuning/select.hpp"

using namespace scanjit;
using namespace scanjit::tuning;

namespace {

/// A GPU whose times are known and whose clock is not to be trusted.
struct NoisyGpu {
  std::map<Config, double> true_us;
  double sigma = 0.01;   // of each block
  double drift = 0;      // slow swing of the clock, +- this share
  double outliers = 0;   // share of blocks that take 1.5 to 4 times as long
  double slow_mode = 0;  // share of blocks in a mode 12% slower
  double bursts = 0;     // share of blocks that a neighbour takes most of, each as likely as any
  double block_ms = 5;

  std::mt19937_64 random;
  double now_ms = 0;
  int blocks = 0;

  Result<double> measure(const Config& config) {
    ++blocks;
    now_ms += block_ms;
    std::normal_distribution<double> noise(0, sigma);
    std::uniform_real_distribution<double> share(0, 1);
    double us = true_us.at(config) * (1 + std::abs(noise(random)));
    us *= 1 + drift * std::sin(now_ms / 400);
    if (share(random) < outliers) us *= 1.5 + 2.5 * share(random);
    if (share(random) < slow_mode) us *= 1.12;
    if (share(random) < bursts) us *= 3;
    return us;
  }
  Result<Selection> select(const std::vector<Config>& candidates,
                           const SelectOptions& options = {}) {
    return tuning::select(
        candidates, [&](const Config& c) { return measure(c); }, {}, [&] { return now_ms; },
        options);
  }
};

Config numbered(int i) { return {16 * (1 + i % 4), 32, 2 + (i / 4) % 3, 2 + 2 * (i / 12)}; }

struct Spread {
  int agree = 0;     // of the repeats, with the commonest pick
  double worst = 0;  // slowest pick over the best config, minus 1
  double apart = 0;  // slowest pick over the commonest, minus 1
  int busy = 0;      // tries that were given up
};

Spread repeat(const NoisyGpu& gpu, const std::vector<Config>& candidates, int repeats) {
  std::map<Config, int> picks;
  Spread spread;
  double best = 1e300;
  for (const Config& config : candidates) best = std::min(best, gpu.true_us.at(config));
  for (int i = 0; i < repeats; ++i) {
    NoisyGpu fresh = gpu;
    fresh.random.seed(static_cast<std::uint64_t>(1000 + i));
    fresh.now_ms = i * 137.0;
    Result<Selection> selection = fresh.select(candidates);
    for (int again = 0; again < 2 && selection.ok() && selection->busy;
         ++again) {  // three tries, as first use has
      ++spread.busy;
      selection = fresh.select(candidates);
    }
    REQUIRE(selection.ok());
    ++picks[selection->winner];
    spread.worst = std::max(spread.worst, gpu.true_us.at(selection->winner) / best - 1);
  }
  Config commonest;
  for (const auto& [config, count] : picks) {
    if (count > spread.agree) {
      spread.agree = count;
      commonest = config;
    }
  }
  for (const auto& [config, count] : picks) {
    spread.apart =
        std::max(spread.apart, std::abs(gpu.true_us.at(config) / gpu.true_us.at(commonest) - 1));
  }
  return spread;
}

/// Thirty configs over a wide range, as a real key has; the default is 20% off the best.
NoisyGpu real_key(std::vector<Config>& candidates) {
  NoisyGpu gpu;
  const double times[] = {48, 40, 41.3, 44, 47, 52, 55, 60, 66, 71, 40.2, 43,  58,  62,  75,
                          80, 90, 46,   49, 53, 57, 61, 68, 77, 85, 95,   110, 130, 150, 42.5};
  for (int i = 0; i < 30; ++i) {
    candidates.push_back(numbered(i));
    gpu.true_us[candidates.back()] = times[i];
  }
  return gpu;
}

}  // namespace

TEST_CASE("repeated selections agree on a quiet GPU", "[tuning]") {
  std::vector<Config> candidates;
  const NoisyGpu gpu = real_key(candidates);
  const Spread spread = repeat(gpu, candidates, 100);
  CHECK(spread.agree >= 95);
  CHECK(spread.worst <= 0.02);
}

TEST_CASE("repeated selections agree under drift, outliers and two modes", "[tuning]") {
  std::vector<Config> candidates;
  NoisyGpu gpu = real_key(candidates);
  SECTION("drift") { gpu.drift = 0.08; }
  SECTION("outliers") { gpu.outliers = 0.08; }
  SECTION("two modes") { gpu.slow_mode = 0.2; }
  SECTION("all of them") {
    gpu.drift = 0.05;
    gpu.outliers = 0.04;
    gpu.slow_mode = 0.1;
  }
  SECTION("coarse noise") { gpu.sigma = 0.03; }
  const Spread spread = repeat(gpu, candidates, 200);
  INFO("agree " << spread.agree << " worst " << spread.worst << " apart " << spread.apart
                << " busy " << spread.busy);
  CHECK(spread.agree >= 190);
  CHECK(spread.apart <= 0.02);
  CHECK(spread.worst <= 0.02);
}

TEST_CASE("random keys: at least 19 of 20 repeats agree, the rest are within 2%", "[tuning]") {
  std::mt19937_64 random(5);
  int agreeing = 0, total = 0;
  for (int key = 0; key < 20; ++key) {
    NoisyGpu gpu;
    gpu.drift = 0.03;
    gpu.outliers = 0.02;
    std::vector<Config> candidates;
    for (int i = 0; i < 16; ++i) {
      candidates.push_back(numbered(i));
      gpu.true_us[candidates.back()] =
          40 * (1 + std::uniform_real_distribution<double>(0, 0.8)(random));
    }
    const Spread spread = repeat(gpu, candidates, 20);
    CHECK(spread.apart <= 0.02);
    agreeing += spread.agree;
    total += 20;
  }
  CHECK(agreeing >= total * 19 / 20);
}

TEST_CASE("the default stays unless it is beaten by more than the noise", "[tuning]") {
  NoisyGpu gpu;
  const Config fallback = numbered(5), rival = numbered(1);
  gpu.true_us = {{fallback, 40}, {rival, 39.9}};
  REQUIRE(gpu.select({fallback, rival})->winner == fallback);
  gpu.true_us[rival] = 38;
  REQUIRE(gpu.select({fallback, rival})->winner == rival);
  // Among configs that cannot be told apart, the one with fewer resources.
  const Config small = numbered(0), large = numbered(13);
  REQUIRE(fewer_resources(small, large));
  gpu.true_us = {{fallback, 50}, {large, 40}, {small, 40.1}};
  REQUIRE(gpu.select({fallback, large, small})->winner == small);
}

TEST_CASE("a busy GPU is noticed and its figures are not trusted", "[tuning]") {
  NoisyGpu gpu;
  gpu.sigma = 0.2;
  const Config fallback = numbered(5), rival = numbered(1);
  gpu.true_us = {{fallback, 40}, {rival, 30}};
  const Result<Selection> selection = gpu.select({fallback, rival});
  REQUIRE(selection->busy);
  REQUIRE(selection->noise > 0.05);
  REQUIRE(selection->winner == fallback);
}

TEST_CASE("a neighbour whose bursts outlast a block is noticed", "[tuning]") {
  const Config fallback = numbered(5), rival = numbered(1);
  for (const double share : {0.35, 0.5, 0.65}) {
    int busy = 0;
    for (int i = 0; i < 200; ++i) {
      NoisyGpu gpu;
      gpu.bursts = share;
      gpu.random.seed(static_cast<std::uint64_t>(i));
      gpu.true_us = {{fallback, 40}, {rival, 30}};
      busy += gpu.select({fallback, rival})->busy ? 1 : 0;
    }
    INFO(share << ": " << busy << " of 200");
    CHECK(busy >= (share == 0.5 ? 180 : 150));
  }
}

TEST_CASE("clear losers are dropped early", "[tuning]") {
  std::vector<Config> candidates;
  NoisyGpu gpu = real_key(candidates);
  const Result<Selection> selection = gpu.select(candidates);
  REQUIRE(selection.ok());
  REQUIRE(selection->measured.size() == candidates.size());
  std::size_t dropped = 0;
  for (const Measured& one : selection->measured) dropped += one.dropped;
  REQUIRE(dropped >= 20);
  REQUIRE(gpu.blocks < 9 * 30);  // less than 9 whole rounds
  REQUIRE(selection->measured.front().ratio <= selection->measured.back().ratio);
}

TEST_CASE("the end of the budget leaves a partial selection", "[tuning]") {
  std::vector<Config> candidates;
  NoisyGpu gpu = real_key(candidates);
  SelectOptions options;
  options.budget_ms = 3.5 * 31 * gpu.block_ms;  // three rounds and a half
  Result<Selection> selection = gpu.select(candidates, options);
  REQUIRE(selection.ok());
  REQUIRE(selection->partial);
  REQUIRE(selection->rounds >= 3);
  REQUIRE(selection->winner != candidates.front());
  REQUIRE(gpu.now_ms <= options.budget_ms + gpu.block_ms);
  options.budget_ms = 1.5 * 31 * gpu.block_ms;  // one round confirms nothing
  gpu.now_ms = 0;
  selection = gpu.select(candidates, options);
  REQUIRE(selection->winner == candidates.front());
  REQUIRE(selection->partial);
  options.budget_ms = 3 * gpu.block_ms;
  REQUIRE(gpu.select(candidates, options).status().code() == ErrorCode::kTimeout);
}

TEST_CASE("candidates that fail or give other bits are recorded, and never win", "[tuning]") {
  NoisyGpu gpu;
  const Config fallback = numbered(5), wrong = numbered(0), broken = numbered(1),
               late = numbered(2), good = numbered(3), unsure = numbered(4);
  gpu.true_us = {{fallback, 40}, {wrong, 10}, {broken, 10}, {late, 10}, {good, 30}, {unsure, 10}};
  int calls_of_late = 0;
  const auto measure = [&](const Config& config) -> Result<double> {
    if (config == broken) return Status(ErrorCode::kCompileFailed, "too many registers");
    if (config == late && ++calls_of_late > 2)
      return Status(ErrorCode::kDeviceLost, "illegal address");
    return gpu.measure(config);
  };
  const auto bits = [&](const Config& config) -> Result<bool> {
    if (config == unsure) return Status(ErrorCode::kTimeout, "it hangs");
    return config != wrong;
  };
  const auto clock = [&] { return gpu.now_ms; };
  const Result<Selection> selection =
      select({fallback, wrong, broken, late, good, unsure}, measure, bits, clock, {});
  REQUIRE(selection.ok());
  REQUIRE(selection->winner == good);
  std::map<Config, RejectReason> reasons;
  for (const Rejected& one : selection->rejected) reasons[one.config] = one.reason;
  REQUIRE(reasons == std::map<Config, RejectReason>{{wrong, RejectReason::kWrongBits},
                                                    {broken, RejectReason::kCompileFailed},
                                                    {late, RejectReason::kDeviceFault},
                                                    {unsure, RejectReason::kTimeout}});
  REQUIRE(selection->measured.size() == 2);
  REQUIRE_FALSE(selection->partial);

  const auto lost = [&](const Config&) -> Result<double> {
    return Status(ErrorCode::kDeviceLost, "gone");
  };
  REQUIRE(select({fallback, good}, lost, {}, clock, {}).status().code() == ErrorCode::kDeviceLost);
  const auto cancelled = [&](const Config& c) -> Result<double> {
    return c == good ? Result<double>(Status(ErrorCode::kCancelled, "stop")) : gpu.measure(c);
  };
  REQUIRE(select({fallback, good}, cancelled, {}, clock, {}).status().code() ==
          ErrorCode::kCancelled);
  const auto nonsense = [&](const Config& c) -> Result<double> {
    return c == good ? Result<double>(std::nan("")) : gpu.measure(c);
  };
  REQUIRE(select({fallback, good}, nonsense, {}, clock, {})->rejected.size() == 1);
}

TEST_CASE("a selection that makes no sense is refused", "[tuning]") {
  NoisyGpu gpu;
  const Config one = numbered(0);
  gpu.true_us = {{one, 10}};
  REQUIRE(gpu.select({}).status().code() == ErrorCode::kInvalidArgument);
  REQUIRE(gpu.select({one, one}).status().code() == ErrorCode::kInvalidArgument);
  SelectOptions few;
  few.rounds = 6;
  REQUIRE(gpu.select({one}, few).status().code() == ErrorCode::kInvalidArgument);
  REQUIRE(gpu.select({one})->winner == one);
}

TEST_CASE("a median's interval holds the median 95 times of 100", "[tuning]") {
  REQUIRE(summarise({3, 1, 2}).median == 2);
  REQUIRE(summarise({4, 1, 2, 3}).median == 2.5);
  REQUIRE(summarise({5}).ci_high == 5);
  std::mt19937_64 random(3);
  std::exponential_distribution<double> skewed(1);
  for (const int n : {9, 20, 45}) {
    int inside = 0;
    for (int repeat = 0; repeat < 4000; ++repeat) {
      std::vector<double> samples;
      for (int i = 0; i < n; ++i) samples.push_back(skewed(random));
      const Timing timing = summarise(samples);
      REQUIRE(timing.ci_low <= timing.median);
      REQUIRE(timing.median <= timing.ci_high);
      inside += timing.ci_low <= std::log(2) && std::log(2) <= timing.ci_high;
    }
    CHECK(inside >= 4000 * 0.94);
    CHECK(inside <= 4000 * 0.997);
  }
}
