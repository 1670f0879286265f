#include "cuda/memory.hpp"

#include <cstdint>
#include <string>
#include <utility>

namespace scanjit::cuda {

Result<ScratchPool> ScratchPool::create(const DriverApi& api, CUdevice device,
                                        std::int64_t limit_bytes) {
  int supported = 0;
  SCANJIT_TRY(check(
      api, api.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device),
      "cuDeviceGetAttribute"));
  if (supported == 0) return unsupported("the device has no stream-ordered memory pools");
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool = nullptr;
  SCANJIT_TRY(check(api, api.cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate"));
  ScratchPool scratch(api, pool, limit_bytes);
  // Without this the pool would return its memory to the device, and fetch it again, at every
  // synchronisation between two timed candidates.
  std::uint64_t keep = UINT64_MAX;
  SCANJIT_TRY(check(api, api.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep),
                    "cuMemPoolSetAttribute"));
  return scratch;
}

ScratchPool::ScratchPool(ScratchPool&& other) noexcept
    : api_(other.api_),
      pool_(std::exchange(other.pool_, nullptr)),
      limit_bytes_(other.limit_bytes_),
      taken_bytes_(other.taken_bytes_) {}

ScratchPool& ScratchPool::operator=(ScratchPool&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(pool_, other.pool_);
  std::swap(limit_bytes_, other.limit_bytes_);
  std::swap(taken_bytes_, other.taken_bytes_);
  return *this;
}

ScratchPool::~ScratchPool() {
  if (pool_ != nullptr) api_->cuMemPoolDestroy(pool_);
}

Result<CUdeviceptr> ScratchPool::take(std::int64_t bytes, CUstream stream) {
  if (bytes <= 0)
    return invalid_argument("scratch of " + std::to_string(bytes) + " bytes was asked for");
  if (bytes > limit_bytes_ - taken_bytes_) {
    return Status(ErrorCode::kOutOfMemory, "scratch of " + std::to_string(bytes) +
                                               " bytes beside " + std::to_string(taken_bytes_) +
                                               " in use would pass the limit of " +
                                               std::to_string(limit_bytes_));
  }
  CUdeviceptr pointer = 0;
  SCANJIT_TRY(
      check(*api_,
            api_->cuMemAllocFromPoolAsync(&pointer, static_cast<std::size_t>(bytes), pool_, stream),
            "cuMemAllocFromPoolAsync"));
  taken_bytes_ += bytes;
  return pointer;
}

Status ScratchPool::give_back(CUdeviceptr pointer, std::int64_t bytes, CUstream stream) {
  SCANJIT_TRY(check(*api_, api_->cuMemFreeAsync(pointer, stream), "cuMemFreeAsync"));
  taken_bytes_ -= bytes;
  return {};
}

Status ScratchPool::trim() {
  return check(*api_, api_->cuMemPoolTrimTo(pool_, 0), "cuMemPoolTrimTo");
}

Result<DeviceBuffer> DeviceBuffer::allocate(const DriverApi& api, std::int64_t bytes) {
  if (bytes < 0)
    return invalid_argument("a buffer of " + std::to_string(bytes) + " bytes was asked for");
  DeviceBuffer buffer;
  buffer.api_ = &api;
  if (bytes == 0) return buffer;
  SCANJIT_TRY(
      check(api, api.cuMemAlloc(&buffer.pointer_, static_cast<std::size_t>(bytes)), "cuMemAlloc"));
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : api_(other.api_),
      pointer_(std::exchange(other.pointer_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(pointer_, other.pointer_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (pointer_ != 0) api_->cuMemFree(pointer_);
}

void* DeviceBuffer::data() const noexcept {
  // The driver's addresses are integers.
  return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
      static_cast<std::uintptr_t>(pointer_));
}

namespace {

Status check_bounds(std::int64_t bytes, std::int64_t offset, std::int64_t size) {
  if (bytes >= 0 && offset >= 0 && offset <= size && bytes <= size - offset) return {};
  return invalid_argument("a copy of " + std::to_string(bytes) + " bytes at " +
                          std::to_string(offset) + " passes the end of a buffer of " +
                          std::to_string(size));
}

}  // namespace

Status DeviceBuffer::upload(const void* from, std::int64_t bytes, std::int64_t offset,
                            CUstream stream) {
  SCANJIT_TRY(check_bounds(bytes, offset, bytes_));
  if (bytes == 0) return {};
  SCANJIT_TRY(check(*api_,
                    api_->cuMemcpyHtoDAsync(pointer_ + static_cast<CUdeviceptr>(offset), from,
                                            static_cast<std::size_t>(bytes), stream),
                    "cuMemcpyHtoDAsync"));
  return check(*api_, api_->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

Status DeviceBuffer::download(void* to, std::int64_t bytes, std::int64_t offset,
                              CUstream stream) const {
  SCANJIT_TRY(check_bounds(bytes, offset, bytes_));
  if (bytes == 0) return {};
  SCANJIT_TRY(check(*api_,
                    api_->cuMemcpyDtoHAsync(to, pointer_ + static_cast<CUdeviceptr>(offset),
                                            static_cast<std::size_t>(bytes), stream),
                    "cuMemcpyDtoHAsync"));
  return check(*api_, api_->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

Status DeviceBuffer::fill(unsigned char value, CUstream stream) {
  if (bytes_ == 0) return {};
  return check(*api_,
               api_->cuMemsetD8Async(pointer_, value, static_cast<std::size_t>(bytes_), stream),
               "cuMemsetD8Async");
}

Result<MemoryInfo> memory_info(const DriverApi& api) {
  std::size_t free = 0, total = 0;
  SCANJIT_TRY(check(api, api.cuMemGetInfo(&free, &total), "cuMemGetInfo"));
  return MemoryInfo{static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
}

}  // namespace scanjit::cuda
