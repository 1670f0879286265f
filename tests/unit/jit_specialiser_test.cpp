// The generated source: what is in it, and that hostile input is an error or a valid source.

#include "jit/specialiser.hpp"

#include <random>

#include "support/catch.hpp"
#include "support/seed.hpp"

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

// What is left of a source when every word and number is written "x" and "x::x" too: two sources
// with the same skeleton have the same tokens but for names and values.
std::string skeleton(const std::string& source) {
  std::string out;
  for (const char c : source) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '/' || c == '-';
    if (!word) {
      out += c;
    } else if (out.empty() || out.back() != 'x') {
      out += 'x';
    }
    if (out.ends_with("x::x")) out.resize(out.size() - 3);
  }
  return out;
}

TEST_CASE("whatever the input, nothing but names and numbers gets into the source", "[jit][fuzz]") {
  const std::string expected = skeleton(*generate_source(plain()));
  const unsigned seed = test::test_seed(5);
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::string_view alphabet = "aZ09_:/.\"\n\\ ;{}()<>#*-cu?\t";
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
  for (int round = 0; round < 20000; ++round) {
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
    if (skeleton(*source) != expected) FAIL(*source);
  }
  CHECK(valid > 2000);
}
