#pragma once
/// \file
/// One problem of abc_forward or abc_backward with its inputs on the host: from a shape or a
/// safetensors file, on the device, and against the f64 oracle. Backward computes what it needs of
/// the forward itself.
///
/// Tensors are named as in scanjit/abc.hpp; one that is absent is an optional one left out. Every
/// output is computed.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device_tensors.hpp"
#include "gpu.hpp"
#include "io/safetensors.hpp"
#include "name_values.hpp"
#include "ops/abc_op.hpp"
#include "reference/abc_cases.hpp"
#include "reference/compare.hpp"
#include "tensor_problem.hpp"

namespace scanjit::cli {

struct AbcRequest {
  std::string op;  ///< "abc_forward" or "abc_backward"
  reference::AbcCase abc_case;
  reference::AbcTensors inputs;
  std::string numerics = "default";
};

/// A shape's case, without inputs. Errors: as the op.
[[nodiscard]] Result<AbcRequest> request_of(const tuning::Shape& shape);
/// `settings` (--set), optional: numerics=segments1 or another class.
/// Errors: kInvalidArgument; the sentence names tensor, value and bound.
[[nodiscard]] Result<AbcRequest> read_abc(const std::string& op, const io::Safetensors& file,
                                          const NameValues& settings);
/// Fills in normal inputs. Errors: kOutOfMemory.
[[nodiscard]] Status generate_inputs(AbcRequest& request);
/// Ok, or kOutOfMemory with figures: inputs and outputs, and the oracle's numbers beside them.
[[nodiscard]] Status check_fits_host(const AbcRequest& request);

[[nodiscard]] Result<std::shared_ptr<const ops::AbcOp>> op_of(const AbcRequest& request);
/// Of the engine's config, or the one that is named. Errors: as Engine::plan.
[[nodiscard]] Result<Plan> plan_of(Engine& engine, const AbcRequest& request,
                                   const std::optional<Config>& config);

/// An output's bytes, by name.
using AbcOutputs = std::vector<std::pair<std::string, std::vector<std::byte>>>;

/// A request's tensors and workspace on the device. The context must be current.
class AbcDevice {
 public:
  /// `request` must outlive this. Errors: kOutOfMemory, driver errors.
  [[nodiscard]] static Result<AbcDevice> create(const cuda::DriverApi& api,
                                                const AbcRequest& request,
                                                std::int64_t workspace_bytes,
                                                cuda::CUstream stream);
  /// From outputs and a workspace full of NaN. Waits.
  [[nodiscard]] Result<AbcOutputs> run(const Plan& plan);
  /// "" or which input or guard byte was changed.
  [[nodiscard]] Result<std::string> damage() const { return tensors_.damage(); }

 private:
  AbcDevice(const cuda::DriverApi& api, const AbcRequest& request, cuda::CUstream stream)
      : request_(&request), stream_(stream), tensors_(api, stream) {}
  template <class Args>
  [[nodiscard]] Args arguments() const;

  const AbcRequest* request_;
  cuda::CUstream stream_;
  DeviceTensors tensors_;
  std::vector<std::pair<std::string, std::int64_t>> outputs_;
  std::int64_t workspace_bytes_ = 0;
};

/// "" or the first output that differs.
[[nodiscard]] std::string difference(const AbcOutputs& a, const AbcOutputs& b);

struct AbcVerdict {
  std::string failure;  ///< "" or what is past its limit, with figures
  std::vector<std::pair<std::string, reference::TensorError>> errors;  ///< against f64
  [[nodiscard]] double worst() const noexcept;                         ///< largest relative L2
};
/// Runs the oracle on all cores. Errors: kOutOfMemory.
[[nodiscard]] Result<AbcVerdict> judge_abc(const AbcRequest& request, const AbcOutputs& outputs);
/// {"o": {"pure": 1e-3, "non_finite": 0}, ...}
[[nodiscard]] Json errors_json(const AbcVerdict& verdict);

[[nodiscard]] TensorFile input_tensors(const AbcRequest& request);
/// The outputs named, or all.
[[nodiscard]] TensorFile output_tensors(const AbcRequest& request, const AbcOutputs& outputs,
                                        const std::vector<std::string>& wanted);

}  // namespace scanjit::cli
