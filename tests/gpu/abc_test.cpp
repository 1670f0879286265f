// ABC through the engine: its fixture and random shapes against f64, one set of bits for a class,
// and what its states, its workspace and the data of other heads may do.

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/internals.hpp"
#include "gpu/abc_run.hpp"
#include "gpu/case.hpp"
#include "reference/half.hpp"

namespace scanjit::test {
namespace {

using reference::AbcCase;
using reference::AbcTensors;
using Cases = std::vector<std::pair<AbcCase, AbcOptions>>;

void check(Gpu& gpu, const AbcCase& c, const AbcOptions& options) {
  INFO(to_string(c) << " numerics=" << options.numerics << " saved=" << options.saved);
  const AbcTensors in = must(reference::generate(c));
  const AbcRun first = must(run(gpu, c, in, options));
  CHECK(first.damage.empty());
  if (const std::string broken = must(abc_failures(first, c, in)); !broken.empty())
    FAIL_CHECK(broken);
  // A second run, with the states saved where they were computed again, or the reverse.
  AbcOptions other = options;
  other.saved = !options.saved;
  const AbcRun second = must(run(gpu, c, in, other));
  CHECK(second.damage.empty());
  CHECK(abc_difference(first.outputs, second.outputs).empty());
}

/// Neighbouring cases by segments of one and of two chunks.
void check_all(Gpu& gpu, const std::vector<AbcCase>& cases) {
  Cases all;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    AbcOptions options;
    options.numerics = i % 2 == 0 ? "default" : "segments1";
    options.saved = i % 4 < 2;
    all.emplace_back(cases[i], options);
  }
  must(compile_abc(gpu, all));
  for (const auto& [c, options] : all) check(gpu, c, options);
}

AbcCase layer(DType dtype, std::int64_t B, std::int64_t T, bool states) {
  AbcCase c;
  c.dtype = dtype;
  c.shape = {B, T, 2, 128, 64, 256, states, states, states};
  c.has_dhkt = c.has_dhvt = states;
  c.seed = 7;
  return c;
}

/// Rows [begin, end) of every token tensor.
AbcTensors tokens(const AbcTensors& in, const reference::AbcShape& s, std::int64_t begin,
                  std::int64_t end) {
  AbcTensors out;
  const auto cut = [&](const std::vector<std::uint16_t>& from, std::int64_t columns) {
    std::vector<std::uint16_t> to;
    const std::int64_t row = s.H * columns;
    for (std::int64_t b = 0; b < s.B; ++b) {
      to.insert(to.end(), from.begin() + (b * s.T + begin) * row,
                from.begin() + (b * s.T + end) * row);
    }
    return to;
  };
  out.q = cut(in.q, s.K);
  out.k = cut(in.k, s.K);
  out.v = cut(in.v, s.V);
  out.s = cut(in.s, s.M);
  out.dout = cut(in.dout, s.V);
  return out;
}

std::vector<float> floats_of(const AbcRun& run, const char* name) {
  std::vector<float> values;
  for (const double value : abc_numbers(run, name, DType::kBf16))
    values.push_back(static_cast<float>(value));
  return values;
}

}  // namespace

TEST_CASE("ABC keeps to its fixture's limits", "[gpu][abc_fixture]") {
  SCANJIT_TEST_GPU(gpu);
  check_all(gpu, reference::abc_fixture());
}

TEST_CASE("ABC keeps to its limits on random shapes", "[gpu][abc_random]") {
  SCANJIT_TEST_GPU(gpu);
  const auto count = static_cast<std::uint64_t>(
      number_from_environment("SCANJIT_GPU_ABC_CASES", reference::kAbcRandomCases));
  std::vector<AbcCase> cases;
  for (std::uint64_t seed = 0; seed < count; ++seed)
    cases.push_back(reference::random_abc_case(seed));
  check_all(gpu, cases);
}

TEST_CASE("every config of a class of ABC gives the same bits, whatever the alignment",
          "[gpu][abc_bits]") {
  SCANJIT_TEST_GPU(gpu);
  const ops::DeviceLimits limits = engine::limits_of(gpu.facts());
  for (const char* numerics : {"segments1", "default", "segments4"}) {
    Cases all;
    for (const AbcCase& c :
         {layer(DType::kBf16, 2, 600, true), layer(DType::kF16, 1, 449, false)}) {
      AbcOptions options;
      options.numerics = numerics;
      const auto forward = must(ops::AbcForward::make(abc_forward_of(c, options)));
      const auto backward = must(ops::AbcBackward::make(abc_backward_of(c, options)));
      std::vector<Config> of_forward, of_backward;
      for (const Config& config : forward->space().all()) {
        if (forward->legal(config, limits).ok()) of_forward.push_back(config);
        if (backward->legal(config, limits).ok()) of_backward.push_back(config);
      }
      REQUIRE(of_forward.size() >= 4);
      for (std::size_t i = 0; i < std::max(of_forward.size(), of_backward.size()); ++i) {
        options.forward = of_forward[std::min(i, of_forward.size() - 1)];
        options.backward = of_backward[std::min(i, of_backward.size() - 1)];
        all.emplace_back(c, options);
      }
      options.forward = options.backward = std::nullopt;
      options.misalign_elements = 1;
      all.emplace_back(c, options);
    }
    must(compile_abc(gpu, all));
    std::optional<AbcRun> first;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& [c, options] = all[i];
      const AbcTensors in = must(reference::generate(c));
      const AbcRun one = must(run(gpu, c, in, options));
      INFO(to_string(c) << " numerics=" << numerics << " misaligned=" << options.misalign_elements
                        << " forward " << to_string(one.forward) << " backward "
                        << to_string(one.backward));
      CHECK(one.damage.empty());
      if (i == 0 || to_string(all[i - 1].first) != to_string(c)) {
        first = one;
        const std::string broken = must(abc_failures(one, c, in));
        CHECK(broken == "");
      } else {
        CHECK(abc_difference(first->outputs, one.outputs) == "");
      }
    }
  }
}

