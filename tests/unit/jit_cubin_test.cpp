#include "jit/cubin.hpp"

#include <cstring>
#include <random>

#include "support/catch.hpp"
#include "support/seed.hpp"

using namespace scanjit;
using namespace scanjit::jit;

namespace {

template <class T>
void set(std::string& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

// A small ELF file with the sections "", ".shstrtab" and ".text.scale".
std::string tiny_elf(const std::string& code) {
  const std::string names = std::string("\0.shstrtab\0.text.scale\0", 23);
  std::string bytes(64, '\0');
  bytes.replace(0, 6,
                "\x7f"
                "ELF\x02\x01");
  const std::size_t names_at = bytes.size();
  bytes += names;
  const std::size_t code_at = bytes.size();
  bytes += code;
  const std::size_t table = bytes.size();
  bytes.append(3 * 64, '\0');
  set<std::uint64_t>(bytes, 40, table);
  set<std::uint16_t>(bytes, 58, 64);
  set<std::uint16_t>(bytes, 60, 3);
  set<std::uint16_t>(bytes, 62, 1);
  set<std::uint32_t>(bytes, table + 64, 1);
  set<std::uint64_t>(bytes, table + 64 + 24, names_at);
  set<std::uint64_t>(bytes, table + 64 + 32, names.size());
  set<std::uint32_t>(bytes, table + 128, 11);
  set<std::uint64_t>(bytes, table + 128 + 24, code_at);
  set<std::uint64_t>(bytes, table + 128 + 32, code.size());
  return bytes;
}

}  // namespace

TEST_CASE("the machine code of a kernel is its text section", "[jit]") {
  CHECK(*text_section(tiny_elf("instructions"), "scale") == "instructions");
  CHECK(text_section(tiny_elf("instructions"), "other").status().code() == ErrorCode::kNotFound);
  CHECK(text_section(tiny_elf("instructions"), "scal").status().code() == ErrorCode::kNotFound);
  CHECK(text_section("", "scale").status().code() == ErrorCode::kCorrupt);
  CHECK(text_section(std::string(100, 'x'), "scale").status().code() == ErrorCode::kCorrupt);
}

TEST_CASE("damaged ELF files are errors and never read out of bounds", "[jit][fuzz]") {
  const std::string good = tiny_elf("instructions");
  const unsigned seed = test::test_seed(4);
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (auto n = 1 + random() % 4; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto text = text_section(bytes, "scale");
    if (text.ok()) {
      if (text->size() > bytes.size()) FAIL("a section of more bytes than the file");
    } else if (text.status().code() != ErrorCode::kCorrupt &&
               text.status().code() != ErrorCode::kNotFound) {
      FAIL(text.status().to_string());
    }
  }
}

TEST_CASE("the compiler's statistics of one kernel are read out of the log", "[jit]") {
  const std::string log =
      "a.cu(3): warning: something\n"
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'other' for 'sm_90a'\n"
      "ptxas info    : Function properties for other\n"
      "    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n"
      "ptxas info    : Used 31 registers, used 0 barriers, 400 bytes cmem[0]\n"
      "ptxas info    : Compiling entry function 'scale' for 'sm_90a'\n"
      "ptxas info    : Function properties for scale\n"
      "ptxas         .     40 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 40 bytes cumulative stack size, 256 "
      "bytes smem\n";
  const auto resources = parse_resources(log, "scale");
  REQUIRE(resources.ok());
  CHECK(resources->registers == 168);
  CHECK(resources->stack == 40);
  CHECK(resources->spill_stores == 12);
  CHECK(resources->spill_loads == 20);
  CHECK(resources->smem_static == 256);
  CHECK(parse_resources(log, "other")->smem_static == 0);
  CHECK_FALSE(parse_resources(log, "scal").ok());
  CHECK_FALSE(parse_resources("", "scale").ok());
}
