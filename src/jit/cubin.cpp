#include "jit/cubin.hpp"

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

namespace scanjit::jit {
namespace {

// The number that stands right before `unit` in `line`: "..., 256 bytes smem" -> 256.
std::optional<int> number_before(std::string_view line, std::string_view unit) {
  const std::size_t at = line.find(unit);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = line.substr(0, at);
  const std::size_t space = before.find_last_not_of("0123456789");
  const std::string_view digits =
      space == std::string_view::npos ? before : before.substr(space + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

// Reads little-endian ELF structures without trusting a single offset in them.
class Elf {
 public:
  struct Section {
    std::uint32_t name = 0, type = 0;
    std::uint64_t offset = 0, size = 0;
  };

  explicit Elf(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  std::optional<T> read(std::uint64_t offset) const {
    if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  std::optional<Section> section(std::uint64_t table, std::uint64_t entry_bytes,
                                 std::uint64_t index) const {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
    if (table > kMost || entry_bytes > kMost || index > 0xffff) return std::nullopt;
    const std::uint64_t at = table + entry_bytes * index;
    const auto name = read<std::uint32_t>(at);
    const auto type = read<std::uint32_t>(at + 4);
    const auto offset = read<std::uint64_t>(at + 24);
    const auto size = read<std::uint64_t>(at + 32);
    if (!name || !type || !offset || !size) return std::nullopt;
    return Section{*name, *type, *offset, *size};
  }

  std::optional<std::string_view> content(const Section& section) const {
    if (section.offset > bytes_.size() || section.size > bytes_.size() - section.offset)
      return std::nullopt;
    return bytes_.substr(section.offset, section.size);
  }

 private:
  std::string_view bytes_;
};

}  // namespace

Result<KernelResources> parse_resources(const std::string& log, const std::string& entry) {
  KernelResources resources;
  bool in_entry = false, found = false;
  std::string_view text = log;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    constexpr std::string_view kCompiling = "Compiling entry function '";
    if (const std::size_t at = line.find(kCompiling); at != std::string_view::npos) {
      const std::string_view name = line.substr(at + kCompiling.size());
      in_entry = name.substr(0, name.find('\'')) == entry;
      continue;
    }
    if (!in_entry) continue;
    if (const auto stack = number_before(line, " bytes stack frame")) {
      resources.stack = *stack;
      resources.spill_stores = number_before(line, " bytes spill stores").value_or(0);
      resources.spill_loads = number_before(line, " bytes spill loads").value_or(0);
    }
    if (const auto registers = number_before(line, " registers")) {
      resources.registers = *registers;
      resources.smem_static = number_before(line, " bytes smem").value_or(0);
      found = true;
    }
  }
  if (!found)
    return internal_error("the compiler's log tells nothing of the registers of " + entry);
  return resources;
}

Result<std::string> text_section(const std::string& cubin, const std::string& entry) {
  const Status damaged =
      corrupt("the machine code of " + entry + " is no well-formed 64-bit ELF file");
  if (cubin.size() < 64 || cubin.compare(0, 6,
                                         "\x7f"
                                         "ELF\x02\x01") != 0)
    return damaged;
  const Elf elf(cubin);
  const auto table = elf.read<std::uint64_t>(40);
  const auto entry_bytes = elf.read<std::uint16_t>(58);
  const auto count = elf.read<std::uint16_t>(60);
  const auto names_index = elf.read<std::uint16_t>(62);
  if (!table || !entry_bytes || !count || !names_index) return damaged;
  const auto names_section = elf.section(*table, *entry_bytes, *names_index);
  if (!names_section) return damaged;
  const auto names = elf.content(*names_section);
  if (!names) return damaged;
  const std::string wanted = ".text." + entry;
  for (std::uint16_t i = 0; i < *count; ++i) {
    const auto section = elf.section(*table, *entry_bytes, i);
    if (!section || section->name > names->size()) return damaged;
    const std::string_view rest = names->substr(section->name);
    if (rest.substr(0, rest.find('\0')) != wanted) continue;
    const auto content = elf.content(*section);
    if (!content) return damaged;
    return std::string(*content);
  }
  return not_found("the machine code has no section " + wanted);
}

}  // namespace scanjit::jit
