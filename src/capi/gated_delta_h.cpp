#include "scanjit/gated_delta_h.hpp"

#include <string>
#include <utility>
#include <vector>

#include "capi/error.hpp"
#include "capi/handles.hpp"
#include "capi/structs.hpp"

namespace scanjit::capi {
namespace {

// Enumerations and flags are checked here, since a value that no enumerator has must not get into a
// C++ enumeration. `names` begins with the field's.
Status check_word(const char* name, std::int32_t value, std::int32_t least, std::int32_t most) {
  if (value >= least && value <= most) return {};
  return invalid_argument(std::string("problem.") + name + " is " + std::to_string(value) +
                          ", it must be " + std::to_string(least) + " or " + std::to_string(most));
}

Result<GatedDeltaHProblem> problem_of(const scanjit_gated_delta_h_problem* given) {
  SCANJIT_ASSIGN_OR_RETURN(const scanjit_gated_delta_h_problem from, read_struct(given, "problem"));
  SCANJIT_TRY(check_word("dtype", from.dtype, SCANJIT_BF16, SCANJIT_F16));
  SCANJIT_TRY(check_word("cu_seqlens_type", from.cu_seqlens_type, SCANJIT_INT32, SCANJIT_INT64));
  SCANJIT_TRY(check_word("gate_base", from.gate_base, SCANJIT_GATE_TWO, SCANJIT_GATE_E));
  SCANJIT_TRY(check_word("layout", from.layout, SCANJIT_LAYOUT_KV, SCANJIT_LAYOUT_VK));
  SCANJIT_TRY(check_word("index_type", from.index_type, SCANJIT_INT32, SCANJIT_INT64));
  GatedDeltaHProblem problem;
  problem.dtype = static_cast<DType>(from.dtype);
  problem.cu_seqlens_type = static_cast<IndexType>(from.cu_seqlens_type);
  problem.gate_base = static_cast<GateBase>(from.gate_base);
  problem.layout = static_cast<StateLayout>(from.layout);
  problem.index_type = static_cast<IndexType>(from.index_type);
#define SCANJIT_FLAG(name)                         \
  SCANJIT_TRY(check_word(#name, from.name, 0, 1)); \
  problem.name = from.name == 1;
  SCANJIT_FLAG(packed)
  SCANJIT_FLAG(has_chunk_offsets)
  SCANJIT_FLAG(has_g)
  SCANJIT_FLAG(has_gk)
  SCANJIT_FLAG(has_h0)
  SCANJIT_FLAG(has_h)
  SCANJIT_FLAG(has_v_new)
  SCANJIT_FLAG(has_ht)
  SCANJIT_FLAG(has_h0_indices)
  SCANJIT_FLAG(has_ht_indices)
  SCANJIT_FLAG(aligned16)
#undef SCANJIT_FLAG
  problem.B = from.B;
  problem.T = from.T;
  problem.H = from.H;
  problem.HV = from.HV;
  problem.K = from.K;
  problem.V = from.V;
  problem.BT = from.BT;
  problem.sequences = from.sequences;
  problem.h0_slots = from.h0_slots;
  problem.ht_slots = from.ht_slots;
  problem.k_stride = from.k_stride;
  problem.w_stride = from.w_stride;
  problem.u_stride = from.u_stride;
  problem.g_stride = from.g_stride;
  problem.gk_stride = from.gk_stride;
  problem.v_new_stride = from.v_new_stride;
  problem.h0_slot_stride = from.h0_slot_stride;
  problem.ht_slot_stride = from.ht_slot_stride;
  problem.chunk_capacity = from.chunk_capacity;
  problem.max_tokens = from.max_tokens;
  if (from.numerics != nullptr) problem.numerics = from.numerics;
  return problem;
}

scanjit_gated_delta_h_problem to_c(const GatedDeltaHProblem& from) noexcept {
  scanjit_gated_delta_h_problem to{};
  to.dtype = static_cast<std::int32_t>(from.dtype);
  to.cu_seqlens_type = static_cast<std::int32_t>(from.cu_seqlens_type);
  to.gate_base = static_cast<std::int32_t>(from.gate_base);
  to.layout = static_cast<std::int32_t>(from.layout);
  to.index_type = static_cast<std::int32_t>(from.index_type);
  to.has_h = from.has_h ? 1 : 0;
  to.has_v_new = from.has_v_new ? 1 : 0;
  to.aligned16 = from.aligned16 ? 1 : 0;
  to.B = from.B;
  to.K = from.K;
  to.V = from.V;
  to.BT = from.BT;
  return to;
}

Result<GatedDeltaHArgs> args_of(const scanjit_gated_delta_h_args* given) {
  SCANJIT_ASSIGN_OR_RETURN(const scanjit_gated_delta_h_args from, read_struct(given, "args"));
  GatedDeltaHArgs args;
  args.k = from.k;
  args.w = from.w;
  args.u = from.u;
  args.g = from.g;
  args.gk = from.gk;
  args.h0 = from.h0;
  args.h0_indices = from.h0_indices;
  args.cu_seqlens = from.cu_seqlens;
  args.chunk_offsets = from.chunk_offsets;
  args.ht_indices = from.ht_indices;
  args.h = from.h;
  args.v_new = from.v_new;
  args.ht = from.ht;
  args.status = from.status;
  args.host_cu_seqlens = from.host_cu_seqlens;
  return args;
}

}  // namespace
}  // namespace scanjit::capi

using namespace scanjit;
using namespace scanjit::capi;

void scanjit_gated_delta_h_problem_init(scanjit_gated_delta_h_problem* problem,
                                        size_t struct_size) {
  if (problem != nullptr) write_struct(to_c(GatedDeltaHProblem()), problem, struct_size);
}

void scanjit_gated_delta_h_args_init(scanjit_gated_delta_h_args* args, size_t struct_size) {
  if (args != nullptr) write_struct(scanjit_gated_delta_h_args{}, args, struct_size);
}

scanjit_code scanjit_gated_delta_h_workspace_bound(const scanjit_gated_delta_h_problem* problem,
                                                   int64_t* bytes, scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(bytes, "bytes"));
    SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHProblem wanted, problem_of(problem));
    SCANJIT_ASSIGN_OR_RETURN(*bytes, workspace_bound(wanted));
    return {};
  });
}

