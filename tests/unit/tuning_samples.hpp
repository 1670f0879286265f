#pragma once
// Keys, entries and GPUs for the tests of src/tuning.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tuning/config_space.hpp"
#include "tuning/record.hpp"
#include "tuning/tuned_store.hpp"

namespace scanjit::tuning::samples {

inline bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

inline GpuFacts h200() { return {{"NVIDIA H200"}, 9, 0, 132, 62914560, 232448, 6144}; }
inline GpuFacts h100() { return {{"NVIDIA H100 80GB HBM3"}, 9, 0, 132, 52428800, 232448, 5120}; }
inline GpuFacts a100() { return {{"NVIDIA A100-SXM4-80GB"}, 8, 0, 108, 41943040, 166912, 5120}; }

inline const ConfigSpace& space() {
  static const ConfigSpace one{{16, 32, 64}, {32, 64, 128}, {2, 3}, {2, 4, 8}};
  return one;
}

/// HV 32, V 128: on an H200 the buckets start at 1, 2, 4, 8, 16.
inline KeyQuery query(std::int64_t sequences = 16, std::int64_t chunks = 16) {
  KeyQuery one;
  one.key.kernel = "gated_delta_h";
  one.key.space = space().hash();
  one.key.K = 128;
  one.key.V = 128;
  one.key.BT = 64;
  one.key.gate = "g";
  one.key.optional = {"h", "h0", "ht", "v_new"};
  one.key.H = 16;
  one.key.HV = 32;
  one.sequences = sequences;
  one.chunks = chunks;
  return one;
}

inline ShapeKey key(std::int64_t sequences = 16, std::int64_t chunks = 16) {
  return query(sequences, chunks).under({32, 128, default_width_starts(32, 128, 132)});
}

inline const Toolchain& toolchain() {
  static const Toolchain one{"13.0.88", "580.159.04", "0.1.0"};
  return one;
}

/// A good entry of any key.
inline Record record(const ShapeKey& of, const Config& config = {64, 64, 2, 4}) {
  Record one;
  one.key = of;
  one.measured_at = {{of.sequences.min, of.chunks.min * of.BT}};
  one.config = config;
  one.us = {41.5, 41.25, 41.875, 18};
  one.regret = 0.0078125;
  one.default_config = {32, 64, 2, 4};
  one.default_us = 52.75;
  one.alternates = {{{32, 64, 2, 4}, 52.75, 0.27}, {{16, 64, 2, 2}, 60.1, 0.45}};
  if (config == one.alternates[0].config) one.alternates.erase(one.alternates.begin());
  one.rejected = {{{64, 128, 3, 8},
                   RejectReason::kIllegal,
                   "needs 260000 bytes of shared memory, the block may have 232448"}};
  one.sm_clock_mhz = 1980;
  one.toolchain = toolchain();
  return one;
}
inline Record record() { return record(key()); }

/// Any good record: every field takes many values.
inline Record random_record(std::mt19937_64& random) {
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random() % (sizeof all / sizeof all[0])];
  };
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  const auto real = [&] { return std::uniform_real_distribution<double>(1e-3, 1e4)(random); };
  KeyQuery one = query(number(1, 100), number(1, 2000));
  ShapeKey& source = one.key;
  source.kernel = pick("gated_delta_h", "kda_forward", "x.y-z+1");
  source.kernel_revision = static_cast<int>(number(1, 1000));
  source.dtype = pick(DType::kBf16, DType::kF16, DType::kF32);
  source.K = number(1, 256);
  source.V = number(1, 512);
  source.BT = pick(16, 32, 64);
  source.gate = pick("none", "g", "gk", "g+gk");
  source.gate_base = pick(GateBase::kTwo, GateBase::kE);
  source.layout = pick(StateLayout::kKV, StateLayout::kVK);
  source.optional.clear();
  for (const char* name : {"h", "h0", "ht", "v_new"}) {
    if (random() % 2 == 0) source.optional.emplace_back(name);
  }
  source.packed = random() % 2 == 0;
  source.index = pick("none", "i32", "i64");
  source.pool = pick("none", "h0", "ht", "h0+ht");
  source.alignment = pick(16, 2);
  source.numerics = pick("default", "split64");
  source.HV = number(1, 96);
  source.H = number(1, 96);
  Record made =
      record(one.under({source.HV, source.V, default_width_starts(source.HV, source.V, 132)}));
  const double low = real();
  made.us = {low + 1, low, low + real(), static_cast<int>(number(1, 1000))};
  made.regret = real();
  if (random() % 2 == 0) made.config.segment_chunks = static_cast<int>(number(1, 65536));
  made.default_us = real();
  for (Alternate& alternate : made.alternates) {
    alternate.us = real();
    alternate.regret = real();
  }
  made.rejected[0].reason = static_cast<RejectReason>(number(1, 6));
  made.rejected[0].detail = pick("", "quote \" and \\ and \n", "\u00fc\u4e16");
  made.l2 = pick("warm", "cold");
  made.sm_clock_mhz = static_cast<int>(number(0, 3000));
  made.toolchain = {pick("", "13.0.88"), pick("", "580.1"), "0.1.0"};
  made.partial = random() % 2 == 0;
  return made;
}

}  // namespace scanjit::tuning::samples
