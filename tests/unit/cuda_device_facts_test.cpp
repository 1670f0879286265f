#include "cuda/device_facts.hpp"

#include "support/catch.hpp"
#include "support/fake_driver.hpp"

using namespace scanjit;
using namespace scanjit::cuda;

TEST_CASE("architectures are named as NVRTC takes them", "[cuda]") {
  CHECK(arch_name(8, 0) == "sm_80");
  CHECK(arch_name(8, 9) == "sm_89");
  CHECK(arch_name(9, 0) == "sm_90a");
  CHECK(arch_name(10, 0) == "sm_100a");
  CHECK(arch_name(10, 3) == "sm_103a");
  CHECK(arch_name(12, 0) == "sm_120");
}

TEST_CASE("facts of a device are all asked for, and each failing call is reported", "[cuda]") {
  test::FakeDriver driver;
  const auto facts = device_facts(driver.api(), 0, nullptr);
  REQUIRE(facts.ok());
  CHECK(facts->name == "NVIDIA H200");
  CHECK(facts->arch == "sm_90a");
  CHECK(facts->sm_count == 132);
  CHECK(facts->smem_optin_bytes == 232448);
  CHECK(facts->memory_bus_bits == 6144);
  CHECK(facts->l2_bytes == 62914560);
  CHECK(facts->memory_pools);
  CHECK(facts->cuda_version == "13.0");
  CHECK_FALSE(facts->driver.empty());
  CHECK(facts->uuid.size() == std::string("GPU-00000000-0000-0000-0000-000000000000").size());

  const std::int64_t calls = driver.calls();
  for (std::int64_t n = 1; n <= calls; ++n) {
    driver.fail_call("", n, CUDA_ERROR_UNKNOWN);
    CHECK(device_facts(driver.api(), 0, nullptr).status().code() == ErrorCode::kCudaError);
    driver.clear_faults();
  }
}

TEST_CASE("an ordinal out of range is refused with the range", "[cuda]") {
  test::FakeDriver driver(2);
  CHECK(*device_of_ordinal(driver.api(), 1) == 1);
  for (const int ordinal : {-1, 2}) {
    const auto device = device_of_ordinal(driver.api(), ordinal);
    CHECK(device.status().code() == ErrorCode::kInvalidArgument);
    CHECK(device.status().message().find("0 to 1") != std::string::npos);
  }
  test::FakeDriver none(0);
  CHECK(device_of_ordinal(none.api(), 0).status().code() == ErrorCode::kUnsupported);
}

TEST_CASE("the driver's version is read out of its text", "[cuda]") {
  CHECK(parse_driver_version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  "
                             "Release Build  (x@y)\n"
                             "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n") ==
        "580.159.04");
  CHECK(parse_driver_version(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun\n") == "535.54.03");
  CHECK(parse_driver_version("").empty());
  CHECK(parse_driver_version("no 12 numbers 5. here").empty());
}
