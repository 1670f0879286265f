#pragma once
/// \file
/// Times the configs of one problem on memory of its own. Nothing of a caller's is read or written:
/// tensors are synthesised in a private pool, work runs on a private non-blocking stream of the
/// lowest priority. Used by first use and by the tools.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/internals.hpp"
#include "ops/op_problem.hpp"
#include "tuning/record.hpp"

namespace scanjit::engine {

enum class L2Policy { kAuto, kWarm, kCold };

struct OpTimerOptions {
  std::int64_t scratch_limit = 0;  ///< bytes; 0: the smaller of 256 MiB and 2% of free memory
  /// kWarm: replay over one set of tensors. kCold: rotate sets over at least twice the L2, as far
  /// as they fit. kAuto: warm if the op moves less than half of the L2.
  L2Policy l2 = L2Policy::kAuto;
  double block_us = 2000;  ///< GPU time of one timed block, at least one launch
  /// Unload each kernel at the end (which synchronises): for tools that time many.
  bool unload = false;
  std::int64_t compare_limit =
      4 << 20;  ///< bytes of each output that `bits_equal` looks at, spread over it
};

/// One problem's timer. Not thread-safe; must be made, used and destroyed on one thread, whose
/// current context it leaves as it was. Driver calls are made so that no thread's stream capture
/// notices.
class OpTimer {
 public:
  /// Takes scratch and fills it. Errors: kOutOfMemory (not even one chunk of each sequence fits, or
  /// no memory), kUnsupported (no stream-ordered pools), kInvalidArgument (nothing to time), driver
  /// errors.
  [[nodiscard]] static Result<OpTimer> create(Internals& internals,
                                              std::shared_ptr<const ops::OpProblem> problem,
                                              const OpTimerOptions& options);
  OpTimer(OpTimer&&) noexcept;
  OpTimer& operator=(OpTimer&&) = delete;
  ~OpTimer();

  /// Compiles, in parallel, those of the configs that are legal here. Failures are kept and come
  /// out of `measure`. Returns the configs that `stop` (as in jit::KernelProvider::get_all) came
  /// before.
  [[nodiscard]] std::vector<Config> compile(const std::vector<Config>& configs,
                                            const std::function<bool()>& stop = {});

  /// GPU microseconds of one run of the op (all stages), over one timed block. Of a problem that is
  /// timed on fewer chunks: a second block of about half as many, and the line through both,
  /// carried on to the problem's own chunks, since what wins early need not win late. A config's
  /// first measurement prepares it: compiles (if `compile` did not), loads, warms up, captures.
  /// Errors: kUnsupported (not legal here), kCompileFailed, kDeviceLost, kCudaError. An error of
  /// preparation is kept.
  [[nodiscard]] Result<double> measure(const Config& config);

  /// Whether a run of `config` into poisoned outputs leaves the same bytes as one of `reference`
  /// did.
  [[nodiscard]] Result<bool> bits_equal(const Config& config, const Config& reference);

  [[nodiscard]] const ops::OpProblem& problem() const noexcept;  ///< as given
  [[nodiscard]] const ops::OpProblem& timed()
      const noexcept;                                       ///< as timed, perhaps of fewer chunks
  [[nodiscard]] const char* l2() const noexcept;            ///< "warm" or "cold"
  [[nodiscard]] int sets() const noexcept;                  ///< of tensors in rotation
  [[nodiscard]] std::int64_t taken_bytes() const noexcept;  ///< of device memory

  /// The machine code of a config's last stage, the tuned one, once it is compiled.
  [[nodiscard]] std::optional<jit::Binary> binary(const Config& config) const;

 private:
  struct State;
  explicit OpTimer(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace scanjit::engine
