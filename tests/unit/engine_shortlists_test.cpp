#include "engine/internals.hpp"
#include "engine/shortlists.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using engine::Shortlist;
using engine::Shortlists;

TEST_CASE("shortlists survive a round trip, and the most particular list applies", "[engine]") {
  const Shortlists lists({{"gated_delta_h", 2, "sm_90a", "any", {{64, 64, 2, 4}}},
                          {"gated_delta_h",
                           2,
                           "sm_90a",
                           "K128-V128-BT64-a16",
                           {{32, 64, 4, 8}, {64, 128, 2, 4}, {64, 128, 2, 4, 16}}}});
  const auto back = Shortlists::from_json(lists.to_json());
  REQUIRE(back.ok());
  CHECK(back->lists() == lists.lists());
  REQUIRE(back->find("gated_delta_h", 2, "sm_90a", "K128-V128-BT64-a16") != nullptr);
  CHECK(back->find("gated_delta_h", 2, "sm_90a", "K128-V128-BT64-a16")->configs.size() == 3);
  CHECK(back->find("gated_delta_h", 2, "sm_90a", "K64-V64-BT16-a2")->configs.size() == 1);
  CHECK(back->find("gated_delta_h", 1, "sm_90a", "any") == nullptr);
  CHECK(back->find("gated_delta_h", 2, "sm_80", "any") == nullptr);
  CHECK(back->find("kda_forward", 2, "sm_90a", "any") == nullptr);
  CHECK(Shortlists::from_json(Shortlists().to_json())->lists().empty());
}

TEST_CASE("a malformed shortlist is corrupt and says where", "[engine]") {
  const auto list = [](const std::string& inside) {
    return R"({"schema": "scanjit-shortlists/1", "lists": [{)" + inside + "}]}";
  };
  const std::string good =
      R"("kernel": "k", "kernel_revision": 1, "arch": "sm_90a", "source_class": "any", "configs": )";
  const std::pair<std::string, const char*> rows[] = {
      {"", "no JSON"},
      {"[]", "no object"},
      {R"({"schema": "scanjit-shortlists/2", "lists": []})", "schema"},
      {R"({"schema": "scanjit-shortlists/1"})", "lists"},
      {R"({"schema": "scanjit-shortlists/1", "lists": [], "more": 1})", "more"},
      {list(good + "[]"), "lists[0].configs"},
      {list(good + R"([{"bv": 1, "bk": 1, "stages": 1}])"), "warps"},
      {list(good + R"([{"bv": 1, "bk": 1, "stages": 1, "warps": 0}])"), "warps"},
      {list(good + R"([{"bv": 1, "bk": 1, "stages": 1, "warps": 1e9}])"), "warps"},
      {list(good + R"([{"bv": 1, "bk": 1, "stages": 1, "warps": 1, "segment_chunks": 0}])"),
       "segment_chunks"},
      {list(
           good +
           R"([{"bv": 1, "bk": 1, "stages": 1, "warps": 1}, {"bv": 1, "bk": 1, "stages": 1, "warps": 1}])"),
       "twice"},
      {list(
           good +
           R"([{"bv":1,"bk":1,"stages":1,"warps":1},{"bv":1,"bk":1,"stages":1,"warps":2},{"bv":1,"bk":1,"stages":1,"warps":3},
                       {"bv":1,"bk":1,"stages":1,"warps":4},{"bv":1,"bk":1,"stages":1,"warps":5},{"bv":1,"bk":1,"stages":1,"warps":6},
                       {"bv":1,"bk":1,"stages":1,"warps":7}])"),
       "1 to 6"},
  };
  for (const auto& [text, word] : rows) {
    INFO(text);
    const auto result = Shortlists::from_json(text);
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().code() == ErrorCode::kCorrupt);
    CHECK(result.status().message().find(word) != std::string::npos);
  }
}

TEST_CASE("what is compiled in can be read", "[engine]") {
  CHECK(Shortlists::from_json(engine::shipped_shortlists()).ok());
  for (const tuning::ShippedText& text : engine::shipped_configs()) {
    INFO(text.name);
    CHECK(tuning::tuned_file_from_json(text.text, tuning::Checksum::kWithout).ok());
  }
}
