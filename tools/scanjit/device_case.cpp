#include "device_case.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace scanjit::cli {
namespace {

constexpr std::int64_t kGuardBytes = 256;
constexpr auto kGuard = std::byte{0xA5};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> index_bytes(const std::vector<std::int64_t>& values, IndexType type) {
  if (type == IndexType::kInt64) return bytes_of(values);
  std::vector<std::int32_t> narrow;
  for (const std::int64_t value : values) narrow.push_back(static_cast<std::int32_t>(value));
  return bytes_of(narrow);
}

}  // namespace

Status DeviceCase::add(const cuda::DriverApi& api, std::string name, std::vector<std::byte> bytes,
                       std::int64_t misalign_bytes, bool output) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.offset = kGuardBytes + misalign_bytes;
  tensor.output = output;
  const auto size = static_cast<std::int64_t>(bytes.size());
  tensor.bytes.assign(static_cast<std::size_t>(tensor.offset + size + kGuardBytes), kGuard);
  if (size != 0) std::memcpy(tensor.bytes.data() + tensor.offset, bytes.data(), bytes.size());
  SCANJIT_ASSIGN_OR_RETURN(tensor.buffer, cuda::DeviceBuffer::allocate(
                                              api, static_cast<std::int64_t>(tensor.bytes.size())));
  SCANJIT_TRY(tensor.buffer.upload(tensor.bytes.data(),
                                   static_cast<std::int64_t>(tensor.bytes.size()), 0, stream_));
  tensors_.push_back(std::move(tensor));
  return {};
}

