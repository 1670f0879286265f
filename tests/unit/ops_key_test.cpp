#include <functional>
#include <set>

#include "ops/registry.hpp"
#include "ops_samples.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

using Change = std::function<void(GatedDeltaHProblem&)>;

tuning::ShapeKey key_of(const GatedDeltaHProblem& problem) {
  const auto op = made(problem);
  REQUIRE(op != nullptr);
  const tuning::KeyQuery query = op->key_query();
  tuning::ShapeKey key = query.under(
      {problem.HV, problem.V, tuning::default_width_starts(problem.HV, problem.V, 132)});
  REQUIRE(key.normalise().ok());
  return key;
}

std::vector<jit::KernelSource> sources_of(const GatedDeltaHProblem& problem) {
  std::vector<jit::KernelSource> sources;
  for (const ops::Stage& stage : made(problem)->stages({32, 64, 2, 4}, h200()))
    sources.push_back(stage.source);
  return sources;
}

// Packed, 100 sequences, pools, both gates.
GatedDeltaHProblem everything() {
  GatedDeltaHProblem p = packed_layer(100, 12800);
  p.has_gk = true;
  p.has_h0_indices = p.has_ht_indices = true;
  p.h0_slots = p.ht_slots = 200;
  return p;
}

}  // namespace

TEST_CASE("whatever changes the code changes the key, and the plan's words", "[ops]") {
  const std::vector<Change> changes = {
      [](auto& p) { p.dtype = DType::kF16; },
      [](auto& p) { p.K = 96; },
      [](auto& p) { p.V = 200; },
      [](auto& p) { p.BT = 16; },
      [](auto& p) { p.has_g = false; },
      [](auto& p) { p.has_gk = false; },
      [](auto& p) { p.gate_base = GateBase::kE; },
      [](auto& p) { p.layout = StateLayout::kVK; },
      [](auto& p) { p.has_h = false; },
      [](auto& p) { p.has_v_new = false; },
      [](auto& p) { p.has_h0 = p.has_h0_indices = false; },
      [](auto& p) { p.has_ht = p.has_ht_indices = false; },
      [](auto& p) { p.has_h0_indices = false; },
      [](auto& p) { p.has_ht_indices = false; },
      [](auto& p) { p.cu_seqlens_type = p.index_type = IndexType::kInt32; },
      [](auto& p) { p.aligned16 = false; },
      [](auto& p) { p.u_stride = 32 * 128 + 4; },
      [](auto& p) {
        p.packed = false;
        p.B = 100;
        p.sequences = 0;
        p.T = 128;
      },
  };
  const GatedDeltaHProblem base = everything();
  std::set<std::string> keys{key_of(base).text()};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    INFO("change " << i);
    GatedDeltaHProblem changed = base;
    changes[i](changed);
    CHECK(sources_of(changed) != sources_of(base));
    CHECK(ops::GatedDeltaH::words(changed) != ops::GatedDeltaH::words(base));
    keys.insert(key_of(changed).text());
  }
  // An unaligned stride and unaligned pointers are one key.
  CHECK(keys.size() == changes.size());
}

