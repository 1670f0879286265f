#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "kda_samples.hpp"
#include "ops/registry.hpp"
#include "reference/half.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace params = scanjit::kda_forward;

namespace {

// Names of the kernels of a config, in order.
std::vector<std::string> kernels_of(const KdaForwardProblem& problem, const Config& config) {
  std::vector<std::string> names;
  for (const ops::Stage& stage : made(problem)->stages(config, h200())) {
    std::string name = stage.source.entry;
    for (const jit::Constant& constant : stage.source.constants) {
      if (constant.name == "PRESCAN" && constant.value == 1) name = "prescan";
    }
    names.push_back(name);
  }
  return names;
}

template <class Params>
Params filled(const ops::KdaForward& op, const ops::Stage& stage, const KdaForwardArgs& args,
              Workspace workspace) {
  ops::StageParams bytes;
  op.fill_params(stage.note, ops::KdaForward::addresses(args, workspace), bytes);
  Params params;
  std::memcpy(&params, bytes.bytes.data(), sizeof(params));
  return params;
}

std::int64_t value_of(const jit::KernelSource& source, const std::string& name) {
  for (const jit::Constant& constant : source.constants) {
    if (constant.name == name) return constant.value;
  }
  FAIL("no constant " << name);
  return 0;
}

constexpr Config kSerialConfig{64, 128, 2, 4};
constexpr Config split_config(int L) { return {64, 128, 2, 4, L}; }

std::int64_t offset(const void* pointer, Workspace workspace) {
  return static_cast<const char*>(pointer) - static_cast<const char*>(workspace.data);
}

}  // namespace

TEST_CASE("every field of a KDA problem is in its words", "[ops][kda]") {
  KdaForwardProblem base = packed_kda(3, 1000);
  std::vector<KdaForwardProblem> all(1, base);
  const auto add = [&](auto change) {
    KdaForwardProblem p = base;
    change(p);
    all.push_back(p);
  };
  add([](auto& p) { p.B = 2; });
  add([](auto& p) { p.T = 1001; });
  add([](auto& p) { p.H = 16; });
  add([](auto& p) { p.HV = 64; });
  add([](auto& p) { p.K = 64; });
  add([](auto& p) { p.V = 64; });
  add([](auto& p) { p.packed = false; });
  add([](auto& p) { p.sequences = 4; });
  add([](auto& p) { p.cu_seqlens_type = IndexType::kInt32; });
  add([](auto& p) { p.gate = KdaGate::kSoftplus; });
  add([](auto& p) { p.lower_bound = -4; });
  add([](auto& p) { p.has_A_log = false; });
  add([](auto& p) { p.has_dt_bias = false; });
  add([](auto& p) { p.g_dtype = DType::kF32; });
  add([](auto& p) { p.beta_dtype = DType::kF32; });
  add([](auto& p) { p.normalize_qk = false; });
  add([](auto& p) { p.beta_sigmoid = false; });
  add([](auto& p) { p.scale = 2; });
  add([](auto& p) { p.has_h0 = false; });
  add([](auto& p) { p.has_ht = false; });
  add([](auto& p) { p.state_dtype = DType::kBf16; });
  add([](auto& p) { p.layout = StateLayout::kKV; });
  add([](auto& p) { p.checkpoints = 1; });
  add([](auto& p) { p.has_h0_indices = true; });
  add([](auto& p) { p.has_ht_indices = true; });
  add([](auto& p) { p.index_type = IndexType::kInt32; });
  add([](auto& p) { p.h0_slots = 5; });
  add([](auto& p) { p.ht_slots = 5; });
  for (const auto stride :
       {&KdaForwardProblem::q_stride, &KdaForwardProblem::k_stride, &KdaForwardProblem::v_stride,
        &KdaForwardProblem::g_stride, &KdaForwardProblem::beta_stride, &KdaForwardProblem::o_stride,
        &KdaForwardProblem::h0_slot_stride, &KdaForwardProblem::ht_slot_stride}) {
    add([&](auto& p) { p.*stride = 1 << 20; });
  }
  add([](auto& p) { p.max_tokens = 500; });
  add([](auto& p) { p.aligned16 = false; });
  for (const char* numerics : {"any", "split1", "split64", "other"})
    add([&](auto& p) { p.numerics = numerics; });
  add([](auto& p) { p.workspace_limit = 1 << 30; });
  std::set<std::array<std::int64_t, ops::ProblemWords::kCount>> seen;
  for (const KdaForwardProblem& problem : all)
    CHECK(seen.insert(ops::KdaForward::words(problem).words).second);
  CHECK(ops::KdaForward::words(base).words[0] % 256 == 2);
}

