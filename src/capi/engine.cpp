#include "scanjit/engine.hpp"

#include <cstring>
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
  if (from.first_use != 0) {
    if (from.first_use < SCANJIT_FIRST_USE_BLOCK || from.first_use > SCANJIT_FIRST_USE_BACKGROUND) {
      return invalid_argument("options.first_use is " + std::to_string(from.first_use) +
                              ", it must be 0 to 2");
    }
    options.first_use = static_cast<FirstUseMode>(from.first_use);
  }
  if (from.scratch_limit < 0 || from.tune_budget_ms < 0 || from.compile_jobs < 0 ||
      from.wait_ms < 0) {
    return invalid_argument(
        "scratch_limit, tune_budget_ms, compile_jobs or wait_ms of options is negative");
  }
  options.cache_max_bytes = from.cache_max_bytes;
  if (from.wait_ms != 0) options.wait_ms = from.wait_ms;
  if (from.journal_path != nullptr) options.journal_path = from.journal_path;
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
  to.scratch_peak_bytes = stats.scratch_peak_bytes;
  to.waits_ended = stats.waits_ended;
  to.capture_misses = stats.capture_misses;
  to.sealed_misses = stats.sealed_misses;
  to.sealed_refused = stats.sealed_refused;
  to.journal_keys = stats.journal_keys;
  to.journal_dropped = stats.journal_dropped;
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

scanjit_code scanjit_engine_close(scanjit_engine* engine, scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    engine->engine.close();
    return {};
  });
}

scanjit_code scanjit_engine_seal(scanjit_engine* engine, scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    engine->engine.seal();
    return {};
  });
}

scanjit_code scanjit_engine_flush_journal(scanjit_engine* engine, const char* path, int64_t* keys,
                                          scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    SCANJIT_TRY(check_given(path, "path"));
    SCANJIT_ASSIGN_OR_RETURN(const std::int64_t held, engine->engine.flush_journal(path));
    if (keys != nullptr) *keys = held;
    return {};
  });
}

scanjit_code scanjit_engine_selection_digest(const scanjit_engine* engine, char* digest,
                                             size_t size, scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    SCANJIT_TRY(check_given(digest, "digest"));
    const std::string text = engine->engine.selection_digest();
    if (size <= text.size()) {
      return invalid_argument("size is " + std::to_string(size) + ", the digest takes " +
                              std::to_string(text.size() + 1) + " bytes");
    }
    std::memcpy(digest, text.c_str(), text.size() + 1);
    return {};
  });
}

scanjit_code scanjit_engine_get_stats(const scanjit_engine* engine, scanjit_engine_stats* stats,
                                      scanjit_error** error) {
  return entry(error, [&]() -> Status {
    SCANJIT_TRY(check_given(engine, "engine"));
    SCANJIT_TRY(read_struct(stats, "stats").status());
    write_struct(to_c(engine->engine.stats()), stats, stats->struct_size);
    return {};
  });
}
