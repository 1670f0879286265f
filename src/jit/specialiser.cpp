#include "jit/specialiser.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string_view>

namespace scanjit::jit {
namespace {

constexpr std::size_t kLongestName = 128;
constexpr int kMostThreads = 1024, kMostBlocks = 32, kMostSmemBytes = 1 << 20;

// Words that are spelt like identifiers and are none, and macros of the compiler's own.
constexpr auto kReservedWords = std::to_array<std::string_view>({
    "NULL",
    "EOF",
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "char16_t",
    "char32_t",
    "char8_t",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "linux",
    "long",
    "main",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "union",
    "unix",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
    "xor",
    "xor_eq",
});

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A letter, then letters, digits and single underscores, and no reserved word: what begins with an
// underscore or holds two belongs to the compiler.
bool is_identifier(std::string_view name) {
  if (name.empty() || name.size() > kLongestName || !is_letter(name.front())) return false;
  if (name.find("__") != std::string_view::npos) return false;
  if (!std::all_of(name.begin(), name.end(),
                   [](char c) { return is_letter(c) || is_digit(c) || c == '_'; }))
    return false;
  return std::find(kReservedWords.begin(), kReservedWords.end(), name) == kReservedWords.end();
}

bool is_qualified_name(std::string_view name) {
  while (true) {
    const std::size_t at = name.find("::");
    if (!is_identifier(name.substr(0, at))) return false;
    if (at == std::string_view::npos) return true;
    name.remove_prefix(at + 2);
  }
}

// "folder/name.cu": parts of letters, digits, '_', '-' and '.', none of which begins with a '.'.
bool is_template_file(std::string_view name) {
  if (!name.ends_with(".cu") || name.size() > kLongestName) return false;
  while (true) {
    const std::size_t at = name.find('/');
    const std::string_view part = name.substr(0, at);
    if (part.empty() || part.front() == '.') return false;
    for (const char c : part) {
      if (!is_letter(c) && !is_digit(c) && c != '_' && c != '-' && c != '.') return false;
    }
    if (at == std::string_view::npos) return true;
    name.remove_prefix(at + 1);
  }
}

// The value as it may be shown: hostile bytes do not get into logs either.
std::string quoted(std::string_view value) {
  constexpr std::size_t kShown = 60;
  std::string text = "\"";
  for (const char c : value.substr(0, kShown)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (value.size() > kShown ? "...\"" : "\"");
}

Status check_range(const char* what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(std::string(what) + " is " + std::to_string(value) + ", must be " +
                          std::to_string(low) + " to " + std::to_string(high));
}

Status check_kernel(const KernelSource& kernel) {
  if (!is_template_file(kernel.template_file)) {
    return invalid_argument("template_file is " + quoted(kernel.template_file) +
                            ", must be a relative path of a .cu file");
  }
  if (!is_identifier(kernel.entry))
    return invalid_argument("entry is " + quoted(kernel.entry) + ", no usable identifier");
  if (!is_identifier(kernel.traits))
    return invalid_argument("traits is " + quoted(kernel.traits) + ", no usable identifier");
  if (!is_qualified_name(kernel.params_type)) {
    return invalid_argument("params_type is " + quoted(kernel.params_type) + ", no qualified name");
  }
  SCANJIT_TRY(check_range("threads", kernel.threads, 1, kMostThreads));
  SCANJIT_TRY(check_range("min_blocks", kernel.min_blocks, 1, kMostBlocks));
  SCANJIT_TRY(check_range("smem_bytes", kernel.smem_bytes, 0, kMostSmemBytes));
  std::set<std::string_view> names;
  for (const Constant& constant : kernel.constants) {
    if (!is_identifier(constant.name) || constant.name == "Cfg") {
      return invalid_argument("a constant is named " + quoted(constant.name) +
                              ", no usable identifier");
    }
    if (!names.insert(constant.name).second)
      return invalid_argument("constant " + constant.name + " is given twice");
    if (constant.type == Constant::Type::kBool) {
      SCANJIT_TRY(check_range(constant.name.c_str(), constant.value, 0, 1));
    } else {
      SCANJIT_TRY(check_range(constant.name.c_str(), constant.value,
                              std::numeric_limits<std::int32_t>::min(),
                              std::numeric_limits<std::int32_t>::max()));
    }
  }
  return {};
}

std::string cfg_line(const Constant& constant) {
  if (constant.type == Constant::Type::kBool) {
    return "  static constexpr bool " + constant.name + " = " +
           (constant.value != 0 ? "true" : "false") + ";\n";
  }
  return "  static constexpr int " + constant.name + " = " + std::to_string(constant.value) + ";\n";
}

// What host and device each computed must be the same number.
std::string agreement(const std::string& traits, const char* member, int value, const char* what) {
  const std::string number = std::to_string(value);
  return "static_assert(scanjit::dev::" + traits + "<Cfg>::" + member + " == " + number +
         ",\n    \"" + what + ": the host computed " + number + ", " + traits + "::" + member +
         " differs\");\n";
}

}  // namespace

Result<std::string> generate_source(const KernelSource& kernel) {
  SCANJIT_TRY(check_kernel(kernel));
  std::string source = "#include \"" + kernel.template_file + "\"\n\nstruct Cfg {\n";
  for (const Constant& constant : kernel.constants) source += cfg_line(constant);
  source += "};\n\n";
  source += agreement(kernel.traits, "kSmemBytes", kernel.smem_bytes, "bytes of shared memory");
  source += agreement(kernel.traits, "kThreads", kernel.threads, "threads of a block");
  source += "\nextern \"C\" __global__ void __launch_bounds__(" + std::to_string(kernel.threads) +
            ", " + std::to_string(kernel.min_blocks) + ")\n" + kernel.entry +
            "(const __grid_constant__ " + kernel.params_type +
            " p) {\n  scanjit::dev::" + kernel.entry + "<Cfg>(p);\n}\n";
  return source;
}

}  // namespace scanjit::jit