scanjit_code scanjit_gated_delta_h_plan(scanjit_engine* engine,
                                        const scanjit_gated_delta_h_problem* problem,
                                        scanjit_plan** plan, scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    SCANJIT_TRY(check_given(plan, "plan"));
    SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHProblem wanted, problem_of(problem));
    SCANJIT_ASSIGN_OR_RETURN(Plan made, engine->engine.plan(wanted));
    *plan = new scanjit_plan{std::move(made)};
    return {};
  });
}

scanjit_code scanjit_gated_delta_h_plan_with(scanjit_engine* engine,
                                             const scanjit_gated_delta_h_problem* problem,
                                             const scanjit_config* config, scanjit_plan** plan,
                                             scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    SCANJIT_TRY(check_given(config, "config"));
    SCANJIT_TRY(check_given(plan, "plan"));
    SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHProblem wanted, problem_of(problem));
    SCANJIT_ASSIGN_OR_RETURN(
        Plan made, engine->engine.plan_with(wanted, {config->bv, config->bk, config->stages,
                                                     config->warps, config->segment_chunks}));
    *plan = new scanjit_plan{std::move(made)};
    return {};
  });
}

scanjit_code scanjit_gated_delta_h_prewarm(scanjit_engine* engine,
                                           const scanjit_gated_delta_h_problem* const* problems,
                                           size_t count, scanjit_code* codes,
                                           scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    if (count != 0) SCANJIT_TRY(check_given(problems, "problems"));
    std::vector<GatedDeltaHProblem> wanted;
    std::vector<Status> results(count);
    std::vector<std::size_t> places;  // in `results`, of those that can be planned
    for (std::size_t i = 0; i < count; ++i) {
      Result<GatedDeltaHProblem> problem = problem_of(problems[i]);
      results[i] = problem.status();
      if (!problem.ok()) continue;
      wanted.push_back(*std::move(problem));
      places.push_back(i);
    }
    const std::vector<PrewarmItem> items = engine->engine.prewarm(wanted);
    for (std::size_t i = 0; i < items.size(); ++i) results[places[i]] = items[i].status;
    Status first;
    for (std::size_t i = 0; i < count; ++i) {
      if (codes != nullptr) codes[i] = static_cast<scanjit_code>(results[i].code());
      if (first.ok()) first = results[i];
    }
    return first;
  });
}

scanjit_code scanjit_gated_delta_h_launch(const scanjit_plan* plan,
                                          const scanjit_gated_delta_h_args* args, void* workspace,
                                          int64_t workspace_bytes, void* stream,
                                          scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(plan, "plan"));
    SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHArgs given, args_of(args));
    return plan->plan.launch(given, {workspace, workspace_bytes}, stream);
  });
}

scanjit_code scanjit_gated_delta_h(scanjit_engine* engine,
                                   const scanjit_gated_delta_h_problem* problem,
                                   const scanjit_gated_delta_h_args* args, void* workspace,
                                   int64_t workspace_bytes, void* stream, scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHProblem wanted, problem_of(problem));
    SCANJIT_ASSIGN_OR_RETURN(const GatedDeltaHArgs given, args_of(args));
    return engine->engine.gated_delta_h(wanted, given, {workspace, workspace_bytes}, stream);
  });
}

int64_t scanjit_plan_workspace_bytes(const scanjit_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.workspace_bytes();
}
scanjit_config scanjit_plan_config(const scanjit_plan* plan) {
  if (plan == nullptr) return {};
  const Config& config = plan->plan.why().config;
  return {config.bv, config.bk, config.stages, config.warps, config.segment_chunks};
}
const char* scanjit_plan_key(const scanjit_plan* plan) {
  return plan == nullptr ? "" : plan->plan.why().key.c_str();
}
const char* scanjit_plan_source(const scanjit_plan* plan) {
  return plan == nullptr ? "" : to_string(plan->plan.why().source);
}
const char* scanjit_plan_layer(const scanjit_plan* plan) {
  return plan == nullptr ? "" : plan->plan.why().layer.c_str();
}
int32_t scanjit_plan_provisional(const scanjit_plan* plan) {
  return plan != nullptr && plan->plan.why().provisional ? 1 : 0;
}
const char* scanjit_plan_binary_id(const scanjit_plan* plan) {
  return plan == nullptr ? "" : plan->plan.why().binary_id.c_str();
}
const char* scanjit_plan_binary_nvrtc(const scanjit_plan* plan) {
  return plan == nullptr ? "" : plan->plan.why().binary_nvrtc.c_str();
}
const char* scanjit_plan_why(const scanjit_plan* plan) {
  return plan == nullptr ? "" : plan->plan.why().text.c_str();
}
void scanjit_plan_free(scanjit_plan* plan) { delete plan; }
