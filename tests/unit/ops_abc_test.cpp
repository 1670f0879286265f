// ABC forward and backward as ops: what is refused, keys, configs, workspace, timing.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <tuple>

#include "ops/registry.hpp"
#include "ops_abc_samples.hpp"
#include "ops_samples.hpp"
#include "reference/abc_cases.hpp"
#include "reference/half.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

void check_sentence(const Status& status, ErrorCode code, const std::vector<std::string>& words) {
  INFO("sentence: " << status.message());
  CHECK(status.code() == code);
  for (const std::string& word : words) CHECK(status.message().find(word) != std::string::npos);
}

template <class T>
T* moved(T* pointer, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) +
                              static_cast<std::uintptr_t>(bytes));
}

ops::DeviceLimits small_gpu() {  // 99 KiB of shared memory a block
  tuning::GpuFacts facts = h200_facts();
  facts.compute_major = 8;
  facts.compute_minor = 6;
  facts.smem_optin_bytes = 101376;
  return ops::limits_of(facts);
}

template <class Problem>
tuning::ShapeKey key_of(const Problem& problem) {
  const auto op = made(problem);
  REQUIRE(op != nullptr);
  tuning::ShapeKey key = op->key_query().under(
      {problem.H, problem.V, tuning::default_width_starts(problem.H, problem.V, 132)});
  REQUIRE(key.normalise().ok());
  return key;
}

