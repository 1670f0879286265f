#include "device_case.hpp"

#include <utility>

namespace scanjit::cli {
namespace {

std::vector<std::byte> index_bytes(const std::vector<std::int64_t>& values, IndexType type) {
  if (type == IndexType::kInt64) return bytes_of(values);
  std::vector<std::int32_t> narrow;
  for (const std::int64_t value : values) narrow.push_back(static_cast<std::int32_t>(value));
  return bytes_of(narrow);
}

}  // namespace

Result<DeviceCase> DeviceCase::create(const cuda::DriverApi& api, const TensorProblem& problem,
                                      std::int64_t workspace_bytes, cuda::CUstream stream) {
  DeviceCase device(api, stream);
  DeviceTensors& tensors = device.tensors_;
  const reference::GatedDeltaHInputs& in = problem.inputs;
  const GatedDeltaHProblem& p = in.problem;
  const std::int64_t shift16 = 2 * problem.misalign_elements,
                     shift32 = 4 * problem.misalign_elements;
  const std::int64_t cu_shift =
      (p.cu_seqlens_type == IndexType::kInt32 ? 4 : 8) * problem.misalign_elements;
  const std::int64_t index_shift =
      (p.index_type == IndexType::kInt32 ? 4 : 8) * problem.misalign_elements;
  SCANJIT_TRY(tensors.add("k", bytes_of(in.k), shift16, false));
  SCANJIT_TRY(tensors.add("w", bytes_of(in.w), shift16, false));
  SCANJIT_TRY(tensors.add("u", bytes_of(in.u), shift16, problem.v_new_in_place));
  if (p.has_g) SCANJIT_TRY(tensors.add("g", bytes_of(in.g), shift32, false));
  if (p.has_gk) SCANJIT_TRY(tensors.add("gk", bytes_of(in.gk), shift32, false));
  if (p.has_h0) SCANJIT_TRY(tensors.add("h0", bytes_of(in.h0), shift32, problem.ht_in_place));
  if (p.packed)
    SCANJIT_TRY(
        tensors.add("cu_seqlens", index_bytes(in.cu_seqlens, p.cu_seqlens_type), cu_shift, false));
  if (p.has_chunk_offsets) {
    SCANJIT_TRY(tensors.add("chunk_offsets", index_bytes(in.chunk_offsets, p.cu_seqlens_type),
                            cu_shift, false));
  }
  if (p.has_h0_indices)
    SCANJIT_TRY(
        tensors.add("h0_indices", index_bytes(in.h0_indices, p.index_type), index_shift, false));
  if (p.has_ht_indices)
    SCANJIT_TRY(
        tensors.add("ht_indices", index_bytes(in.ht_indices, p.index_type), index_shift, false));
  if (p.has_h) SCANJIT_TRY(tensors.add("h", bytes_of(problem.h), shift16, true));
  if (p.has_v_new && !problem.v_new_in_place)
    SCANJIT_TRY(tensors.add("v_new", bytes_of(problem.v_new), shift16, true));
  if (p.has_ht && !problem.ht_in_place)
    SCANJIT_TRY(tensors.add("ht", bytes_of(problem.ht), shift32, true));
  SCANJIT_TRY(tensors.add("status", std::vector<std::byte>(4), 0, true));
  SCANJIT_TRY(tensors.add_workspace(workspace_bytes));
  if (workspace_bytes > 0) device.workspace_ = {tensors.address("workspace"), workspace_bytes};
  device.ht_in_place_ = problem.ht_in_place;
  device.v_new_in_place_ = problem.v_new_in_place;
  device.h_elements_ = p.has_h ? problem.h.size() : 0;
  device.v_new_elements_ = p.has_v_new ? problem.v_new.size() : 0;
  device.ht_elements_ = p.has_ht ? problem.ht.size() : 0;

  GatedDeltaHArgs& args = device.args_;
  args.k = tensors.address("k");
  args.w = tensors.address("w");
  args.u = tensors.address("u");
  args.g = static_cast<const float*>(tensors.address("g"));
  args.gk = static_cast<const float*>(tensors.address("gk"));
  args.h0 = static_cast<const float*>(tensors.address("h0"));
  args.h0_indices = tensors.address("h0_indices");
  args.ht_indices = tensors.address("ht_indices");
  args.cu_seqlens = tensors.address("cu_seqlens");
  args.chunk_offsets = tensors.address("chunk_offsets");
  args.h = tensors.address("h");
  args.v_new = problem.v_new_in_place ? tensors.address("u") : tensors.address("v_new");
  args.ht =
      static_cast<float*>(problem.ht_in_place ? tensors.address("h0") : tensors.address("ht"));
  args.status = static_cast<std::uint32_t*>(tensors.address("status"));
  if (problem.host_cu_seqlens && p.packed) {
    device.host_cu_seqlens_ = in.cu_seqlens;
    args.host_cu_seqlens = device.host_cu_seqlens_.data();  // a moved vector keeps its memory
  }
  return device;
}

std::string DeviceCase::Outputs::difference(const Outputs& other) const {
  if (std::string text = first_difference("h", h, other.h); !text.empty()) return text;
  if (std::string text = first_difference("v_new", v_new, other.v_new); !text.empty()) return text;
  if (std::string text = first_difference("ht", ht, other.ht); !text.empty()) return text;
  return status == other.status ? "" : "the status words differ";
}

Result<DeviceCase::Outputs> DeviceCase::outputs() const {
  Outputs outputs;
  SCANJIT_ASSIGN_OR_RETURN(outputs.h, tensors_.read<std::uint16_t>("h", h_elements_));
  SCANJIT_ASSIGN_OR_RETURN(outputs.v_new, tensors_.read<std::uint16_t>(
                                              v_new_in_place_ ? "u" : "v_new", v_new_elements_));
  SCANJIT_ASSIGN_OR_RETURN(outputs.ht,
                           tensors_.read<float>(ht_in_place_ ? "h0" : "ht", ht_elements_));
  SCANJIT_ASSIGN_OR_RETURN(const auto status, tensors_.read<std::uint32_t>("status", 1));
  outputs.status = status[0];
  return outputs;
}

}  // namespace scanjit::cli
