#include "ops/gated_delta_h.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "core/guard.hpp"
#include "gated_delta_h/gated_delta_h_params.h"
#include "ops/constants.hpp"
#include "ops/problem_checks.hpp"

namespace scanjit::ops {
namespace {

namespace params = scanjit::gated_delta_h;

enum StageKind : int { kOffsetsStage, kScanStage };
constexpr std::int64_t kWorkspaceAlignment = 256;

int next_power_of_two(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

params::ScanShape scan_shape(const GatedDeltaHProblem& p, const Config& config) {
  return {static_cast<int>(p.K),
          static_cast<int>(p.BT),
          config.bv,
          config.bk,
          config.stages,
          config.warps,
          p.has_g,
          p.has_gk,
          p.has_h,
          p.has_v_new};
}

// Registers that a thread cannot do with fewer of, without spilling: the state, the sums of v', the
// operands of both products, addresses.
int state_registers(const params::ScanShape& s, int split) {
  return params::slab_count(s) * (s.BK / 8) / split * 4;
}
int estimated_registers(const params::ScanShape& s, int split, bool aligned) {
  const int addresses = 64 + (aligned ? 0 : 24) + (s.has_gk ? 8 : 0);
  return state_registers(s, split) + s.BT / 8 / split * 4 + s.BT / 16 * 4 + s.BT / 8 / split * 2 +
         addresses;
}

// The same of the warpgroup form, and clocks of its chain of one chunk.
constexpr int kWarpgroupRegisters = 168;  // that a thread starts with
constexpr double kWarpgroupChainClocks = 1700;

// A coordinate of a tensor map is a 32-bit number.
constexpr std::int64_t kMaxCoordinate = std::numeric_limits<int>::max() - 256;
// And a stride less than 2^40 bytes: elements.
constexpr std::int64_t kMaxMapStride = std::int64_t{1} << 39;

Status illegal(const Config& config, const std::string& why) {
  return unsupported("config " + to_string(config) + ": " + why);
}

}  // namespace

Result<std::shared_ptr<const GatedDeltaH>> GatedDeltaH::make(const GatedDeltaHProblem& problem) {
  std::shared_ptr<GatedDeltaH> made(new GatedDeltaH(problem));
  SCANJIT_TRY(made->check());
  return std::shared_ptr<const GatedDeltaH>(std::move(made));
}

ProblemWords GatedDeltaH::words(const GatedDeltaHProblem& p) noexcept {
  std::int64_t bits = kOp.number;
  int shift = 8;
  const auto add = [&](int value, int width) {
    bits |= static_cast<std::int64_t>(value & ((1 << width) - 1)) << shift;
    shift += width;
  };
  const auto add_flag = [&](bool value) { add(value ? 1 : 0, 1); };
  add(static_cast<int>(p.dtype), 8);
  add(static_cast<int>(p.cu_seqlens_type), 4);
  add(static_cast<int>(p.gate_base), 4);
  add(static_cast<int>(p.layout), 4);
  add(static_cast<int>(p.index_type), 4);
  add(p.numerics == "default" ? 0 : p.numerics == "any" ? 1 : 2, 2);
  for (const bool flag : {p.packed, p.has_chunk_offsets, p.has_g, p.has_gk, p.has_h0, p.has_h,
                          p.has_v_new, p.has_ht, p.has_h0_indices, p.has_ht_indices, p.aligned16}) {
    add_flag(flag);
  }
  return {{bits,
           p.B,
           p.T,
           p.H,
           p.HV,
           p.K,
           p.V,
           p.BT,
           p.sequences,
           p.h0_slots,
           p.ht_slots,
           p.k_stride,
           p.w_stride,
           p.u_stride,
           p.g_stride,
           p.gk_stride,
           p.v_new_stride,
           p.h0_slot_stride,
           p.ht_slot_stride,
           p.chunk_capacity,
           p.max_tokens}};
}

tuning::KeyQuery GatedDeltaH::key_query() const {
  const GatedDeltaHProblem& p = problem_;
  tuning::KeyQuery query;
  tuning::ShapeKey& key = query.key;
  key.kernel = kOp.name;
  key.kernel_revision = kRevision;
  key.space = space().hash();
  key.dtype = p.dtype;
  key.K = p.K;
  key.V = p.V;
  key.BT = p.BT;
  key.gate = p.has_g ? (p.has_gk ? "g+gk" : "g") : (p.has_gk ? "gk" : "none");
  key.gate_base = p.has_g || p.has_gk ? p.gate_base : GateBase::kTwo;
  key.layout = p.layout;
  if (p.has_h) key.optional.emplace_back("h");
  if (p.has_h0) key.optional.emplace_back("h0");
  if (p.has_ht) key.optional.emplace_back("ht");
  if (p.has_v_new) key.optional.emplace_back("v_new");
  key.packed = p.packed;
  // One word for lengths and indices: of two widths the larger.
  const bool indices = p.has_h0_indices || p.has_ht_indices;
  if (p.packed || indices) {
    const bool wide = (p.packed && p.cu_seqlens_type == IndexType::kInt64) ||
                      (indices && p.index_type == IndexType::kInt64);
    key.index = wide ? "i64" : "i32";
  }
  key.pool =
      p.has_h0_indices ? (p.has_ht_indices ? "h0+ht" : "h0") : (p.has_ht_indices ? "ht" : "none");
  key.alignment = aligned_ ? 16 : 2;
  key.numerics = p.numerics;
  key.H = p.H;
  key.HV = p.HV;
  query.sequences = std::max<std::int64_t>(N_, 1);
  query.chunks =
      std::max<std::int64_t>(1, tuning::class_chunks(rows_, query.sequences, p.max_tokens, p.BT));
  return query;
}

const tuning::ConfigSpace& GatedDeltaH::space() const {
  static const tuning::ConfigSpace space{
      {16, 32, 64, 128}, {32, 64, 128}, {2, 3, 4, 6}, {1, 2, 4, 8, 12, 16}};
  return space;
}

Status GatedDeltaH::legal(const Config& config, const DeviceLimits& limits) const {
  const GatedDeltaHProblem& p = problem_;
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  if (!space().contains(config))
    return illegal(config, "it is not in the config space of the scan");

  // What the template asserts.
  const bool warpgroups = by_warpgroups(config, limits);
  const int groups = config.bv / 16;
  if (!warpgroups && config.warps % groups != 0)
    return illegal(config, "warps must be a multiple of bv/16 = " + text(groups));
  const int split = warpgroups ? 1 : config.warps / groups;
  if (split != 1 && split != 2 && split != 4)
    return illegal(config, "warps must be 1, 2 or 4 times bv/16 = " + text(groups));
  if (config.bk / 8 % (2 * split) != 0)
    return illegal(config, "bk must give each of " + text(split) + " warps pairs of 8 key columns");
  if (p.BT / 8 % split != 0)
    return illegal(config,
                   "BT = " + text(p.BT) + " must give each of " + text(split) + " warps 8 tokens");

  // What would be idle.
  const int padded_k = params::padded_k(static_cast<int>(p.K));
  if (config.bk != 32 && config.bk > next_power_of_two(padded_k))
    return illegal(config, "bk is more than K = " + text(p.K) + " has");
  if (config.bv > std::max<std::int64_t>(16, ceil_divide(p.V, 16) * 16))
    return illegal(config, "bv is more than V = " + text(p.V) + " has");
  const int useful = params::round_up(4 * padded_k, config.bk);
  if (config.stages > 2 && config.stages * config.bk > useful) {
    return illegal(config, "stages * bk is more than four chunks' key columns, " + text(useful));
  }

  // What the device has.
  const params::ScanShape shape = scan_shape(p, config);
  const int threads = config.warps * 32;
  if (threads > limits.threads_per_block) {
    return illegal(config,
                   text(threads) + " threads; a block may have " + text(limits.threads_per_block));
  }
  const int smem = smem_bytes(config, limits);
  if (smem > limits.smem_optin_bytes) {
    return illegal(config, text(smem) + " bytes of shared memory; a block may have " +
                               text(limits.smem_optin_bytes));
  }
  // What the loops over slabs keep between two of them counts where every register does.
  const int state = state_registers(shape, split),
            registers = warpgroups ? kWarpgroupRegisters
                                   : estimated_registers(shape, split, aligned_) +
                                         4 * (params::slab_count(shape) - 1);
  if (state > 64)
    return illegal(config,
                   text(state) + " registers of state a thread; 64 leave room for the rest");
  // Copying rows of any alignment takes many addresses. (With BT = 16 no more than two warps can
  // share a state of more than 128 key columns, which then spills a few bytes.)
  const int most_split = std::min<int>(4, static_cast<int>(p.BT) / 8);
  if (!aligned_ && state > 32 && split < most_split) {
    return illegal(config, text(state) +
                               " registers of state a thread; without alignment 32 leave room "
                               "for the rest, so let more warps share it");
  }
  const int available = std::min(255, limits.regs_per_block / threads / 8 * 8);
  if (registers > available) {
    return illegal(config, "about " + text(registers) + " registers a thread; " + text(available) +
                               " are available");
  }
  const std::int64_t blocks =
      std::max<std::int64_t>(N_, 1) * p.HV * ceil_divide(p.V, config.bv);  // fits: see check()
  if (blocks > kMaxBlocks)
    return illegal(config, text(blocks) + " blocks; a grid may have " + text(kMaxBlocks));
  return {};
}

double GatedDeltaH::score(const Config& config, const DeviceLimits& limits) const {
  const GatedDeltaHProblem& p = problem_;
  const params::ScanShape shape = scan_shape(p, config);
  // Of a warpgroup form the helper's four warps compute no products.
  const bool warpgroups = by_warpgroups(config, limits);
  const int split = warpgroups ? 1 : std::max(1, config.warps / (config.bv / 16));
  const int warps = config.bv / 16 * split, threads = config.warps * 32;
  // The compiler takes more than it must where it may.
  const int registers =
      std::min({255, limits.regs_per_block / threads,
                warpgroups ? kWarpgroupRegisters
                           : estimated_registers(shape, split, aligned_) * 5 / 4 + 30});
  const double K = params::padded_k(shape.K), BT = static_cast<double>(p.BT), BV = config.bv;

  // Blocks that a multiprocessor holds, and rounds until all are done.
  const int smem = smem_bytes(config, limits) + limits.smem_reserved_bytes;
  const int fitting =
      std::max(1, std::min({limits.smem_per_sm_bytes / std::max(1, smem),
                            limits.regs_per_sm / (registers * threads),
                            limits.threads_per_sm / threads, limits.blocks_per_sm}));
  const double sms = std::max(1, limits.sm_count);
  const double blocks = static_cast<double>(std::max<std::int64_t>(N_, 1)) *
                        static_cast<double>(p.HV) *
                        static_cast<double>(ceil_divide(p.V, config.bv));
  const double waves = std::ceil(blocks / (sms * fitting));
  const double resident = std::max(1.0, std::min<double>(fitting, std::ceil(blocks / sms)));

  // Clocks of one chunk. The tensor cores of a quarter take about 8 clocks for an m16n8k16.
  const double products = (K / 16 * (BT / 8) + BT / 16 * (K / 8)) / split;
  const double issue = products * 8 * std::max(1.0, resident * warps / 4);
  const double steps = 2.0 * params::slab_count(shape);
  const double chain =
      warpgroups ? kWarpgroupChainClocks
                 : steps * 60 + (K / 16 + BT / 16) * 33 + 2 * products * 4 + (split > 1 ? 220 : 0);
  const double bytes = 2 * (2 * BT * K + BT * BV * (p.has_v_new ? 2 : 1) + (p.has_h ? K * BV : 0));
  const double feed = bytes * resident / 32;  // bytes per clock into one multiprocessor
  const double chunk = std::max({issue, chain, feed});
  // Slabs in flight must cover a trip to memory.
  const double ahead = static_cast<double>(config.stages - 1) * config.bk / (2 * K) * chunk;
  const double exposed = std::max(0.0, 1100 - ahead);
  const double chunks = std::max<double>(1, static_cast<double>(key_query().chunks));
  constexpr double kClocksPerUs = 1700;
  const double start = 2500 + 2 * K * BV * 4 / 16;  // the first slabs and the state
  return waves * (start + chunks * (chunk + exposed)) / kClocksPerUs;
}

Result<Config> GatedDeltaH::heuristic(const DeviceLimits& limits) const {
  const std::int64_t heads = std::max<std::int64_t>(N_, 1) * problem_.HV,
                     sms = std::max(1, limits.sm_count);
  const std::int64_t halves = heads * ceil_divide(problem_.V, 64);  // blocks of 64 value columns
  const std::int64_t chunks = key_query().chunks;
  // By warpgroups the chain of a chunk is as short with 64 columns as with 16. Measured on an H200:
  // deep rings while few blocks draw on memory; two blocks a multiprocessor where blocks take
  // sequences of one chunk in turn; whole heads once there are more of these than multiprocessors.
  struct WarpgroupRow {
    int bv, bk, chunks_ahead;
  };
  const WarpgroupRow by_width = 2 * halves <= sms                 ? WarpgroupRow{64, 128, 4}
                                : halves <= sms                   ? WarpgroupRow{64, 64, 3}
                                : !problem_.packed && chunks == 1 ? WarpgroupRow{64, 64, 2}
                                : heads <= sms && chunks > 8      ? WarpgroupRow{64, 64, 3}
                                                                  : WarpgroupRow{128, 128, 2};
  const int ahead = chunks > 1 ? by_width.chunks_ahead : 2;
  for (const WarpgroupRow& row : {WarpgroupRow{by_width.bv, by_width.bk, ahead},
                                  WarpgroupRow{64, by_width.bk, ahead}, WarpgroupRow{64, 64, 2}}) {
    const int K = static_cast<int>(problem_.K), bk = std::min(row.bk, K);
    if (K % bk != 0) break;
    const Config config{row.bv, bk, row.chunks_ahead * (K / bk), row.bv / 16 + 4};
    if (by_warpgroups(config, limits) && legal(config, limits).ok()) return config;
  }
  // Without warpgroups: while every block can have a multiprocessor to itself the chain of one
  // chunk counts: the narrowest bv that still fits, four warps a group. Past that throughput
  // counts: whole heads in a block when chunks are many, two small blocks a multiprocessor when
  // they are few.
  const bool many_chunks = chunks > 8;
  // A chunk takes a block of 64 columns 0.62 of the time that it takes one of 128 (H200, K = V =
  // 128).
  const bool halves_fill_better = static_cast<double>(ceil_divide(halves, sms)) * 0.62 <
                                  static_cast<double>(ceil_divide(heads, sms));
  // clang-format off
  //                                                       bv  bk stages split
  struct Row { int bv, bk, stages, split; };
  const Row row = 4 * halves <= sms                     ? Row{16, 128, 2, 4}
                  : 2 * halves <= sms                   ? Row{32, 128, 2, 4}
                  : halves <= sms                       ? Row{64, 128, 2, 2}
                  : !many_chunks                        ? Row{64, 64, 3, 1}
                  : halves_fill_better                  ? Row{64, 128, 2, 2}
                                                        : Row{128, 128, 2, 1};
  // clang-format on
  // The nearest legal one, where K, V, BT or the device do not allow the row itself.
  for (int bv = row.bv; bv >= 16; bv /= 2) {
    for (int split = row.split; split <= 4; split *= 2) {
      for (const int stages : {row.stages, 2}) {
        for (int bk = row.bk; bk >= 32; bk /= 2) {
          const Config config{bv, bk, stages, bv / 16 * split};
          if (legal(config, limits).ok()) return config;
        }
      }
    }
  }
  const Config* best = nullptr;
  const std::vector<Config> all = space().all();
  for (const Config& config : all) {
    if (legal(config, limits).ok() &&
        (best == nullptr || score(config, limits) < score(*best, limits)))
      best = &config;
  }
  if (best != nullptr) return *best;
  return unsupported("no config of the scan with K = " + std::to_string(problem_.K) +
                     ", V = " + std::to_string(problem_.V) +
                     ", BT = " + std::to_string(problem_.BT) + " fits a device with " +
                     std::to_string(limits.smem_optin_bytes) + " bytes of shared memory a block");
}

std::string GatedDeltaH::source_class() const {
  const int k = next_power_of_two(params::padded_k(static_cast<int>(problem_.K)));
  const std::int64_t v = std::min<std::int64_t>(128, ceil_divide(problem_.V, 16) * 16);
  return std::string("K") + std::to_string(k) + "-V" + std::to_string(v) + "-BT" +
         std::to_string(problem_.BT) + "-a" + (aligned_ ? "16" : "2");
}

// Which of the two templates a config means: both compute the same bits.
bool GatedDeltaH::by_warpgroups(const Config& config, const DeviceLimits& limits) const noexcept {
  const GatedDeltaHProblem& p = problem_;
  const bool shape = limits.compute_major == 9 && aligned_ && p.BT == 64 &&
                     (p.K == 64 || p.K == 128) && rows_ <= kMaxCoordinate &&
                     capacity_ <= kMaxCoordinate;
  const bool block = config.bv % 64 == 0 && config.warps == config.bv / 16 + 4 &&
                     config.bk % 64 == 0 && p.K % config.bk == 0;
  if (!shape || !block) return false;
  const std::int64_t longest = std::max({p.k_stride, p.w_stride, p.u_stride, p.v_new_stride});
  if (longest >= kMaxMapStride || p.HV >= kMaxMapStride / (p.K * p.V)) return false;
  const int slabs = static_cast<int>(p.K) / config.bk;
  return config.stages % slabs == 0 && config.stages / slabs >= 2;
}

int GatedDeltaH::smem_bytes(const Config& config, const DeviceLimits& limits) const noexcept {
  const params::ScanShape shape = scan_shape(problem_, config);
  return by_warpgroups(config, limits) ? params::warpgroup_scan_smem_bytes(shape)
                                       : params::scan_smem_bytes(shape);
}

std::vector<TensorMap> GatedDeltaH::tensor_maps(const Config& config) const {
  const GatedDeltaHProblem& p = problem_;
  const auto u = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const auto rows = u(std::max<std::int64_t>(rows_, 1)), K = u(p.K), V = u(p.V);
  const auto slab_boxes = static_cast<std::uint32_t>(config.bk / 64);
  std::vector<TensorMap> maps;
  // Keys in pieces of 64 columns.
  const auto keys = [&](std::size_t tensor, std::size_t offset, std::int64_t stride,
                        std::int64_t heads) {
    maps.push_back({tensor,
                    offset,
                    4,
                    {64, rows, K / 64, u(heads)},
                    {u(stride) * 2, 128, K * 2},
                    {64, 64, slab_boxes, 1}});
  };
  keys(kW, offsetof(params::WarpgroupScanParams, w), p.w_stride, p.HV);
  keys(kK, offsetof(params::WarpgroupScanParams, k), p.k_stride, p.H);
  const auto values = [&](std::size_t tensor, std::size_t offset, std::int64_t stride) {
    maps.push_back({tensor, offset, 3, {V, rows, u(p.HV)}, {u(stride) * 2, V * 2}, {64, 64, 1}});
  };
  values(kU, offsetof(params::WarpgroupScanParams, u), p.u_stride);
  if (p.has_v_new) values(kVNew, offsetof(params::WarpgroupScanParams, v_new), p.v_new_stride);
  if (p.has_h) {
    const bool vk = p.layout == StateLayout::kVK;
    const auto columns = vk ? K : V, lines = vk ? V : K;
    maps.push_back({kH,
                    offsetof(params::WarpgroupScanParams, h),
                    4,
                    {columns, lines, u(p.HV), u(std::max<std::int64_t>(capacity_, 1))},
                    {columns * 2, columns * lines * 2, columns * lines * u(p.HV) * 2},
                    {64, static_cast<std::uint32_t>(vk ? 64 : K), 1, 1}});
  }
  return maps;
}

jit::KernelSource GatedDeltaH::scan_source(const Config& config, const DeviceLimits& limits) const {
  const GatedDeltaHProblem& p = problem_;
  const bool warpgroups = by_warpgroups(config, limits);
  jit::KernelSource source;
  source.template_file =
      warpgroups ? "gated_delta_h/warpgroup_scan.cu" : "gated_delta_h/gated_delta_h.cu";
  source.entry = warpgroups ? "warpgroup_scan" : "gated_delta_h";
  source.traits = warpgroups ? "WarpgroupScanTraits" : "GatedDeltaHTraits";
  source.params_type = warpgroups ? "scanjit::gated_delta_h::WarpgroupScanParams"
                                  : "scanjit::gated_delta_h::ScanParams";
  source.constants = {integer("K", p.K),
                      integer("V", p.V),
                      integer("BT", p.BT),
                      integer("BV", config.bv),
                      integer("BK", config.bk),
                      integer("STAGES", config.stages),
                      integer("WARPS", config.warps),
                      integer("DTYPE", static_cast<int>(p.dtype)),
                      boolean("HAS_G", p.has_g),
                      boolean("HAS_GK", p.has_gk),
                      boolean("HAS_H", p.has_h),
                      boolean("HAS_V_NEW", p.has_v_new),
                      boolean("HAS_H0", p.has_h0),
                      boolean("HAS_HT", p.has_ht),
                      boolean("BASE_E", (p.has_g || p.has_gk) && p.gate_base == GateBase::kE),
                      boolean("LAYOUT_VK", p.layout == StateLayout::kVK),
                      boolean("PACKED", p.packed),
                      boolean("INDEX64", p.packed && p.cu_seqlens_type == IndexType::kInt64),
                      boolean("HAS_H0_INDICES", p.has_h0_indices),
                      boolean("HAS_HT_INDICES", p.has_ht_indices),
                      boolean("POOL_INDEX64", (p.has_h0_indices || p.has_ht_indices) &&
                                                  p.index_type == IndexType::kInt64),
                      boolean("ALIGNED", aligned_),
                      boolean("PERTURB", false)};
  source.threads = config.warps * 32;
  source.smem_bytes = smem_bytes(config, limits);
  // Registers that the warpgroups start with: two blocks a multiprocessor, or one of three.
  if (warpgroups) source.min_blocks = config.bv == 64 ? 2 : 1;
  return source;
}

jit::KernelSource GatedDeltaH::offsets_source() const {
  jit::KernelSource source;
  source.template_file = "gated_delta_h/chunk_offsets.cu";
  source.entry = "chunk_offsets";
  source.traits = "ChunkOffsetsTraits";
  source.params_type = "scanjit::gated_delta_h::OffsetsParams";
  source.constants = {integer("BT", problem_.BT),
                      boolean("INDEX64", problem_.cu_seqlens_type == IndexType::kInt64)};
  source.threads = params::kOffsetsThreads;
  return source;
}

bool GatedDeltaH::needs_offsets() const noexcept {
  return problem_.packed && problem_.has_h && !problem_.has_chunk_offsets &&
         N_ > params::kInlineOffsetSequences;
}

std::vector<Stage> GatedDeltaH::stages(const Config& config, const DeviceLimits& limits) const {
  std::vector<Stage> list;
  if (N_ == 0) return list;
  if (needs_offsets()) list.push_back({offsets_source(), 1, {}, {kOffsetsStage, {}}});
  const std::int64_t items = N_ * problem_.HV * ceil_divide(problem_.V, config.bv);
  if (!by_warpgroups(config, limits)) {
    list.push_back({scan_source(config, limits), items, {}, {kScanStage, {}}});
    return list;
  }
  // Sequences of one chunk are mostly start and end: as many blocks as run at once take them in
  // turn, and ask for the next while they work on one. With more chunks one block each is faster
  // (H200: 3%).
  const int smem = smem_bytes(config, limits) + limits.smem_reserved_bytes;
  const std::int64_t resident = std::max<std::int64_t>(1, limits.sm_count) *
                                (config.bv == 64 && 2 * smem <= limits.smem_per_sm_bytes ? 2 : 1);
  const bool in_turn = !problem_.packed && problem_.T <= problem_.BT;
  const std::int64_t blocks = in_turn ? std::min(items, resident) : items;
  list.push_back({scan_source(config, limits), blocks, tensor_maps(config), {kScanStage, {}}});
  return list;
}

std::vector<jit::KernelSource> GatedDeltaH::kernels(const Config& config,
                                                    const DeviceLimits& limits) const {
  std::vector<jit::KernelSource> list{scan_source(config, limits)};
  if (problem_.packed && problem_.has_h) list.push_back(offsets_source());
  return list;
}

std::int64_t GatedDeltaH::workspace_bound() const noexcept {
  if (!needs_offsets()) return 0;
  const std::int64_t bytes = N_ * (problem_.cu_seqlens_type == IndexType::kInt64 ? 8 : 4);
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

Addresses GatedDeltaH::addresses(const GatedDeltaHArgs& args, Workspace workspace) noexcept {
  const auto plain = [](const void* pointer) { return const_cast<void*>(pointer); };
  Addresses a;
  a.tensor[kK] = plain(args.k);
  a.tensor[kW] = plain(args.w);
  a.tensor[kU] = plain(args.u);
  a.tensor[kG] = plain(args.g);
  a.tensor[kGk] = plain(args.gk);
  a.tensor[kH0] = plain(args.h0);
  a.tensor[kH0Indices] = plain(args.h0_indices);
  a.tensor[kCuSeqlens] = plain(args.cu_seqlens);
  a.tensor[kChunkOffsets] = plain(args.chunk_offsets);
  a.tensor[kHtIndices] = plain(args.ht_indices);
  a.tensor[kH] = args.h;
  a.tensor[kVNew] = args.v_new;
  a.tensor[kHt] = args.ht;
  a.tensor[kStatus] = args.status;
  a.workspace = workspace.data;
  return a;
}

void GatedDeltaH::fill_params(const StageNote& note, const Addresses& addresses,
                              StageParams& out) const noexcept {
  const GatedDeltaHProblem& p = problem_;
  const auto& tensor = addresses.tensor;
  if (note.kind == kOffsetsStage) {
    const params::OffsetsParams offsets{tensor[kCuSeqlens], addresses.workspace, N_, p.T};
    static_assert(sizeof(offsets) <= sizeof(out.bytes));
    std::memcpy(out.bytes.data(), &offsets, sizeof(offsets));
    return;
  }
  params::ScanParams scan{};
  scan.k = tensor[kK];
  scan.w = tensor[kW];
  scan.u = tensor[kU];
  scan.g = static_cast<const float*>(tensor[kG]);
  scan.gk = static_cast<const float*>(tensor[kGk]);
  scan.h0 = static_cast<const float*>(tensor[kH0]);
  scan.h0_indices = tensor[kH0Indices];
  scan.cu_seqlens = tensor[kCuSeqlens];
  scan.chunk_offsets = needs_offsets() ? addresses.workspace : tensor[kChunkOffsets];
  scan.ht_indices = tensor[kHtIndices];
  scan.h = tensor[kH];
  scan.v_new = tensor[kVNew];
  scan.ht = static_cast<float*>(tensor[kHt]);
  scan.status = static_cast<unsigned*>(tensor[kStatus]);
  scan.N = N_;
  scan.T = p.T;
  scan.chunk_capacity = capacity_;
  scan.k_stride = p.k_stride;
  scan.w_stride = p.w_stride;
  scan.u_stride = p.u_stride;
  scan.g_stride = p.g_stride;
  scan.gk_stride = p.gk_stride;
  scan.v_new_stride = p.v_new_stride;
  scan.h0_slot_stride = p.h0_slot_stride;
  scan.ht_slot_stride = p.ht_slot_stride;
  scan.h0_slots = p.h0_slots;
  scan.ht_slots = p.ht_slots;
  scan.H = static_cast<int>(p.H);
  scan.HV = static_cast<int>(p.HV);
  static_assert(offsetof(params::WarpgroupScanParams, scan) == 0);
  static_assert(sizeof(params::WarpgroupScanParams) <= sizeof(out.bytes));
  std::memcpy(out.bytes.data(), &scan, sizeof(scan));
}

}  // namespace scanjit::ops

namespace scanjit {

Result<std::int64_t> workspace_bound(const GatedDeltaHProblem& problem, std::int64_t limit) {
  return guard([&]() -> Result<std::int64_t> {
    SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::GatedDeltaH::make(problem));
    // Every config needs the same.
    if (op->workspace_bound() > limit) {
      return unsupported("the scan needs " + std::to_string(op->workspace_bound()) +
                         " bytes of workspace, the limit is " + std::to_string(limit));
    }
    return op->workspace_bound();
  });
}

}  // namespace scanjit
