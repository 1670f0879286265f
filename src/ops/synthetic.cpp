#include "ops/synthetic.hpp"

#include "core/checked_math.hpp"
#include "ops/problem_checks.hpp"

namespace scanjit::ops {
namespace {

constexpr std::int64_t kTensorAlignment = 256;

bool fits(const OpProblem& problem, std::int64_t max_bytes) {
  std::int64_t bytes = problem.workspace_bound();
  for (const Tensor& tensor : problem.tensors()) {
    const auto rounded = checked_add(tensor.bytes, kTensorAlignment);
    const auto sum = rounded ? checked_add(bytes, *rounded) : std::nullopt;
    if (!sum) return false;
    bytes = *sum;
  }
  return bytes <= max_bytes;
}

}  // namespace

std::shared_ptr<const OpProblem> largest_that_fits(
    const std::function<std::shared_ptr<const OpProblem>(std::int64_t tokens)>& make,
    std::int64_t tokens, std::int64_t BT, std::int64_t max_bytes) {
  const auto fitting = [&](std::int64_t count) {
    auto made = make(count);
    if (made != nullptr && !fits(*made, max_bytes)) made = nullptr;
    return made;
  };
  if (auto whole = fitting(tokens)) return whole;
  std::int64_t enough = 0, too_many = ceil_divide(tokens, BT);
  std::shared_ptr<const OpProblem> largest;
  while (too_many - enough > 1) {
    const std::int64_t chunks = enough + (too_many - enough) / 2;
    if (auto made = fitting(chunks * BT)) {
      largest = std::move(made);
      enough = chunks;
    } else {
      too_many = chunks;
    }
  }
  return largest;
}

}  // namespace scanjit::ops
