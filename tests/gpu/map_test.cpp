// The 69 shapes of the map at full size: against the GPU oracle, and every config's bits.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "gpu/case.hpp"
#include "gpu/gpu_oracle.hpp"
#include "gpu/run.hpp"
#include "gpu/shape_map.hpp"

namespace scanjit::test {
namespace {

/// Every `stride`-th shape of the map, for quick runs.
std::vector<MapShape> shapes_to_run() {
  const std::int64_t stride =
      std::max<std::int64_t>(1, number_from_environment("SCANJIT_GPU_MAP_STRIDE", 1));
  std::vector<MapShape> shapes;
  const std::vector<MapShape> all = map_shapes();
  for (std::size_t i = 0; i < all.size(); i += static_cast<std::size_t>(stride))
    shapes.push_back(all[i]);
  return shapes;
}

void print_shape(const MapShape& shape, const std::string& what) {
  std::printf("%-24s %s\n", to_string(shape).c_str(), what.c_str());
  std::fflush(stdout);
}

/// The relative difference of two figures that should be one.
double apart(double a, double b) {
  return std::abs(a - b) / std::max({std::abs(a), std::abs(b), 1e-30});
}

}  // namespace

TEST_CASE("The GPU oracle says what the CPU oracles say", "[gpu][gpu_oracle]") {
  SCANJIT_TEST_GPU(gpu);
  struct Small {
    DType dtype;
    std::int64_t H, HV, K, V, BT;
    bool g, gk, h0;
    GateBase base;
    StateLayout layout;
    reference::GateSet gates;
    std::vector<std::int64_t> lengths;  // none: dense, 2 x 300
  };
  const Small problems[] = {
      {DType::kBf16,
       2,
       4,
       128,
       128,
       64,
       true,
       false,
       true,
       GateBase::kTwo,
       StateLayout::kKV,
       reference::GateSet::kStrong,
       {}},
      {DType::kBf16,
       1,
       3,
       96,
       72,
       32,
       true,
       true,
       true,
       GateBase::kE,
       StateLayout::kVK,
       reference::GateSet::kSlow,
       {}},
      {DType::kF16,
       2,
       2,
       200,
       33,
       16,
       false,
       true,
       false,
       GateBase::kTwo,
       StateLayout::kKV,
       reference::GateSet::kStrong,
       {}},
      {DType::kF16,
       1,
       2,
       128,
       128,
       64,
       false,
       false,
       true,
       GateBase::kTwo,
       StateLayout::kVK,
       reference::GateSet::kNone,
       {65, 0, 1, 128, 700}},
      {DType::kBf16,
       2,
       2,
       65,
       17,
       64,
       true,
       false,
       true,
       GateBase::kE,
       StateLayout::kKV,
       reference::GateSet::kSlow,
       {63, 64, 65}},
  };
  for (const Small& small : problems) {
    GatedDeltaHProblem p;
    p.dtype = small.dtype;
    p.H = small.H;
    p.HV = small.HV;
    p.K = small.K;
    p.V = small.V;
    p.BT = small.BT;
    p.has_g = small.g;
    p.has_gk = small.gk;
    p.has_h0 = small.h0;
    p.gate_base = small.base;
    p.layout = small.layout;
    p.has_ht = true;
    p.packed = !small.lengths.empty();
    p.sequences = static_cast<std::int64_t>(small.lengths.size());
    p.B = p.packed ? 1 : 2;
    p.T = p.packed ? 0 : 300;
    SequencePlaces places;
    for (const std::int64_t length : small.lengths) {
      places.begin.push_back(p.T);
      places.length.push_back(length);
      places.first_chunk.push_back(places.first_chunk.empty()
                                       ? 0
                                       : places.first_chunk.back() +
                                             (places.length[places.length.size() - 2] + p.BT - 1) /
                                                 p.BT);
      p.T += length;
    }
    reference::GeneratorOptions generator;
    generator.gates = small.gates;
    generator.lengths = small.lengths;
    const reference::GatedDeltaHInputs inputs = must(reference::generate(p, generator));
    const Oracles oracles = must(oracles_of(inputs, 0));
    const DeviceTensors tensors = must(DeviceTensors::make(gpu, inputs, {}));
    must(launch_and_wait(gpu, must(plan_for(gpu, p, std::nullopt)), tensors.args()));
    const DeviceErrors device = must(oracle_errors(gpu, p, tensors.args(), places));
    const reference::GatedDeltaHOutputs got =
        must(reference::decode(p, must(tensors.h.download_as<std::uint16_t>()),
                               must(tensors.v_new.download_as<std::uint16_t>()),
                               must(tensors.ht.download_as<float>()), 0));
    const reference::OutputErrors to_pure = reference::compare(p, got, oracles.pure);
    const reference::OutputErrors to_rounding = reference::compare(p, got, oracles.rounding);
    const reference::OutputErrors own = reference::compare(p, oracles.rounding, oracles.pure);
    const auto check = [&](const char* name, const reference::TensorErrors& errors,
                           reference::TensorError reference::OutputErrors::*member) {
      INFO(name << " at K=" << p.K << " V=" << p.V << " BT=" << p.BT << ": GPU "
                << errors.pure.relative_l2 << " " << errors.rounding.relative_l2 << " "
                << errors.own.relative_l2 << ", CPU " << (to_pure.*member).relative_l2 << " "
                << (to_rounding.*member).relative_l2 << " " << (own.*member).relative_l2);
      CHECK(errors.pure.elements == (to_pure.*member).elements);
      CHECK(errors.pure.zeros == (to_pure.*member).zeros);
      CHECK(apart(errors.pure.relative_l2, (to_pure.*member).relative_l2) < 1e-6);
      CHECK(apart(errors.rounding.relative_l2, (to_rounding.*member).relative_l2) < 1e-6);
      CHECK(apart(errors.own.relative_l2, (own.*member).relative_l2) < 1e-6);
    };
    check("h", device.h, &reference::OutputErrors::h);
    check("v_new", device.v_new, &reference::OutputErrors::v_new);
    check("ht", device.ht, &reference::OutputErrors::ht);
  }
}

TEST_CASE("The map's shapes agree with the GPU oracle", "[gpu][map_oracle]") {
  SCANJIT_TEST_GPU(gpu);
  // Strong gates as g, slow ones as g and, where H = HV, as gk, and no gates at all.
  struct Set {
    reference::GateSet gates;
    MapGate gate;
  };
  const Set sets[] = {{reference::GateSet::kStrong, MapGate::kG},
                      {reference::GateSet::kSlow, MapGate::kG},
                      {reference::GateSet::kSlow, MapGate::kGk},
                      {reference::GateSet::kNone, MapGate::kNone}};
  REQUIRE(map_shapes().size() == 69);
  std::int64_t runs = 0, failed = 0, left_out = 0;
  double worst_pure = 0, worst_rounding = 0;
  for (const Set& set : sets) {
    std::int64_t bank_group = 0;
    std::optional<ChunkBank> bank;
    for (const MapShape& shape : shapes_to_run()) {
      const GatedDeltaHProblem p = map_problem(shape, set.gate);
      if (set.gate == MapGate::kGk && p.H != p.HV) continue;
      if (tensor_bytes(p) + (std::int64_t{1} << 30) > gpu.free_bytes()) {
        print_shape(shape, "left out: too little device memory");
        ++left_out;
        continue;
      }
      if (bank_group != p.HV / p.H) {
        bank_group = p.HV / p.H;
        bank = must(ChunkBank::make(gpu, bank_group, set.gate, set.gates, 5));
      }
      MapTensors tensors =
          must(MapTensors::make(gpu, p, *bank, static_cast<std::uint64_t>(++runs)));
      must(launch_and_wait(gpu, must(plan_for(gpu, p, std::nullopt)), tensors.args()));
      const DeviceErrors errors = must(oracle_errors(gpu, p, tensors.args()));
      std::string what = failures(errors, p, set.gates, p.T);
      const Status damage = tensors.damage();
      if (!damage.ok()) what += damage.message();
      for (const reference::TensorErrors* tensor : {&errors.h, &errors.v_new, &errors.ht}) {
        worst_pure = std::max(worst_pure, tensor->pure.relative_l2);
        worst_rounding = std::max(worst_rounding, tensor->rounding.relative_l2);
      }
      INFO(to_string(shape) << ", gates " << reference::to_string(set.gates) << ": " << what);
      CHECK(what.empty());
      if (!what.empty()) ++failed;
    }
  }
  char figures[256];
  std::snprintf(figures, sizeof figures,
                "{\"what\":\"map_oracle\",\"runs\":%lld,\"failed\":%lld,\"left_out\":%lld,\"worst_"
                "pure\":%.3g,\"worst_rounding\":%.3g}",
                static_cast<long long>(runs), static_cast<long long>(failed),
                static_cast<long long>(left_out), worst_pure, worst_rounding);
  report_counts(figures);
}

TEST_CASE("The map's limits catch a key head off by one", "[gpu][map_control]") {
  SCANJIT_TEST_GPU(gpu);
  const GatedDeltaHProblem p = map_problem({32, 4, 1024}, MapGate::kG);
  const ChunkBank bank =
      must(ChunkBank::make(gpu, p.HV / p.H, MapGate::kG, reference::GateSet::kStrong, 5));
  const MapTensors tensors = must(MapTensors::make(gpu, p, bank, 1));
  must(launch_and_wait(gpu, must(plan_for(gpu, p, std::nullopt)), tensors.args()));
  CHECK(failures(must(oracle_errors(gpu, p, tensors.args())), p, reference::GateSet::kStrong, p.T)
            .empty());
  // k moved by one head: head j now holds what head j+1 held.
  std::vector<std::uint16_t> k = must(tensors.k.download_as<std::uint16_t>());
  std::rotate(k.begin(), k.begin() + p.K, k.end());
  GuardedBuffer moved = must(GuardedBuffer::make(gpu, tensors.k.bytes(), Guard::kBytes));
  must(moved.upload(k));
  GatedDeltaHArgs args = tensors.args();
  args.k = moved.as();
  CHECK_FALSE(
      failures(must(oracle_errors(gpu, p, args)), p, reference::GateSet::kStrong, p.T).empty());
}

TEST_CASE("Every legal config has the same bits on every shape of the map", "[gpu][bits_map]") {
  SCANJIT_TEST_GPU(gpu);
  REQUIRE(map_shapes().size() == 69);
  std::int64_t runs = 0, shapes = 0, configs = 0, different = 0, left_out = 0;
  std::int64_t bank_group = 0;
  std::optional<ChunkBank> bank;
  for (const MapShape& shape : shapes_to_run()) {
    const GatedDeltaHProblem p = map_problem(shape, MapGate::kG);
    if (tensor_bytes(p) + (std::int64_t{1} << 30) > gpu.free_bytes()) {
      print_shape(shape, "left out: too little device memory");
      ++left_out;
      continue;
    }
    if (bank_group != p.HV / p.H) {
      bank_group = p.HV / p.H;
      bank = must(ChunkBank::make(gpu, bank_group, MapGate::kG, reference::GateSet::kSlow, 6));
    }
    MapTensors tensors =
        must(MapTensors::make(gpu, p, *bank, static_cast<std::uint64_t>(++shapes)));
    const MapTensors::Hashes poisoned = must(tensors.hashes());
    const auto hashes_of = [&](const GatedDeltaHProblem& problem,
                               const std::optional<Config>& config, const GatedDeltaHArgs& args) {
      must(tensors.poison_outputs());
      must(launch_and_wait(gpu, must(plan_for(gpu, problem, config)), args));
      ++runs;
      return must(tensors.hashes());
    };
    const MapTensors::Hashes wanted = hashes_of(p, std::nullopt, tensors.args());
    CHECK(wanted.h != poisoned.h);
    CHECK(wanted.v_new != poisoned.v_new);
    CHECK(wanted.ht != poisoned.ht);
    const auto check = [&](const std::string& what, const MapTensors::Hashes& hashes) {
      INFO(to_string(shape) << ": " << what << " differs in" << (hashes.h != wanted.h ? " h" : "")
                            << (hashes.v_new != wanted.v_new ? " v_new" : "")
                            << (hashes.ht != wanted.ht ? " ht" : ""));
      CHECK(hashes == wanted);
      if (!(hashes == wanted)) ++different;
    };
    check("the same config again", hashes_of(p, std::nullopt, tensors.args()));
    const std::vector<Config> legal = must(legal_configs(gpu, p));
    must(compile_all(gpu, p, legal));
    configs = static_cast<std::int64_t>(legal.size());
    for (const Config& config : legal)
      check(to_string(config), hashes_of(p, config, tensors.args()));

    // The same memory as packed sequences: chunks lie alike, since T is a multiple of BT or N is 1.
    GatedDeltaHProblem packed = p;
    packed.packed = true;
    packed.B = 1;
    packed.T = shape.N * shape.T;
    packed.sequences = shape.N;
    packed.chunk_capacity = shape.N * ((shape.T + p.BT - 1) / p.BT);
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = 0; n <= shape.N; ++n) lengths.push_back(n * shape.T);
    GuardedBuffer cu_seqlens = must(GuardedBuffer::make(gpu, (shape.N + 1) * 8, Guard::kBytes));
    must(cu_seqlens.upload(lengths));
    GatedDeltaHArgs args = tensors.args();
    args.cu_seqlens = cu_seqlens.as();
    args.host_cu_seqlens = lengths.data();
    check("packed", hashes_of(packed, std::nullopt, args));
    const Status damage = tensors.damage();
    INFO(damage.to_string());
    CHECK(damage.ok());
  }
  report_counts("{\"what\":\"bits_map\",\"shapes\":" + std::to_string(shapes) +
                ",\"configs\":" + std::to_string(configs) + ",\"runs\":" + std::to_string(runs) +
                ",\"different\":" + std::to_string(different) +
                ",\"left_out\":" + std::to_string(left_out) + "}");
  CHECK(configs >= 1);
}

}  // namespace scanjit::test
