#include "device_tensors.hpp"

#include <algorithm>
#include <utility>

namespace scanjit::cli {
namespace {

constexpr std::int64_t kGuardBytes = 256;
constexpr auto kGuard = std::byte{0xA5};

}  // namespace

Status DeviceTensors::add(std::string name, std::vector<std::byte> bytes,
                          std::int64_t misalign_bytes, bool output) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.offset = kGuardBytes + misalign_bytes;
  tensor.output = output;
  const auto size = static_cast<std::int64_t>(bytes.size());
  tensor.bytes.assign(static_cast<std::size_t>(tensor.offset + size + kGuardBytes), kGuard);
  if (size != 0) std::memcpy(tensor.bytes.data() + tensor.offset, bytes.data(), bytes.size());
  const auto whole = static_cast<std::int64_t>(tensor.bytes.size());
  SCANJIT_ASSIGN_OR_RETURN(tensor.buffer, cuda::DeviceBuffer::allocate(*api_, whole));
  SCANJIT_TRY(tensor.buffer.upload(tensor.bytes.data(), whole, 0, stream_));
  tensors_.push_back(std::move(tensor));
  return {};
}

Status DeviceTensors::add_workspace(std::int64_t bytes) {
  if (bytes == 0) return {};
  return add("workspace", std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0xFF}),
             0, true);
}

const DeviceTensors::Tensor* DeviceTensors::find(const std::string& name) const noexcept {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const Tensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

void* DeviceTensors::address(const std::string& name) const noexcept {
  const Tensor* tensor = find(name);
  return tensor == nullptr ? nullptr : static_cast<char*>(tensor->buffer.data()) + tensor->offset;
}

Status DeviceTensors::reset() {
  for (Tensor& tensor : tensors_) {
    if (!tensor.output) continue;
    SCANJIT_TRY(tensor.buffer.upload(tensor.bytes.data(),
                                     static_cast<std::int64_t>(tensor.bytes.size()), 0, stream_));
  }
  return {};
}

Status DeviceTensors::read_bytes(const std::string& name, void* to, std::int64_t bytes) const {
  const Tensor* tensor = find(name);
  if (bytes == 0 || tensor == nullptr) return {};
  return tensor->buffer.download(to, bytes, tensor->offset, stream_);
}

Result<std::string> DeviceTensors::damage() const {
  for (const Tensor& tensor : tensors_) {
    std::vector<std::byte> now(tensor.bytes.size());
    SCANJIT_TRY(
        tensor.buffer.download(now.data(), static_cast<std::int64_t>(now.size()), 0, stream_));
    const auto begin = static_cast<std::size_t>(tensor.offset);
    const std::size_t end = now.size() - static_cast<std::size_t>(kGuardBytes);
    for (std::size_t i = 0; i < now.size(); ++i) {
      const bool inside = i >= begin && i < end;
      if (now[i] == tensor.bytes[i] || (inside && tensor.output)) continue;
      if (inside)
        return "the input " + tensor.name + " was written to at byte " + std::to_string(i - begin);
      const auto distance = i < begin ? begin - i : i - end;
      return tensor.name + " was written to " + std::to_string(distance) + " bytes " +
             (i < begin ? "before its begin" : "past its end");
    }
  }
  return std::string();
}

}  // namespace scanjit::cli
