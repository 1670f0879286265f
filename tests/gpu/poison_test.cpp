// A NaN or an infinity in one (sequence, head) changes no bit of another.

#include <limits>
#include <string>
#include <vector>

#include "gpu/arrange.hpp"
#include "gpu/case.hpp"
#include "gpu/run.hpp"

namespace scanjit::test {
namespace {

constexpr std::int64_t kHeads = 2, kGroup = 2, kWidth = 128;

struct Poison {
  const char* tensor;
  std::int64_t sequence, value_head;
  float value;
};

/// Overwrites what (sequence, value head) reads of one tensor; of k that is its key head's rows.
reference::GatedDeltaHInputs poisoned(reference::GatedDeltaHInputs in, const Poison& poison) {
  const GatedDeltaHProblem& p = in.problem;
  const reference::GatedDeltaHSizes s = reference::sizes_of(p).value();
  const std::uint16_t bits = poison.value != poison.value ? 0x7fff : 0x7f80;  // bf16
  const std::int64_t begin = in.cu_seqlens[static_cast<std::size_t>(poison.sequence)];
  const std::int64_t end = in.cu_seqlens[static_cast<std::size_t>(poison.sequence) + 1];
  const auto rows = [&](auto* tensor, std::int64_t stride, std::int64_t head, std::int64_t width,
                        auto value) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t i = 0; i < width; ++i)
        (*tensor)[static_cast<std::size_t>(t * stride + head * width + i)] = value;
    }
  };
  const std::string tensor = poison.tensor;
  if (tensor == "k") rows(&in.k, s.k_stride, poison.value_head / kGroup, p.K, bits);
  if (tensor == "w") rows(&in.w, s.w_stride, poison.value_head, p.K, bits);
  if (tensor == "u") rows(&in.u, s.u_stride, poison.value_head, p.V, bits);
  if (tensor == "g") rows(&in.g, s.g_stride, poison.value_head, 1, poison.value);
  if (tensor == "gk") rows(&in.gk, s.gk_stride, poison.value_head, p.K, poison.value);
  if (tensor == "h0") {
    for (std::int64_t i = 0; i < s.state; ++i) {
      in.h0[static_cast<std::size_t>(poison.sequence * s.h0_slot_stride +
                                     poison.value_head * s.state + i)] = poison.value;
    }
  }
  return in;
}

/// Of one sequence's bits, the part of one value head, as one list.
std::vector<std::uint32_t> head_bits(const SequenceBits& bits, std::int64_t head) {
  std::vector<std::uint32_t> out;
  const auto take = [&](const auto& tensor, std::int64_t per_head) {
    const auto period = static_cast<std::size_t>(per_head * kHeads * kGroup);
    for (std::size_t start = static_cast<std::size_t>(head * per_head); start < tensor.size();
         start += period) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(per_head); ++i)
        out.push_back(tensor[start + i]);
    }
  };
  take(bits.h, kWidth * kWidth);
  take(bits.v_new, kWidth);
  take(bits.ht, kWidth * kWidth);
  return out;
}

}  // namespace

TEST_CASE("Not-a-numbers stay in their own sequence and head", "[gpu][poison]") {
  SCANJIT_TEST_GPU(gpu);
  GatedDeltaHProblem p;
  p.packed = true;
  p.H = kHeads;
  p.HV = kHeads * kGroup;
  p.K = p.V = kWidth;
  p.has_g = p.has_gk = p.has_h0 = p.has_h = p.has_v_new = p.has_ht = true;
  reference::GeneratorOptions generator;
  generator.lengths = {70, 1, 130, 63, 64, 65};
  p.sequences = 6;
  for (const std::int64_t length : generator.lengths) p.T += length;
  const reference::GatedDeltaHInputs inputs = must(reference::generate(p, generator));

  std::vector<std::optional<Config>> configs = {std::nullopt};
  for (const Config& config : must(varied_configs(gpu, p))) configs.emplace_back(config);
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                  kInfinity = std::numeric_limits<float>::infinity();
  std::int64_t compared = 0;
  for (const std::optional<Config>& config : configs) {
    RunOptions options;
    options.config = config;
    const std::vector<SequenceBits> clean = sequence_bits(inputs, must(run(gpu, inputs, options)));
    std::int64_t turn = 0;
    for (const char* tensor : {"k", "w", "u", "g", "gk", "h0"}) {
      for (const float value : {kNaN, kInfinity}) {
        ++turn;
        const Poison poison{tensor, turn % p.sequences, (turn / 2) % p.HV, value};
        const reference::GatedDeltaHInputs bad = poisoned(inputs, poison);
        const std::vector<SequenceBits> dirty = sequence_bits(bad, must(run(gpu, bad, options)));
        bool changed = false;
        for (std::int64_t n = 0; n < p.sequences; ++n) {
          for (std::int64_t head = 0; head < p.HV; ++head) {
            const bool same_key_head = head / kGroup == poison.value_head / kGroup;
            const bool hit = n == poison.sequence && (head == poison.value_head ||
                                                      (poison.tensor[0] == 'k' && same_key_head));
            const bool equal = head_bits(clean[static_cast<std::size_t>(n)], head) ==
                               head_bits(dirty[static_cast<std::size_t>(n)], head);
            if (hit) {
              changed = changed || !equal;
            } else {
              ++compared;
              INFO(tensor << " = " << value << " in sequence " << poison.sequence << ", head "
                          << poison.value_head << " changes sequence " << n << ", head " << head
                          << (config ? ", config " + to_string(*config) : std::string()));
              CHECK(equal);
            }
          }
        }
        INFO(tensor << " = " << value << " changed nothing at all: the test proves nothing");
        CHECK(changed);
      }
    }
  }
  report_counts("{\"what\":\"poison\",\"compared\":" + std::to_string(compared) + "}");
}

}  // namespace scanjit::test
