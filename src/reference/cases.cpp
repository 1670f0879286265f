#include "reference/cases.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "reference/random.hpp"

namespace scanjit::reference {
namespace {

// A case stays small enough to be checked by the CPU oracle in a second or so.
constexpr std::int64_t kMostProducts = std::int64_t{400} << 20;  // tokens * HV * K * V
constexpr std::int64_t kMostStates = std::int64_t{6} << 20;      // elements of h

/// Draws one after the other.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}

  /// In [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_bits(seed_, 0, next_++) %
                                           static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class T, std::size_t N>
  T pick(const T (&values)[N]) {
    return values[between(0, static_cast<std::int64_t>(N) - 1)];
  }

 private:
  std::uint64_t seed_, next_ = 0;
};

/// 0 half of the time (contiguous), else a little more than the row.
std::int64_t stride(Dice* dice, std::int64_t row, std::int64_t multiple) {
  return dice->chance(50) ? 0 : row + multiple * dice->between(0, 5);
}

/// A length that is awkward for chunks of BT.
std::int64_t length(Dice* dice, std::int64_t BT, std::int64_t most) {
  const std::int64_t awkward[] = {0,      1,          2,      BT - 1,     BT,
                                  BT + 1, 2 * BT - 1, 2 * BT, 2 * BT + 1, 3 * BT};
  const std::int64_t drawn =
      dice->chance(60) ? dice->pick(awkward) : dice->between(0, dice->chance(20) ? most : 6 * BT);
  return std::min(drawn, most);
}

void choose_shape(Dice* dice, GatedDeltaHProblem* p) {
  constexpr std::int64_t kKeyWidths[] = {1,  2,  3,  7,  8,   15,  16,  17,  31,  32,  33,  48,
                                         63, 64, 65, 96, 100, 127, 128, 128, 129, 192, 255, 256};
  constexpr std::int64_t kValueWidths[] = {1,  2,  5,  8,   15,  16,  17,  31,  32,  33,  40,
                                           63, 64, 65, 100, 127, 128, 128, 129, 192, 200, 256};
  constexpr std::int64_t kChunks[] = {16, 32, 64, 64};
  p->BT = dice->pick(kChunks);
  p->dtype = dice->chance(50) ? DType::kBf16 : DType::kF16;
  p->K = dice->chance(60) ? dice->pick(kKeyWidths) : dice->between(1, 256);
  p->V = dice->chance(60) ? dice->pick(kValueWidths) : dice->between(1, 300);
  p->H = dice->between(1, 4);
  p->HV = p->H * dice->between(1, 4);
  p->layout = dice->chance(50) ? StateLayout::kKV : StateLayout::kVK;
  p->gate_base = dice->chance(50) ? GateBase::kTwo : GateBase::kE;
  p->has_g = dice->chance(60);
  p->has_gk = dice->chance(40);
  p->has_h0 = dice->chance(60);
  p->has_h = dice->chance(70);
  p->has_v_new = dice->chance(70);
  p->has_ht = dice->chance(60) || (!p->has_h && !p->has_v_new);
  p->aligned16 = dice->chance(60);
}

/// Cuts at most `budget` tokens into sequences.
void choose_lengths(Dice* dice, std::int64_t budget, GatedDeltaHCase* c) {
  GatedDeltaHProblem& p = c->problem;
  p.packed = dice->chance(65);
  if (!p.packed) {
    p.B = dice->between(1, 4);
    p.T = length(dice, p.BT, budget / p.B);
    if (dice->chance(3)) p.B = 0;
    if (dice->chance(50)) p.sequences = p.B;
    return;
  }
  p.B = 1;
  p.sequences = dice->chance(3)    ? 0
                : dice->chance(15) ? dice->between(60, 140)
                                   : dice->between(1, 12);
  std::int64_t left = budget;
  for (std::int64_t n = 0; n < p.sequences; ++n) {
    const std::int64_t fair =
        dice->chance(10) ? left : std::min(left, 2 * (left / (p.sequences - n)) + 2);
    const std::int64_t next = length(dice, p.BT, fair);
    c->generator.lengths.push_back(next);
    left -= next;
  }
  p.T = budget - left;
  if (dice->chance(30)) p.T += dice->between(0, std::min(left, p.BT));  // tokens of no sequence
  p.cu_seqlens_type = dice->chance(50) ? IndexType::kInt32 : IndexType::kInt64;
  c->host_cu_seqlens = dice->chance(40);

  std::int64_t chunks = 0;
  p.has_chunk_offsets = dice->chance(30);
  const bool gaps = p.has_chunk_offsets && dice->chance(50);
  for (const std::int64_t tokens : c->generator.lengths) {
    if (p.has_chunk_offsets) c->generator.chunk_offsets.push_back(chunks);
    chunks += (tokens + p.BT - 1) / p.BT + (gaps ? dice->between(0, 1) : 0);
  }
  const std::int64_t bound = (p.T + p.sequences * (p.BT - 1)) / p.BT;
  if (c->host_cu_seqlens && dice->chance(50)) {
    p.chunk_capacity = chunks;  // exactly what is needed
  } else if (dice->chance(30) || chunks > bound) {
    p.chunk_capacity = std::max(chunks, bound) + dice->between(0, 3);
  }
}

/// Distinct slots in a random order, some replaced by -1 or by slots that do not exist.
std::vector<std::int64_t> choose_indices(Dice* dice, std::int64_t N, std::int64_t slots,
                                         bool repeat, IndexType type) {
  const std::int64_t outside[] = {slots, -2, slots + 1,
                                  type == IndexType::kInt32 ? INT32_MAX : INT64_MAX,
                                  type == IndexType::kInt32 ? INT32_MIN : INT64_MIN};
  std::vector<std::int64_t> order(static_cast<std::size_t>(slots));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(dice->between(0, static_cast<std::int64_t>(i) - 1))]);
  }
  std::vector<std::int64_t> indices;
  const bool missing = dice->chance(50), wrong = dice->chance(30);
  for (std::int64_t n = 0; n < N; ++n) {
    std::int64_t slot = n < slots ? order[static_cast<std::size_t>(n)] : -1;
    if (repeat && slots > 0 && (slot == -1 || dice->chance(20))) slot = dice->between(0, slots - 1);
    if (missing && dice->chance(20)) slot = -1;
    if (wrong && dice->chance(20)) slot = dice->pick(outside);
    indices.push_back(slot);
  }
  return indices;
}

