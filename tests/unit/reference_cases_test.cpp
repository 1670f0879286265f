// The random cases: valid, repeatable, bounded, and between them every option both ways.
#include "reference/cases.hpp"

#include <map>
#include <set>

#include "reference/gated_delta_h.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::reference;

TEST_CASE("random cases choose every option, on and off", "[reference]") {
  std::map<std::string, std::set<std::int64_t>> seen;
  int edge_lengths[5] = {};
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const GatedDeltaHCase c = random_case(seed);
    const GatedDeltaHProblem& p = c.problem;
    const auto note = [&](const char* name, std::int64_t value) { seen[name].insert(value); };
    note("dtype", static_cast<int>(p.dtype));
    note("base", static_cast<int>(p.gate_base));
    note("layout", static_cast<int>(p.layout));
    note("index_type", static_cast<int>(p.index_type));
    note("cu_seqlens_type", static_cast<int>(p.cu_seqlens_type));
    note("packed", p.packed);
    note("g and gk", p.has_g + 2 * p.has_gk);
    note("h0", p.has_h0);
    note("h", p.has_h);
    note("v_new", p.has_v_new);
    note("ht", p.has_ht);
    note("h0_indices", p.has_h0_indices);
    note("ht_indices", p.has_ht_indices);
    note("chunk_offsets", p.has_chunk_offsets);
    note("chunk_capacity", p.chunk_capacity != 0);
    note("max_tokens", p.max_tokens != 0);
    note("aligned16", p.aligned16);
    note("misaligned", c.misalign_elements != 0);
    note("host lengths", c.host_cu_seqlens);
    note("ht in place", c.ht_in_place);
    note("v_new in place", c.v_new_in_place);
    note("stride", p.w_stride != 0);
    note("gap between states", p.h0_slot_stride != 0);
    note("N 0", (p.packed ? p.sequences : p.B) == 0);
    note("GVA", p.HV > p.H);
    note("BT", p.BT);
    note("gates", static_cast<int>(c.generator.gates));
    for (const std::int64_t length : c.generator.lengths) {
      const std::int64_t edges[] = {0, 1, p.BT - 1, p.BT, p.BT + 1};
      for (int i = 0; i < 5; ++i) edge_lengths[i] += length == edges[i] ? 1 : 0;
    }
    REQUIRE(p.B * p.T <= 4096);
    REQUIRE(sizes_of(p).ok());
  }
  for (const auto& [name, values] : seen) {
    INFO(name);
    CHECK(values.size() == (name == "BT" || name == "gates" ? 3 : name == "g and gk" ? 4 : 2));
  }
  for (const int count : edge_lengths) CHECK(count > 20);
}

TEST_CASE("a random case is its seed, and its line tells it apart", "[reference]") {
  std::set<std::string> lines;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::string line = to_string(random_case(seed));
    CHECK(line == to_string(random_case(seed)));
    CHECK(line.find('\n') == std::string::npos);
    lines.insert(line);
  }
  CHECK(lines.size() == 200);
}

TEST_CASE("random cases can be generated and scanned", "[reference]") {
  for (std::uint64_t seed = 5000; seed < 5060; ++seed) {
    const GatedDeltaHCase c = random_case(seed, 300);
    INFO(to_string(c));
    const Result<GatedDeltaHInputs> inputs = generate(c.problem, c.generator);
    REQUIRE(inputs.ok());
    const Result<GatedDeltaHOutputs> outputs = gated_delta_h(*inputs);
    REQUIRE(outputs.ok());
    CHECK((outputs->status & 1) == 0);  // lengths and capacity are good
    if (c.ht_in_place) CHECK(inputs->h0_indices == inputs->ht_indices);
  }
}