std::int64_t tensor_bytes(const ops::OpProblem& problem) {
  std::int64_t bytes = 0;
  for (const ops::Tensor& tensor : problem.tensors()) bytes += tensor.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("a bad ABC problem is refused with a sentence that names field, value and bound",
          "[ops]") {
  struct Row {
    const char* what;
    std::function<void(AbcProblem&)> spoil;
    ErrorCode code;
    std::vector<std::string> words;
  };
  const auto invalid = ErrorCode::kInvalidArgument, unsupported = ErrorCode::kUnsupported;
  // clang-format off
  const std::vector<Row> rows = {
      {"K 0", [](auto& p) { p.K = 0; }, invalid, {"K is 0", "1 to 256"}},
      {"K 257", [](auto& p) { p.K = 257; }, invalid, {"K is 257", "1 to 256"}},
      {"M 0", [](auto& p) { p.M = 0; }, invalid, {"M is 0", "1 to 128"}},
      {"M 129", [](auto& p) { p.M = 129; }, invalid, {"M is 129", "1 to 128"}},
      {"V 0", [](auto& p) { p.V = 0; }, invalid, {"V is 0", "1 to 512"}},
      {"V 513", [](auto& p) { p.V = 513; }, invalid, {"V is 513", "1 to 512"}},
      {"H 0", [](auto& p) { p.H = 0; }, invalid, {"H is 0"}},
      {"B negative", [](auto& p) { p.B = -1; }, invalid, {"B is -1"}},
      {"T negative", [](auto& p) { p.T = -64; }, invalid, {"T is -64"}},
      {"limit negative", [](auto& p) { p.workspace_limit = -1; }, invalid, {"workspace_limit is -1"}},
      {"dtype unknown", [](auto& p) { p.dtype = static_cast<DType>(9); }, invalid, {"dtype is 9"}},
      {"dtype f32", [](auto& p) { p.dtype = DType::kF32; }, unsupported, {"dtype is f32"}},
      {"numerics unknown", [](auto& p) { p.numerics = "segments3"; }, unsupported, {"numerics is \"segments3\"", "segments4"}},
      {"numerics of another op", [](auto& p) { p.numerics = "split64"; }, unsupported, {"numerics is \"split64\""}},
      {"saved by any", [](auto& p) { p.numerics = "any"; p.has_saved = true; }, invalid, {"has_saved", "any"}},
      {"B*H overflows", [](auto& p) { p.B = kHuge; }, unsupported, {"B = 4611686018427387904", "2147483647 blocks"}},
      {"T overflows", [](auto& p) { p.T = std::numeric_limits<std::int64_t>::max(); }, unsupported, {"T = 9223372036854775807", "split"}},
      {"too many blocks", [](auto& p) { p.B = 100'000'000; }, unsupported, {"B = 100000000", "2147483647 blocks"}},
      {"too many slots", [](auto& p) { p.B = 10'000'000; p.T = 0; }, unsupported, {"B = 10000000"}},
  };
  // clang-format on
  for (const Row& row : rows) {
    INFO(row.what);
    AbcForwardProblem forward = abc_forward_layer(2, 1024);
    AbcBackwardProblem backward = abc_backward_layer(2, 1024);
    row.spoil(forward);
    row.spoil(backward);
    check_sentence(ops::AbcForward::make(forward).status(), row.code, row.words);
    check_sentence(ops::AbcBackward::make(backward).status(), row.code, row.words);
    CHECK(workspace_bound(forward).status().code() == row.code);
    CHECK(workspace_bound(backward).status().code() == row.code);
    CHECK(abc_saved_bytes(forward).status().code() == row.code);
  }
  CHECK(ops::AbcForward::make(abc_forward_whole(2, 1024)).ok());
  CHECK(ops::AbcBackward::make(abc_backward_whole(2, 1024)).ok());
}

TEST_CASE("bad addresses of ABC are refused before a launch", "[ops]") {
  struct Forward {
    const char* what;
    std::function<void(AbcForwardProblem&)> shape;
    std::function<void(AbcForwardArgs&)> spoil;
    std::vector<std::string> words;
  };
  const auto same = [](auto&) {};
  const std::int64_t hk = 2 * 4 * 256 * 64 * 4;  // bytes
  // clang-format off
  const std::vector<Forward> rows = {
      {"q null", same, [](auto& a) { a.q = nullptr; }, {"q is null"}},
      {"z0 null", same, [](auto& a) { a.z0 = nullptr; }, {"z0 is null"}},
      {"zt null", same, [](auto& a) { a.zt = nullptr; }, {"zt is null"}},
      {"hk0 given", [](auto& p) { p.has_hk0 = false; }, [](auto& a) { a.hk0 = moved(a.hkt, kHuge / 64); }, {"hk0 is given", "has none"}},
      {"saved given", same, [](auto& a) { a.saved = moved(a.o, kHuge / 64); }, {"saved is given"}},
      {"s unaligned", same, [](auto& a) { a.s = moved(a.s, 8); }, {"s lies 8 bytes", "16", "aligned16"}},
      {"o odd", [](auto& p) { p.aligned16 = false; }, [](auto& a) { a.o = moved(a.o, 1); }, {"o lies 1 bytes past a multiple of 2", "element"}},
      {"hvt unaligned", same, [](auto& a) { a.hvt = moved(a.hvt, 2); }, {"hvt lies 2 bytes past a multiple of 4"}},
      {"saved unaligned", [](auto& p) { p.has_saved = true; }, [](auto& a) { a.saved = moved(a.saved, 16); }, {"saved lies 16 bytes past a multiple of 256"}},
      {"o on v", same, [](auto& a) { a.o = const_cast<void*>(a.v); }, {"o overlaps v", "0 bytes"}},
      {"o into q's end", same, [](auto& a) { a.o = moved(const_cast<void*>(a.q), 2 * 1024 * 4 * 256 * 2 - 16); }, {"o overlaps q"}},
      {"hkt into o", same, [](auto& a) { a.hkt = static_cast<float*>(a.o); }, {"hkt overlaps o"}},
      {"hkt partly on hk0", same, [](auto& a) { a.hkt = const_cast<float*>(moved(a.hk0, 4)); }, {"hkt overlaps hk0", "exactly hk0"}},
      {"hvt on hk0", same, [=](auto& a) { a.hvt = const_cast<float*>(moved(a.hk0, hk - 4)); }, {"hvt overlaps hk0"}},
      {"workspace on s", same, [](auto& a) { a.s = reinterpret_cast<void*>((std::uintptr_t{15} << 44) + 256); }, {"workspace overlaps s"}},
      {"workspace on o", same, [](auto& a) { a.o = reinterpret_cast<void*>((std::uintptr_t{15} << 44) + 256); }, {"workspace overlaps o"}},
  };
  // clang-format on
  for (const Forward& row : rows) {
    INFO(row.what);
    AbcForwardProblem problem = abc_forward_whole(2, 1024);
    row.shape(problem);
    const auto op = made(problem);
    REQUIRE(op != nullptr);
    const std::int64_t need = op->workspace_bound();
    AbcForwardArgs args = far_apart(problem);
    REQUIRE(op->check_args(args, workspace_of(need), need).ok());
    row.spoil(args);
    check_sentence(op->check_args(args, workspace_of(need), need), ErrorCode::kInvalidArgument,
                   row.words);
  }

  const AbcForwardProblem problem = abc_forward_whole(2, 1024);
  const auto op = made(problem);
  const std::int64_t need = op->workspace_bound();
  AbcForwardArgs args = far_apart(problem);
  check_sentence(op->check_args(args, workspace_of(need - 1), need), ErrorCode::kInvalidArgument,
                 {"workspace is " + std::to_string(need - 1), std::to_string(need)});
  check_sentence(op->check_args(args, {nullptr, need}, need), ErrorCode::kInvalidArgument,
                 {"workspace is 0"});
  check_sentence(op->check_args(args, {moved(workspace_of(need).data, 64), need}, need),
                 ErrorCode::kInvalidArgument, {"256"});
  // In place, and inputs that are one.
  args.hkt = const_cast<float*>(args.hk0);
  args.hvt = const_cast<float*>(args.hv0);
  args.zt = const_cast<float*>(args.z0);
  args.k = args.q;
  CHECK(op->check_args(args, workspace_of(need), need).ok());

  // Nothing is in place in the backward; its initial states have derivatives.
  AbcBackwardProblem back = abc_backward_whole(2, 1024);
  back.has_saved = true;
  const auto backward = made(back);
  const std::int64_t room = backward->workspace_bound();
  const AbcBackwardArgs good = far_apart(back);
  REQUIRE(backward->check_args(good, workspace_of(room), room).ok());
  AbcBackwardArgs bad = good;
  bad.dhk0 = nullptr;
  check_sentence(backward->check_args(bad, workspace_of(room), room), ErrorCode::kInvalidArgument,
                 {"dhk0 is null"});
  bad = good;
  bad.dhk0 = const_cast<float*>(bad.hk0);
  check_sentence(backward->check_args(bad, workspace_of(room), room), ErrorCode::kInvalidArgument,
                 {"dhk0 overlaps hk0"});
  bad = good;
  bad.ds = const_cast<void*>(bad.saved);
  check_sentence(backward->check_args(bad, workspace_of(room), room), ErrorCode::kInvalidArgument,
                 {"ds overlaps saved"});
  bad = good;
  bad.dq = bad.dk;
  check_sentence(backward->check_args(bad, workspace_of(room), room), ErrorCode::kInvalidArgument,
                 {"dk overlaps dq"});
}

TEST_CASE("ABC without elements takes null pointers", "[ops]") {
  AbcForwardProblem no_tokens = abc_forward_whole(2, 0);
  const auto op = made(no_tokens);
  REQUIRE(op != nullptr);
  AbcForwardArgs args = far_apart(no_tokens);
  args.q = args.k = args.v = args.s = args.o = nullptr;
  const std::int64_t need = op->workspace_bound();
  CHECK(op->check_args(args, workspace_of(need), need).ok());
  CHECK(op->stages({384, 64, 2, 8, 2}, h200()).size() == 1);
  const auto none = made(abc_backward_whole(0, 64));
  REQUIRE(none != nullptr);
  CHECK(none->stages({384, 64, 2, 8, 2}, h200()).empty());
  CHECK(none->workspace_bound() == 0);
  CHECK(none->check_args({}, {}, 0).ok());
}

TEST_CASE("whatever changes ABC's code changes its key; what does not leaves it alone", "[ops]") {
  using Change = std::function<void(AbcProblem&)>;
  const std::vector<Change> source = {
      [](auto& p) { p.dtype = DType::kF16; }, [](auto& p) { p.M = 32; },
      [](auto& p) { p.aligned16 = false; }, [](auto& p) { p.numerics = "segments1"; },
      [](auto& p) { p.numerics = "segments4"; }};
  const std::vector<Change> speed = {[](auto& p) { p.H = 8; }, [](auto& p) { p.T = 64; },
                                     [](auto& p) { p.B = 64; }, [](auto& p) { p.K = 128; },
                                     [](auto& p) { p.V = 256; }};
  const std::vector<Change> neither = {
      [](auto& p) { p.has_hk0 = !p.has_hk0; },   [](auto& p) { p.has_hv0 = !p.has_hv0; },
      [](auto& p) { p.has_z0 = !p.has_z0; },     [](auto& p) { p.T = 1000; },
      [](auto& p) { p.numerics = "segments2"; }, [](auto& p) { p.workspace_limit = kHuge; }};
  const AbcBackwardProblem base = abc_backward_whole(2, 1024);
  const auto sources = [](const AbcBackwardProblem& p) {
    const auto op = made(p);
    return op->kernels(*op->heuristic(h200()), h200());
  };
  std::set<std::string> keys{key_of(base).text()};
  const auto changed = [&](const Change& change) {
    AbcBackwardProblem p = base;
    change(p);
    CHECK(ops::AbcBackward::words(p) != ops::AbcBackward::words(base));
    return p;
  };
  for (std::size_t i = 0; i < source.size(); ++i) {
    INFO("source " << i);
    const AbcBackwardProblem p = changed(source[i]);
    CHECK(sources(p) != sources(base));
    CHECK(keys.insert(key_of(p).text()).second);
  }
  for (std::size_t i = 0; i < speed.size(); ++i) {
    INFO("speed " << i);
    CHECK(keys.insert(key_of(changed(speed[i])).text()).second);
  }
  for (std::size_t i = 0; i < neither.size(); ++i) {
    INFO("neither " << i);
    const AbcBackwardProblem p = changed(neither[i]);
    CHECK(sources(p) == sources(base));
    CHECK(key_of(p) == key_of(base));
  }
  // What is saved spares the backward two kernels, and the forward nothing.
  AbcBackwardProblem reading = base;
  reading.has_saved = true;
  CHECK(sources(reading) != sources(base));
  CHECK(key_of(reading) != key_of(base));
  AbcForwardProblem forward = abc_forward_whole(2, 1024), writing = forward;
  writing.has_saved = true;
  CHECK(key_of(forward) == key_of(writing));
  CHECK(ops::AbcForward::words(forward) != ops::AbcForward::words(writing));
  CHECK(key_of(forward).kernel == "abc_forward");
  CHECK(key_of(base).kernel == "abc_backward");
  CHECK(key_of(base).M == 64);
  CHECK(key_of(base).text().find(" M=64 ") != std::string::npos);
  writing.has_hkt = false;
  CHECK(key_of(forward) == key_of(writing));
}

TEST_CASE("an ABC key gives back a problem with the same kernels", "[ops]") {
  const Config config{256, 64, 2, 8, 2};
  for (const bool aligned : {true, false}) {
    AbcBackwardProblem problem = abc_backward_whole(2, 1024);
    problem.aligned16 = aligned;
    problem.has_saved = aligned;
    const auto op = made(problem);
    const tuning::ShapeKey key = key_of(problem);
    const auto read = tuning::shape_key_from_json(tuning::to_json(key));
    REQUIRE(read.ok());
    CHECK(*read == key);
    const auto back = ops::make_problem(key, {2, 500});
    REQUIRE(back.ok());
    CHECK((*back)->kernels(config, h200()) == op->kernels(config, h200()));
    CHECK((*back)->key_query().key == op->key_query().key);
  }
  for (const char* numerics : {"default", "segments1", "segments4", "any"}) {
    AbcForwardProblem problem = abc_forward_layer(2, 1024);
    problem.numerics = numerics;
    const auto back = ops::make_problem(key_of(problem), {2, 1024});
    REQUIRE(back.ok());
    CHECK((*back)->key_query().key == made(problem)->key_query().key);
  }
  tuning::ShapeKey other = key_of(abc_forward_layer(2, 1024));
  other.kernel_revision += 1;
  CHECK(ops::make_problem(other, {2, 1024}).status().code() == ErrorCode::kUnsupported);
}

TEST_CASE("ABC by name and words", "[ops]") {
  tuning::Shape shape;
  shape.op = "abc_backward";
  shape.N = 2;
  shape.T = 1024;
  shape.H = shape.HV = 4;
  shape.K = 256;
  shape.M = 64;
  shape.V = 512;
  shape.optional = {"dhkt", "dhvt", "hk0", "hv0", "z0"};
  const auto problem = ops::problem_of<ops::AbcBackward>(shape);
  REQUIRE(problem.ok());
  CHECK(ops::AbcBackward::words(*problem) == ops::AbcBackward::words(abc_backward_whole(2, 1024)));
  CHECK(ops::make_problem(shape).ok());
  CHECK_FALSE(ops::problem_of<ops::AbcForward>(shape).ok());
  const auto refused = [&](auto spoil, const std::vector<std::string>& words) {
    tuning::Shape bad = shape;
    spoil(bad);
    const Status status = ops::make_problem(bad).status();
    check_sentence(status, status.code(), words);
    CHECK_FALSE(status.ok());
  };
  refused([](auto& s) { s.op = "abc_forward"; }, {"\"dhkt\" is unknown", "zt"});
  refused([](auto& s) { s.optional = {"o"}; }, {"\"o\" is unknown", "dhvt"});
  refused([](auto& s) { s.M = 0; }, {"M is 0"});
  refused([](auto& s) { s.HV = 8; }, {"HV is 8", "H = 4"});
  refused([](auto& s) { s.BT = 32; }, {"BT is 32", "64"});
  refused([](auto& s) { s.gate = "g"; }, {"gate is \"g\""});
  refused([](auto& s) { s.packed = true; }, {"packed"});
}

TEST_CASE("ABC's configs keep within the device, the class and the limit of workspace", "[ops]") {
  for (const ops::DeviceLimits& limits : {h200(), small_gpu()}) {
    for (const std::int64_t K : {1, 64, 72, 256}) {
      for (const std::int64_t M : {1, 32, 64, 128}) {
        for (const std::int64_t V : {8, 64, 512}) {
          for (const std::int64_t T : {1, 1024, 16384}) {
            AbcBackwardProblem problem = abc_backward_layer(1, T);
            problem.K = K;
            problem.M = M;
            problem.V = V;
            problem.numerics = "any";
            const auto op = made(problem);
            INFO("K " << K << " M " << M << " V " << V << " T " << T);
            int legal = 0;
            for (const Config& config : op->space().all()) {
              const Status status = op->legal(config, limits);
              if (!status.ok()) {
                check_sentence(status, ErrorCode::kUnsupported, {to_string(config)});
                continue;
              }
              ++legal;
              for (const ops::Stage& stage : op->stages(config, limits))
                CHECK(stage.source.smem_bytes <= limits.smem_optin_bytes);
              CHECK(op->score(config, limits) > 0);
              CHECK(op->workspace_bytes(config, limits) <= op->workspace_bound());
              CHECK(op->same_bits(config, {64, 64, 2, 8, config.segment_chunks}));
              CHECK(op->same_bits(config, {64, 64, 2, 8, 0}) ==
                    (config.segment_chunks == 0 || config.segment_chunks == 2));
            }
            const auto heuristic = op->heuristic(limits);
            CHECK(heuristic.ok() == (legal > 0));
            if (heuristic.ok()) CHECK(op->legal(*heuristic, limits).ok());
            CHECK((legal > 0 || (limits == small_gpu() && M == 128)));
          }
        }
      }
    }
  }
  // The class fixes the segments.
  AbcForwardProblem problem = abc_forward_layer(1, 8192);
  for (const auto& [numerics, chunks] :
       {std::pair{"default", 2}, {"segments1", 1}, {"segments2", 2}, {"segments4", 4}}) {
    problem.numerics = numerics;
    const auto op = made(problem);
    CHECK(op->heuristic(h200())->segment_chunks == chunks);
    const auto list = ops::candidates(*op, h200());
    REQUIRE(list.ok());
    CHECK(list->size() >= 4);
    int serial = 0;
    for (const Config& config : *list) {
      if (config.segment_chunks == 0) {
        ++serial;
      } else {
        CHECK(config.segment_chunks == chunks);
      }
    }
    CHECK((serial > 0) == (chunks == 2));
    CHECK(op->workspace_bound() == *workspace_bound(problem));
  }
  // As measured on an H200.
  for (const auto& [T, forward, backward] :
       {std::tuple{256, Config{64, 64, 2, 8, 2}, Config{64, 64, 3, 8, 2}},
        {1024, {256, 64, 2, 8, 2}, {256, 64, 3, 8, 2}},
        {2048, {384, 64, 2, 8, 2}, {384, 64, 3, 8, 2}},
        {4096, {384, 64, 2, 8, 2}, {384, 64, 2, 8, 2}},
        {8192, {768, 64, 2, 8, 2}, {768, 64, 2, 8, 2}}}) {
    INFO("T " << T);
    CHECK(*made(abc_forward_layer(1, T))->heuristic(h200()) == forward);
    CHECK(*made(abc_backward_layer(1, T))->heuristic(h200()) == backward);
  }
  // A block of a small GPU has no room for two chunks a segment; the sentence says so.
  problem.numerics = "default";
  check_sentence(made(problem)->heuristic(small_gpu()).status(), ErrorCode::kUnsupported,
                 {"segment_chunks=2", "101376"});
  problem.numerics = "any";
  CHECK(made(problem)->heuristic(small_gpu())->segment_chunks == 1);
  CHECK_FALSE(made(problem)->same_bits({64, 64, 2, 8, 1}, {64, 64, 2, 8, 2}));

  // Longer segments where the workspace of shorter ones is too large.
  const std::int64_t one = made(problem)->workspace_bytes(1),
                     two = made(problem)->workspace_bytes(2),
                     four = made(problem)->workspace_bytes(4),
                     serial = made(problem)->workspace_bytes(0);
  CHECK((one > two && two > four && four > serial));
  CHECK(*workspace_bound(problem) == one);
  CHECK(*workspace_bound(problem, one - 1) == two);
  CHECK(*workspace_bound(problem, two - 1) == four);
  CHECK(*workspace_bound(problem, four - 1) == serial);
  check_sentence(workspace_bound(problem, serial - 1).status(), ErrorCode::kUnsupported,
                 {std::to_string(serial), std::to_string(serial - 1)});
  for (const auto& [limit, chunks] :
       {std::pair{one, 2}, {two, 2}, {two - 1, 4}, {four, 4}, {four - 1, 0}, {serial, 0}}) {
    problem.workspace_limit = limit;
    CHECK(made(problem)->heuristic(h200())->segment_chunks == chunks);
    CHECK(made(problem)->workspace_bound() <= limit);
  }
  problem.workspace_limit = serial - 1;
  check_sentence(made(problem)->heuristic(h200()).status(), ErrorCode::kUnsupported,
                 {"workspace_limit is " + std::to_string(serial - 1)});
  // Of the class "default" the serial form has the same bits.
  problem.numerics = "default";
  problem.workspace_limit = two - 1;
  CHECK(made(problem)->heuristic(h200())->segment_chunks == 0);
  problem.numerics = "segments4";
  problem.workspace_limit = four - 1;
  check_sentence(made(problem)->heuristic(h200()).status(), ErrorCode::kUnsupported,
                 {"workspace_limit"});
}

TEST_CASE("what ABC saves leaves the workspace", "[ops]") {
  AbcForwardProblem forward = abc_forward_layer(1, 8192);
  AbcBackwardProblem backward = abc_backward_layer(1, 8192);
  const std::int64_t saved = *abc_saved_bytes(forward);
  // z before 128 chunks and after them, 64 states in 16 bits, the final ones in f32.
  CHECK(saved == 4 * 129 * 64 * 4 + std::int64_t{4} * 64 * 64 * 768 * 2 + 4 * 64 * 768 * 4);
  const std::int64_t without = *workspace_bound(forward), back = *workspace_bound(backward);
  forward.has_saved = backward.has_saved = true;
  CHECK(*workspace_bound(forward) == without - saved);
  CHECK(*workspace_bound(backward) == back - saved);

  // The same places in `saved` and at the start of the workspace; scratch beside it.
  const auto stages = made(backward)->stages({256, 64, 2, 8, 2}, h200());
  CHECK(stages.size() == 4);
  backward.has_saved = false;
  const auto recomputing = made(backward)->stages({256, 64, 2, 8, 2}, h200());
  REQUIRE(recomputing.size() == 6);
  for (std::size_t i = 0; i < 4; ++i) CHECK(recomputing[i + 2].source == stages[i].source);
  ops::Addresses addresses;
  addresses.workspace = reinterpret_cast<void*>(std::uintptr_t{1} << 40);
  ops::StageParams params;
  made(backward)->fill_params(recomputing[0].note, addresses, params);
  scanjit::abc::AbcParams p;
  std::memcpy(&p, params.bytes.data(), sizeof(p));
  const auto at = [](const void* pointer) { return reinterpret_cast<std::intptr_t>(pointer); };
  CHECK(at(p.z_starts) == at(addresses.workspace));
  CHECK(at(p.chunk_lse) == at(addresses.workspace) + saved);
  addresses.tensor[ops::AbcOp::kSaved] = reinterpret_cast<void*>(std::uintptr_t{1} << 41);
  backward.has_saved = true;
  made(backward)->fill_params(stages[0].note, addresses, params);
  std::memcpy(&p, params.bytes.data(), sizeof(p));
  CHECK(at(p.z_starts) == at(addresses.tensor[ops::AbcOp::kSaved]));
  CHECK(at(p.chunk_lse) == at(addresses.workspace));
}

TEST_CASE("ABC is timed whole where it fits, else on fewer chunks, within one class", "[ops]") {
  AbcForwardProblem problem = abc_forward_whole(2, 8192);
  const auto op = made(problem);
  const auto whole = op->for_timing(std::int64_t{8} << 30);
  REQUIRE(whole != nullptr);
  CHECK(whole->tokens_per_sequence() == 8192);
  const std::int64_t all = tensor_bytes(*whole) + whole->workspace_bound();
  std::int64_t last = 8192;
  for (const std::int64_t limit : {all - 1, all / 2, all / 10}) {
    const auto part = op->for_timing(limit);
    REQUIRE(part != nullptr);
    CHECK(tensor_bytes(*part) + part->workspace_bound() <= limit);
    CHECK(part->tokens_per_sequence() % 64 == 0);
    CHECK(part->tokens_per_sequence() < last);
    CHECK(part->key_query().sequences == 2);
    CHECK(part->stages({256, 64, 2, 8, 2}, h200()).back().source ==
          op->stages({256, 64, 2, 8, 2}, h200()).back().source);
    last = part->tokens_per_sequence();
  }
  CHECK(op->for_timing(1 << 20) == nullptr);
  problem.numerics = "any";
  CHECK(made(problem)->for_timing(std::int64_t{8} << 30) != nullptr);
  CHECK(made(problem)->for_timing(all / 2) == nullptr);
  CHECK(made(abc_forward_whole(2, 0))->for_timing(1 << 30) == nullptr);
  CHECK(made(abc_forward_whole(0, 64))->for_timing(1 << 30) == nullptr);
  // Everything once: 32 thousand rows of q, k, v, s, o, and six states.
  CHECK(made(abc_forward_whole(2, 4096))->floor_bytes() ==
        2 * 4096 * 4 * (256 + 256 + 512 + 64 + 512) * 2 +
            2 * 2 * 4 * (256 * 64 + 64 * 512 + 64) * 4);
}

TEST_CASE("synthetic inputs of ABC give finite outputs", "[ops]") {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    AbcBackwardProblem problem = abc_backward_whole(1, 300);
    problem.dtype = dtype;
    problem.H = 1;
    problem.K = 16;
    problem.M = 8;
    problem.V = 24;
    const auto op = made(problem)->for_timing(1 << 28);
    REQUIRE(op != nullptr);
    reference::AbcTensors tensors;
    for (const ops::Tensor& tensor : op->tensors()) {
      if (tensor.output) continue;
      std::vector<unsigned char> bytes(static_cast<std::size_t>(tensor.bytes));
      REQUIRE(tensor.pattern_bytes == tensor.bytes);
      op->fill_pattern(tensor.number, bytes.data());
      const auto put = [&](auto& to) {
        to.resize(bytes.size() / sizeof(to[0]));
        std::memcpy(to.data(), bytes.data(), bytes.size());
      };
      switch (tensor.number) {
        case ops::AbcOp::kQ: put(tensors.q); break;
        case ops::AbcOp::kK: put(tensors.k); break;
        case ops::AbcOp::kV: put(tensors.v); break;
        case ops::AbcOp::kS: put(tensors.s); break;
        case ops::AbcOp::kDout: put(tensors.dout); break;
        case ops::AbcOp::kHk0: put(tensors.hk0); break;
        case ops::AbcOp::kHv0: put(tensors.hv0); break;
        case ops::AbcOp::kZ0: put(tensors.z0); break;
        case ops::AbcOp::kDhkt: put(tensors.dhkt); break;
        case ops::AbcOp::kDhvt: put(tensors.dhvt); break;
        default: FAIL("input " << tensor.name);
      }
    }
    const reference::AbcShape shape{1, 300, 1, 16, 8, 24, true, true, true};
    const auto gradients = reference::abc_backward(shape, reference::inputs_of(dtype, tensors),
                                                   reference::cotangents_of(dtype, tensors), 1);
    REQUIRE(gradients.ok());
    double squares = 0;
    for (const auto* values : {&gradients->dq, &gradients->ds, &gradients->dz0}) {
      for (const double value : *values) {
        REQUIRE(std::isfinite(value));
        squares += value * value;
      }
    }
    CHECK(squares > 1);
    CHECK(squares < 1e8);
  }
  // Of what is saved each f32 and each 16-bit number is small.
  AbcBackwardProblem problem = abc_backward_layer(1, 300);
  problem.has_saved = true;
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    problem.dtype = dtype;
    const auto op = made(problem)->for_timing(1 << 28);
    std::vector<unsigned char> bytes(2 << 20);
    for (const ops::Tensor& tensor : op->tensors())
      if (tensor.number == ops::AbcOp::kSaved)
        bytes.resize(static_cast<std::size_t>(tensor.pattern_bytes));
    op->fill_pattern(ops::AbcOp::kSaved, bytes.data());
    float largest = 0;
    for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      float value = 0;
      std::uint16_t half = 0;
      std::memcpy(&value, &bytes[i], 4);
      std::memcpy(&half, &bytes[i], 2);
      largest =
          std::max({largest, std::abs(value), std::abs(reference::half_to_float(dtype, half))});
    }
    CHECK(largest > 1);
    CHECK(largest < 4);
  }
}
