#include <new>
#include <stdexcept>
#include <string>

#include "core/guard.hpp"
#include "support/catch.hpp"

using scanjit::ErrorCode;
using scanjit::guard;
using scanjit::Result;
using scanjit::Status;

TEST_CASE("guard hands through what the body returns", "[core]") {
  CHECK(guard([] { return Status(); }).ok());
  CHECK(guard([] { return scanjit::not_found("no such thing"); }).code() == ErrorCode::kNotFound);
  const Result<std::string> text =
      guard([]() -> Result<std::string> { return std::string("value"); });
  REQUIRE(text.ok());
  CHECK(*text == "value");
}

TEST_CASE("guard turns every exception into an error", "[core]") {
  const Status memory = guard([]() -> Status { throw std::bad_alloc(); });
  CHECK(memory.code() == ErrorCode::kOutOfMemory);
  CHECK_FALSE(memory.message().empty());
  const Result<int> standard = guard([]() -> Result<int> { throw std::runtime_error("a reason"); });
  CHECK(standard.status().code() == ErrorCode::kInternal);
  CHECK(standard.status().message().find("a reason") != std::string::npos);
  const Status other = guard([]() -> Status { throw 7; });
  CHECK(other.code() == ErrorCode::kInternal);
  const Status length = guard([]() -> Status {
    std::string text;
    text.resize(text.max_size());  // too large for any machine: bad_alloc or length_error
    return {};
  });
  CHECK_FALSE(length.ok());
}
