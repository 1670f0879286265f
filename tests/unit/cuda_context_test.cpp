// Context scopes balance, captures of others survive, streams are asked the right way.

#include "cuda/context.hpp"

#include <thread>

#include "cuda/stream.hpp"
#include "support/catch.hpp"
#include "support/fake_driver.hpp"

using namespace scanjit;
using namespace scanjit::cuda;
using test::FakeDriver;

namespace {

// A context that is nobody's current one.
CUcontext floating_context(const FakeDriver& driver) {
  CUcontext context = nullptr, popped = nullptr;
  REQUIRE(driver.api().cuCtxCreate(&context, 0, 0) == CUDA_SUCCESS);
  REQUIRE(driver.api().cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
  return context;
}

Status fails_inside(const DriverApi& api, CUcontext context) {
  SCANJIT_ASSIGN_OR_RETURN(const ScopedContext scope, ScopedContext::enter(api, context));
  return internal_error("left early");
}

}  // namespace

TEST_CASE("a context scope leaves the stack as it was on every way out", "[cuda]") {
  FakeDriver driver;
  const CUcontext outer = floating_context(driver), inner = floating_context(driver);
  const auto scope = ScopedContext::enter(driver.api(), outer);
  REQUIRE(scope.ok());
  CHECK(driver.context_depth() == 1);
  CHECK_FALSE(fails_inside(driver.api(), inner).ok());
  CHECK(driver.context_depth() == 1);
  CHECK(*current_context(driver.api()) == outer);

  driver.fail_call("cuCtxPushCurrent", 1, CUDA_ERROR_INVALID_CONTEXT);
  CHECK_FALSE(ScopedContext::enter(driver.api(), inner).ok());
  CHECK(*current_context(driver.api()) == outer);
  CHECK_FALSE(ScopedContext::enter(driver.api(), nullptr).ok());
}

TEST_CASE("a moved scope pops once", "[cuda]") {
  FakeDriver driver;
  const CUcontext context = floating_context(driver);
  {
    auto first = ScopedContext::enter(driver.api(), context);
    REQUIRE(first.ok());
    const ScopedContext second = std::move(first).value();
    CHECK(driver.context_depth() == 1);
  }
  CHECK(driver.context_depth() == 0);
  CHECK(driver.calls("cuCtxPopCurrent") == 2);  // one of them made the context float
}

TEST_CASE("primary contexts are released as often as retained", "[cuda]") {
  FakeDriver driver;
  {
    auto first = PrimaryContext::retain(driver.api(), 0);
    REQUIRE(first.ok());
    const PrimaryContext moved = std::move(first).value();
    CHECK(moved.get() != nullptr);
    CHECK(driver.live().primary_retains == 1);
  }
  CHECK(driver.live().primary_retains == 0);
}

TEST_CASE("a destroyed context is device_lost and never mistaken for a new one", "[cuda]") {
  FakeDriver driver;
  const CUcontext context = floating_context(driver);
  const auto id = identify(driver.api(), context);
  REQUIRE(id.ok());
  CHECK(driver.context_depth() == 0);
  REQUIRE(driver.api().cuCtxDestroy(context) == CUDA_SUCCESS);
  CHECK(identify(driver.api(), context).status().code() == ErrorCode::kDeviceLost);
  CHECK(identify(driver.api(), floating_context(driver))->id != id->id);
}

TEST_CASE("loading under a relaxed scope leaves another thread's global capture valid", "[cuda]") {
  FakeDriver driver;
  const CUcontext context = floating_context(driver);
  const auto scope = ScopedContext::enter(driver.api(), context);
  CUstream stream = nullptr;
  REQUIRE(driver.api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) ==
          CUDA_SUCCESS);
  std::thread([&] {
    REQUIRE(driver.api().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
            CUDA_SUCCESS);
  }).join();

  CUmodule module = nullptr;
  {
    const RelaxedCaptureScope relaxed(driver.api());
    const RelaxedCaptureScope nested(driver.api());
    CHECK(driver.api().cuModuleLoadData(&module, "x") == CUDA_SUCCESS);
  }
  CHECK(driver.capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  REQUIRE(driver.api().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  // And without the scope the same call breaks it: the fake is not blind.
  CHECK(driver.api().cuModuleLoadData(&module, "x") == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(*is_capturing(driver.api(), stream));
  REQUIRE(driver.api().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

TEST_CASE("the legacy stream counts as capturing beside a blocking stream's capture", "[cuda]") {
  FakeDriver driver;
  const CUcontext context = floating_context(driver);
  const auto scope = ScopedContext::enter(driver.api(), context);
  CUstream blocking = nullptr;
  REQUIRE(driver.api().cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0) == CUDA_SUCCESS);
  CHECK_FALSE(*is_capturing(driver.api(), nullptr));
  CHECK_FALSE(*is_capturing(driver.api(), blocking));
  REQUIRE(driver.api().cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED) ==
          CUDA_SUCCESS);
  CHECK(*is_capturing(driver.api(), nullptr));
  CHECK(*stream_context(driver.api(), nullptr) == context);  // and may still be asked whose it is
  CHECK(*stream_context(driver.api(), blocking) == context);
}

TEST_CASE("an own stream is non-blocking, lowest priority, and destroyed once", "[cuda]") {
  FakeDriver driver;
  const CUcontext context = floating_context(driver);
  const auto scope = ScopedContext::enter(driver.api(), context);
  {
    auto stream = OwnedStream::create(driver.api(), OwnedStream::Priority::kLowest);
    REQUIRE(stream.ok());
    const OwnedStream moved = std::move(stream).value();
    CHECK(moved.synchronize().ok());
    CHECK(driver.live().streams == 1);
  }
  CHECK(driver.live().streams == 0);
}
