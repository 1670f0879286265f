// The generated source: what is in it, and that hostile input is an error or a valid source.

#include "jit/specialiser.hpp"

#include <random>
#include <regex>

#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;

namespace {

KernelSource plain() {
  KernelSource kernel;
  kernel.template_file = "scale/scale.cu";
  kernel.entry = "scale";
  kernel.traits = "ScaleTraits";
  kernel.params_type = "scanjit::scale::Params";
  kernel.constants = {{"BV", Constant::Type::kInt, 64}, {"HAS_G", Constant::Type::kBool, 1}};
  kernel.threads = 128;
  kernel.min_blocks = 2;
  kernel.smem_bytes = 4096;
  return kernel;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the source names every constant and asserts what host and device share", "[jit]") {
  const auto source = generate_source(plain());
  REQUIRE(source.ok());
  CHECK(has(*source, "#include \"scale/scale.cu\"\n"));
  CHECK(has(*source, "  static constexpr int BV = 64;\n"));
  CHECK(has(*source, "  static constexpr bool HAS_G = true;\n"));
  CHECK(has(*source, "static_assert(scanjit::dev::ScaleTraits<Cfg>::kSmemBytes == 4096,"));
  CHECK(has(*source, "static_assert(scanjit::dev::ScaleTraits<Cfg>::kThreads == 128,"));
  CHECK(has(*source,
            "extern \"C\" __global__ void __launch_bounds__(128, 2)\nscale(const __grid_constant__ "
            "scanjit::scale::Params p)"));
  CHECK(*generate_source(plain()) == *source);
}

TEST_CASE("fields out of bounds are refused by name, value and bound", "[jit]") {
  const auto refused = [](auto change, const char* word) {
    KernelSource kernel = plain();
    change(kernel);
    const auto source = generate_source(kernel);
    REQUIRE_FALSE(source.ok());
    CHECK(source.status().code() == ErrorCode::kInvalidArgument);
    INFO(source.status().message());
    CHECK(has(source.status().message(), word));
  };
  refused([](KernelSource& k) { k.threads = 0; }, "threads is 0");
  refused([](KernelSource& k) { k.threads = 1025; }, "1024");
  refused([](KernelSource& k) { k.min_blocks = 0; }, "min_blocks is 0");
  refused([](KernelSource& k) { k.smem_bytes = -1; }, "smem_bytes is -1");
  refused([](KernelSource& k) { k.constants[0].value = std::int64_t{1} << 31; },
          "BV is 2147483648");
  refused([](KernelSource& k) { k.constants[1].value = 2; }, "HAS_G is 2");
  refused([](KernelSource& k) { k.constants[1].name = "BV"; }, "given twice");
  refused([](KernelSource& k) { k.constants[0].name = "int"; }, "\"int\"");
  refused([](KernelSource& k) { k.constants[0].name = "A; } int x = 1; struct B {"; },
          "identifier");
  refused([](KernelSource& k) { k.constants[0].name = "Cfg"; }, "Cfg");
  refused([](KernelSource& k) { k.entry = "__global__"; }, "entry");
  refused([](KernelSource& k) { k.entry = "main"; }, "entry");
  refused([](KernelSource& k) { k.entry = ""; }, "entry");
  refused([](KernelSource& k) { k.traits = "a::b"; }, "traits");
  refused([](KernelSource& k) { k.params_type = "scanjit::"; }, "params_type");
  refused([](KernelSource& k) { k.params_type = "int"; }, "params_type");
  for (const char* file : {"", "/etc/passwd.cu", "../x.cu", "a/../../x.cu", "a//b.cu", "x.h",
                           "a\"\n#include <x>\n.cu", ".hidden.cu"}) {
    refused([&](KernelSource& k) { k.template_file = file; }, "template_file");
  }
}

TEST_CASE("whatever the input, the source has the one shape or there is none", "[jit][fuzz]") {
  // Every line that may occur, so that nothing given can add a token of its own.
  const std::string id = "[A-Za-z][A-Za-z0-9_]*";
  const std::regex line(
      "|#include \"[A-Za-z0-9_./-]+\\.cu\"|struct Cfg \\{|\\};|  static constexpr int " + id +
      " = -?[0-9]+;|  static constexpr bool " + id +
      " = (true|false);|static_assert\\(scanjit::dev::" + id +
      "<Cfg>::k(SmemBytes|Threads) == [0-9]+,|    \"[a-z ]+: the host computed [0-9]+, " + id +
      "::k(SmemBytes|Threads) differs\"\\);|extern \"C\" __global__ void "
      "__launch_bounds__\\([0-9]+, [0-9]+\\)|" +
      id + "\\(const __grid_constant__ (" + id + "::)*" + id + " p\\) \\{|  scanjit::dev::" + id +
      "<Cfg>\\(p\\);|\\}");
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::string alphabet = "aZ09_:/.\"\n\\ ;{}()<>#\0*-cu?";
  const auto mutate = [&](std::string& text) {
    for (auto n = random() % 3; n > 0; --n) {
      const std::size_t at = text.empty() ? 0 : random() % text.size();
      const char c =
          random() % 8 == 0 ? static_cast<char>(random()) : alphabet[random() % alphabet.size()];
      switch (random() % 3) {
        case 0: text.insert(at, 1, c); break;
        case 1:
          if (!text.empty()) text[at] = c;
          break;
        default:
          if (!text.empty()) text.erase(at, 1 + random() % 3);
      }
    }
  };
  int valid = 0;
  for (int round = 0; round < 5000; ++round) {
    KernelSource kernel = plain();
    for (std::string* text : {&kernel.template_file, &kernel.entry, &kernel.traits,
                              &kernel.params_type, &kernel.constants[0].name}) {
      if (random() % 4 == 0) mutate(*text);
    }
    kernel.constants[0].value = static_cast<std::int64_t>(random()) - (std::int64_t{1} << 31);
    const auto source = generate_source(kernel);
    if (!source.ok()) {
      REQUIRE(source.status().code() == ErrorCode::kInvalidArgument);
      continue;
    }
    ++valid;
    std::size_t begin = 0;
    while (begin < source->size()) {
      const std::size_t end = source->find('\n', begin);
      const std::string text = source->substr(begin, end - begin);
      if (!std::regex_match(text, line)) FAIL("line \"" << text << "\"");
      begin = end + 1;
    }
  }
  CHECK(valid > 500);
}