TEST_CASE("ABC goes on from its final states: the parts are the whole", "[gpu][abc_split]") {
  SCANJIT_TEST_GPU(gpu);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    AbcCase c = layer(dtype, 2, 700, true);
    c.slots = reference::AbcSlots::kEmpty;
    AbcTensors in = must(reference::generate(c));
    const AbcRun whole = must(run(gpu, c, in, {}));
    // Through the middle of a chunk, and at the end of a segment.
    for (const std::int64_t cut : {std::int64_t{300}, std::int64_t{384}}) {
      INFO(to_string(c) << " cut at " << cut);
      AbcCase before = c, after = c;
      before.shape.T = cut;
      after.shape.T = c.shape.T - cut;
      before.has_dhkt = before.has_dhvt = false;
      AbcTensors one = tokens(in, c.shape, 0, cut), two = tokens(in, c.shape, cut, c.shape.T);
      one.hk0 = in.hk0;
      one.hv0 = in.hv0;
      one.z0 = in.z0;
      const AbcRun first = must(run(gpu, before, one, {}));
      two.hk0 = floats_of(first, "hkt");
      two.hv0 = floats_of(first, "hvt");
      two.z0 = floats_of(first, "zt");
      two.dhkt = in.dhkt;
      two.dhvt = in.dhvt;
      const AbcRun second = must(run(gpu, after, two, {}));
      std::string broken;
      for (const char* name : {"hkt", "hvt", "zt"}) {
        broken += reference::abc_failure(name, dtype, abc_numbers(second, name, dtype),
                                         abc_numbers(whole, name, dtype));
      }
      const std::vector<double> o = abc_numbers(whole, "o", dtype),
                                o1 = abc_numbers(first, "o", dtype),
                                o2 = abc_numbers(second, "o", dtype);
      std::vector<double> joined;
      const std::int64_t row = c.shape.H * c.shape.V;
      for (std::int64_t b = 0; b < c.shape.B; ++b) {
        joined.insert(joined.end(), o1.begin() + b * cut * row, o1.begin() + (b + 1) * cut * row);
        joined.insert(joined.end(), o2.begin() + b * after.shape.T * row,
                      o2.begin() + (b + 1) * after.shape.T * row);
      }
      broken += reference::abc_failure("o", dtype, joined, o);
      CHECK(broken == "");
    }
  }
}

TEST_CASE("a NaN or infinity in one head of ABC changes no bit of another", "[gpu][abc_poison]") {
  SCANJIT_TEST_GPU(gpu);
  const AbcCase c = layer(DType::kBf16, 2, 320, true);
  const reference::AbcShape& s = c.shape;
  const AbcTensors good = must(reference::generate(c));
  const AbcRun clean = must(run(gpu, c, good, {}));
  // Batch row 1, head 0.
  const auto spoil_tokens = [&](std::vector<std::uint16_t>& values, std::int64_t columns,
                                std::uint16_t bits) {
    for (std::int64_t t = 0; t < s.T; ++t) {
      for (std::int64_t i = 0; i < columns; ++i)
        values[static_cast<std::size_t>(((s.T + t) * s.H) * columns + i)] = bits;
    }
  };
  const auto spoil_state = [&](std::vector<float>& values, std::int64_t elements) {
    for (std::int64_t i = 0; i < elements; ++i)
      values[static_cast<std::size_t>(s.H * elements + i)] =
          std::numeric_limits<float>::quiet_NaN();
  };
  for (const std::uint16_t bits : {std::uint16_t{0x7fff}, std::uint16_t{0x7f80}}) {
    for (const int tensor : {0, 1, 2, 3, 4, 5, 6}) {
      AbcTensors bad = good;
      if (tensor == 0) spoil_tokens(bad.q, s.K, bits);
      if (tensor == 1) spoil_tokens(bad.k, s.K, bits);
      if (tensor == 2) spoil_tokens(bad.v, s.V, bits);
      if (tensor == 3) spoil_tokens(bad.s, s.M, bits);
      if (tensor == 4) spoil_tokens(bad.dout, s.V, bits);
      if (tensor == 5) spoil_state(bad.hk0, s.K * s.M);
      if (tensor == 6) spoil_state(bad.z0, s.M);
      const AbcRun spoiled = must(run(gpu, c, bad, {}));
      CHECK(spoiled.damage.empty());
      for (const auto& [name, bytes] : clean.outputs) {
        INFO("tensor " << tensor << " bits " << bits << ", output " << name);
        const std::vector<unsigned char>& other = spoiled.outputs.at(name);
        // [B][T][H] of a token tensor, [B][H] of a state.
        const bool state =
            name[0] == 'h' || name[0] == 'z' || name.substr(0, 2) == "dh" || name == "dz0";
        const std::size_t rows = static_cast<std::size_t>(state ? 1 : s.T),
                          heads = static_cast<std::size_t>(s.H),
                          piece = bytes.size() / (static_cast<std::size_t>(s.B) * rows * heads);
        std::size_t differing = 0;
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          const std::size_t head = i / piece % heads, batch = i / (piece * heads * rows);
          if (!(batch == 1 && head == 0) && bytes[i] != other[i]) ++differing;
        }
        CHECK(differing == 0);
      }
    }
  }
}

