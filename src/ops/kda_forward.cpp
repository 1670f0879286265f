#include "ops/kda_forward.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/guard.hpp"
#include "ops/constants.hpp"
#include "ops/problem_checks.hpp"

namespace scanjit::ops {
namespace {

namespace params = scanjit::kda_forward;

constexpr std::int64_t kBT = params::kChunkTokens;
constexpr std::int64_t kWorkspaceAlignment = 256;
constexpr std::int64_t kSerial = std::int64_t{1} << 40;  // chunks of a segment that never ends
constexpr std::int64_t kMostSlices = 1024;
constexpr int kMostSegmentChunks = 1 << 16;
constexpr int kPrescanBvs[] = {64, 128};
constexpr int kMostPrescanStages = 4;
// Blocks of `prepare` that a multiprocessor is to hold, registers permitting, and how far ahead it
// asks for rows.
constexpr int kPrepareBlocks = 3, kPrepareBlocksAnyRange = 2, kPrefetchBlocks = 64;

enum StageKind : int { kOffsetsStage, kPrepareStage, kScanStage, kPrescanStage, kMergeStage };
// StageNote::numbers
enum : std::size_t { kSegmentNote, kSliceNote, kSliceBeginNote };

// What `score` knows of an H200 (docs/kernels/kda_forward.md), microseconds. Of one chunk: in a
// block of 64 or fewer value columns, of 128; the pre-scan's. Of a step of the merge.
constexpr double kPrepareUs = 0.056;  // a chunk and head, all multiprocessors at once
constexpr double kScan64Us = 1.13, kScan128Us = 1.81, kScanByWarpsUs = 1.65;
constexpr double kPrescan64Us = 0.95, kPrescan128Us = 1.2, kMergeUs = 1.43;
constexpr double kLaunchUs = 3;
constexpr double kRecordBytesPerUs = 3.6e6, kMergeBytesPerUs = 7.5e6;

std::int64_t round_up(std::int64_t bytes) {
  return ceil_divide(bytes, kWorkspaceAlignment) * kWorkspaceAlignment;
}

Status illegal(const Config& config, const std::string& why) {
  return unsupported("config " + to_string(config) + ": " + why);
}

// L of "split<L>", 0 of "default", or one of these.
constexpr int kAnyClass = -1, kNoClass = -2;
int class_of(const std::string& numerics) noexcept {
  constexpr std::string_view kSplit = "split";
  if (numerics == "default") return 0;
  if (numerics == "any") return kAnyClass;
  if (numerics.rfind(kSplit, 0) != 0) return kNoClass;
  int chunks = 0;
  const char* end = numerics.data() + numerics.size();
  const auto read = std::from_chars(numerics.data() + kSplit.size(), end, chunks);
  const bool plain = read.ec == std::errc() && read.ptr == end && numerics[kSplit.size()] != '0';
  return plain && chunks >= 1 && chunks <= kMostSegmentChunks ? chunks : kNoClass;
}

}  // namespace

Result<std::shared_ptr<const KdaForward>> KdaForward::make(const KdaForwardProblem& problem) {
  std::shared_ptr<KdaForward> made(new KdaForward(problem));
  SCANJIT_TRY(made->check());
  return std::shared_ptr<const KdaForward>(std::move(made));
}

// "any" tries segments of powers of two; a class has its own segments, or none.
Status KdaForward::check_numerics() {
  const std::string& numerics = problem_.numerics;
  const int split = class_of(numerics);
  if (split == kNoClass) {
    return unsupported("numerics is \"" + numerics +
                       "\"; it must be default, any, or split1 to split" +
                       number(kMostSegmentChunks));
  }
  space_ = {{16, 32, 64, 128}, {static_cast<int>(problem_.K)}, {1, 2, 3, 4}, {1, 2, 4, 8}};
  if (split > 0) space_.segment_chunks = {split};
  if (split == kAnyClass) space_.segment_chunks = {0, 4, 8, 16, 32, 64, 128, 256, 512};
  return {};
}

ProblemWords KdaForward::words(const KdaForwardProblem& p) noexcept {
  std::int64_t bits = kOp.number;
  int shift = 8;
  for (const bool flag : {p.packed, p.has_A_log, p.has_dt_bias, p.normalize_qk, p.beta_sigmoid,
                          p.has_h0, p.has_ht, p.has_h0_indices, p.has_ht_indices, p.aligned16}) {
    bits |= std::int64_t{flag} << shift++;
  }
  std::int64_t kinds = 0;
  for (const int kind :
       {static_cast<int>(p.gate), static_cast<int>(p.g_dtype), static_cast<int>(p.beta_dtype),
        static_cast<int>(p.state_dtype), static_cast<int>(p.layout),
        static_cast<int>(p.cu_seqlens_type), static_cast<int>(p.index_type)}) {
    kinds = kinds << 8 | (kind & 0xFF);
  }
  const auto floats = std::bit_cast<std::int64_t>(std::array<float, 2>{p.lower_bound, p.scale});
  return {{bits,
           p.B,
           p.T,
           p.H,
           p.HV,
           p.K,
           p.V,
           p.checkpoints,
           p.sequences,
           p.h0_slots,
           p.ht_slots,
           p.q_stride,
           p.k_stride,
           p.v_stride,
           p.g_stride,
           p.beta_stride,
           p.o_stride,
           p.h0_slot_stride,
           p.ht_slot_stride,
           p.max_tokens,
           p.workspace_limit,
           kinds,
           floats,
           class_of(p.numerics)}};
}

tuning::KeyQuery KdaForward::key_query() const {
  const KdaForwardProblem& p = problem_;
  tuning::KeyQuery query;
  tuning::ShapeKey& key = query.key;
  key.kernel = kOp.name;
  key.kernel_revision = kRevision;
  key.space = space_.hash();
  key.dtype = DType::kBf16;
  key.K = p.K;
  key.V = p.V;
  key.BT = kBT;
  key.gate = to_string(p.gate);
  key.gate_base = GateBase::kE;
  key.layout = p.layout;
  const std::pair<bool, const char*> words[] = {{p.has_A_log, "A_log"},
                                                {p.beta_dtype == DType::kF32, "beta_f32"},
                                                {p.beta_sigmoid, "beta_sigmoid"},
                                                {p.checkpoints > 0, "checkpoints"},
                                                {p.has_dt_bias, "dt_bias"},
                                                {p.g_dtype == DType::kF32, "g_f32"},
                                                {p.has_h0, "h0"},
                                                {p.has_ht, "ht"},
                                                {p.normalize_qk, "normalize_qk"},
                                                {p.state_dtype == DType::kBf16, "state_bf16"}};
  for (const auto& [present, word] : words) {
    if (present) key.optional.emplace_back(word);
  }
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
      std::max<std::int64_t>(1, tuning::class_chunks(rows_, query.sequences, p.max_tokens, kBT));
  return query;
}

std::string KdaForward::source_class() const {
  return "K" + number(problem_.K) + "-V" + number(problem_.V) + "-" + to_string(problem_.gate) +
         "-a" + (aligned_ ? "16" : "2");
}

// --- forms and their workspace -------------------------------------------------------------------

std::int64_t KdaForward::longest_chunks() const noexcept { return ceil_divide(problem_.T, kBT); }

// Dense: as many as there are. Packed: a sequence of c chunks has at most 1 + c/L.
std::int64_t KdaForward::segments(std::int64_t segment_chunks) const noexcept {
  if (problem_.packed) return N_ + chunks_ / segment_chunks;
  return N_ * std::max<std::int64_t>(1, ceil_divide(longest_chunks(), segment_chunks));
}

KdaForward::Form KdaForward::form(std::int64_t segment_chunks,
                                  std::int64_t slice_chunks) const noexcept {
  const KdaForwardProblem& p = problem_;
  Form made{segment_chunks, slice_chunks, 0, 0, 0, 0};
  if (N_ == 0) return made;
  const std::int64_t record =
                         p.HV * params::record_bytes(static_cast<int>(p.K), static_cast<int>(p.V)),
                     state = p.HV * p.K * p.V * 4;
  std::int64_t end = p.packed ? 2 * round_up((N_ + 1) * 8) : 0;
  const auto place = [&](std::int64_t bytes) {
    const std::int64_t at = end;
    end += round_up(bytes);
    return at;
  };
  made.records = place((slice_chunks > 0 ? N_ * slice_chunks : chunks_) * record);
  if (slice_chunks > 0) made.states = place(N_ * state);
  if (segment_chunks > 0) {
    const std::int64_t count = segments(segment_chunks);
    made.states = place(count * state);
    made.summaries = place(count * p.HV * (p.V + p.K) * p.K * 4);
  }
  made.bytes = end;
  return made;
}

std::optional<KdaForward::Form> KdaForward::form_of(int segment_chunks) const noexcept {
  const std::int64_t limit = problem_.workspace_limit > 0
                                 ? problem_.workspace_limit
                                 : std::numeric_limits<std::int64_t>::max();
  const Form whole = form(segment_chunks, 0);
  if (whole.bytes <= limit) return whole;
  if (segment_chunks > 0) return std::nullopt;
  const Form one = form(0, 1), two = form(0, 2);
  if (one.bytes > limit) return std::nullopt;
  std::int64_t slice = 1 + (limit - one.bytes) / (two.bytes - one.bytes);
  while (slice > 1 && form(0, slice).bytes > limit) --slice;  // rounding
  if (ceil_divide(longest_chunks(), slice) > kMostSlices) return std::nullopt;
  return form(0, slice);
}

std::int64_t KdaForward::workspace_bytes(const Config& config, const DeviceLimits&) const noexcept {
  const auto found = form_of(config.segment_chunks);
  return found ? found->bytes : 0;
}

std::int64_t KdaForward::workspace_bound() const noexcept {
  std::int64_t bytes = 0;
  for (const int segment_chunks : space_.segment_chunks) {
    if (const auto found = form_of(segment_chunks)) bytes = std::max(bytes, found->bytes);
  }
  return bytes;
}

// --- configs -------------------------------------------------------------------------------------

Status KdaForward::legal(const Config& config, const DeviceLimits& limits) const {
  const KdaForwardProblem& p = problem_;
  if (!space_.contains(config))
    return illegal(config, "it is not in the config space of this problem");
  if (p.V % config.bv != 0) return illegal(config, "bv must divide V = " + number(p.V));
  if (config.warps * 16 != config.bv)
    return illegal(config, "warps must be bv/16 = " + number(config.bv / 16));
  const int smem = params::scan_smem_bytes(static_cast<int>(p.K), config.bv, config.stages, false);
  if (smem > limits.smem_optin_bytes) {
    return illegal(config, number(smem) + " bytes of shared memory; a block may have " +
                               number(limits.smem_optin_bytes));
  }
  const int prepare = prepare_source(limits).smem_bytes;
  if (prepare > limits.smem_optin_bytes) {
    return illegal(config, "the stage before the scan takes " + number(prepare) +
                               " bytes of shared memory; a block may have " +
                               number(limits.smem_optin_bytes));
  }
  if (config.segment_chunks > 0 && prescan_stages(kPrescanBvs[0], limits) == 0)
    return illegal(config, "the pre-scan does not fit into shared memory");
  const auto found = form_of(config.segment_chunks);
  if (!found) {
    return illegal(
        config,
        "it needs " + number(form(config.segment_chunks, 0).bytes) + " bytes of workspace" +
            (config.segment_chunks > 0 ? "" : ", or more slices than " + number(kMostSlices)) +
            "; the limit is " + number(p.workspace_limit));
  }
  // 4: the merge's value columns of a block, and the narrowest that a scan's can be are 16.
  const std::int64_t tiles = std::max(p.V / config.bv, (p.V + p.K) / kPrescanBvs[0]);
  const std::int64_t most =
      config.segment_chunks > 0
          ? std::max(segments(config.segment_chunks) * tiles, N_ * (p.V / params::kMergeColumns))
          : N_ * tiles;
  const std::int64_t heads =
      std::max({most, found->slice_chunks * N_, found->slice_chunks > 0 ? 0 : chunks_});
  if (heads > kMaxBlocks / p.HV)
    return illegal(config, number(heads) + " * HV blocks; a grid may have " + number(kMaxBlocks));
  return {};
}

int KdaForward::prescan_stages(int bv, const DeviceLimits& limits) const noexcept {
  for (int stages = kMostPrescanStages; stages > 0; --stages) {
    if (params::scan_smem_bytes(static_cast<int>(problem_.K), bv, stages, true) <=
        limits.smem_optin_bytes)
      return stages;
  }
  return 0;
}

// All blocks of the pre-scan, in rounds of one a multiprocessor.
double KdaForward::prescan_us(int bv, std::int64_t segment_chunks,
                              const DeviceLimits& limits) const noexcept {
  const std::int64_t blocks =
      (segments(segment_chunks) - N_) * problem_.HV * ((problem_.V + problem_.K) / bv);
  return static_cast<double>(ceil_divide(blocks, std::max(1, limits.sm_count)) * segment_chunks) *
         (bv == 64 ? kPrescan64Us : kPrescan128Us);
}

int KdaForward::prescan_bv(std::int64_t segment_chunks, const DeviceLimits& limits) const noexcept {
  const bool wide =
      problem_.V % 128 == 0 && problem_.K % 128 == 0 && prescan_stages(128, limits) >= 2 &&
      prescan_us(128, segment_chunks, limits) < prescan_us(64, segment_chunks, limits);
  return wide ? 128 : 64;
}

double KdaForward::scan_us(const Config& config, const DeviceLimits& limits) const noexcept {
  const KdaForwardProblem& p = problem_;
  const int K = static_cast<int>(p.K);
  const std::int64_t chunks_each = std::max<std::int64_t>(
      1, config.segment_chunks > 0
             ? std::min<std::int64_t>(config.segment_chunks, longest_chunks())
             : tuning::class_chunks(rows_, std::max<std::int64_t>(N_, 1), 0, kBT));
  const std::int64_t chains =
      (config.segment_chunks > 0 ? segments(config.segment_chunks) : N_) * p.HV;
  const std::int64_t tiles = p.V / config.bv, blocks = chains * tiles;
  const int smem =
      params::scan_smem_bytes(K, config.bv, config.stages, false) + limits.smem_reserved_bytes;
  const std::int64_t beside =
      std::clamp<std::int64_t>(limits.smem_per_sm_bytes / smem, 1, 2048 / (config.bv * 2));
  const std::int64_t at_once = std::max(1, limits.sm_count) * beside;
  const bool warpgroups =
      limits.compute_major == 9 && config.bv % 64 == 0 && K <= 128 && config.stages >= 2;
  // A block by warps waits for its own products; two of them share the tensor cores.
  double chunk =
      !warpgroups ? kScanByWarpsUs * (config.bv == 128 ? 1.6 : 1) * (config.stages == 1 ? 1.3 : 1)
      : config.bv == 128 ? kScan128Us
                         : kScan64Us;
  chunk *= static_cast<double>(K) / 128 * (1 + 0.5 * static_cast<double>(beside - 1));
  // Tiles of a head read the common part of a record once from memory.
  const std::int64_t running = std::min(blocks, at_once);
  const double bytes =
      static_cast<double>(ceil_divide(running, tiles)) *
      static_cast<double>(params::record_bytes(K, static_cast<int>(p.V)) + kBT * p.V * 2);
  chunk = std::max(chunk, bytes / kRecordBytesPerUs);
  return chunk * static_cast<double>(ceil_divide(blocks, at_once) * chunks_each);
}

double KdaForward::score(const Config& config, const DeviceLimits& limits) const {
  const KdaForwardProblem& p = problem_;
  double us =
      kPrepareUs * static_cast<double>(chunks_ * p.HV) * 132 / std::max(1, limits.sm_count) +
      scan_us(config, limits) + kLaunchUs * 2;
  if (config.segment_chunks == 0) return us;
  const std::int64_t L = config.segment_chunks;
  const std::int64_t steps = std::max<std::int64_t>(1, ceil_divide(longest_chunks(), L));
  const double blocks = static_cast<double>(N_ * p.HV * p.V) / params::kMergeColumns;
  const double step =
      std::max(kMergeUs, blocks * static_cast<double>(p.K * p.K * 4) / kMergeBytesPerUs);
  us += prescan_us(prescan_bv(L, limits), L, limits) + step * static_cast<double>(steps);
  return us + kLaunchUs * 2;
}

Result<Config> KdaForward::heuristic(const DeviceLimits& limits) const {
  const Config* best = nullptr;
  double best_us = 0;
  Status refused;
  const std::vector<Config> all = space_.all();
  for (const Config& config : all) {
    if (config.warps * 16 != config.bv) continue;
    if (Status status = legal(config, limits); !status.ok()) {
      refused = std::move(status);
      continue;
    }
    // A split must pay: it has another class's bits, and its guess is the less certain one.
    const double us = score(config, limits) * (config.segment_chunks > 0 ? 1.1 : 1.0);
    if (best == nullptr || us < best_us) {
      best = &config;
      best_us = us;
    }
  }
  if (best != nullptr) return *best;
  return unsupported("no config of KDA forward with K = " + number(problem_.K) + ", V = " +
                     number(problem_.V) + " is legal here; the last one: " + refused.message());
}

// --- kernels -------------------------------------------------------------------------------------

jit::KernelSource KdaForward::offsets_source() const {
  jit::KernelSource source;
  source.template_file = "kda_forward/offsets.cu";
  source.entry = "kda_offsets";
  source.traits = "KdaOffsetsTraits";
  source.params_type = "scanjit::kda_forward::OffsetsParams";
  source.constants = {boolean("INDEX64", problem_.cu_seqlens_type == IndexType::kInt64)};
  source.threads = params::kOffsetsThreads;
  return source;
}

jit::KernelSource KdaForward::prepare_source(const DeviceLimits& limits) const {
  const KdaForwardProblem& p = problem_;
  const int K = static_cast<int>(p.K);
  const bool any_range = p.gate == KdaGate::kSoftplus || p.gate == KdaGate::kPrecomputed;
  jit::KernelSource source;
  source.template_file = "kda_forward/prepare.cu";
  source.entry = "kda_prepare";
  source.traits = "KdaPrepareTraits";
  source.params_type = "scanjit::kda_forward::PrepareParams";
  source.constants = {integer("K", p.K),
                      integer("V", p.V),
                      integer("GATE", static_cast<int>(p.gate)),
                      boolean("RANGE_ANY", any_range),
                      boolean("NORMALIZE", p.normalize_qk),
                      boolean("BETA_SIGMOID", p.beta_sigmoid),
                      boolean("GATE_F32", p.g_dtype == DType::kF32),
                      boolean("BETA_F32", p.beta_dtype == DType::kF32),
                      boolean("HAS_A_LOG", p.has_A_log),
                      boolean("HAS_DT_BIAS", p.has_dt_bias),
                      boolean("PACKED", p.packed),
                      boolean("INDEX64", p.packed && p.cu_seqlens_type == IndexType::kInt64),
                      boolean("ALIGNED", aligned_),
                      integer("PREFETCH", limits.compute_major >= 9 ? kPrefetchBlocks : 0)};
  source.threads = params::prepare_threads(K);
  source.smem_bytes = params::prepare_smem_bytes(K, static_cast<int>(p.V), any_range);
  // As many blocks a multiprocessor as pay, and no more than fit. Three of a bounded or scalar gate
  // spill some bytes a thread and are faster all the same (H200: 473 against 510 us of two).
  const int wanted = K > 128 ? 1 : any_range ? kPrepareBlocksAnyRange : kPrepareBlocks;
  const int fit = limits.smem_per_sm_bytes / (source.smem_bytes + limits.smem_reserved_bytes);
  source.min_blocks = std::clamp(fit, 1, wanted);
  return source;
}

jit::KernelSource KdaForward::scan_source(int bv, int stages, bool split) const {
  const KdaForwardProblem& p = problem_;
  jit::KernelSource source;
  source.template_file = "kda_forward/scan.cu";
  source.entry = "kda_scan";
  source.traits = "KdaScanTraits";
  source.params_type = "scanjit::kda_forward::ScanParams";
  source.constants = {integer("K", p.K),
                      integer("V", p.V),
                      integer("BV", bv),
                      integer("STAGES", stages),
                      boolean("PRESCAN", false),
                      boolean("SPLIT", split),
                      boolean("HAS_H0", p.has_h0),
                      boolean("HAS_HT", p.has_ht),
                      boolean("HAS_H0_INDICES", p.has_h0_indices),
                      boolean("HAS_HT_INDICES", p.has_ht_indices),
                      boolean("HAS_CHECKPOINTS", p.checkpoints > 0),
                      boolean("POOL_INDEX64", (p.has_h0_indices || p.has_ht_indices) &&
                                                  p.index_type == IndexType::kInt64),
                      boolean("LAYOUT_VK", p.layout == StateLayout::kVK),
                      boolean("STATE_BF16", p.state_dtype == DType::kBf16),
                      boolean("PACKED", p.packed),
                      boolean("INDEX64", p.packed && p.cu_seqlens_type == IndexType::kInt64),
                      boolean("ALIGNED", aligned_),
                      boolean("WARP_PRODUCTS", false),
                      boolean("PERTURB", false)};
  source.threads = bv * 2;
  source.smem_bytes = params::scan_smem_bytes(static_cast<int>(p.K), bv, stages, false);
  return source;
}

// The same kernel; what it does not look at is off.
jit::KernelSource KdaForward::prescan_source(int bv, const DeviceLimits& limits) const {
  const KdaForwardProblem& p = problem_;
  const int stages = prescan_stages(bv, limits);
  jit::KernelSource source = scan_source(bv, stages, false);
  for (jit::Constant& constant : source.constants) {
    if (constant.name == "PRESCAN") constant.value = 1;
    if (constant.name.rfind("HAS_", 0) == 0 || constant.name == "POOL_INDEX64" ||
        constant.name == "LAYOUT_VK" || constant.name == "STATE_BF16")
      constant.value = 0;
    if (constant.name == "ALIGNED") constant.value = 1;  // it is of o
  }
  source.smem_bytes = params::scan_smem_bytes(static_cast<int>(p.K), bv, stages, true);
  return source;
}

jit::KernelSource KdaForward::merge_source() const {
  const KdaForwardProblem& p = problem_;
  jit::KernelSource source;
  source.template_file = "kda_forward/merge.cu";
  source.entry = "kda_merge";
  source.traits = "KdaMergeTraits";
  source.params_type = "scanjit::kda_forward::MergeParams";
  source.constants = {
      integer("K", p.K),
      integer("V", p.V),
      boolean("HAS_H0", p.has_h0),
      boolean("HAS_H0_INDICES", p.has_h0_indices),
      boolean("POOL_INDEX64", p.has_h0_indices && p.index_type == IndexType::kInt64),
      boolean("LAYOUT_VK", p.layout == StateLayout::kVK),
      boolean("STATE_BF16", p.state_dtype == DType::kBf16),
      boolean("PACKED", p.packed),
      boolean("INDEX64", p.packed && p.cu_seqlens_type == IndexType::kInt64)};
  source.threads = 2 * static_cast<int>(p.K);
  source.smem_bytes = params::merge_smem_bytes(static_cast<int>(p.K));
  return source;
}

std::vector<Stage> KdaForward::stages(const Config& config, const DeviceLimits& limits) const {
  const KdaForwardProblem& p = problem_;
  std::vector<Stage> list;
  const auto found = form_of(config.segment_chunks);
  if (N_ == 0 || !found) return list;
  const std::int64_t L = found->segment_chunks, slice = found->slice_chunks;
  const auto add = [&](StageKind kind, jit::KernelSource source, std::int64_t grid,
                       std::int64_t begin) {
    list.push_back({std::move(source), grid, {}, {kind, {L, slice, begin, 0}}});
  };
  const std::int64_t tiles = p.V / config.bv;
  if (p.packed) add(kOffsetsStage, offsets_source(), 1, 0);
  if (slice > 0) {
    for (std::int64_t begin = 0; begin < longest_chunks(); begin += slice) {
      add(kPrepareStage, prepare_source(limits), N_ * slice * p.HV, begin);
      add(kScanStage, scan_source(config.bv, config.stages, false), N_ * p.HV * tiles, begin);
    }
    return list;
  }
  if (chunks_ > 0) add(kPrepareStage, prepare_source(limits), chunks_ * p.HV, 0);
  if (L == 0) {
    add(kScanStage, scan_source(config.bv, config.stages, false), N_ * p.HV * tiles, 0);
    return list;
  }
  const std::int64_t heads = segments(L) * p.HV;
  const int bv = prescan_bv(L, limits);
  if (segments(L) > N_)
    add(kPrescanStage, prescan_source(bv, limits), heads * ((p.V + p.K) / bv), 0);
  add(kMergeStage, merge_source(), N_ * p.HV * (p.V / params::kMergeColumns), 0);
  add(kScanStage, scan_source(config.bv, config.stages, true), heads * tiles, 0);
  return list;
}

std::vector<jit::KernelSource> KdaForward::kernels(const Config& config,
                                                   const DeviceLimits& limits) const {
  const bool split = config.segment_chunks > 0;
  std::vector<jit::KernelSource> list{prepare_source(limits),
                                      scan_source(config.bv, config.stages, split)};
  if (problem_.packed) list.push_back(offsets_source());
  if (!split) return list;
  list.push_back(merge_source());
  for (const int bv : kPrescanBvs) {
    if (problem_.V % bv == 0 && problem_.K % bv == 0 && prescan_stages(bv, limits) > 0)
      list.push_back(prescan_source(bv, limits));
  }
  return list;
}

// --- launching -----------------------------------------------------------------------------------

Addresses KdaForward::addresses(const KdaForwardArgs& args, Workspace workspace) noexcept {
  const auto plain = [](const void* pointer) { return const_cast<void*>(pointer); };
  Addresses a;
  a.tensor[kQ] = plain(args.q);
  a.tensor[kK] = plain(args.k);
  a.tensor[kV] = plain(args.v);
  a.tensor[kG] = plain(args.g);
  a.tensor[kBeta] = plain(args.beta);
  a.tensor[kALog] = plain(args.A_log);
  a.tensor[kDtBias] = plain(args.dt_bias);
  a.tensor[kH0] = plain(args.h0);
  a.tensor[kH0Indices] = plain(args.h0_indices);
  a.tensor[kCuSeqlens] = plain(args.cu_seqlens);
  a.tensor[kHtIndices] = plain(args.ht_indices);
  a.tensor[kCheckpointOffsets] = plain(args.checkpoint_offsets);
  a.tensor[kO] = args.o;
  a.tensor[kHt] = args.ht;
  a.tensor[kCheckpoints] = args.checkpoints;
  a.tensor[kStatus] = args.status;
  a.workspace = workspace.data;
  return a;
}

void KdaForward::fill_params(const StageNote& note, const Addresses& addresses,
                             StageParams& out) const noexcept {
  const KdaForwardProblem& p = problem_;
  const auto& tensor = addresses.tensor;
  const std::int64_t L = note.numbers[kSegmentNote], slice = note.numbers[kSliceNote];
  const Form at = form(L, slice);
  auto* workspace = static_cast<unsigned char*>(addresses.workspace);
  const auto put = [&](const auto& filled) {
    static_assert(sizeof(filled) <= sizeof(out.bytes));
    std::memcpy(out.bytes.data(), &filled, sizeof(filled));
  };
  auto* offsets = reinterpret_cast<long long*>(workspace);
  auto* segment_offsets = reinterpret_cast<long long*>(workspace + round_up((N_ + 1) * 8));
  const std::int64_t segment_chunks = L > 0 ? L : kSerial;
  if (note.kind == kOffsetsStage) {
    put(params::OffsetsParams{tensor[kCuSeqlens], offsets, segment_offsets, N_, p.T,
                              segment_chunks});
    return;
  }
  params::SequenceParams sequences{};
  if (p.packed) {
    sequences.cu_seqlens = tensor[kCuSeqlens];
    sequences.chunk_offsets = offsets;
    sequences.segment_offsets = segment_offsets;
  }
  sequences.N = N_;
  sequences.T = p.T;
  sequences.segment_chunks = segment_chunks;
  sequences.chunk_capacity = chunks_;
  sequences.segment_capacity = segments(segment_chunks);
  sequences.slice_begin = note.numbers[kSliceBeginNote];
  sequences.slice_chunks = slice;
  auto* states = slice > 0 || L > 0 ? reinterpret_cast<float*>(workspace + at.states) : nullptr;
  auto* summaries = L > 0 ? reinterpret_cast<float*>(workspace + at.summaries) : nullptr;

  if (note.kind == kPrepareStage) {
    params::PrepareParams prepare{};
    prepare.sequences = sequences;
    prepare.q = tensor[kQ];
    prepare.k = tensor[kK];
    prepare.v = tensor[kV];
    prepare.g = tensor[kG];
    prepare.beta = tensor[kBeta];
    prepare.A_log = static_cast<const float*>(tensor[kALog]);
    prepare.dt_bias = static_cast<const float*>(tensor[kDtBias]);
    prepare.records = workspace + at.records;
    prepare.q_stride = p.q_stride;
    prepare.k_stride = p.k_stride;
    prepare.v_stride = p.v_stride;
    prepare.g_stride = p.g_stride;
    prepare.beta_stride = p.beta_stride;
    prepare.scale = p.scale;
    prepare.lower_bound = p.lower_bound;
    prepare.H = static_cast<int>(p.H);
    prepare.HV = static_cast<int>(p.HV);
    put(prepare);
  } else if (note.kind == kMergeStage) {
    params::MergeParams merge{};
    merge.sequences = sequences;
    merge.h0 = tensor[kH0];
    merge.h0_indices = tensor[kH0Indices];
    merge.summaries = summaries;
    merge.states = states;
    merge.h0_slot_stride = p.h0_slot_stride;
    merge.h0_slots = p.h0_slots;
    merge.HV = static_cast<int>(p.HV);
    put(merge);
  } else {
    params::ScanParams scan{};
    scan.sequences = sequences;
    scan.records = workspace + at.records;
    scan.h0 = tensor[kH0];
    scan.h0_indices = tensor[kH0Indices];
    scan.states = states;
    scan.summaries = summaries;
    scan.o = tensor[kO];
    scan.ht = tensor[kHt];
    scan.ht_indices = tensor[kHtIndices];
    scan.checkpoint_offsets = static_cast<const int*>(tensor[kCheckpointOffsets]);
    scan.checkpoints = tensor[kCheckpoints];
    scan.status = static_cast<unsigned*>(tensor[kStatus]);
    scan.o_stride = p.o_stride;
    scan.h0_slot_stride = p.h0_slot_stride;
    scan.ht_slot_stride = p.ht_slot_stride;
    scan.h0_slots = p.h0_slots;
    scan.ht_slots = p.ht_slots;
    scan.HV = static_cast<int>(p.HV);
    scan.Q = static_cast<int>(p.checkpoints);
    put(scan);
  }
}

}  // namespace scanjit::ops

namespace scanjit {

const char* to_string(KdaGate gate) noexcept {
  switch (gate) {
    case KdaGate::kBounded: return "bounded";
    case KdaGate::kSoftplus: return "softplus";
    case KdaGate::kPrecomputed: return "precomputed";
    case KdaGate::kScalar: return "scalar";
  }
  return "unknown";
}

Result<std::int64_t> workspace_bound(const KdaForwardProblem& problem, std::int64_t limit) {
  return guard([&]() -> Result<std::int64_t> {
    KdaForwardProblem limited = problem;
    if (limit < 1)
      return invalid_argument("limit is " + std::to_string(limit) + "; it must be at least 1");
    if (limit != std::numeric_limits<std::int64_t>::max() &&
        (limited.workspace_limit == 0 || limit < limited.workspace_limit))
      limited.workspace_limit = limit;
    SCANJIT_ASSIGN_OR_RETURN(const auto op, ops::KdaForward::make(limited));
    return op->workspace_bound();
  });
}

}  // namespace scanjit
