#pragma once
/// \file
/// One problem's tensors on the device, each between guard bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "device_tensors.hpp"
#include "scanjit/gated_delta_h.hpp"
#include "tensor_problem.hpp"

namespace scanjit::cli {

/// Not thread-safe; the context must be current. Copies wait for the stream.
class DeviceCase {
 public:
  /// Uploads inputs and outputs. `problem` must outlive this. Errors: kOutOfMemory, driver errors.
  [[nodiscard]] static Result<DeviceCase> create(const cuda::DriverApi& api,
                                                 const TensorProblem& problem,
                                                 std::int64_t workspace_bytes,
                                                 cuda::CUstream stream);

  [[nodiscard]] const GatedDeltaHArgs& args() const noexcept { return args_; }
  [[nodiscard]] Workspace workspace() const noexcept { return workspace_; }

  /// Everything as it was after `create`: between two launches.
  [[nodiscard]] Status reset() { return tensors_.reset(); }

  struct Outputs {
    std::vector<std::uint16_t> h, v_new;
    std::vector<float> ht;
    std::uint32_t status = 0;

    /// Bit for bit, NaNs too: "" or a sentence that names the first tensor and element that differ.
    [[nodiscard]] std::string difference(const Outputs& other) const;
  };
  /// Waits for the stream. Errors: also what the launches before did wrong.
  [[nodiscard]] Result<Outputs> outputs() const;

  /// "" if every guard byte and every input is as it was, else a sentence that names the tensor.
  [[nodiscard]] Result<std::string> damage() const { return tensors_.damage(); }

 private:
  DeviceCase(const cuda::DriverApi& api, cuda::CUstream stream) : tensors_(api, stream) {}

  DeviceTensors tensors_;
  std::vector<std::int64_t> host_cu_seqlens_;
  GatedDeltaHArgs args_;
  Workspace workspace_;
  bool ht_in_place_ = false, v_new_in_place_ = false;
  std::size_t h_elements_ = 0, v_new_elements_ = 0, ht_elements_ = 0;
};

}  // namespace scanjit::cli