void choose_states(Dice* dice, GatedDeltaHCase* c) {
  GatedDeltaHProblem& p = c->problem;
  const std::int64_t N = p.packed ? p.sequences : p.B, states = p.HV * p.K * p.V;
  const std::int64_t multiple = p.aligned16 ? 4 : 1;
  const auto slots = [&](bool indexed) {
    // A slot count of 0 means N, so a pool that a problem shrinks keeps one slot.
    return !indexed ? (dice->chance(50) ? 0 : N + dice->between(0, 3))
                    : std::max<std::int64_t>(1, N + dice->between(-2, 4));
  };
  p.index_type = dice->chance(50) ? IndexType::kInt32 : IndexType::kInt64;
  c->ht_in_place = p.has_h0 && p.has_ht && dice->chance(40);
  if (p.has_h0) {
    p.has_h0_indices = dice->chance(50);
    p.h0_slots = slots(p.has_h0_indices);
    p.h0_slot_stride = stride(dice, states, multiple);
    if (p.has_h0_indices) {
      c->generator.h0_indices = choose_indices(dice, N, p.h0_slots, !c->ht_in_place, p.index_type);
    }
  }
  if (c->ht_in_place) {
    p.has_ht_indices = p.has_h0_indices;
    p.ht_slots = p.h0_slots;
    p.ht_slot_stride = p.h0_slot_stride;
    c->generator.ht_indices = c->generator.h0_indices;
  } else if (p.has_ht) {
    p.has_ht_indices = dice->chance(50);
    p.ht_slots = slots(p.has_ht_indices);
    p.ht_slot_stride = stride(dice, states, multiple);
    if (p.has_ht_indices)
      c->generator.ht_indices = choose_indices(dice, N, p.ht_slots, false, p.index_type);
  }
}

void choose_strides(Dice* dice, GatedDeltaHCase* c) {
  GatedDeltaHProblem& p = c->problem;
  const std::int64_t multiple = dice->chance(60) ? 8 : 1;
  p.k_stride = stride(dice, p.H * p.K, multiple);
  p.w_stride = stride(dice, p.HV * p.K, multiple);
  p.u_stride = stride(dice, p.HV * p.V, multiple);
  if (p.has_g) p.g_stride = stride(dice, p.HV, multiple);
  if (p.has_gk) p.gk_stride = stride(dice, p.HV * p.K, multiple);
  if (!p.has_v_new) return;
  c->v_new_in_place = dice->chance(30);
  p.v_new_stride = c->v_new_in_place ? p.u_stride : stride(dice, p.HV * p.V, multiple);
}

