#include "gpu/memory.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace scanjit::test {
namespace {

constexpr std::int64_t kGuardBytes = 4096;
constexpr unsigned char kGuardValue = 0xA5;

// Virtual memory management: the product needs none of it, so its table of driver functions has
// none.
struct Location {
  int type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int id = 0;
};
struct AllocationProperties {
  int type = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 0;
  Location location;
  void* win32_handle_metadata = nullptr;
  unsigned char flags[8] = {};
};
struct AccessDescription {
  Location location;
  int flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};

struct VirtualMemory {
  CUresult (*address_reserve)(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr,
                              unsigned long long) = nullptr;
  CUresult (*address_free)(CUdeviceptr, std::size_t) = nullptr;
  CUresult (*create)(unsigned long long*, std::size_t, const AllocationProperties*,
                     unsigned long long) = nullptr;
  CUresult (*release)(unsigned long long) = nullptr;
  CUresult (*map)(CUdeviceptr, std::size_t, std::size_t, unsigned long long,
                  unsigned long long) = nullptr;
  CUresult (*unmap)(CUdeviceptr, std::size_t) = nullptr;
  CUresult (*set_access)(CUdeviceptr, std::size_t, const AccessDescription*, std::size_t) = nullptr;
  std::int64_t granularity = 0;  // 0: not to be had
  int device = 0;
};

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

VirtualMemory open_virtual_memory(const Gpu& gpu) {
  VirtualMemory memory;
  // The library that the driver table came from.
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<void*>(gpu.api().cuInit), &info) == 0) return memory;
  void* library = ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return memory;
  CUresult (*granularity)(std::size_t*, const AllocationProperties*, int) = nullptr;
  if (!find(library, "cuMemAddressReserve", &memory.address_reserve) ||
      !find(library, "cuMemAddressFree", &memory.address_free) ||
      !find(library, "cuMemCreate", &memory.create) ||
      !find(library, "cuMemRelease", &memory.release) || !find(library, "cuMemMap", &memory.map) ||
      !find(library, "cuMemUnmap", &memory.unmap) ||
      !find(library, "cuMemSetAccess", &memory.set_access) ||
      !find(library, "cuMemGetAllocationGranularity", &granularity)) {
    return memory;
  }
  memory.device = gpu.facts().device;
  AllocationProperties properties;
  properties.location.id = memory.device;
  std::size_t bytes = 0;
  if (granularity(&bytes, &properties, 0) == cuda::CUDA_SUCCESS)
    memory.granularity = static_cast<std::int64_t>(bytes);
  return memory;
}

const VirtualMemory& virtual_memory(const Gpu& gpu) {
  static const VirtualMemory memory = open_virtual_memory(gpu);
  return memory;
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Status fill_range(const Gpu& gpu, CUdeviceptr from, CUdeviceptr to, unsigned char value) {
  if (from >= to) return {};
  return cuda::check(
      gpu.api(),
      gpu.api().cuMemsetD8Async(from, value, static_cast<std::size_t>(to - from), gpu.stream()),
      "cuMemsetD8Async");
}

Status check_range(const Gpu& gpu, CUdeviceptr from, CUdeviceptr to, const char* where,
                   CUdeviceptr data) {
  if (from >= to) return {};
  std::vector<unsigned char> bytes(static_cast<std::size_t>(to - from));
  SCANJIT_TRY(cuda::check(
      gpu.api(), gpu.api().cuMemcpyDtoHAsync(bytes.data(), from, bytes.size(), gpu.stream()),
      "cuMemcpyDtoHAsync"));
  SCANJIT_TRY(gpu.synchronize());
  const auto changed = std::find_if(bytes.begin(), bytes.end(),
                                    [](unsigned char byte) { return byte != kGuardValue; });
  if (changed == bytes.end()) return {};
  const auto at =
      static_cast<std::int64_t>(from) + (changed - bytes.begin()) - static_cast<std::int64_t>(data);
  return internal_error("a byte " + std::string(where) + " the buffer was written, " +
                        std::to_string(at) + " bytes from its start");
}

}  // namespace

bool guard_pages_available(Gpu& gpu) { return virtual_memory(gpu).granularity > 0; }

