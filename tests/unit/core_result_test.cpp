#include <memory>
#include <string>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"
#include "support/catch.hpp"

using scanjit::ErrorCode;
using scanjit::Result;
using scanjit::Status;

namespace {

Result<int> half(int value) {
  if (value % 2 != 0)
    return scanjit::invalid_argument("value is " + std::to_string(value) + ", must be even");
  return value / 2;
}

Result<int> quarter(int value) {
  SCANJIT_ASSIGN_OR_RETURN(const int halved, half(value));
  SCANJIT_ASSIGN_OR_RETURN(const int quartered, half(halved));
  return quartered;
}

Status check_quarter(int value) {
  SCANJIT_TRY(quarter(value).status());
  return {};
}

}  // namespace

TEST_CASE("The numbers of the error codes are fixed", "[core]") {
  CHECK(static_cast<int>(ErrorCode::kInvalidArgument) == 1);
  CHECK(static_cast<int>(ErrorCode::kCompileFailed) == 4);
  CHECK(static_cast<int>(ErrorCode::kCorrupt) == 9);
  CHECK(static_cast<int>(ErrorCode::kInternal) == 13);
  for (int code = 0; code <= 13; ++code) {
    CHECK(std::string(scanjit::error_code_name(static_cast<ErrorCode>(code))) != "unknown");
  }
}

TEST_CASE("Errors travel up unchanged, and context goes before the sentence", "[core]") {
  CHECK(quarter(12).ok());
  CHECK(*quarter(12) == 3);
  CHECK(check_quarter(12).ok());
  const Status inner = check_quarter(6);
  CHECK(inner.code() == ErrorCode::kInvalidArgument);
  CHECK(inner.message() == "value is 3, must be even");
  CHECK(inner.with_context("tensor k").to_string() ==
        "invalid_argument: tensor k: value is 3, must be even");
  CHECK(Status().with_context("nothing").ok());
  CHECK(scanjit::io_error("no", "/a/b").with_context("x").details().path == "/a/b");
}

TEST_CASE("A Result of an ok Status is an error, and move-only values pass through", "[core]") {
  const Result<int> wrong = Status();
  CHECK_FALSE(wrong.ok());
  CHECK(wrong.status().code() == ErrorCode::kInternal);
  Result<std::unique_ptr<int>> made = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(made).value();
  CHECK(*taken == 5);
}

TEST_CASE("A config is written one way everywhere", "[core]") {
  CHECK(scanjit::to_string(scanjit::Config{64, 128, 2, 4}) == "bv=64 bk=128 stages=2 warps=4");
  CHECK(scanjit::to_string(scanjit::Config{64, 128, 2, 4, 16}) ==
        "bv=64 bk=128 stages=2 warps=4 segment_chunks=16");
}