TEST_CASE("ABC takes no memory beside the workspace that it asks for", "[gpu][abc_memory]") {
  SCANJIT_TEST_GPU(gpu);
  Engine& engine = *must(gpu.engine());
  AbcForwardProblem problem;
  problem.B = 4;
  problem.T = 16384;
  problem.H = 4;
  AbcBackwardProblem back;
  static_cast<AbcProblem&>(back) = problem;
  const auto plan = must(engine.plan(problem));
  const auto back_plan = must(engine.plan(back));
  CHECK(plan.workspace_bytes() == must(workspace_bound(problem)));
  CHECK(back_plan.workspace_bytes() == must(workspace_bound(back)));
  const std::int64_t rows = problem.B * problem.T * problem.H;
  std::vector<GuardedBuffer> buffers;
  const auto buffer = [&](std::int64_t bytes, unsigned char value) {
    buffers.push_back(must(GuardedBuffer::make(gpu, bytes, Guard::kBytes)));
    must(buffers.back().fill(value));
    return buffers.back().as<void>();
  };
  AbcForwardArgs args;
  args.q = buffer(rows * problem.K * 2, 0x3c);
  args.k = buffer(rows * problem.K * 2, 0x3c);
  args.v = buffer(rows * problem.V * 2, 0x3d);
  args.s = buffer(rows * problem.M * 2, 0x3e);
  args.o = buffer(rows * problem.V * 2, 0xff);
  AbcBackwardArgs back_args;
  static_cast<AbcInputs&>(back_args) = args;
  back_args.dout = args.v;
  back_args.dq = buffer(rows * problem.K * 2, 0xff);
  back_args.dk = buffer(rows * problem.K * 2, 0xff);
  back_args.dv = buffer(rows * problem.V * 2, 0xff);
  back_args.ds = buffer(rows * problem.M * 2, 0xff);
  void* workspace = buffer(back_plan.workspace_bytes(), 0xff);
  const auto launch = [&] {
    must(plan.launch(args, {workspace, plan.workspace_bytes()}, gpu.stream()));
    must(back_plan.launch(back_args, {workspace, back_plan.workspace_bytes()}, gpu.stream()));
    must(gpu.synchronize());
  };
  launch();  // the driver may make room for a kernel's local memory once
  const std::int64_t before = gpu.free_bytes();
  launch();
  CHECK(gpu.free_bytes() == before);
  for (const GuardedBuffer& one : buffers) must(one.damage());
  // All tokens are alike: every output is v, give or take the rounding of weights, and finite.
  const auto check_output = [&] {
    const auto o = must(buffers[4].download_as<std::uint16_t>());
    const float v = reference::half_to_float(DType::kBf16, 0x3d3d);
    CHECK(std::all_of(o.begin(), o.end(), [&](std::uint16_t bits) {
      return std::abs(reference::half_to_float(DType::kBf16, bits) - v) <= 0.02F * v;
    }));
  };
  check_output();
  for (std::size_t i = 5; i < 9; ++i) {
    const auto values = must(buffers[i].download_as<std::uint16_t>());
    CHECK(std::none_of(values.begin(), values.end(),
                       [](std::uint16_t bits) { return (bits & 0x7f80) == 0x7f80; }));
  }

  // With less of it longer segments serve.
  problem.numerics = "any";
  problem.workspace_limit = plan.workspace_bytes() * 3 / 4;
  const auto smaller = must(engine.plan(problem));
  CHECK(smaller.why().config.segment_chunks == 4);
  CHECK(smaller.workspace_bytes() <= problem.workspace_limit);
  must(buffers[4].fill(0xff));
  must(smaller.launch(args, {workspace, smaller.workspace_bytes()}, gpu.stream()));
  must(gpu.synchronize());
  check_output();
}

}  // namespace scanjit::test
