// Memory, scratch and modules: bounds, limits, refusals, nothing left behind.

#include <cstring>
#include <vector>

#include "cuda/context.hpp"
#include "cuda/memory.hpp"
#include "cuda/module.hpp"
#include "cuda/stream.hpp"
#include "support/catch.hpp"
#include "support/fake_driver.hpp"

using namespace scanjit;
using namespace scanjit::cuda;
using test::FakeDriver;

TEST_CASE("scratch keeps to its limit and gives everything back", "[cuda]") {
  FakeDriver driver;
  const auto primary = PrimaryContext::retain(driver.api(), 0);
  const auto scope = ScopedContext::enter(driver.api(), primary->get());
  {
    auto pool = ScratchPool::create(driver.api(), 0, 1000);
    REQUIRE(pool.ok());
    CHECK(pool->take(0, nullptr).status().code() == ErrorCode::kInvalidArgument);
    const auto first = pool->take(600, nullptr);
    REQUIRE(first.ok());
    CHECK(*first % 256 == 0);
    const auto second = pool->take(401, nullptr);
    CHECK(second.status().code() == ErrorCode::kOutOfMemory);
    CHECK(second.status().message().find("1000") != std::string::npos);
    CHECK(pool->give_back(*first, 600, nullptr).ok());
    CHECK(pool->taken_bytes() == 0);
    driver.fail_call("cuMemAllocFromPoolAsync", 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(pool->take(10, nullptr).status().code() == ErrorCode::kOutOfMemory);
    CHECK(pool->taken_bytes() == 0);
    CHECK(pool->trim().ok());
  }
  CHECK(driver.live().pools == 0);
  CHECK(driver.live().allocations == 0);
  CHECK(driver.calls("cuMemAlloc") == 0);
  CHECK(driver.calls("cuMemFree") == 0);
}

TEST_CASE("a pool that cannot be set up is destroyed", "[cuda]") {
  FakeDriver driver;
  driver.fail_call("cuMemPoolSetAttribute", 1, CUDA_ERROR_UNKNOWN);
  CHECK_FALSE(ScratchPool::create(driver.api(), 0, 1000).ok());
  CHECK(driver.live().pools == 0);
  driver.device(0).attributes[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 0;
  CHECK(ScratchPool::create(driver.api(), 0, 1000).status().code() == ErrorCode::kUnsupported);
}

TEST_CASE("buffers copy within their bounds only", "[cuda]") {
  FakeDriver driver;
  const auto primary = PrimaryContext::retain(driver.api(), 0);
  const auto scope = ScopedContext::enter(driver.api(), primary->get());
  const std::vector<char> sent = {1, 2, 3, 4};
  std::vector<char> got(8, 9);
  {
    auto buffer = DeviceBuffer::allocate(driver.api(), 8);
    REQUIRE(buffer.ok());
    REQUIRE(buffer->fill(0xff, nullptr).ok());
    REQUIRE(buffer->upload(sent.data(), 4, 2, nullptr).ok());
    REQUIRE(buffer->download(got.data(), 8, 0, nullptr).ok());
    CHECK(got == std::vector<char>{-1, -1, 1, 2, 3, 4, -1, -1});
    for (const auto& [bytes, offset] :
         {std::pair<std::int64_t, std::int64_t>{4, 5}, {9, 0}, {-1, 0}, {1, -1}, {1, INT64_MAX}}) {
      CHECK(buffer->upload(sent.data(), bytes, offset, nullptr).code() ==
            ErrorCode::kInvalidArgument);
      CHECK(buffer->download(got.data(), bytes, offset, nullptr).code() ==
            ErrorCode::kInvalidArgument);
    }
    const auto empty = DeviceBuffer::allocate(driver.api(), 0);
    REQUIRE(empty.ok());
    CHECK(empty->data() == nullptr);
    CHECK(empty->download(got.data(), 0, 0, nullptr).ok());
    CHECK_FALSE(DeviceBuffer::allocate(driver.api(), -1).ok());
    CHECK(DeviceBuffer::allocate(driver.api(), std::int64_t{1} << 40).status().code() ==
          ErrorCode::kOutOfMemory);
  }
  CHECK(driver.live().allocations == 0);
}

TEST_CASE("machine code that the driver refuses is unsupported, other failures are not", "[cuda]") {
  FakeDriver driver;
  const auto primary = PrimaryContext::retain(driver.api(), 0);
  const auto scope = ScopedContext::enter(driver.api(), primary->get());
  for (const CUresult refusal : {CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU,
                                 CUDA_ERROR_UNSUPPORTED_PTX_VERSION}) {
    driver.fail_call("cuModuleLoadData", 1, refusal);
    CHECK(Module::load(driver.api(), "code").status().code() == ErrorCode::kUnsupported);
  }
  driver.fail_call("cuModuleLoadData", 1, CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(Module::load(driver.api(), "code").status().code() == ErrorCode::kOutOfMemory);
  driver.fail_call("cuModuleLoadData", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(Module::load(driver.api(), "code").status().code() == ErrorCode::kDeviceLost);

  auto module = Module::load(driver.api(), "code");
  REQUIRE(module.ok());
  driver.fail_call("cuModuleGetFunction", 1, CUDA_ERROR_NOT_FOUND);
  CHECK(module->function("scan").status().code() == ErrorCode::kNotFound);
  const auto function = module->function("scan");
  REQUIRE(function.ok());
  CHECK(prepare(driver.api(), *function, 232448).ok());
  CHECK(driver.calls("cuFuncLoad") == 1);
  CHECK(prepare(driver.api(), *function, 232449).code() == ErrorCode::kUnsupported);
  CHECK(*blocks_per_sm(driver.api(), *function, 128, 100000) == 2);
  driver.set_function_attribute("scan", CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 40);
  CHECK(function_facts(driver.api(), *function)->local_bytes == 40);
  CHECK(module->unload().ok());
  CHECK(module->unload().ok());
  CHECK(driver.calls("cuModuleUnload") == 1);
}