TEST_CASE("a KDA key says what changes code and speed, and makes its problem again", "[ops][kda]") {
  KdaForwardProblem problem = packed_kda(5, 5000, 64);
  problem.H = 32;
  problem.beta_dtype = problem.g_dtype = DType::kF32;
  problem.has_h0_indices = true;
  problem.h0_slots = 9;
  problem.numerics = "any";
  problem.max_tokens = 2000;
  const tuning::KeyQuery query = made(problem)->key_query();
  CHECK(query.key.kernel == "kda_forward");
  CHECK(query.key.gate == "bounded");
  CHECK(query.key.optional == std::vector<std::string>{"A_log", "beta_f32", "beta_sigmoid",
                                                       "dt_bias", "g_f32", "h0", "ht",
                                                       "normalize_qk"});
  CHECK(query.key.pool == "h0");
  CHECK(query.key.index == "i64");
  CHECK(query.key.numerics == "any");
  CHECK(query.sequences == 5);
  CHECK(query.chunks == 32);
  tuning::ShapeKey key = query.under({64, 128, {1, 2, 4, 8}});
  const tuning::ShapeKey as_made = key;
  REQUIRE(key.normalise().ok());
  CHECK(key == as_made);  // words sorted, all of them words
  const auto again = ops::make_problem(key, {5, 1000});
  REQUIRE(again.ok());
  CHECK((*again)->key_query().key == query.key);
  CHECK((*again)->kernels({64, 128, 2, 4, 16}, h200()) ==
        made(problem)->kernels({64, 128, 2, 4, 16}, h200()));
  key.kernel_revision += 1;
  CHECK(ops::make_problem(key, {5, 1000}).status().code() == ErrorCode::kUnsupported);
}

TEST_CASE("a shape of KDA names its problem", "[ops][kda]") {
  tuning::Shape shape;
  shape.op = "kda_forward";
  shape.N = 3;
  shape.T = 700;
  shape.H = shape.HV = 8;
  shape.gate = "softplus";
  shape.optional = {"A_log", "beta_sigmoid", "dt_bias", "ht", "normalize_qk"};
  shape.packed = true;
  shape.numerics = "split16";
  const auto problem = ops::problem_of<ops::KdaForward>(shape);
  REQUIRE(problem.ok());
  CHECK(problem->sequences == 3);
  CHECK(problem->T == 2100);
  CHECK(problem->gate == KdaGate::kSoftplus);
  CHECK(problem->numerics == "split16");
  CHECK((problem->has_A_log && problem->has_dt_bias && problem->has_ht && !problem->has_h0));
  const auto refused = [&](auto change) {
    tuning::Shape other = shape;
    change(other);
    return ops::make_problem(other).status();
  };
  CHECK(refused([](auto& s) { s.gate = "g"; }).message().find("bounded") != std::string::npos);
  CHECK(refused([](auto& s) { s.optional = {"v_new"}; }).message().find("v_new") !=
        std::string::npos);
  CHECK(refused([](auto& s) { s.dtype = DType::kF16; }).code() == ErrorCode::kUnsupported);
  CHECK(refused([](auto& s) { s.BT = 32; }).code() == ErrorCode::kUnsupported);
  CHECK(ops::problem_of<ops::GatedDeltaH>(shape).status().message().find("kda_forward") !=
        std::string::npos);
}

