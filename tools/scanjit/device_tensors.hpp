#pragma once
/// \file
/// Tensors on the device, each between guard bytes.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/memory.hpp"

namespace scanjit::cli {

template <class T>
[[nodiscard]] std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// "" or a sentence that names the first element that differs, bit for bit.
template <class T>
[[nodiscard]] std::string first_difference(const char* name, const std::vector<T>& a,
                                           const std::vector<T>& b) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof a[i]) != 0)
      return std::string(name) + " differs at element " + std::to_string(i);
  }
  return a.size() == b.size() ? "" : std::string(name) + " has another size";
}

/// Not thread-safe; the context must be current. Copies wait for the stream.
class DeviceTensors {
 public:
  DeviceTensors(const cuda::DriverApi& api, cuda::CUstream stream) : api_(&api), stream_(stream) {}

  /// Uploads. An input must come out unchanged; an output is reset. Errors: kOutOfMemory, driver
  /// errors.
  [[nodiscard]] Status add(std::string name, std::vector<std::byte> bytes,
                           std::int64_t misalign_bytes, bool output);
  /// Filled with a value that no kernel may rely on.
  [[nodiscard]] Status add_workspace(std::int64_t bytes);
  [[nodiscard]] void* address(const std::string& name) const noexcept;  ///< null: there is none

  /// Every output as it was when it was added: between two launches.
  [[nodiscard]] Status reset();

  /// Waits for the stream. Errors: also what the launches before did wrong.
  template <class T>
  [[nodiscard]] Result<std::vector<T>> read(const std::string& name, std::size_t count) const {
    std::vector<T> values(count);
    SCANJIT_TRY(read_bytes(name, values.data(), static_cast<std::int64_t>(count * sizeof(T))));
    return values;
  }

  /// "" if every guard byte and every input is as it was, else a sentence that names the tensor.
  [[nodiscard]] Result<std::string> damage() const;

 private:
  struct Tensor {
    std::string name;
    cuda::DeviceBuffer buffer;
    std::int64_t offset = 0;  // of the tensor in the buffer, behind the guard
    std::vector<std::byte> bytes;
    bool output = false;
  };
  [[nodiscard]] const Tensor* find(const std::string& name) const noexcept;
  Status read_bytes(const std::string& name, void* to, std::int64_t bytes) const;

  const cuda::DriverApi* api_;
  cuda::CUstream stream_;
  std::vector<Tensor> tensors_;
};

}  // namespace scanjit::cli
