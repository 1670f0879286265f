#include "ops/abc_op.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/checked_math.hpp"
#include "ops/problem_checks.hpp"

namespace scanjit::ops {
namespace {

namespace params = scanjit::abc;

constexpr int kWarps = params::kThreads / 32;
constexpr std::array kBv{64, 128, 256, 384, 768};
// Blocks of a chunk's kernels that registers allow on a multiprocessor.
constexpr int kResident = 2;

Status illegal(const Config& config, const std::string& why) {
  return unsupported("config " + to_string(config) + ": " + why);
}

struct NumericsClass {
  std::string_view name;
  int segment_chunks;  // 0: any
};
constexpr NumericsClass kClasses[] = {{"default", AbcOp::kDefaultSegmentChunks},
                                      {"any", 0},
                                      {"segments1", 1},
                                      {"segments2", 2},
                                      {"segments4", 4}};
constexpr std::array kSegmentChunks{0, 1, 2, 4};
// Chunks between two states.
constexpr int length_of(int segment_chunks) {
  return segment_chunks == 0 ? AbcOp::kDefaultSegmentChunks : segment_chunks;
}

// Null: there is no such class.
const NumericsClass* find_class(const std::string& numerics) noexcept {
  for (const NumericsClass& one : kClasses)
    if (numerics == one.name) return &one;
  return nullptr;
}

}  // namespace

Status AbcOp::check() {
  AbcProblem& p = problem_;
  if (p.dtype == DType::kF32) return unsupported("dtype is f32; q, k, v and s must be bf16 or f16");
  if (p.dtype != DType::kBf16 && p.dtype != DType::kF16) {
    return invalid_argument("dtype is " + number(static_cast<int>(p.dtype)) +
                            "; it must be kBf16 (1) or kF16 (2)");
  }
  const NumericsClass* numerics = find_class(p.numerics);
  if (numerics == nullptr) {
    return unsupported("numerics is \"" + p.numerics +
                       "\"; ABC has default, segments1, segments2, segments4 and any");
  }
  segment_chunks_ = numerics->segment_chunks;
  if (p.has_saved && segment_chunks_ == 0) {
    return invalid_argument(
        "numerics is \"any\", but has_saved is set; what is saved depends on the class, so name "
        "one");
  }
  SCANJIT_TRY(check_range("K", p.K, 1, 256));
  SCANJIT_TRY(check_range("M", p.M, 1, 128));
  SCANJIT_TRY(check_range("V", p.V, 1, 512));
  SCANJIT_TRY(check_range("H", p.H, 1, kMaxInt));
  SCANJIT_TRY(check_not_negative("B", p.B));
  SCANJIT_TRY(check_not_negative("T", p.T));
  SCANJIT_TRY(check_not_negative("workspace_limit", p.workspace_limit));
  // Blocks of the largest grid: with them every size fits in 63 bits.
  const auto heads = checked_multiply(p.B, p.H);
  const int slabs = params::tiles(static_cast<int>(p.K)) + params::tiles(static_cast<int>(p.V));
  const auto blocks =
      heads ? checked_multiply(*heads, std::max(p.M, ceil_divide(p.T, params::kTile) * slabs))
            : std::nullopt;
  if (!blocks || *blocks > kMaxBlocks) {
    return unsupported("B * H * max(M, ceil(T/64) * (ceil(K/64) + ceil(V/64))) with B = " +
                       number(p.B) + ", H = " + number(p.H) + ", T = " + number(p.T) +
                       " is more than " + number(kMaxBlocks) + " blocks; split the batch");
  }
  dims_ = {p.dtype,
           p.B,
           p.T,
           p.H,
           static_cast<int>(p.K),
           static_cast<int>(p.M),
           static_cast<int>(p.V),
           p.aligned16 && p.K % 8 == 0 && p.M % 8 == 0 && p.V % 8 == 0};

  add_tokens(kQ, p.K, false);
  add_tokens(kK, p.K, false);
  add_tokens(kV, p.V, false);
  add_tokens(kS, p.M, false);
  if (p.has_hk0) add_states(kHk0, p.K * p.M, false);
  if (p.has_hv0) add_states(kHv0, p.M * p.V, false);
  if (p.has_z0) add_states(kZ0, p.M, false);
  if (p.has_saved)
    tensor_[kSaved] = {form({0, 0, 0, 0, segment_chunks_}).saved_bytes(), 256, !is_backward()};
  return {};
}

void AbcOp::add_tokens(TensorNumber number, std::int64_t columns, bool output) {
  tensor_[number] = {problem_.B * problem_.T * problem_.H * columns * 2, dims_.aligned ? 16 : 2,
                     output};
}
void AbcOp::add_states(TensorNumber number, std::int64_t elements, bool output) {
  tensor_[number] = {problem_.B * problem_.H * elements * 4, 4, output};
}

ProblemWords AbcOp::words(const Op& op, const AbcProblem& p,
                          std::initializer_list<bool> flags) noexcept {
  std::int64_t bits = op.number | static_cast<std::int64_t>(static_cast<int>(p.dtype) & 0xFF) << 8;
  const NumericsClass* numerics = find_class(p.numerics);
  bits |= (numerics == nullptr ? 15 : numerics - kClasses) << 16;
  int shift = 20;
  const auto add = [&](bool flag) { bits |= std::int64_t{flag} << shift++; };
  for (const bool flag : {p.has_hk0, p.has_hv0, p.has_z0, p.has_saved, p.aligned16}) add(flag);
  for (const bool flag : flags) add(flag);
  return {{bits, p.B, p.T, p.H, p.K, p.M, p.V, p.workspace_limit}};
}

void AbcOp::put_inputs(const AbcInputs& inputs, Addresses& addresses) noexcept {
  const auto plain = [](const void* pointer) { return const_cast<void*>(pointer); };
  addresses.tensor[kQ] = plain(inputs.q);
  addresses.tensor[kK] = plain(inputs.k);
  addresses.tensor[kV] = plain(inputs.v);
  addresses.tensor[kS] = plain(inputs.s);
  addresses.tensor[kHk0] = plain(inputs.hk0);
  addresses.tensor[kHv0] = plain(inputs.hv0);
  addresses.tensor[kZ0] = plain(inputs.z0);
}

tuning::KeyQuery AbcOp::key_query() const {
  const AbcProblem& p = problem_;
  tuning::KeyQuery query;
  tuning::ShapeKey& key = query.key;
  key.kernel = op().name;
  key.kernel_revision = params::kKernelRevision;
  key.space = space().hash();
  key.dtype = p.dtype;
  key.K = p.K;
  key.V = p.V;
  key.M = p.M;
  key.BT = params::kTile;
  // Without it the backward has two kernels more. The other optional tensors change neither.
  if (is_backward() && p.has_saved) key.optional.emplace_back("saved");
  key.alignment = dims_.aligned ? 16 : 2;
  key.numerics = segment_chunks_ == kDefaultSegmentChunks ? "default" : p.numerics;
  key.H = key.HV = p.H;
  query.sequences = std::max<std::int64_t>(p.B, 1);
  query.chunks = std::max<std::int64_t>(1, ceil_divide(p.T, params::kTile));
  return query;
}

const tuning::ConfigSpace& AbcOp::space() const {
  static const tuning::ConfigSpace space{{kBv.begin(), kBv.end()},
                                         {params::kTile},
                                         {2, 3},
                                         {kWarps},
                                         {kSegmentChunks.begin(), kSegmentChunks.end()}};
  return space;
}

Status AbcOp::legal(const Config& config, const DeviceLimits& limits) const {
  if (!space().contains(config))
    return illegal(config, "it is not in the config space of " + std::string(op().name));
  if (!in_class(config.segment_chunks)) {
    return illegal(config, "numerics \"" + problem_.numerics +
                               "\" means segment_chunks=" + number(segment_chunks_));
  }
  if (config.segment_chunks == 0 && config.bv != params::kTile)
    return illegal(config, "a block of the serial form takes bv=" + number(params::kTile));
  // What would be idle.
  const std::int64_t chunks = ceil_divide(problem_.T, params::kTile);
  if (segment_chunks_ == 0 &&
      length_of(config.segment_chunks) > std::max<std::int64_t>(chunks, 1)) {
    return illegal(config, "segments are longer than T = " + number(problem_.T) + ", " +
                               number(chunks) + " chunks");
  }
  const std::int64_t slabs = params::tiles(dims_.K) + params::tiles(dims_.V);
  if (config.bv > kBv.front() && config.bv / params::kTile >= 2 * slabs)
    return illegal(config, "bv is more than K + V = " + number(problem_.K + problem_.V) + " have");
  // What the device has.
  if (limits.compute_major < 8) {
    return illegal(config, "compute capability " + number(limits.compute_major) + "." +
                               number(limits.compute_minor) + "; the kernels need 8.0");
  }
  if (params::kThreads > limits.threads_per_block) {
    return illegal(config, number(params::kThreads) + " threads; a block may have " +
                               number(limits.threads_per_block));
  }
  if (const int smem = form(config).smem_bytes(is_backward()); smem > limits.smem_optin_bytes) {
    return illegal(config, number(smem) + " bytes of shared memory; a block may have " +
                               number(limits.smem_optin_bytes));
  }
  if (const std::int64_t bytes = workspace_bytes(config.segment_chunks);
      bytes > problem_.workspace_limit) {
    return illegal(config, number(bytes) + " bytes of workspace; workspace_limit is " +
                               number(problem_.workspace_limit));
  }
  return {};
}

double AbcOp::score(const Config& config, const DeviceLimits& limits) const {
  const bool serial = config.segment_chunks == 0;
  const double L = length_of(config.segment_chunks), K = params::tiles(dims_.K),
               V = params::tiles(dims_.V);
  const double sms = std::max(1, limits.sm_count);
  const double chunks =
      static_cast<double>(problem_.B * problem_.H * ceil_divide(problem_.T, params::kTile));
  const int smem = form(config).smem_bytes(is_backward()) + limits.smem_reserved_bytes;
  const double resident = std::clamp(limits.smem_per_sm_bytes / smem, 1, kResident);
  // Of one slab of a chunk's kernel, fitted on an H200 at M = 64. Alone on a multiprocessor a block
  // takes less.
  const double slab_us = (1.6 + 0.7 * L) * (resident > 1 ? 1 : 0.7) * dims_.M / 64;
  const bool states = !is_backward() || !problem_.has_saved;
  const double slabs = is_backward() ? 4 * K + 3 * V : K + V;
  const double rows = std::max(1.0, chunks / (sms * resident)) * slabs * slab_us;
  // Summaries out and in, states out; s or its weights again for every group of columns. The serial
  // form goes from segment to segment.
  const double groups = std::ceil((K + V) * params::kTile / config.bv);
  const double bytes = chunks / L * dims_.M * (K + V) * params::kTile * 10;
  const double blocks = std::max(1.0, chunks / L * groups / (sms * kResident));
  const double segments = static_cast<double>(ceil_divide(problem_.T, params::kTile)) / L;
  const double scan =
      serial ? segments * 2
             : bytes / 4.3e6 +
                   blocks * (3 + 1.5 * L * std::min<double>(config.bv / params::kTile, K + V));
  return rows + scan * ((states ? 1 : 0) + (is_backward() ? 1 : 0));
}

Result<Config> AbcOp::heuristic(const DeviceLimits& limits) const {
  // Measured on an H200 at K 256, M 64, V 512: two chunks a segment are fastest at every length (one
  // takes 3% less in the backward of 32 chunks a head). Two blocks a multiprocessor, but in a
  // backward that does not fill them. The widest summary blocks that still give most
  // multiprocessors one, and where they are wider than half a head's columns, half of them two.
  const std::int64_t blocks = problem_.B * problem_.H * ceil_divide(problem_.T, params::kTile);
  const bool alone = is_backward() && blocks <= limits.sm_count;
  const int slabs = params::tiles(dims_.K) + params::tiles(dims_.V);
  Status refused;
  for (const int segment_chunks : {2, 1, 4, 0}) {
    if (!in_class(segment_chunks)) continue;
    for (const bool as_meant : {true, false}) {
      for (const int stages : {3, 2}) {
        Config config{0, params::kTile, stages, kWarps, segment_chunks};
        const int smem = form(config).smem_bytes(is_backward()) + limits.smem_reserved_bytes;
        if (as_meant && !alone && kResident * smem > limits.smem_per_sm_bytes) continue;
        const std::int64_t segments =
            problem_.B * problem_.H *
            ceil_divide(problem_.T, params::kTile * length_of(segment_chunks));
        for (const int bv : kBv) {
          const int tiles = bv / params::kTile;
          const std::int64_t summaries = segments * ceil_divide(slabs, tiles);
          const bool fills = 10 * summaries >= (tiles > 6 ? 15 : 7) * std::int64_t{limits.sm_count};
          if (bv == kBv.front() || (segment_chunks != 0 && tiles < 2 * slabs && fills))
            config.bv = bv;
        }
        Status status = legal(config, limits);
        if (status.ok()) return config;
        if (refused.ok()) refused = std::move(status);
      }
    }
  }
  return refused;
}

std::string AbcOp::source_class() const {
  return "K" + number(params::tiles(dims_.K) * params::kTile) + "-M" + number(dims_.M) + "-V" +
         number(params::tiles(dims_.V) * params::kTile) + "-a" + (dims_.aligned ? "16" : "2");
}

AbcStages AbcOp::form(const Config& config) const {
  return {dims_,
          {length_of(config.segment_chunks), config.stages, config.bv / params::kTile,
           config.segment_chunks == 0}};
}

bool AbcOp::in_class(int segment_chunks) const noexcept {
  return segment_chunks_ == 0 || length_of(segment_chunks) == segment_chunks_;
}

std::vector<Stage> AbcOp::stages(const Config& config, const DeviceLimits&) const {
  const AbcStages form = this->form(config);
  std::vector<Stage> list;
  if (!is_backward() || !problem_.has_saved) list = form.states();
  for (Stage& stage : is_backward() ? form.backward() : form.forward())
    list.push_back(std::move(stage));
  for (Stage& stage : list) stage.note.numbers[0] = config.segment_chunks;
  return list;
}

std::vector<jit::KernelSource> AbcOp::kernels(const Config& config,
                                              const DeviceLimits& limits) const {
  std::vector<jit::KernelSource> list;
  for (Stage& stage : stages(config, limits)) list.push_back(std::move(stage.source));
  return list;
}

std::int64_t AbcOp::workspace_bytes(int segment_chunks) const noexcept {
  const AbcStages form = this->form({0, 0, 0, 0, segment_chunks});
  return (is_backward() ? form.backward_bytes() : form.forward_bytes()) +
         (problem_.has_saved ? 0 : form.saved_bytes());
}

std::int64_t AbcOp::workspace_bytes(const Config& config, const DeviceLimits&) const noexcept {
  return workspace_bytes(config.segment_chunks);
}

std::int64_t AbcOp::workspace_bound() const noexcept {
  std::int64_t most = 0;
  for (const int chunks : kSegmentChunks) {
    const std::int64_t bytes = workspace_bytes(chunks);
    if (in_class(chunks) && bytes <= problem_.workspace_limit) most = std::max(most, bytes);
  }
  return most;
}

Result<std::int64_t> AbcOp::workspace_bound_under(std::int64_t limit) const {
  limit = std::min(limit, problem_.workspace_limit);
  std::optional<std::int64_t> most, least;
  for (const int chunks : kSegmentChunks) {
    if (!in_class(chunks)) continue;
    const std::int64_t bytes = workspace_bytes(chunks);
    least = std::min(least.value_or(bytes), bytes);
    if (bytes <= limit) most = std::max(most.value_or(bytes), bytes);
  }
  if (most) return *most;
  return unsupported(std::string(op().name) + " needs at least " + number(*least) +
                     " bytes of workspace, the limit is " + number(limit));
}

Result<std::int64_t> AbcOp::saved_bytes() const {
  if (segment_chunks_ == 0)
    return invalid_argument("numerics is \"any\"; what is saved depends on the class, so name one");
  return form({0, 0, 0, 0, segment_chunks_}).saved_bytes();
}

bool AbcOp::same_bits(const Config& a, const Config& b) const noexcept {
  return length_of(a.segment_chunks) == length_of(b.segment_chunks);
}

void AbcOp::fill_params(const StageNote& note, const Addresses& addresses,
                        StageParams& out) const noexcept {
  const auto& tensor = addresses.tensor;
  const AbcStages form = this->form({0, 0, 0, 0, static_cast<int>(note.numbers[0])});
  auto* workspace = static_cast<unsigned char*>(addresses.workspace);
  void* saved = problem_.has_saved ? tensor[kSaved] : workspace;
  params::AbcParams p =
      form.params(saved, problem_.has_saved ? workspace : workspace + form.saved_bytes());
  const auto floats = [&](TensorNumber at) { return static_cast<float*>(tensor[at]); };
  p.q = tensor[kQ];
  p.k = tensor[kK];
  p.v = tensor[kV];
  p.s = tensor[kS];
  p.hk0 = floats(kHk0);
  p.hv0 = floats(kHv0);
  p.z0 = floats(kZ0);
  p.dout = tensor[kDout];
  p.dhkt = floats(kDhkt);
  p.dhvt = floats(kDhvt);
  p.o = tensor[kO];
  p.hkt = floats(kHkt);
  p.hvt = floats(kHvt);
  p.zt = floats(kZt);
  p.dq = tensor[kDq];
  p.dk = tensor[kDk];
  p.dv = tensor[kDv];
  p.ds = tensor[kDs];
  p.dhk0 = floats(kDhk0);
  p.dhv0 = floats(kDhv0);
  p.dz0 = floats(kDz0);
  static_assert(sizeof(p) <= sizeof(out.bytes));
  std::memcpy(out.bytes.data(), &p, sizeof(p));
}

}  // namespace scanjit::ops