TEST_CASE("what only changes the speed is a class field", "[ops]") {
  const GatedDeltaHProblem base = everything();
  const std::vector<Change> changes = {
      [](auto& p) { p.H = 32; },        [](auto& p) { p.HV = 64; },
      [](auto& p) { p.sequences = 3; }, [](auto& p) { p.max_tokens = 8192; },
      [](auto& p) { p.T = 64; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    INFO("change " << i);
    GatedDeltaHProblem changed = base;
    changes[i](changed);
    CHECK(key_of(changed) != key_of(base));
    CHECK(sources_of(changed).back() == sources_of(base).back());
    CHECK(ops::GatedDeltaH::words(changed) != ops::GatedDeltaH::words(base));
  }
}

TEST_CASE("what changes neither code nor speed class leaves the key alone", "[ops]") {
  const GatedDeltaHProblem base = everything();
  const std::vector<Change> changes = {
      [](auto& p) { p.sequences = 101; },
      [](auto& p) { p.T = 12000; },
      [](auto& p) { p.k_stride = 16 * 128 + 8; },
      [](auto& p) { p.h0_slot_stride = 32 * 128 * 128 + 1; },
      [](auto& p) { p.ht_slots = 300; },
      [](auto& p) { p.chunk_capacity = 1000; },
      [](auto& p) { p.numerics = "any"; },
      [](auto& p) { p.has_chunk_offsets = true; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    INFO("change " << i);
    GatedDeltaHProblem changed = base;
    changes[i](changed);
    CHECK(key_of(changed) == key_of(base));
    CHECK(sources_of(changed).back() == sources_of(base).back());
    CHECK(ops::GatedDeltaH::words(changed) != ops::GatedDeltaH::words(base));
  }
  GatedDeltaHProblem no_gates = base;
  no_gates.has_g = no_gates.has_gk = false;
  GatedDeltaHProblem no_gates_e = no_gates;
  no_gates_e.gate_base = GateBase::kE;
  CHECK(key_of(no_gates) == key_of(no_gates_e));
  CHECK(sources_of(no_gates) == sources_of(no_gates_e));
}

TEST_CASE("the sequence count is in the key", "[ops]") {
  CHECK(key_of(layer(1, 16)) != key_of(layer(16, 1024)));
  CHECK(key_of(layer(16, 1024)).sequences.contains(16));
  CHECK(key_of(layer(1, 16)).chunks == tuning::Range{1, 1});
  CHECK(key_of(layer(16, 1024)).chunks == tuning::Range{9, 64});
  CHECK(key_of(packed_layer(16, 16 * 1024)).chunks == tuning::Range{9, 64});
}

TEST_CASE("a key gives back a problem with the same kernels", "[ops]") {
  for (GatedDeltaHProblem problem : {layer(4, 1024), packed_layer(70, 7000), everything()}) {
    for (const bool aligned : {true, false}) {
      problem.aligned16 = aligned;
      const auto op = made(problem);
      const tuning::ShapeKey key = key_of(problem);
      const auto back = ops::make_problem(key, {key.sequences.min, 500});
      REQUIRE(back.ok());
      CHECK((*back)->kernels({32, 64, 2, 4}, h200()) == op->kernels({32, 64, 2, 4}, h200()));
      CHECK((*back)->key_query().key == op->key_query().key);
    }
  }
  tuning::ShapeKey other = key_of(layer(4, 1024));
  other.kernel_revision += 1;
  CHECK(ops::make_problem(other, {4, 1024}).status().code() == ErrorCode::kUnsupported);
}

TEST_CASE("ops by name", "[ops]") {
  tuning::Shape shape;
  shape.op = "gated_delta_h";
  shape.N = 16;
  shape.T = 1024;
  shape.H = 16;
  shape.HV = 32;
  shape.gate = "g";
  shape.optional = {"h", "h0", "ht", "v_new"};
  const auto dense = ops::problem_of<ops::GatedDeltaH>(shape);
  REQUIRE(dense.ok());
  CHECK(dense->B == 16);
  CHECK(ops::GatedDeltaH::words(*dense) == ops::GatedDeltaH::words(layer(16, 1024)));
  shape.packed = true;
  const auto packed = ops::problem_of<ops::GatedDeltaH>(shape);
  REQUIRE(packed.ok());
  CHECK(packed->T == 16 * 1024);
  CHECK(packed->sequences == 16);
  shape.gate = "softplus";
  CHECK(ops::make_problem(shape).status().message().find("softplus") != std::string::npos);
  shape.gate = "g";
  shape.optional = {"o"};
  CHECK_FALSE(ops::make_problem(shape).ok());
  shape.op = "gated_delta";
  const Status unknown = ops::make_problem(shape).status();
  CHECK(unknown.code() == ErrorCode::kNotFound);
  CHECK(unknown.message().find("gated_delta_h") != std::string::npos);
}