/// Appends "name=value" pairs.
class Line {
 public:
  explicit Line(std::string start) : text_(std::move(start)) {}
  void add(const char* name, std::int64_t value) {
    text_ += std::string(" ") + name + "=" + std::to_string(value);
  }
  void add(const char* name, const char* value) { text_ += std::string(" ") + name + "=" + value; }
  void add_if(const char* name, std::int64_t value) {
    if (value != 0) add(name, value);
  }
  void add(const char* name, const std::vector<std::int64_t>& values) {
    if (values.empty()) return;
    char separator = '=';
    text_ += std::string(" ") + name;
    for (const std::int64_t value : values) {
      text_ += separator;
      text_ += std::to_string(value);
      separator = ',';
    }
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

GatedDeltaHCase random_case(std::uint64_t seed, std::int64_t max_tokens) {
  Dice dice(seed);
  GatedDeltaHCase c;
  c.seed = seed;
  GatedDeltaHProblem& p = c.problem;
  choose_shape(&dice, &p);
  // Half of the cases are short; long ones give up heads before tokens.
  std::int64_t budget =
      dice.chance(50) ? std::min<std::int64_t>(max_tokens, 12 * p.BT) : max_tokens;
  const auto too_large = [&] {
    const std::int64_t states = p.HV * p.K * p.V;
    // The most chunks that the budget can be cut into by the lengths drawn below, gaps included.
    return budget * states > kMostProducts ||
           (p.has_h && (budget / p.BT + 150) * states > kMostStates);
  };
  if (too_large() && p.HV > p.H) p.HV = p.H * 2;
  if (too_large() && p.HV > 2) p.HV = p.H = 2;
  if (too_large()) p.HV = p.H = 1;
  while (too_large() && budget > p.BT) budget = std::max(budget / 2, p.BT);
  choose_lengths(&dice, budget, &c);
  choose_states(&dice, &c);
  choose_strides(&dice, &c);
  if (!p.aligned16) c.misalign_elements = static_cast<int>(dice.between(0, 7));
  if (dice.chance(50)) {
    const std::vector<std::int64_t>& lengths = c.generator.lengths;
    const std::int64_t longest = !p.packed ? p.T
                                 : lengths.empty()
                                     ? 0
                                     : *std::max_element(lengths.begin(), lengths.end());
    p.max_tokens = longest + dice.between(0, p.BT);
  }
  constexpr GateSet kGateSets[] = {GateSet::kStrong, GateSet::kSlow, GateSet::kNone};
  c.generator.gates = dice.pick(kGateSets);
  c.generator.kind = InputKind::kWy;
  c.generator.seed = random_bits(seed, 1, 0);
  return c;
}

std::string to_string(const GatedDeltaHCase& c) {
  const GatedDeltaHProblem& p = c.problem;
  Line line("gated_delta_h case=" + std::to_string(c.seed));
  line.add("dtype", to_string(p.dtype));
  line.add("B", p.B);
  line.add("T", p.T);
  line.add("H", p.H);
  line.add("HV", p.HV);
  line.add("K", p.K);
  line.add("V", p.V);
  line.add("BT", p.BT);
  if (p.packed) {
    line.add("N", p.sequences);
    line.add("cu_seqlens", to_string(p.cu_seqlens_type));
    line.add("lengths", c.generator.lengths);
    line.add("chunk_offsets", c.generator.chunk_offsets);
    line.add_if("chunk_capacity", p.chunk_capacity);
    line.add_if("host_cu_seqlens", c.host_cu_seqlens ? 1 : 0);
  }
  line.add("base", to_string(p.gate_base));
  line.add("layout", to_string(p.layout));
  line.add("gates", to_string(c.generator.gates));
  line.add("g", p.has_g ? 1 : 0);
  line.add("gk", p.has_gk ? 1 : 0);
  line.add("h0", p.has_h0 ? 1 : 0);
  line.add("h", p.has_h ? 1 : 0);
  line.add("v_new", p.has_v_new ? 1 : 0);
  line.add("ht", p.has_ht ? 1 : 0);
  if (p.has_h0_indices || p.has_ht_indices) line.add("index", to_string(p.index_type));
  line.add_if("h0_slots", p.h0_slots);
  line.add("h0_indices", c.generator.h0_indices);
  line.add_if("ht_slots", p.ht_slots);
  line.add("ht_indices", c.generator.ht_indices);
  line.add_if("k_stride", p.k_stride);
  line.add_if("w_stride", p.w_stride);
  line.add_if("u_stride", p.u_stride);
  line.add_if("g_stride", p.g_stride);
  line.add_if("gk_stride", p.gk_stride);
  line.add_if("v_new_stride", p.v_new_stride);
  line.add_if("h0_slot_stride", p.h0_slot_stride);
  line.add_if("ht_slot_stride", p.ht_slot_stride);
  line.add_if("ht_in_place", c.ht_in_place ? 1 : 0);
  line.add_if("v_new_in_place", c.v_new_in_place ? 1 : 0);
  line.add_if("max_tokens", p.max_tokens);
  line.add_if("misalign", c.misalign_elements);
  line.add("aligned16", p.aligned16 ? 1 : 0);
  return line.text();
}

}  // namespace scanjit::reference
