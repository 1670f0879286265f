#pragma once
// Device memory that notices what is done outside of it.

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/gpu.hpp"

namespace scanjit::test {

/// What lies around a buffer.
enum class Guard {
  kBytes,       ///< a page of known bytes before and behind: stray writes are seen by `damage`
  kPageBehind,  ///< unmapped pages behind the last byte (and known bytes before): strays fault,
                ///< reads too
  kPageBefore,  ///< unmapped pages before the first byte
};

/// A device buffer whose surroundings are watched. 0 bytes: a null address.
class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  /// The address is `offset_bytes` past a multiple of 16. (kPageBehind leaves up to 15 known bytes
  /// between the end and the unmapped page.) Where the driver has no virtual memory management,
  /// unmapped pages become known bytes; `Guards::available` tells.
  [[nodiscard]] static Result<GuardedBuffer> make(Gpu& gpu, std::int64_t bytes, Guard guard,
                                                  int offset_bytes = 0);
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept;
  ~GuardedBuffer();

  [[nodiscard]] CUdeviceptr address() const noexcept { return data_; }
  template <class T = void>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(data_));
  }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

  /// All in order on the GPU's stream; up and down wait for it. Sizes must be the buffer's.
  [[nodiscard]] Status upload(const void* from, std::int64_t bytes);
  [[nodiscard]] Status download(void* to, std::int64_t bytes) const;
  [[nodiscard]] Status fill(unsigned char value);
  /// Ok, or which byte around the buffer was changed. Waits.
  [[nodiscard]] Status damage() const;

  template <class T>
  [[nodiscard]] Status upload(const std::vector<T>& from) {
    return upload(from.data(), static_cast<std::int64_t>(from.size() * sizeof(T)));
  }
  template <class T>
  [[nodiscard]] Result<std::vector<T>> download_as() const {
    std::vector<T> out(static_cast<std::size_t>(bytes_) / sizeof(T));
    SCANJIT_TRY(download(out.data(), bytes_));
    return out;
  }

 private:
  Status fill_surroundings();
  Gpu* gpu_ = nullptr;
  CUdeviceptr data_ = 0;
  std::int64_t bytes_ = 0;
  CUdeviceptr mapped_ = 0;  // what may be accessed at all
  std::int64_t mapped_bytes_ = 0;
  CUdeviceptr reserved_ = 0;  // 0: plain memory
  std::int64_t reserved_bytes_ = 0;
  unsigned long long handle_ = 0;
};

/// Whether unmapped guard pages can be had here.
[[nodiscard]] bool guard_pages_available(Gpu& gpu);

}  // namespace scanjit::test
