#include <algorithm>
#include <ostream>

#include "name_values.hpp"
#include "verify.hpp"

namespace scanjit::cli {

VerifyReport::VerifyReport(Session& session, const VerifyOptions& options, std::string gpu,
                           std::size_t cases)
    : session_(session),
      options_(options),
      gpu_(std::move(gpu)),
      progress_(std::make_unique<Progress>(session.err, session.err_is_terminal, "verifying",
                                           static_cast<std::int64_t>(cases))) {}
VerifyReport::~VerifyReport() = default;

void VerifyReport::add(const VerifyLine& one) {
  ++(one.status == "PASSED"    ? passed_
     : one.status == "FAILED"  ? failed_
     : one.status == "SKIPPED" ? skipped_
                               : mistrusted_);
  if (one.status != "SKIPPED") worst_ = std::max(worst_, one.worst);
  std::vector<std::string> again = {session_.arguments.front(), "verify", options_.op};
  again.insert(again.end(), one.repeat.begin(), one.repeat.end());
  if (options_.all_configs) again.emplace_back("--all-configs");
  for (std::string& word : engine_arguments(options_.engine)) again.push_back(std::move(word));
  if (session_.json) {
    Json json = {{"status", one.status},   {"case", one.name},
                 {"reason", one.reason},   {"config", config_argument(one.config)},
                 {"configs", one.configs}, {"errors", one.errors}};
    if (one.status == "FAILED") json["repeat"] = shell_line(again);
    list_.push_back(std::move(json));
  } else {
    std::string line = one.status + "  " + one.name;
    if (!one.reason.empty()) line += ": " + one.reason;
    if (one.status == "PASSED")
      line += "  (" + figures(one.worst * 1e3) + "e-3 from f64, " + std::to_string(one.configs) +
              (one.configs == 1 ? " config)" : " configs, one set of bits)");
    session_.out << printable(line) << std::endl;
  }
  if (one.status == "FAILED") progress_->line("repeat: " + shell_line(again));
  progress_->advance();
}

int VerifyReport::finish() {
  progress_.reset();
  if (session_.json) {
    session_.print_json("scanjit-verify/1", {{"op", options_.op},
                                             {"gpu", gpu_},
                                             {"passed", passed_},
                                             {"failed", failed_},
                                             {"skipped", skipped_},
                                             {"mistrusted", mistrusted_},
                                             {"worst_error", worst_},
                                             {"cases", std::move(list_)}});
  } else {
    session_.out << passed_ << " passed, " << failed_ << " failed, " << skipped_ << " skipped, "
                 << mistrusted_ << " mistrusted; worst error " << figures(worst_ * 1e3) << "e-3"
                 << std::endl;
  }
  return failed_ == 0 ? kExitOk : kExitFailed;
}

}  // namespace scanjit::cli
