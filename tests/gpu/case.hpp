#pragma once
// How a GPU test case begins, and how it says that a call must succeed.

#include <cstdio>
#include <string>
#include <utility>

#include "gpu/gpu.hpp"
#include "support/catch.hpp"

namespace scanjit::test {

/// Null after printing "skipped: reason" where there is no GPU; any other trouble fails the case.
inline Gpu* gpu_or_skip() {
  Result<Gpu*> gpu = Gpu::get();
  if (gpu.ok()) return *gpu;
  if (gpu.status().code() != ErrorCode::kUnsupported) FAIL(gpu.status().to_string());
  std::printf("skipped: %s\n", gpu.status().message().c_str());
  std::fflush(stdout);
  return nullptr;
}

/// The value, or the case ends as failed.
template <class T>
T must(Result<T> result) {
  if (!result.ok()) FAIL(result.status().to_string());
  return std::move(result).value();
}
inline void must(const Status& status) {
  if (!status.ok()) FAIL(status.to_string());
}

}  // namespace scanjit::test

/// The GPU as `gpu`; without one the case ends here, and CTest counts it as skipped.
#define SCANJIT_TEST_GPU(gpu)                                                 \
  ::scanjit::test::Gpu* const gpu##_or_null = ::scanjit::test::gpu_or_skip(); \
  if (gpu##_or_null == nullptr) return;                                       \
  ::scanjit::test::Gpu& gpu = *gpu##_or_null
