#pragma once
/// \file
/// Device memory: a private pool for scratch that is taken and given back in stream order, and
/// plain buffers for tools and tests.

#include <cstdint>

#include "cuda/driver.hpp"

namespace scanjit::cuda {

/// Scratch from a pool of our own: nothing that the caller's allocator holds is touched, and no
/// call synchronises. Not thread-safe. All that was taken must have been given back before it ends.
class ScratchPool {
 public:
  /// A pool on `device` that never gives out more than `limit_bytes` at a time. It keeps what was
  /// given back until `trim` or its end. Errors: kUnsupported if the device has no stream-ordered
  /// pools.
  [[nodiscard]] static Result<ScratchPool> create(const DriverApi& api, CUdevice device,
                                                  std::int64_t limit_bytes);
  ScratchPool(ScratchPool&& other) noexcept;
  ScratchPool& operator=(ScratchPool&& other) noexcept;
  ~ScratchPool();

  /// `bytes` > 0, 256-byte aligned, usable by work put on `stream` from now on.
  /// Errors: kOutOfMemory, also when the limit would be passed.
  [[nodiscard]] Result<CUdeviceptr> take(std::int64_t bytes, CUstream stream);
  [[nodiscard]] Status give_back(CUdeviceptr pointer, std::int64_t bytes, CUstream stream);
  /// Returns what is free in the pool to the device.
  [[nodiscard]] Status trim();
  [[nodiscard]] std::int64_t taken_bytes() const noexcept { return taken_bytes_; }

 private:
  ScratchPool(const DriverApi& api, CUmemoryPool pool, std::int64_t limit_bytes) noexcept
      : api_(&api), pool_(pool), limit_bytes_(limit_bytes) {}
  const DriverApi* api_;
  CUmemoryPool pool_;
  std::int64_t limit_bytes_;
  std::int64_t taken_bytes_ = 0;
};

/// Plain device memory of the current context; for tools and tests (allocating and freeing
/// synchronise).
class DeviceBuffer {
 public:
  DeviceBuffer() noexcept = default;
  /// 0 bytes: a null buffer.
  [[nodiscard]] static Result<DeviceBuffer> allocate(const DriverApi& api, std::int64_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  [[nodiscard]] CUdeviceptr address() const noexcept { return pointer_; }
  [[nodiscard]] void* data() const noexcept;
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  /// Copies on `stream` and waits for it. Errors: kInvalidArgument if out of bounds.
  [[nodiscard]] Status upload(const void* from, std::int64_t bytes, std::int64_t offset,
                              CUstream stream);
  [[nodiscard]] Status download(void* to, std::int64_t bytes, std::int64_t offset,
                                CUstream stream) const;
  /// Fills with a byte, in stream order.
  [[nodiscard]] Status fill(unsigned char value, CUstream stream);

 private:
  const DriverApi* api_ = nullptr;
  CUdeviceptr pointer_ = 0;
  std::int64_t bytes_ = 0;
};

/// Free and total memory of the current context's device.
struct MemoryInfo {
  std::int64_t free_bytes = 0;
  std::int64_t total_bytes = 0;
};
[[nodiscard]] Result<MemoryInfo> memory_info(const DriverApi& api);

}  // namespace scanjit::cuda
