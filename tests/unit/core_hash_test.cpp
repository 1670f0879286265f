#include <algorithm>
#include <cstddef>
#include <random>
#include <string>

#include "core/hash.hpp"
#include "support/catch.hpp"

using scanjit::Sha256;
using scanjit::sha256_hex;

TEST_CASE("SHA-256 gives the digests that FIPS 180-4 and NIST's examples print", "[core]") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(
            "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmn"
            "opqrlmnopqrsmnopqrstnopqrstu") ==
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(sha256_hex(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 sees every byte, zeros and those above 127 too", "[core]") {
  CHECK(sha256_hex(std::string(1, '\0')) ==
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d");
  CHECK(sha256_hex("\xbd") == "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
}

TEST_CASE("SHA-256 depends on the bytes and not on how they are cut", "[core]") {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<std::size_t> piece(0, 150);
  for (std::size_t length :
       {0U, 1U, 55U, 56U, 57U, 63U, 64U, 65U, 119U, 120U, 127U, 128U, 129U, 1000U}) {
    CAPTURE(length);
    std::string text(length, ' ');
    for (char& c : text) c = static_cast<char>(random());
    const std::string whole = sha256_hex(text);
    for (int round = 0; round < 20; ++round) {
      Sha256 hash;
      for (std::size_t begin = 0; begin < length;) {
        const std::size_t end = std::min(length, begin + piece(random));
        hash.update(std::string_view(text).substr(begin, end - begin));
        static_cast<void>(hash.digest());  // looking at it changes nothing
        begin = end;
      }
      REQUIRE(hash.hex() == whole);
    }
    if (length > 0) {
      text[length / 2] = static_cast<char>(text[length / 2] ^ 1);
      CHECK(sha256_hex(text) != whole);
    }
  }
}
