#include "jit/binary_format.hpp"

#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;

namespace {

StoredBinary sample() {
  StoredBinary binary;
  binary.source_id = make_source_id("source", "digest", {"--fmad=false"}, "sm_90a");
  binary.binary_id = make_binary_id(binary.source_id, "13.0.88 CL-1");
  binary.entry = "scale";
  binary.arch = "sm_90a";
  binary.nvrtc = "13.0.88";
  binary.resources = {96, 128, 4, 8, 16, 1 << 20};
  binary.cubin = std::string(
      "\x7f"
      "ELF\0\0code",
      10);
  return binary;
}

}  // namespace

TEST_CASE("a stored binary comes back as it was", "[jit]") {
  const auto decoded = decode_binary(encode_binary(sample()));
  REQUIRE(decoded.ok());
  CHECK(*decoded == sample());
  StoredBinary empty;
  CHECK(*decode_binary(encode_binary(empty)) == empty);
}

TEST_CASE("every flipped bit, every truncation and every added byte of a file is noticed",
          "[jit][fault]") {
  const std::string bytes = encode_binary(sample());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      if (decode_binary(damaged).status().code() != ErrorCode::kCorrupt)
        FAIL("byte " << i << " bit " << bit);
    }
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    if (decode_binary(std::string_view(bytes).substr(0, size)).ok()) FAIL("cut to " << size);
  }
  CHECK_FALSE(decode_binary(bytes + '\0').ok());
  CHECK_FALSE(decode_binary("x" + bytes).ok());
}

TEST_CASE("ids are of what was compiled and nothing else", "[jit]") {
  const std::string id = make_source_id("source", "digest", {"a", "b"}, "sm_90a");
  CHECK(id.size() == 40);
  CHECK(make_source_id("source", "digest", {"a", "b"}, "sm_90a") == id);
  CHECK(make_source_id("source!", "digest", {"a", "b"}, "sm_90a") != id);
  CHECK(make_source_id("source", "digest!", {"a", "b"}, "sm_90a") != id);
  CHECK(make_source_id("source", "digest", {"ab"}, "sm_90a") != id);
  CHECK(make_source_id("source", "digest", {"a", "b"}, "sm_80") != id);
  CHECK(make_source_id("sourced", "igest", {"a", "b"}, "sm_90a") != id);
  CHECK(make_binary_id(id, "13.0.88 CL-1") != make_binary_id(id, "13.0.88 CL-2"));
  CHECK(make_binary_id(id, "x").substr(0, 41) == id + "-");
}

TEST_CASE("the format is fixed: an id that changes loses every cache and pack", "[jit][golden]") {
  CHECK(make_source_id("source", "digest", {"--fmad=false"}, "sm_90a") ==
        "aa42c561d36fcbd230e3bfa54e779a339dd05c97");
  CHECK(make_binary_id("s", "13.0.88 CL-36424714") == "s-95c688a0ad0a3093");
}