Result<GuardedBuffer> GuardedBuffer::make(Gpu& gpu, std::int64_t bytes, Guard guard,
                                          int offset_bytes) {
  GuardedBuffer buffer;
  buffer.gpu_ = &gpu;
  buffer.bytes_ = bytes;
  if (bytes == 0) return buffer;
  const cuda::DriverApi& api = gpu.api();
  const VirtualMemory& memory = virtual_memory(gpu);
  if (guard == Guard::kBytes || memory.granularity == 0) {
    buffer.mapped_bytes_ = bytes + 2 * kGuardBytes + 16;
    SCANJIT_TRY(cuda::check(
        api, api.cuMemAlloc(&buffer.mapped_, static_cast<std::size_t>(buffer.mapped_bytes_)),
        "cuMemAlloc"));
    buffer.data_ = buffer.mapped_ + kGuardBytes + static_cast<CUdeviceptr>(offset_bytes);
    SCANJIT_TRY(buffer.fill_surroundings());
    return buffer;
  }
  buffer.mapped_bytes_ = round_up(bytes + 32, memory.granularity);
  const std::int64_t reserved_bytes = buffer.mapped_bytes_ + 2 * memory.granularity;
  CUdeviceptr reserved = 0;
  SCANJIT_TRY(cuda::check(
      api, memory.address_reserve(&reserved, static_cast<std::size_t>(reserved_bytes), 0, 0, 0),
      "cuMemAddressReserve"));
  buffer.reserved_ = reserved;
  buffer.reserved_bytes_ = reserved_bytes;
  AllocationProperties properties;
  properties.location.id = memory.device;
  SCANJIT_TRY(
      cuda::check(api,
                  memory.create(&buffer.handle_, static_cast<std::size_t>(buffer.mapped_bytes_),
                                &properties, 0),
                  "cuMemCreate"));
  const CUdeviceptr mapped = reserved + static_cast<CUdeviceptr>(memory.granularity);
  SCANJIT_TRY(cuda::check(
      api, memory.map(mapped, static_cast<std::size_t>(buffer.mapped_bytes_), 0, buffer.handle_, 0),
      "cuMemMap"));
  buffer.mapped_ = mapped;
  AccessDescription access;
  access.location.id = memory.device;
  SCANJIT_TRY(cuda::check(
      api, memory.set_access(mapped, static_cast<std::size_t>(buffer.mapped_bytes_), &access, 1),
      "cuMemSetAccess"));
  buffer.data_ = mapped + static_cast<CUdeviceptr>(offset_bytes);
  if (guard == Guard::kPageBehind) {
    const std::int64_t last = buffer.mapped_bytes_ - bytes - offset_bytes;
    buffer.data_ = mapped + static_cast<CUdeviceptr>(last / 16 * 16 + offset_bytes);
  }
  SCANJIT_TRY(buffer.fill_surroundings());
  return buffer;
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept { *this = std::move(other); }

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(reserved_, other.reserved_);
  std::swap(reserved_bytes_, other.reserved_bytes_);
  std::swap(handle_, other.handle_);
  return *this;
}

GuardedBuffer::~GuardedBuffer() {
  if (gpu_ == nullptr) return;
  if (reserved_ == 0) {
    if (mapped_ != 0) gpu_->api().cuMemFree(mapped_);
    return;
  }
  // cuMemFree waits for the device; unmapping does not.
  gpu_->api().cuStreamSynchronize(gpu_->stream());
  const VirtualMemory& memory = virtual_memory(*gpu_);
  if (mapped_ != 0) memory.unmap(mapped_, static_cast<std::size_t>(mapped_bytes_));
  if (handle_ != 0) memory.release(handle_);
  memory.address_free(reserved_, static_cast<std::size_t>(reserved_bytes_));
}

Status GuardedBuffer::fill_surroundings() {
  const auto end = data_ + static_cast<CUdeviceptr>(bytes_),
             mapped_end = mapped_ + static_cast<CUdeviceptr>(mapped_bytes_);
  SCANJIT_TRY(fill_range(*gpu_,
                         std::max(mapped_, data_ - std::min<CUdeviceptr>(data_, kGuardBytes)),
                         data_, kGuardValue));
  return fill_range(*gpu_, end, std::min(mapped_end, end + kGuardBytes), kGuardValue);
}

Status GuardedBuffer::damage() const {
  if (data_ == 0) return {};
  const auto end = data_ + static_cast<CUdeviceptr>(bytes_),
             mapped_end = mapped_ + static_cast<CUdeviceptr>(mapped_bytes_);
  SCANJIT_TRY(check_range(*gpu_, std::max(mapped_, data_ - kGuardBytes), data_, "before", data_));
  return check_range(*gpu_, end, std::min(mapped_end, end + kGuardBytes), "behind", data_);
}

Status GuardedBuffer::upload(const void* from, std::int64_t bytes) {
  if (bytes != bytes_)
    return invalid_argument("an upload of " + std::to_string(bytes) + " bytes into a buffer of " +
                            std::to_string(bytes_));
  if (bytes == 0) return {};
  SCANJIT_TRY(cuda::check(
      gpu_->api(),
      gpu_->api().cuMemcpyHtoDAsync(data_, from, static_cast<std::size_t>(bytes), gpu_->stream()),
      "cuMemcpyHtoDAsync"));
  return gpu_->synchronize();
}

Status GuardedBuffer::download(void* to, std::int64_t bytes) const {
  if (bytes != bytes_)
    return invalid_argument("a download of " + std::to_string(bytes) + " bytes from a buffer of " +
                            std::to_string(bytes_));
  if (bytes == 0) return {};
  SCANJIT_TRY(cuda::check(
      gpu_->api(),
      gpu_->api().cuMemcpyDtoHAsync(to, data_, static_cast<std::size_t>(bytes), gpu_->stream()),
      "cuMemcpyDtoHAsync"));
  return gpu_->synchronize();
}

Status GuardedBuffer::fill(unsigned char value) {
  if (bytes_ == 0) return {};
  return fill_range(*gpu_, data_, data_ + static_cast<CUdeviceptr>(bytes_), value);
}

}  // namespace scanjit::test
