#include "judge.hpp"

#include <utility>

namespace scanjit::cli {
namespace {

using reference::GatedDeltaHOutputs;
using reference::OracleOptions;
using reference::Precision;
using reference::Variant;

std::string trespass_text(const char* name, const reference::Trespass& trespass) {
  if (trespass.elements == 0) return "";
  return std::string(name) + ": " + std::to_string(trespass.elements) +
         " elements were written that the definition leaves alone, the first is element " +
         std::to_string(trespass.first);
}

void append(std::string* text, std::string more) {
  more.erase(more.find_last_not_of("; ") + 1);
  if (more.empty()) return;
  if (!text->empty()) *text += "; ";
  *text += more;
}

}  // namespace

Result<Judge> Judge::make(const TensorProblem& problem, reference::GateSet gates) {
  Judge judge(problem, gates);
  SCANJIT_ASSIGN_OR_RETURN(
      judge.pure_,
      reference::gated_delta_h(problem.inputs, {Precision::kPure, Variant::kDefinition, 0}));
  SCANJIT_ASSIGN_OR_RETURN(
      judge.rounding_,
      reference::gated_delta_h(problem.inputs, {Precision::kRounding, Variant::kDefinition, 0}));
  return judge;
}

Verdict Judge::judge(const DeviceCase::Outputs& got) const {
  Verdict verdict;
  const GatedDeltaHProblem& p = problem_->inputs.problem;
  const Result<GatedDeltaHOutputs> decoded =
      reference::decode(p, got.h, got.v_new, got.ht, got.status);
  if (!decoded.ok()) {
    verdict.failure = decoded.status().message();
    return verdict;
  }
  verdict.pure = reference::compare(p, *decoded, pure_);
  verdict.rounding = reference::compare(p, *decoded, rounding_);
  verdict.mistrusted = verdict.pure.h.mistrusted() || verdict.pure.v_new.mistrusted() ||
                       verdict.pure.ht.mistrusted();
  append(&verdict.failure,
         reference::failures(problem_->inputs, gates_, *decoded, pure_, rounding_));
  if (p.has_h)
    append(&verdict.failure,
           trespass_text("h", reference::trespass_h(p, rounding_, problem_->h, got.h)));
  if (p.has_v_new)
    append(&verdict.failure, trespass_text("v_new", reference::trespass_v_new(
                                                        p, rounding_, problem_->v_new, got.v_new)));
  if (p.has_ht)
    append(&verdict.failure,
           trespass_text("ht", reference::trespass_ht(p, rounding_, problem_->ht, got.ht)));
  return verdict;
}

Result<std::vector<std::pair<std::string, std::string>>> Judge::negative_controls() const {
  std::vector<std::pair<std::string, std::string>> results;
  const std::pair<const char*, Variant> mistakes[] = {
      {"the state rounded after each chunk", Variant::kStateRounded},
      {"the last gate taken past the end of a chunk", Variant::kLastGatePastEnd},
      {"a key head off by one", Variant::kNextKeyHead}};
  for (const auto& [name, variant] : mistakes) {
    SCANJIT_ASSIGN_OR_RETURN(
        const GatedDeltaHOutputs wrong,
        reference::gated_delta_h(problem_->inputs, {Precision::kRounding, variant, 0}));
    std::string failure;
    append(&failure, reference::failures(problem_->inputs, gates_, wrong, pure_, rounding_));
    results.emplace_back(name, std::move(failure));
  }
  return results;
}

Result<reference::GateSet> parse_gates(const std::string& text) {
  for (const reference::GateSet gates :
       {reference::GateSet::kStrong, reference::GateSet::kSlow, reference::GateSet::kNone}) {
    if (text == reference::to_string(gates)) return gates;
  }
  return invalid_argument("the gates are '" + text + "', they must be strong, slow or none");
}

Json errors_json(const Verdict& verdict) {
  Json json = Json::object();
  const auto add = [&](const char* name, const reference::TensorError& pure,
                       const reference::TensorError& rounding) {
    if (pure.elements == 0) return;
    json[name] = {{"pure", pure.relative_l2},
                  {"rounding", rounding.relative_l2},
                  {"non_finite", pure.non_finite}};
  };
  add("h", verdict.pure.h, verdict.rounding.h);
  add("v_new", verdict.pure.v_new, verdict.rounding.v_new);
  add("ht", verdict.pure.ht, verdict.rounding.ht);
  return json;
}

}  // namespace scanjit::cli
