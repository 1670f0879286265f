// The picture: a whole document with every curve, and the tables beside it.
#include <cmath>
#include <vector>

#include "bench_rows.hpp"
#include "picture.hpp"
#include "shape_source.hpp"
#include "support/catch.hpp"

namespace scanjit::test {
namespace {

using namespace cli;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

// Elements are closed in the order in which they were opened.
bool balanced(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty();
}

BenchRow row(std::int64_t N, std::int64_t T, std::int64_t HV) {
  BenchRow one;
  one.shape = *parse_shape("gated_delta_h", "N=" + std::to_string(N) + ",T=" + std::to_string(T) +
                                                ",H=16,HV=" + std::to_string(HV));
  one.kernel_revision = 1;
  one.source = "exact";
  one.l2 = "warm";
  one.timed_tokens = T;
  one.floor_us = 0.5 * static_cast<double>(N);
  for (int i = 0; i < 9; ++i) {
    ConfigTimes times;
    times.config = {16 << (i % 3), 64, 2 + i / 3, 4};
    times.us = 3 + i + static_cast<double>(N * (9 - i));
    times.samples = {times.us, times.us * 1.01, times.us * 0.99};
    one.configs.push_back(times);
  }
  one.peer = PeerTime{"fla <best & \"worst\">", 2 * one.configs[0].us};
  return one;
}

TEST_CASE(
    "a picture is a balanced document with a panel for each length and one ring for each pick",
    "[cli]") {
  std::vector<BenchRow> rows;
  for (const std::int64_t HV : {16, 32}) {
    for (const std::int64_t T : {256, 1024}) {
      for (const std::int64_t N : {1, 4, 16}) rows.push_back(row(N, T, HV));
    }
  }
  rows.push_back(row(1, 61440, 32));  // no curve: alone of its length
  const std::string svg = draw_svg(rows, "title with <angle> & ampersand", "note");
  CHECK(balanced(svg));
  CHECK(svg.find("title with &lt;angle&gt; &amp; ampersand") != std::string::npos);
  CHECK(svg.find("fla &lt;best &amp; &quot;worst&quot;&gt;") != std::string::npos);
  CHECK(count(svg, ">HV 16, T 256<") == 1);
  CHECK(count(svg, ">HV 32, T 1024<") == 1);
  CHECK(count(svg, "T 61440<") == 0);
  CHECK(count(svg, "r=\"4.5\" fill=\"none\"") == 12 + 1);  // and the legend's
  CHECK(count(svg, "<polyline") == 4 * (9 + 2));           // configs, peer, floor
  for (const char* never : {"nan", "inf", "#fff", "#000", "white", "black"})
    CHECK(count(svg, never) == 0);
  const std::string html = draw_html(rows, "t", "n");
  CHECK(count(html, "<tr>") == rows.size() + 1);
}

TEST_CASE("rows of one width, of none, and of failures are drawn without nonsense", "[cli]") {
  for (const auto& rows : {std::vector<BenchRow>{}, std::vector<BenchRow>{row(1, 1024, 32)},
                           std::vector<BenchRow>{row(1, 256, 32), row(1, 4096, 32)}}) {
    const std::string svg = draw_svg(rows, "t", "n");
    CHECK(balanced(svg));
    CHECK(count(svg, "nan") + count(svg, "inf") == 0);
  }
  BenchRow failed = row(4, 256, 32);
  failed.peer.reset();
  failed.floor_us = 0;
  for (ConfigTimes& times : failed.configs) times = {times.config, {}, 0, "does not compile"};
  const std::string svg = draw_svg({failed, row(8, 256, 32)}, "t", "n");
  CHECK(balanced(svg));
  CHECK(count(svg, "nan") + count(svg, "inf") == 0);
  CHECK(row_json(failed)["failure"] == "does not compile");
}

TEST_CASE("a benchmark row has the fields that its file's readers count on", "[cli]") {
  const Json json = row_json(row(16, 1024, 32));
  for (const char* field : {"op", "shape", "class", "gates", "l2", "kernel_revision", "config",
                            "us", "samples", "floor_us"}) {
    INFO(field);
    CHECK(json.contains(field));
  }
  CHECK(json["class"] == "default");
  CHECK(json["shape"]["N"] == 16);
  CHECK(json["config"] == Json({{"bv", 16}, {"bk", 64}, {"stages", 2}, {"warps", 4}}));
  CHECK(json["peer"]["measured"] == "before");
  CHECK_FALSE(json.contains("speedup"));
  CHECK(json["configs"].size() == 9);
}

TEST_CASE("the table has one line for each shape and config", "[cli]") {
  const std::string csv = csv_of({row(1, 256, 32), row(4, 256, 32)});
  CHECK(count(csv, "\n") == 1 + 2 * 9);
  const std::string head = csv.substr(0, csv.find('\n'));
  CHECK(count(csv, ",") == count(head, ",") * (1 + 2 * 9));
}

TEST_CASE("a median lies in the middle", "[cli]") {
  CHECK(median({}) == 0);
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 2, 3}) == 2.5);
}

}  // namespace
}  // namespace scanjit::test
