#include <algorithm>
#include <limits>
#include <set>

#include "support/catch.hpp"
#include "tuning/config_space.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;

TEST_CASE("a space's hash follows its values and nothing else", "[tuning]") {
  const ConfigSpace space = samples::space();
  REQUIRE(space.hash().size() == 16);
  ConfigSpace shuffled = space;
  std::reverse(shuffled.bv.begin(), shuffled.bv.end());
  shuffled.warps.push_back(shuffled.warps.front());
  REQUIRE(shuffled.hash() == space.hash());
  for (std::vector<int> ConfigSpace::*values :
       {&ConfigSpace::bv, &ConfigSpace::bk, &ConfigSpace::stages, &ConfigSpace::warps}) {
    ConfigSpace other = space;
    (other.*values).push_back(5);
    REQUIRE(other.hash() != space.hash());
    other = space;
    (other.*values).pop_back();
    REQUIRE(other.hash() != space.hash());
  }
  // 1|23 and 12|3 must not run into each other.
  REQUIRE(ConfigSpace{{1}, {23}, {1}, {1}}.hash() != ConfigSpace{{12}, {3}, {1}, {1}}.hash());
}

TEST_CASE("segments are an axis of a space, and left out of the hash of a space without them",
          "[tuning]") {
  const ConfigSpace serial = samples::space();
  ConfigSpace split = serial;
  split.segment_chunks = {0, 16, 64};
  CHECK(split.hash() != serial.hash());
  const std::vector<Config> all = split.all();
  CHECK(all.size() == 3 * serial.all().size());
  CHECK(std::is_sorted(all.begin(), all.end(), fewer_resources));
  Config config = serial.all().front();
  CHECK(serial.contains(config));
  config.segment_chunks = 16;
  CHECK(split.contains(config));
  CHECK_FALSE(serial.contains(config));
  // As it was before there were segments: the shipped entries name it.
  CHECK(ConfigSpace{{16, 32, 64, 128}, {32, 64, 128}, {2, 3, 4, 6}, {1, 2, 4, 8, 12, 16}}.hash() ==
        "4cef819488e2e699");
}

TEST_CASE("a space holds exactly its combinations, in the fixed order", "[tuning]") {
  const std::vector<Config> all = samples::space().all();
  REQUIRE(all.size() == 3 * 3 * 2 * 3);
  REQUIRE(std::is_sorted(all.begin(), all.end(), fewer_resources));
  REQUIRE(std::set<Config>(all.begin(), all.end()).size() == all.size());
  for (const Config& config : all) REQUIRE(samples::space().contains(config));
  REQUIRE_FALSE(samples::space().contains({16, 32, 4, 2}));
}

TEST_CASE("enumeration starts with the default, keeps only legal configs and at most the limit",
          "[tuning]") {
  const Config fallback{16, 16, 1, 1};  // not in the space
  const auto legal = [](const Config& c) {
    return c.warps == 8 ? unsupported("8 warps") : Status();
  };
  const std::vector<Config> all = enumerate(samples::space(), fallback, legal, {}, 1000);
  REQUIRE(all.front() == fallback);
  REQUIRE(all.size() == 1 + 3 * 3 * 2 * 2);
  REQUIRE(std::is_sorted(all.begin() + 1, all.end(), fewer_resources));
  REQUIRE(std::none_of(all.begin(), all.end(), [](const Config& c) { return c.warps == 8; }));

  const auto score = [](const Config& c) {
    return c.bv == 64 ? 0.0 : c.bv == 32 ? 1.0 : std::numeric_limits<double>::quiet_NaN();
  };
  const std::vector<Config> few = enumerate(samples::space(), fallback, legal, score, 13);
  REQUIRE(few.size() == 13);
  REQUIRE(std::count_if(few.begin(), few.end(), [](const Config& c) { return c.bv == 64; }) == 12);
  REQUIRE(enumerate(samples::space(), fallback, {}, {}).size() == kMaxCandidates);
  REQUIRE(enumerate(samples::space(), fallback, {}, {}, 1) == std::vector<Config>{fallback});
  // A default inside the space is there once.
  const Config inside{64, 64, 2, 4};
  const std::vector<Config> with = enumerate(samples::space(), inside, {}, {}, 1000);
  REQUIRE(std::count(with.begin(), with.end(), inside) == 1);
}