TEST_CASE("a class has its own segments, and any config of it is legal or says why not",
          "[ops][kda]") {
  KdaForwardProblem problem = kda_layer(1, 8192, 8);
  const auto legal = [&](const Config& config) { return made(problem)->legal(config, h200()); };
  CHECK(legal(kSerialConfig).ok());
  CHECK_FALSE(legal(split_config(16)).ok());
  problem.numerics = "split43";
  CHECK(legal(split_config(43)).ok());
  CHECK_FALSE(legal(kSerialConfig).ok());
  CHECK_FALSE(legal(split_config(16)).ok());
  problem.numerics = "any";
  CHECK(legal(kSerialConfig).ok());
  CHECK(legal(split_config(16)).ok());
  for (const Config& config : {Config{64, 128, 2, 8}, Config{64, 64, 2, 4}, Config{256, 128, 2, 16},
                               Config{128, 128, 4, 8}, Config{64, 128, 2, 4, 17}}) {
    const Status status = legal(config);
    CHECK(status.code() == ErrorCode::kUnsupported);
    CHECK(status.message().find(to_string(config)) != std::string::npos);
  }
  CHECK(made(problem)->same_bits(kSerialConfig, {128, 128, 2, 8}));
  CHECK_FALSE(made(problem)->same_bits(kSerialConfig, split_config(16)));
}

TEST_CASE("the heuristic is legal and knows when to split", "[ops][kda]") {
  struct Row {
    std::int64_t N, T, HV;
    int segment_chunks;
  };
  // The best that was measured on an H200.
  for (const Row& row :
       {Row{1, 65536, 1, 32}, Row{1, 65536, 8, 128}, Row{1, 8192, 8, 16}, Row{1, 8192, 64, 0},
        Row{16, 1024, 32, 0}, Row{32, 128, 32, 0}, Row{1, 65536, 64, 0}}) {
    INFO(row.N << " x " << row.T << " x " << row.HV);
    KdaForwardProblem problem = kda_layer(row.N, row.T, row.HV);
    CHECK(made(problem)->heuristic(h200())->segment_chunks == 0);
    problem.numerics = "any";
    const auto config = made(problem)->heuristic(h200());
    REQUIRE(config.ok());
    CHECK(made(problem)->legal(*config, h200()).ok());
    CHECK(config->segment_chunks == row.segment_chunks);
  }
  // Where blocks of 128 columns fill the chip in fewer rounds.
  CHECK(made(kda_layer(1, 8192, 64))->heuristic(h200())->bv == 64);
  CHECK(made(kda_layer(1, 8192, 96))->heuristic(h200())->bv == 128);
  CHECK(made(kda_layer(1, 8192, 8))->heuristic(h200())->bv == 64);
  for (const std::int64_t K : {64, 256}) {
    for (const std::int64_t V : {64, 256}) {
      for (const char* numerics : {"default", "any", "split7"}) {
        KdaForwardProblem problem = kda_layer(2, 3000, 4);
        problem.K = K;
        problem.V = V;
        problem.numerics = numerics;
        const auto config = made(problem)->heuristic(h200());
        INFO(K << " " << V << " " << numerics << ": " << config.status().message());
        REQUIRE(config.ok());
        CHECK_FALSE(made(problem)->stages(*config, h200()).empty());
      }
    }
  }
}

