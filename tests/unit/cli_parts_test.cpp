// The small parts: words, tables, progress, shapes, the tuning worker's lines.
#include <sstream>

#include "bench_rows.hpp"
#include "checks.hpp"
#include "name_values.hpp"
#include "ops/registry.hpp"
#include "os/process.hpp"
#include "session.hpp"
#include "shape_source.hpp"
#include "support/catch.hpp"
#include "terminal.hpp"
#include "tune_worker.hpp"
#include "tuning/tuned_store.hpp"
#include "tuning_samples.hpp"

namespace scanjit::test {
namespace {

using namespace cli;

TEST_CASE("a shell reads a repeat line back as the same arguments", "[cli]") {
  const std::vector<std::string> arguments = {"printf", "%s|",   "plain", "two words",
                                              "it's",   "$HOME", "`id`",  "",
                                              "a\\b",   "\"q\"", "*",     "N=1,T=2"};
  os::ProcessOptions options;
  options.argv = {"sh", "-c", shell_line(arguments)};
  const auto output = os::run_process(options, "", 10'000);
  REQUIRE(output.ok());
  std::string wanted;
  for (std::size_t i = 2; i < arguments.size(); ++i) wanted += arguments[i] + "|";
  CHECK(output->output == wanted);
}

TEST_CASE("a number that begins with 0 is decimal", "[cli]") {
  std::string text = "010";
  CHECK(whole_number(0, 100)(text).empty());
  CHECK(text == "10");
}

TEST_CASE("control characters of a repeat line are spelt out", "[cli]") {
  const std::string line = shell_line({"printf", "%s", "a\033b\n'\\c"});
  CHECK(std::none_of(line.begin(), line.end(), [](char c) { return c < 0x20; }));
  os::ProcessOptions options;
  options.argv = {"bash", "-c", line};
  const auto output = os::run_process(options, "", 10'000);
  REQUIRE(output.ok());
  CHECK(output->output == "a\033b\n'\\c");
}

TEST_CASE("a config is spelt in one way, and read in no other", "[cli]") {
  const auto config = parse_config("bv=64,bk=128,stages=2,warps=4");
  REQUIRE(config.ok());
  CHECK(*config == Config{64, 128, 2, 4});
  CHECK(config_argument(*config) == "bv=64,bk=128,stages=2,warps=4");
  const auto split = parse_config("bv=64,bk=128,stages=2,warps=4,segment_chunks=128");
  REQUIRE(split.ok());
  CHECK(*split == Config{64, 128, 2, 4, 128});
  CHECK(config_argument(*split) == "bv=64,bk=128,stages=2,warps=4,segment_chunks=128");
  for (const char* text :
       {"", "bv", "bv=64", "bv=64,bk=128,stages=2,warps=4,x=1", "bv=64,bv=64,bk=1,stages=2,warps=4",
        "bv=0,bk=128,stages=2,warps=4", "bv=64,bk=128,stages=2,warps=4 ",
        "bv=64,bk=128,stages=2,warps=4,segment_chunks=0", "bv=0x40,bk=128,stages=2,warps=4"}) {
    INFO(text);
    CHECK_FALSE(parse_config(text).ok());
  }
}

TEST_CASE("a shape's spelling names the same shape", "[cli]") {
  for (const char* text :
       {"N=1", "N=16,T=1024,HV=32", "H=4", "K=96,V=200,dtype=f16", "gate=g+gk,optional=ht",
        "gate=none,optional=", "N=3,T=7,packed=true,BT=16"}) {
    INFO(text);
    const auto shape = parse_shape("gated_delta_h", text);
    REQUIRE(shape.ok());
    const auto again = parse_shape("gated_delta_h", shape_argument(*shape));
    REQUIRE(again.ok());
    CHECK(*again == *shape);
  }
  CHECK(parse_shape("gated_delta_h", "H=4")->HV == 4);
  CHECK(parse_shape("gated_delta_h", "N=4")->HV == 32);
}

TEST_CASE("the built-in map has the 69 shapes and every model expands", "[cli]") {
  ShapeFlags flags;
  flags.file = "scan_map";
  const auto shapes = load_shapes(flags, "gated_delta_h");
  REQUIRE(shapes.ok());
  CHECK(shapes->size() == 69);
  REQUIRE_FALSE(builtin_models().empty());
  for (const std::string& model : builtin_models()) {
    INFO(model);
    ShapeFlags of_model;
    of_model.model = model;
    const auto expanded = load_shapes(of_model, "");
    REQUIRE(expanded.ok());
    CHECK(expanded->size() > 10);
    for (const tuning::Shape& shape : *expanded) CHECK(ops::make_problem(shape).ok());
  }
}

TEST_CASE("shapes of several flags come in order, none twice", "[cli]") {
  ShapeFlags flags;
  flags.shapes = {"N=4", "N=2", "N=4"};
  const auto shapes = load_shapes(flags, "gated_delta_h");
  REQUIRE(shapes.ok());
  REQUIRE(shapes->size() == 2);
  CHECK((*shapes)[0].N == 4);
}

TEST_CASE("table columns line up under their titles", "[cli]") {
  Table table({{"key"}, {"us", Table::Align::kRight}});
  table.add({"short", "1.5"});
  table.add({"a longer key", "1234.5"});
  table.add({"µs", ""});
  std::ostringstream out;
  table.print(out);
  CHECK(out.str() == "key               us\nshort            1.5\na longer key  1234.5\nµs\n");
}

TEST_CASE("quick work shows no progress", "[cli]") {
  std::ostringstream err;
  {
    Progress progress(err, true, "keys", 3);
    for (int i = 0; i < 3; ++i) progress.advance();
  }
  CHECK(err.str().empty());
}

TEST_CASE("wrapped text keeps its words and stays within the width", "[cli]") {
  const std::string text = "one two three four five six seven eight nine ten";
  const std::string lines = wrapped(text, 16, 4);
  std::istringstream in(lines), words(lines);
  for (std::string line; std::getline(in, line);) CHECK(line.size() <= 16);
  std::string joined;
  for (std::string word; words >> word;) joined += (joined.empty() ? "" : " ") + word;
  CHECK(joined == text);
  CHECK(wrapped("unbreakableunbreakable", 5, 0) == "unbreakableunbreakable");
}

TEST_CASE("figures have four places", "[cli]") {
  CHECK(figures(0.67123) == "0.6712");
  CHECK(figures(12.345) == "12.35");
  CHECK(figures(1234.5) == "1234");
  CHECK(duration_text(59) == "59 s");
  CHECK(duration_text(3 * 60 + 5) == "3 min 05 s");
  CHECK(duration_text(2 * 3600 + 300) == "2 h 05 min");
}

TEST_CASE("what worker and parent write each other reads back equal", "[cli]") {
  TuneRequest request;
  request.key = tuning::samples::key();
  request.points = {{1, 64}, {16, 4096}};
  request.candidates = {{64, 64, 2, 4}, {32, 128, 3, 8}};
  request.budget_ms = 1500;
  const auto read = request_from_line(to_line(request));
  REQUIRE(read.ok());
  CHECK(read->key == request.key);
  CHECK(read->points == request.points);
  CHECK(read->candidates == request.candidates);
  CHECK(read->budget_ms == request.budget_ms);

  TuneAnswer answer;
  answer.record = tuning::samples::record(tuning::samples::key());
  answer.noise = 0.0125;
  answer.points = {{{16, 4096}, {{{64, 64, 2, 4}, 12.5}, {{32, 128, 3, 8}, 13.0}}}};
  const auto back = answer_from_line(to_line(answer));
  REQUIRE(back.ok());
  CHECK(back->record == answer.record);
  CHECK(back->noise == answer.noise);
  REQUIRE(back->points.size() == 1);
  CHECK(back->points[0].point == answer.points[0].point);
  CHECK(back->points[0].us == answer.points[0].us);
}

TEST_CASE("a worker's cut or foreign line is an error, not a crash", "[cli]") {
  TuneAnswer answer;
  answer.record = tuning::samples::record(tuning::samples::key());
  answer.points = {{{16, 4096}, {{{64, 64, 2, 4}, 12.5}}}};
  const std::string line = to_line(answer);
  for (std::size_t length = 0; length < line.size(); ++length)
    CHECK_FALSE(answer_from_line(line.substr(0, length)).ok());
  for (const char* foreign : {"", "null", "[]", "{}", "{\"done\":3}", "{\"error\":{}}",
                              "{\"error\":{\"code\":\"x\",\"message\":1}}"}) {
    CHECK_FALSE(answer_from_line(foreign).ok());
    CHECK_FALSE(request_from_line(foreign).ok());
  }
  const auto error = answer_from_line(R"({"error":{"code":7,"message":"no room"}})");
  CHECK(error.status().code() == ErrorCode::kOutOfMemory);
  CHECK(error.status().message() == "no room");
}

TEST_CASE("peer times are read by shape, and nonsense is named by row", "[cli]") {
  const auto peers = read_peers(R"({"schema":"scanjit-bench/1","rows":[
    {"op":"gated_delta_h","shape":{"N":16,"T":1024,"H":16,"HV":32,"K":128,"V":128,"BT":64,"dtype":"bf16"},"us":1},
    {"op":"gated_delta_h","shape":{"N":16,"T":1024,"H":16,"HV":32,"K":128,"V":128,"BT":64,"dtype":"bf16"},"us":1,"peer":{"name":"fla","us":55.5}}]})");
  REQUIRE(peers.ok());
  REQUIRE(peers->size() == 1);
  CHECK((*peers)[0].second.us == 55.5);
  CHECK(same_problem((*peers)[0].first, *parse_shape("gated_delta_h", "N=16,T=1024,HV=32")));
  CHECK_FALSE(same_problem((*peers)[0].first, *parse_shape("gated_delta_h", "N=8,T=1024,HV=32")));
  const auto bad = read_peers(
      R"({"schema":"scanjit-bench/1","rows":[{"op":"gated_delta_h","shape":{"N":1},"peer":{"name":"x","us":-1}}]})");
  CHECK(bad.status().code() == ErrorCode::kCorrupt);
  CHECK(bad.status().message().find("rows[0].peer.us") != std::string::npos);
  CHECK_FALSE(read_peers("{").ok());
  CHECK_FALSE(read_peers(R"({"schema":"scanjit-tuned/1","rows":[]})").ok());
}

}  // namespace
}  // namespace scanjit::test
