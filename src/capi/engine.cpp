#include "scanjit/engine.hpp"

#include <limits>
#include <string>
#include <utility>

#include "capi/error.hpp"
#include "capi/handles.hpp"
#include "capi/structs.hpp"

namespace scanjit::capi {
namespace {

Result<EngineOptions> engine_options(const scanjit_engine_options* given) {
  EngineOptions options;
  if (given == nullptr) return options;
  SCANJIT_ASSIGN_OR_RETURN(const scanjit_engine_options from, read_struct(given, "options"));
  options.device = from.device;
  if (from.tune_mode != 0) {
    if (from.tune_mode < SCANJIT_TUNE_OFF || from.tune_mode > SCANJIT_TUNE_STRICT) {
      return invalid_argument("options.tune_mode is " + std::to_string(from.tune_mode) +
                              ", it must be 0 to 4");
    }
    options.tune_mode = static_cast<TuneMode>(from.tune_mode);
  }
  if (from.cache_dir != nullptr) options.cache_dir = from.cache_dir;
  if (from.pack_dir_count != 0) SCANJIT_TRY(check_given(from.pack_dirs, "options.pack_dirs"));
  for (std::size_t i = 0; i < from.pack_dir_count; ++i) {
    SCANJIT_TRY(check_given(from.pack_dirs[i], "an element of options.pack_dirs"));
    options.pack_dirs.emplace_back(from.pack_dirs[i]);
  }
  if (from.scratch_limit < 0 || from.tune_budget_ms < 0 || from.compile_jobs < 0) {
    return invalid_argument("scratch_limit, tune_budget_ms or compile_jobs of options is negative");
  }
  options.scratch_limit = from.scratch_limit;
  if (from.tune_budget_ms != 0) options.tune_budget_ms = from.tune_budget_ms;
  options.compile_jobs = from.compile_jobs;
  if (from.log != nullptr) {
    options.log = [log = from.log, context = from.log_context](LogLevel level,
                                                               const std::string& text) {
      log(context, static_cast<scanjit_log_level>(level), text.c_str());
    };
  }
  return options;
}

scanjit_engine_stats to_c(const EngineStats& stats) noexcept {
  scanjit_engine_stats to{};
  to.plans = stats.plans;
  to.lookups = stats.lookups;
  to.launches = stats.launches;
  to.compiles = stats.compiles;
  to.compile_errors = stats.compile_errors;
  to.binary_hits = stats.binary_hits;
  to.first_uses = stats.first_uses;
  to.first_uses_busy = stats.first_uses_busy;
  to.first_uses_no_scratch = stats.first_uses_no_scratch;
  to.exact = stats.exact;
  to.fallback = stats.fallback;
  to.corrupt_files = stats.corrupt_files;
  return to;
}

}  // namespace
}  // namespace scanjit::capi

using namespace scanjit;
using namespace scanjit::capi;

uint32_t scanjit_abi_version(void) { return SCANJIT_ABI_VERSION; }
const char* scanjit_version(void) { return SCANJIT_VERSION; }

void scanjit_engine_options_init(scanjit_engine_options* options, size_t struct_size) {
  if (options != nullptr) write_struct(scanjit_engine_options{}, options, struct_size);
}

scanjit_code scanjit_engine_create(const scanjit_engine_options* options, scanjit_engine** engine,
                                   scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    SCANJIT_ASSIGN_OR_RETURN(const EngineOptions wanted, engine_options(options));
    SCANJIT_ASSIGN_OR_RETURN(Engine made, Engine::create(wanted));
    *engine = new scanjit_engine{std::move(made)};
    return {};
  });
}

void scanjit_engine_free(scanjit_engine* engine) { delete engine; }

scanjit_code scanjit_engine_get_stats(const scanjit_engine* engine, scanjit_engine_stats* stats,
                                      scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    SCANJIT_TRY(read_struct(stats, "stats").status());
    write_struct(to_c(engine->engine.stats()), stats, stats->struct_size);
    return {};
  });
}
