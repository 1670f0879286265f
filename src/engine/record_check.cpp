#include "engine/record_check.hpp"

#include <algorithm>

#include "ops/registry.hpp"

namespace scanjit::engine {

Status check_record(const tuning::Record& record, const tuning::GpuFacts& gpu) {
  const auto& ops = ops::op_names();
  if (std::find(ops.begin(), ops.end(), record.key.kernel) == ops.end()) return {};
  const auto problem = ops::make_problem(record.key, record.measured_at.front());
  if (!problem.ok()) {
    if (problem.status().code() == ErrorCode::kUnsupported) return {};  // another revision
    return problem.status().with_context(record.key.text());
  }
  if ((*problem)->key_query().key.space != record.key.space) return {};
  const ops::DeviceLimits limits = ops::limits_of(gpu);
  const auto check = [&](const Config& config) -> Status {
    const Status legal = (*problem)->legal(config, limits);
    return legal.ok() ? legal : invalid_argument(record.key.text() + ": " + legal.message());
  };
  SCANJIT_TRY(check(record.config));
  SCANJIT_TRY(check(record.default_config));
  for (const tuning::Alternate& alternate : record.alternates) SCANJIT_TRY(check(alternate.config));
  return {};
}

Status check_records(const tuning::TunedFile& file) {
  for (const tuning::Record& record : file.entries) SCANJIT_TRY(check_record(record, file.gpu));
  return {};
}

}  // namespace scanjit::engine