const DeviceCase::Tensor* DeviceCase::find(const std::string& name) const noexcept {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const Tensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

void* DeviceCase::address(const std::string& name) const noexcept {
  const Tensor* tensor = find(name);
  return tensor == nullptr ? nullptr : static_cast<char*>(tensor->buffer.data()) + tensor->offset;
}

Result<DeviceCase> DeviceCase::create(const cuda::DriverApi& api, const TensorProblem& problem,
                                      std::int64_t workspace_bytes, cuda::CUstream stream) {
  DeviceCase device(stream);
  const reference::GatedDeltaHInputs& in = problem.inputs;
  const GatedDeltaHProblem& p = in.problem;
  const std::int64_t shift16 = 2 * problem.misalign_elements,
                     shift32 = 4 * problem.misalign_elements;
  const std::int64_t cu_shift =
      (p.cu_seqlens_type == IndexType::kInt32 ? 4 : 8) * problem.misalign_elements;
  const std::int64_t index_shift =
      (p.index_type == IndexType::kInt32 ? 4 : 8) * problem.misalign_elements;
  SCANJIT_TRY(device.add(api, "k", bytes_of(in.k), shift16, false));
  SCANJIT_TRY(device.add(api, "w", bytes_of(in.w), shift16, false));
  SCANJIT_TRY(device.add(api, "u", bytes_of(in.u), shift16, problem.v_new_in_place));
  if (p.has_g) SCANJIT_TRY(device.add(api, "g", bytes_of(in.g), shift32, false));
  if (p.has_gk) SCANJIT_TRY(device.add(api, "gk", bytes_of(in.gk), shift32, false));
  if (p.has_h0) SCANJIT_TRY(device.add(api, "h0", bytes_of(in.h0), shift32, problem.ht_in_place));
  if (p.packed)
    SCANJIT_TRY(device.add(api, "cu_seqlens", index_bytes(in.cu_seqlens, p.cu_seqlens_type),
                           cu_shift, false));
  if (p.has_chunk_offsets) {
    SCANJIT_TRY(device.add(api, "chunk_offsets", index_bytes(in.chunk_offsets, p.cu_seqlens_type),
                           cu_shift, false));
  }
  if (p.has_h0_indices)
    SCANJIT_TRY(device.add(api, "h0_indices", index_bytes(in.h0_indices, p.index_type), index_shift,
                           false));
  if (p.has_ht_indices)
    SCANJIT_TRY(device.add(api, "ht_indices", index_bytes(in.ht_indices, p.index_type), index_shift,
                           false));
  if (p.has_h) SCANJIT_TRY(device.add(api, "h", bytes_of(problem.h), shift16, true));
  if (p.has_v_new && !problem.v_new_in_place)
    SCANJIT_TRY(device.add(api, "v_new", bytes_of(problem.v_new), shift16, true));
  if (p.has_ht && !problem.ht_in_place)
    SCANJIT_TRY(device.add(api, "ht", bytes_of(problem.ht), shift32, true));
  SCANJIT_TRY(device.add(api, "status", std::vector<std::byte>(4), 0, true));
  if (workspace_bytes > 0) {
    // Filled with a value that no kernel may rely on.
    SCANJIT_TRY(device.add(
        api, "workspace",
        std::vector<std::byte>(static_cast<std::size_t>(workspace_bytes), std::byte{0xFF}), 0,
        true));
    device.workspace_ = {device.address("workspace"), workspace_bytes};
  }
  device.ht_in_place_ = problem.ht_in_place;
  device.v_new_in_place_ = problem.v_new_in_place;
  device.h_elements_ = p.has_h ? problem.h.size() : 0;
  device.v_new_elements_ = p.has_v_new ? problem.v_new.size() : 0;
  device.ht_elements_ = p.has_ht ? problem.ht.size() : 0;

  GatedDeltaHArgs& args = device.args_;
  args.k = device.address("k");
  args.w = device.address("w");
  args.u = device.address("u");
  args.g = static_cast<const float*>(device.address("g"));
  args.gk = static_cast<const float*>(device.address("gk"));
  args.h0 = static_cast<const float*>(device.address("h0"));
  args.h0_indices = device.address("h0_indices");
  args.ht_indices = device.address("ht_indices");
  args.cu_seqlens = device.address("cu_seqlens");
  args.chunk_offsets = device.address("chunk_offsets");
  args.h = device.address("h");
  args.v_new = problem.v_new_in_place ? device.address("u") : device.address("v_new");
  args.ht = static_cast<float*>(problem.ht_in_place ? device.address("h0") : device.address("ht"));
  args.status = static_cast<std::uint32_t*>(device.address("status"));
  if (problem.host_cu_seqlens && p.packed) {
    device.host_cu_seqlens_ = in.cu_seqlens;
    args.host_cu_seqlens = device.host_cu_seqlens_.data();  // a moved vector keeps its memory
  }
  return device;
}

std::string DeviceCase::Outputs::difference(const Outputs& other) const {
  const auto compare = [](const char* name, const auto& a, const auto& b) -> std::string {
    const std::size_t count = std::min(a.size(), b.size());
    for (std::size_t i = 0; i < count; ++i) {
      if (std::memcmp(&a[i], &b[i], sizeof a[i]) != 0)
        return std::string(name) + " differs at element " + std::to_string(i);
    }
    return a.size() == b.size() ? "" : std::string(name) + " has another size";
  };
  if (std::string text = compare("h", h, other.h); !text.empty()) return text;
  if (std::string text = compare("v_new", v_new, other.v_new); !text.empty()) return text;
  if (std::string text = compare("ht", ht, other.ht); !text.empty()) return text;
  return status == other.status ? "" : "the status words differ";
}

Status DeviceCase::reset() {
  for (Tensor& tensor : tensors_) {
    if (!tensor.output) continue;
    SCANJIT_TRY(tensor.buffer.upload(tensor.bytes.data(),
                                     static_cast<std::int64_t>(tensor.bytes.size()), 0, stream_));
  }
  return {};
}

Result<DeviceCase::Outputs> DeviceCase::outputs() const {
  Outputs outputs;
  const auto read = [&](const char* name, auto& values, std::size_t count) -> Status {
    values.resize(count);
    const Tensor* tensor = find(name);
    if (count == 0 || tensor == nullptr) return {};
    return tensor->buffer.download(values.data(),
                                   static_cast<std::int64_t>(count * sizeof values[0]),
                                   tensor->offset, stream_);
  };
  SCANJIT_TRY(read("h", outputs.h, h_elements_));
  SCANJIT_TRY(read(v_new_in_place_ ? "u" : "v_new", outputs.v_new, v_new_elements_));
  SCANJIT_TRY(read(ht_in_place_ ? "h0" : "ht", outputs.ht, ht_elements_));
  std::vector<std::uint32_t> status;
  SCANJIT_TRY(read("status", status, 1));
  outputs.status = status[0];
  return outputs;
}

Result<std::string> DeviceCase::damage() const {
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
