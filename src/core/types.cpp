#include "scanjit/types.hpp"

namespace scanjit {

std::string to_string(const Config& config) {
  std::string text = "bv=" + std::to_string(config.bv) + " bk=" + std::to_string(config.bk) +
                     " stages=" + std::to_string(config.stages) +
                     " warps=" + std::to_string(config.warps);
  if (config.segment_chunks != 0)
    text += " segment_chunks=" + std::to_string(config.segment_chunks);
  return text;
}

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBf16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kF32: return "f32";
  }
  return "unknown";
}

const char* to_string(StateLayout layout) noexcept {
  return layout == StateLayout::kVK ? "vk" : "kv";
}
const char* to_string(GateBase base) noexcept { return base == GateBase::kE ? "e" : "2"; }
const char* to_string(IndexType type) noexcept { return type == IndexType::kInt32 ? "i32" : "i64"; }

}  // namespace scanjit
