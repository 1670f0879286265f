// Any names and numbers as a kernel, and any numbers as a Config: an error, or a source in which
// nothing stands but the fixed words, checked identifiers and decimal integers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "jit/specialiser.hpp"
#include "ops/gated_delta_h.hpp"
#include "require.hpp"

using scanjit::fuzz::require;

namespace {

using namespace scanjit;

/// Takes fields off the front of the bytes; past their end all are zero.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T number() {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(
          value | static_cast<T>(static_cast<T>(static_cast<unsigned char>(byte())) << (8 * i)));
    }
    return value;
  }
  /// Up to the next line feed.
  std::string text() {
    const std::string_view found = rest_.substr(0, rest_.find('\n'));
    rest_.remove_prefix(std::min(rest_.size(), found.size() + 1));
    return std::string(found);
  }
  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  char byte() {
    if (rest_.empty()) return 0;
    const char first = rest_.front();
    rest_.remove_prefix(1);
    return first;
  }
  std::string_view rest_;
};

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == ':' || c == '/' || c == '.' || c == '-';
  });
}

bool skip(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// What stands before `end`.
std::string_view until(std::string_view& text, std::string_view end) {
  const std::size_t at = text.find(end);
  require(at != std::string_view::npos);
  const std::string_view found = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return found;
}

bool is_number(std::string_view text) {
  skip(text, "-");
  return !text.empty() && text.size() <= 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The whole source, word for word.
void check_source(std::string_view text) {
  require(skip(text, "#include \""));
  require(is_name(until(text, "\"\n\nstruct Cfg {\n")));
  while (!skip(text, "};\n\n")) {
    require(skip(text, "  static constexpr "));
    const bool is_bool = skip(text, "bool ");
    require(is_bool || skip(text, "int "));
    require(is_name(until(text, " = ")));
    const std::string_view value = until(text, ";\n");
    require(is_bool ? value == "true" || value == "false" : is_number(value));
  }
  for (int i = 0; i < 2; ++i) {
    require(skip(text, "static_assert(scanjit::dev::"));
    require(is_name(until(text, "<Cfg>::")));
    require(is_name(until(text, " == ")));
    require(is_number(until(text, ",\n    \"")));
    const std::string_view sentence = until(text, "\");\n");
    require(sentence.find_first_of("\"\\\n") == std::string_view::npos);
  }
  require(skip(text, "\nextern \"C\" __global__ void __launch_bounds__("));
  require(is_number(until(text, ", ")));
  require(is_number(until(text, ")\n")));
  require(is_name(until(text, "(const __grid_constant__ ")));
  require(is_name(until(text, " p) {\n  scanjit::dev::")));
  require(is_name(until(text, "<Cfg>(p);\n}\n")));
  require(text.empty());
}

void check(const jit::KernelSource& kernel) {
  const Result<std::string> source = jit::generate_source(kernel);
  if (source.ok()) {
    check_source(*source);
  } else {
    require(source.status().code() == ErrorCode::kInvalidArgument);
    for (const char c : source.status().message()) require(c >= ' ' && c <= '~');
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  {
    Fields fields(bytes);
    jit::KernelSource kernel;
    kernel.threads = fields.number<std::int32_t>();
    kernel.min_blocks = fields.number<std::int32_t>();
    kernel.smem_bytes = fields.number<std::int32_t>();
    kernel.template_file = fields.text();
    kernel.entry = fields.text();
    kernel.traits = fields.text();
    kernel.params_type = fields.text();
    while (!fields.empty() && kernel.constants.size() < 64) {
      jit::Constant constant;
      constant.type = fields.number<std::uint8_t>() % 2 == 0 ? jit::Constant::Type::kInt
                                                             : jit::Constant::Type::kBool;
      constant.value = fields.number<std::int64_t>();
      constant.name = fields.text();
      kernel.constants.push_back(std::move(constant));
    }
    check(kernel);
  }
  // A config as a tuned file may bring it, on a problem of any sizes: what is legal is a source.
  Fields fields(bytes);
  GatedDeltaHProblem problem;
  problem.BT = 16 << (fields.number<std::uint8_t>() % 3);
  problem.K = fields.number<std::uint8_t>();
  problem.V = fields.number<std::uint8_t>();
  problem.has_g = fields.number<std::uint8_t>() % 2 == 1;
  problem.has_ht = fields.number<std::uint8_t>() % 2 == 1;
  problem.B = 2;
  problem.T = 640;
  problem.H = 2;
  problem.HV = 4;
  Config config;
  config.bv = fields.number<std::int32_t>();
  config.bk = fields.number<std::int32_t>();
  config.stages = fields.number<std::int32_t>();
  config.warps = fields.number<std::int32_t>();
  const auto op = ops::GatedDeltaH::make(problem);
  if (!op.ok()) return 0;
  const ops::DeviceLimits limits =
      ops::limits_of(tuning::GpuFacts{{"NVIDIA H200"}, 9, 0, 132, 60 << 20, 232448, 6144});
  const Status legal = (*op)->legal(config, limits);
  if (!legal.ok()) {
    require(legal.code() == ErrorCode::kUnsupported && !legal.message().empty());
    return 0;
  }
  for (const ops::Stage& stage : (*op)->stages(config, limits)) {
    const Result<std::string> source = jit::generate_source(stage.source);
    require(source.ok());
    check_source(*source);
  }
  return 0;
}