TEST_CASE("a config's stages, serial and split, dense and packed", "[ops][kda]") {
  using Names = std::vector<std::string>;
  KdaForwardProblem dense = kda_layer(2, 1000, 4), packed = packed_kda(3, 1000, 4);
  CHECK(kernels_of(dense, kSerialConfig) == Names{"kda_prepare", "kda_scan"});
  CHECK(kernels_of(packed, kSerialConfig) == Names{"kda_offsets", "kda_prepare", "kda_scan"});
  dense.numerics = packed.numerics = "any";
  CHECK(kernels_of(dense, split_config(4)) ==
        Names{"kda_prepare", "prescan", "kda_merge", "kda_scan"});
  CHECK(kernels_of(packed, split_config(4)) ==
        Names{"kda_offsets", "kda_prepare", "prescan", "kda_merge", "kda_scan"});
  // One segment each: no segment is in front of another.
  CHECK(kernels_of(dense, split_config(16)) == Names{"kda_prepare", "kda_merge", "kda_scan"});
  CHECK(kernels_of(kda_layer(0, 1000), kSerialConfig).empty());
  CHECK(kernels_of(kda_layer(2, 0), kSerialConfig) == Names{"kda_scan"});

  // 16 chunks a sequence, 4 heads.
  auto stages = made(dense)->stages(split_config(4), h200());
  CHECK(stages[0].grid == 2 * 16 * 4);
  CHECK(stages[1].grid == 2 * 4 * 4 * (256 / value_of(stages[1].source, "BV")));
  CHECK(stages[2].grid == 2 * 4 * (128 / 4));
  CHECK(stages[3].grid == 2 * 4 * 4 * 2);
  CHECK(value_of(stages[3].source, "SPLIT") == 1);
  // At most floor((1000 + 3*63)/64) = 18 chunks, and 3 + 18/4 segments.
  stages = made(packed)->stages(split_config(4), h200());
  CHECK(stages[1].grid == 18 * 4);
  CHECK(stages[4].grid == (3 + 4) * 4 * 2);
  // Everything that a stage may be is in a pack.
  const auto all = made(packed)->kernels(split_config(4), h200());
  for (const ops::Stage& stage : stages)
    CHECK(std::find(all.begin(), all.end(), stage.source) != all.end());
}

TEST_CASE("the workspace holds records, states and summaries, and a limit makes slices",
          "[ops][kda]") {
  const std::int64_t record = params::record_bytes(128, 128), state = 128 * 128 * 4;
  KdaForwardProblem problem = kda_layer(2, 1000, 4);
  const auto bytes = [&](const Config& config) {
    return made(problem)->workspace_bytes(config, h200());
  };
  CHECK(bytes(kSerialConfig) == 2 * 16 * 4 * record);
  CHECK(*workspace_bound(problem) == bytes(kSerialConfig));
  problem.numerics = "any";
  CHECK(bytes(split_config(4)) == 2 * 4 * (16 * record + 4 * state + 4 * 2 * state));
  // Of the most segments.
  CHECK(*workspace_bound(problem) == bytes(split_config(4)));

  // Three chunks of each sequence and the states between slices.
  problem.workspace_limit = 2 * 4 * (3 * record + state) + 300;
  CHECK(*workspace_bound(problem) == problem.workspace_limit - 300);
  CHECK_FALSE(made(problem)->legal(split_config(4), h200()).ok());
  const auto op = made(problem);
  const auto stages = op->stages(kSerialConfig, h200());
  REQUIRE(stages.size() == 2 * 6);
  const KdaForwardArgs args = far_apart(problem);
  const Workspace workspace = kda_workspace(op->workspace_bytes(kSerialConfig, h200()));
  for (std::size_t slice = 0; slice < 6; ++slice) {
    const auto prepare = filled<params::PrepareParams>(*op, stages[2 * slice], args, workspace);
    const auto scan = filled<params::ScanParams>(*op, stages[2 * slice + 1], args, workspace);
    CHECK(stages[2 * slice].grid == 2 * 3 * 4);
    CHECK(stages[2 * slice + 1].grid == 2 * 4 * 2);
    for (const params::SequenceParams& sequences : {prepare.sequences, scan.sequences}) {
      CHECK(sequences.slice_chunks == 3);
      CHECK(sequences.slice_begin == static_cast<std::int64_t>(3 * slice));
    }
    CHECK(prepare.records == scan.records);
    CHECK(offset(scan.states, workspace) == 2 * 3 * 4 * record);
  }
  // The caller's limit is another way to say it.
  problem.workspace_limit = 0;
  CHECK(*workspace_bound(problem, 2 * 4 * (3 * record + state) + 300) ==
        2 * 4 * (3 * record + state));
  CHECK(workspace_bound(problem, 1000).status().code() == ErrorCode::kUnsupported);
  CHECK(workspace_bound(problem, 0).status().code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("KDA's parameters are what the kernels read", "[ops][kda]") {
  KdaForwardProblem problem = packed_kda(3, 1000, 4);
  problem.numerics = "split4";
  problem.H = 2;
  problem.checkpoints = 5;
  problem.q_stride = 512;
  problem.beta_stride = 7;
  problem.o_stride = 1024;
  problem.has_h0_indices = true;
  problem.h0_slots = 11;
  problem.lower_bound = -3;
  const auto op = made(problem);
  const KdaForwardArgs args = far_apart(problem);
  const Config config = split_config(4);
  const Workspace workspace = kda_workspace(op->workspace_bytes(config, h200()));
  const auto stages = op->stages(config, h200());
  REQUIRE(stages.size() == 5);
  const auto offsets = filled<params::OffsetsParams>(*op, stages[0], args, workspace);
  CHECK(offsets.cu_seqlens == args.cu_seqlens);
  CHECK(offset(offsets.chunk_offsets, workspace) == 0);
  CHECK(offset(offsets.segment_offsets, workspace) == 256);
  CHECK(offsets.N == 3);
  CHECK(offsets.T == 1000);
  CHECK(offsets.segment_chunks == 4);
  const auto prepare = filled<params::PrepareParams>(*op, stages[1], args, workspace);
  CHECK(prepare.q == args.q);
  CHECK(prepare.k == args.k);
  CHECK(prepare.v == args.v);
  CHECK(prepare.g == args.g);
  CHECK(prepare.beta == args.beta);
  CHECK(prepare.A_log == args.A_log);
  CHECK(prepare.dt_bias == args.dt_bias);
  CHECK(offset(prepare.records, workspace) == 512);
  CHECK(prepare.q_stride == 512);
  CHECK(prepare.k_stride == 256);
  CHECK(prepare.beta_stride == 7);
  CHECK(prepare.scale == 1 / std::sqrt(128.F));
  CHECK(prepare.lower_bound == -3);
  CHECK(prepare.H == 2);
  CHECK(prepare.HV == 4);
  CHECK(prepare.sequences.chunk_offsets == offsets.chunk_offsets);
  CHECK(prepare.sequences.slice_chunks == 0);
  CHECK(prepare.sequences.chunk_capacity == 18);
  CHECK(prepare.sequences.segment_capacity == 7);
  const auto prescan = filled<params::ScanParams>(*op, stages[2], args, workspace);
  const auto merge = filled<params::MergeParams>(*op, stages[3], args, workspace);
  const auto scan = filled<params::ScanParams>(*op, stages[4], args, workspace);
  CHECK(prescan.summaries == merge.summaries);
  CHECK(merge.states == scan.states);
  const std::int64_t record = params::record_bytes(128, 128), state = 128 * 128 * 4;
  CHECK(offset(scan.records, workspace) == 512);
  CHECK(offset(scan.states, workspace) == 512 + 18 * 4 * record);
  CHECK(offset(merge.summaries, workspace) == 512 + 18 * 4 * record + 7 * 4 * state);
  CHECK(workspace.bytes == 512 + 18 * 4 * record + 3 * 7 * 4 * state);
  CHECK(merge.h0 == args.h0);
  CHECK(merge.h0_indices == args.h0_indices);
  CHECK(merge.h0_slots == 11);
  CHECK(scan.o == args.o);
  CHECK(scan.o_stride == 1024);
  CHECK(scan.ht == args.ht);
  CHECK(scan.ht_slots == 3);
  CHECK(scan.h0_slots == 11);
  CHECK(scan.checkpoint_offsets == args.checkpoint_offsets);
  CHECK(scan.checkpoints == args.checkpoints);
  CHECK(scan.Q == 5);
  CHECK(scan.sequences.segment_chunks == 4);
  // A bad index is to be reported by the scan, which does not itself read h0 then.
  CHECK(value_of(stages[4].source, "HAS_H0_INDICES") == 1);
  CHECK(value_of(stages[2].source, "HAS_H0_INDICES") == 0);
}

TEST_CASE("KDA is timed on slow gates, in as much memory as there is", "[ops][kda]") {
  KdaForwardProblem problem = packed_kda(3, 30000, 2);
  problem.checkpoints = 1;
  problem.numerics = "any";
  const auto op = made(problem);
  const auto bytes_of = [](const ops::OpProblem& of) {
    std::int64_t bytes = of.workspace_bound();
    for (const ops::Tensor& tensor : of.tensors()) bytes += tensor.bytes;
    return bytes;
  };
  const auto whole = op->for_timing(std::int64_t{1} << 40);
  REQUIRE(whole != nullptr);
  CHECK(whole->tokens_per_sequence() == 10000);
  const auto part = op->for_timing(64 << 20);
  REQUIRE(part != nullptr);
  CHECK(bytes_of(*part) <= 64 << 20);
  CHECK(part->tokens_per_sequence() % 64 == 0);
  CHECK(part->tokens_per_sequence() > 1000);
  CHECK(part->key_query().sequences == 3);
  CHECK(op->for_timing(1 << 20) == nullptr);

  for (const KdaGate gate :
       {KdaGate::kBounded, KdaGate::kSoftplus, KdaGate::kPrecomputed, KdaGate::kScalar}) {
    KdaForwardProblem small = kda_layer(1, 128, 2);
    small.gate = gate;
    small.has_A_log = small.has_dt_bias = gate == KdaGate::kBounded || gate == KdaGate::kSoftplus;
    if (gate == KdaGate::kScalar) small.g_dtype = DType::kF32;
    const auto timed = made(small)->for_timing(1 << 30);
    std::map<std::size_t, std::vector<unsigned char>> patterns;
    for (const ops::Tensor& tensor : timed->tensors()) {
      if (tensor.output) continue;
      auto& pattern = patterns[tensor.number];
      pattern.resize(static_cast<std::size_t>(tensor.pattern_bytes));
      timed->fill_pattern(tensor.number, pattern.data());
    }
    const auto& g = patterns.at(ops::KdaForward::kG);
    const std::size_t size = small.g_dtype == DType::kF32 ? 4 : 2;
    REQUIRE(g.size() == 128 * 2 * (gate == KdaGate::kScalar ? 1 : 128) * size);
    for (std::size_t i = 0; i < g.size() / size; ++i) {
      double raw = 0;
      if (size == 4) {
        float value = 0;
        std::memcpy(&value, g.data() + 4 * i, 4);
        raw = value;
      } else {
        std::uint16_t value = 0;
        std::memcpy(&value, g.data() + 2 * i, 2);
        raw = reference::bf16_to_float(value);
      }
      const double decay = gate == KdaGate::kBounded    ? -5 / (1 + std::exp(-raw))
                           : gate == KdaGate::kSoftplus ? -std::log1p(std::exp(raw))
                                                        : raw;
      CHECK(decay < 0);
      CHECK(decay > -0x1p-15);
    }
    // Unit keys.
    double squares = 0;
    for (std::size_t i = 0; i < 128; ++i) {
      std::uint16_t value = 0;
      std::memcpy(&value, patterns.at(ops::KdaForward::kK).data() + 2 * i, 2);
      squares += std::pow(reference::bf16_to_float(value), 2);
    }
    CHECK(squares == Approx(1).epsilon(0.02));
  }
}
