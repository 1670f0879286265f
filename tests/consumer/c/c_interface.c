/* The C interface as a program in C sees it. Without arguments: no driver is there, and every call
 * says so or refuses. With the path of a pack and of a directory to write in: a driver and kernels are
 * there, and an op is planned and launched. Exits 0 if everything was as it should be; prints what was not. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scanjit/scanjit.h"

static int failures = 0;

static void check(int ok, const char* what) {
  if (ok) return;
  printf("not so: %s\n", what);
  ++failures;
}

/* The call failed with `code` and a sentence that has `words` in it; frees the error. */
static void check_error(scanjit_code got, scanjit_code code, scanjit_error** error,
                        const char* words, const char* what) {
  check(got == code, what);
  check(scanjit_error_code(*error) == code, what);
  if (strstr(scanjit_error_message(*error), words) == NULL) {
    printf("%s says: %s\n", what, scanjit_error_message(*error));
    ++failures;
  }
  scanjit_error_free(*error);
}

static scanjit_gated_delta_h_problem a_problem(void) {
  scanjit_gated_delta_h_problem problem;
  scanjit_gated_delta_h_problem_init(&problem, sizeof problem);
  problem.B = 2;
  problem.T = 64;
  problem.H = 1;
  problem.HV = 2;
  problem.K = 64;
  problem.V = 64;
  problem.has_g = 1;
  problem.has_h0 = 1;
  problem.has_ht = 1;
  return problem;
}

static void without_a_driver(void) {
  scanjit_error* error = NULL;
  scanjit_engine* engine = NULL;
  scanjit_engine_options options;
  check(scanjit_abi_version() == SCANJIT_ABI_VERSION, "the header is the library's");
  check(strlen(scanjit_version()) >= 5, "the version");
  check(strcmp(scanjit_code_name(SCANJIT_CAPTURE_MISS), "capture_miss") == 0, "names of codes");
  check(strcmp(scanjit_code_name(99), "") != 0, "the name of no code");

  check_error(scanjit_engine_create(NULL, &engine, &error), SCANJIT_UNSUPPORTED, &error,
              "no usable CUDA driver", "an engine without a driver");
  check(engine == NULL, "an output stays as it is on failure");
  check(scanjit_engine_create(NULL, &engine, NULL) == SCANJIT_UNSUPPORTED, "no error is wanted");
  check_error(scanjit_engine_create(NULL, NULL, &error), SCANJIT_INVALID_ARGUMENT, &error,
              "engine is null", "no place for the engine");

  memset(&options, 0, sizeof options);
  check_error(scanjit_engine_create(&options, &engine, &error), SCANJIT_INVALID_ARGUMENT, &error,
              "struct_size is 0", "options without a size");
  scanjit_engine_options_init(&options, sizeof options);
  options.tune_mode = 7;
  check_error(scanjit_engine_create(&options, &engine, &error), SCANJIT_INVALID_ARGUMENT, &error,
              "tune_mode is 7", "an unknown mode");
  options.tune_mode = 0;
  options.first_use = 3;
  check_error(scanjit_engine_create(&options, &engine, &error), SCANJIT_INVALID_ARGUMENT, &error,
              "first_use is 3", "an unknown first use");
  options.first_use = SCANJIT_FIRST_USE_BACKGROUND;
  options.wait_ms = -1;
  check_error(scanjit_engine_create(&options, &engine, &error), SCANJIT_INVALID_ARGUMENT, &error,
              "wait_ms", "a negative wait");
  options.wait_ms = 0;
  options.pack_dir_count = 1;
  check_error(scanjit_engine_create(&options, &engine, &error), SCANJIT_INVALID_ARGUMENT, &error,
              "pack_dirs is null", "a list that is not there");

  scanjit_engine_free(NULL);
  scanjit_plan_free(NULL);
  scanjit_error_free(NULL);
  check(scanjit_error_code(NULL) == SCANJIT_OK, "no error is ok");
  check(strcmp(scanjit_plan_why(NULL), "") == 0, "no plan has no reasons");
  check_error(scanjit_engine_seal(NULL, &error), SCANJIT_INVALID_ARGUMENT, &error, "engine is null",
              "sealing nothing");
  check_error(scanjit_engine_close(NULL, &error), SCANJIT_INVALID_ARGUMENT, &error,
              "engine is null", "closing nothing");
}

static void problems(void) {
  scanjit_error* error = NULL;
  int64_t bytes = -1;
  scanjit_gated_delta_h_problem problem = a_problem();
  check(problem.struct_size == sizeof problem && problem.dtype == SCANJIT_BF16 &&
            problem.BT == 64 && problem.has_h == 1 && problem.aligned16 == 1,
        "defaults of a problem");
  check(scanjit_gated_delta_h_workspace_bound(&problem, &bytes, &error) == SCANJIT_OK &&
            error == NULL && bytes >= 0,
        "a bound");
  problem.K = 257;
  check_error(scanjit_gated_delta_h_workspace_bound(&problem, &bytes, &error),
              SCANJIT_INVALID_ARGUMENT, &error, "257", "K 257");
  problem = a_problem();
  problem.dtype = 257; /* the same low byte as bf16 */
  check_error(scanjit_gated_delta_h_workspace_bound(&problem, &bytes, &error),
              SCANJIT_INVALID_ARGUMENT, &error, "dtype is 257", "an unknown dtype");
  problem = a_problem();
  problem.has_g = 2;
  check_error(scanjit_gated_delta_h_workspace_bound(&problem, &bytes, &error),
              SCANJIT_INVALID_ARGUMENT, &error, "has_g is 2", "a flag that is none");
  check_error(scanjit_gated_delta_h_workspace_bound(NULL, &bytes, &error), SCANJIT_INVALID_ARGUMENT,
              &error, "problem is null", "no problem");

  { /* A program of a header with one field more: fine as long as that is not used. */
    struct {
      scanjit_gated_delta_h_problem known;
      int64_t later;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.known = a_problem();
    newer.known.struct_size = sizeof newer;
    check(scanjit_gated_delta_h_workspace_bound(&newer.known, &bytes, NULL) == SCANJIT_OK,
          "a field of a later header that is zero");
    newer.later = 1;
    check_error(scanjit_gated_delta_h_workspace_bound(&newer.known, &bytes, &error),
                SCANJIT_UNSUPPORTED, &error, "does not know", "a field of a later header in use");
  }
  /* And of one with a field less: what it has not counts as zero. */
  problem = a_problem();
  problem.struct_size = offsetof(scanjit_gated_delta_h_problem, numerics);
  problem.numerics = "not read";
  check(scanjit_gated_delta_h_workspace_bound(&problem, &bytes, NULL) == SCANJIT_OK,
        "a struct of an earlier header");
}

static int warnings = 0;
static void count_warnings(void* context, scanjit_log_level level, const char* text) {
  if (level >= SCANJIT_LOG_WARNING) ++*(int*)context;
  if (text == NULL) ++failures;
}

/* Nothing reads from these: the driver is not a real one. */
static void* address(size_t number) { return (char*)NULL + (number << 40); }

/* What a program does that uses the driver itself: a context is current, so that the null stream is
 * one of it. */
static int make_a_context_current(void) {
  typedef int (*retain_function)(void** context, int device);
  typedef int (*set_function)(void* context);
  void* driver = dlopen(getenv("SCANJIT_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  void* context = NULL;
  retain_function retain;
  set_function set;
  if (driver == NULL) return 0;
  *(void**)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void**)&set = dlsym(driver, "cuCtxSetCurrent");
  return retain != NULL && set != NULL && retain(&context, 0) == 0 && set(context) == 0;
}

static void with_a_driver(const char* pack, const char* scratch) {
  scanjit_error* error = NULL;
  scanjit_engine* engine = NULL;
  scanjit_plan* plan = NULL;
  scanjit_engine_options options;
  scanjit_gated_delta_h_problem problem = a_problem();
  scanjit_gated_delta_h_args args;
  scanjit_engine_stats stats;
  const char* packs[2];
  packs[0] = pack;
  packs[1] = "/no/such/pack";

  scanjit_engine_options_init(&options, sizeof options);
  options.tune_mode = SCANJIT_TUNE_REPLAY;
  options.cache_dir = "none";
  options.pack_dirs = packs;
  options.pack_dir_count = 2;
  options.log = count_warnings;
  options.log_context = &warnings;
  if (scanjit_engine_create(&options, &engine, &error) != SCANJIT_OK) {
    printf("no engine: %s\n", scanjit_error_message(error));
    scanjit_error_free(error);
    ++failures;
    return;
  }
  check(warnings == 1, "the log says that the second pack is missing");
  check(make_a_context_current(), "a context");
  if (scanjit_gated_delta_h_plan(engine, &problem, &plan, &error) != SCANJIT_OK) {
    printf("no plan: %s\n", scanjit_error_message(error));
    scanjit_error_free(error);
    scanjit_engine_free(engine);
    ++failures;
    return;
  }
  check(scanjit_plan_config(plan).bv >= 16 && scanjit_plan_config(plan).warps >= 1, "a config");
  check(strcmp(scanjit_plan_source(plan), "heuristic") == 0, "where the config comes from");
  check(strstr(scanjit_plan_key(plan), "HV=2") != NULL, "the key");
  check(strstr(scanjit_plan_why(plan), "bv=") != NULL, "why");
  check(scanjit_plan_workspace_bytes(plan) >= 0, "the workspace");

  scanjit_gated_delta_h_args_init(&args, sizeof args);
  check_error(scanjit_gated_delta_h_launch(plan, &args, NULL, 0, NULL, &error),
              SCANJIT_INVALID_ARGUMENT, &error, "k is null", "a launch without tensors");
  args.k = address(1);
  args.w = address(2);
  args.u = address(3);
  args.g = (const float*)address(4);
  args.h0 = (const float*)address(5);
  args.h = address(6);
  args.v_new = address(7);
  args.ht = (float*)address(8);
  check(scanjit_gated_delta_h_launch(plan, &args, NULL, 0, NULL, &error) == SCANJIT_OK &&
            error == NULL,
        "a launch");
  check(scanjit_gated_delta_h(engine, &problem, &args, NULL, 0, NULL, &error) == SCANJIT_OK,
        "plan and launch in one step");

  check(strcmp(scanjit_plan_layer(plan), "heuristic") == 0, "the layer");
  check(scanjit_plan_provisional(plan) == 0, "for good");
  check(strlen(scanjit_plan_binary_id(plan)) > 8, "which binary");
  check(strchr(scanjit_plan_binary_nvrtc(plan), '.') != NULL, "whose compiler's");

  { /* The same config, asked for by name; and one that cannot be. */
    scanjit_config config = scanjit_plan_config(plan);
    scanjit_plan* named = NULL;
    check(
        scanjit_gated_delta_h_plan_with(engine, &problem, &config, &named, &error) == SCANJIT_OK &&
            strcmp(scanjit_plan_source(named), "forced") == 0,
        "a plan of a config");
    scanjit_plan_free(named);
    named = NULL;
    config.bv = 17;
    check_error(scanjit_gated_delta_h_plan_with(engine, &problem, &config, &named, &error),
                SCANJIT_UNSUPPORTED, &error, "bv=17", "a config that is none");
    check(named == NULL, "no plan then");
  }
  {
    scanjit_gated_delta_h_problem bad = a_problem();
    const scanjit_gated_delta_h_problem* both[2];
    scanjit_code codes[2] = {SCANJIT_INTERNAL, SCANJIT_INTERNAL};
    bad.HV = -1;
    both[0] = &bad;
    both[1] = &problem;
    check_error(scanjit_gated_delta_h_prewarm(engine, both, 2, codes, &error),
                SCANJIT_INVALID_ARGUMENT, &error, "HV", "prewarming a bad problem");
    check(codes[0] == SCANJIT_INVALID_ARGUMENT && codes[1] == SCANJIT_OK, "and a good one");
    check(scanjit_gated_delta_h_prewarm(engine, NULL, 0, NULL, NULL) == SCANJIT_OK, "none at all");
  }
  {
    char digest[65];
    check(scanjit_engine_selection_digest(engine, digest, sizeof digest, &error) == SCANJIT_OK &&
              strlen(digest) == 64,
          "the digest of the selection");
    check_error(scanjit_engine_selection_digest(engine, digest, 64, &error),
                SCANJIT_INVALID_ARGUMENT, &error, "65 bytes", "a digest without room");
  }

  memset(&stats, 0, sizeof stats);
  check_error(scanjit_engine_get_stats(engine, &stats, &error), SCANJIT_INVALID_ARGUMENT, &error,
              "struct_size is 0", "counters without a size");
  stats.struct_size = sizeof stats;
  check(scanjit_engine_get_stats(engine, &stats, NULL) == SCANJIT_OK && stats.plans == 2 &&
            stats.launches == 2 && stats.struct_size == sizeof stats,
        "counters");

  { /* Sealed, what is loaded serves; the key that was served untuned goes into the journal. */
    scanjit_gated_delta_h_problem other = a_problem();
    char journal[4096];
    int64_t keys = 0;
    other.K = 32;
    check(scanjit_engine_seal(engine, &error) == SCANJIT_OK, "sealing");
    check(scanjit_gated_delta_h(engine, &problem, &args, NULL, 0, NULL, NULL) == SCANJIT_OK,
          "a sealed engine serves what it has");
    check(scanjit_gated_delta_h(engine, &other, &args, NULL, 0, NULL, NULL) == SCANJIT_NOT_FOUND,
          "and refuses what it has not");
    stats.struct_size = sizeof stats;
    check(scanjit_engine_get_stats(engine, &stats, NULL) == SCANJIT_OK &&
              stats.sealed_refused == 1 && stats.journal_keys >= 1,
          "counters of a sealed engine");
    snprintf(journal, sizeof journal, "%s/journal.json", scratch);
    check(scanjit_engine_flush_journal(engine, journal, &keys, &error) == SCANJIT_OK && keys >= 1,
          "the journal");
    check_error(scanjit_engine_flush_journal(engine, NULL, &keys, &error), SCANJIT_INVALID_ARGUMENT,
                &error, "path is null", "a journal nowhere");
    check(scanjit_engine_close(engine, &error) == SCANJIT_OK, "closing");
    check(scanjit_gated_delta_h(engine, &other, &args, NULL, 0, NULL, NULL) == SCANJIT_CANCELLED,
          "a closed engine");
  }
  scanjit_engine_free(engine);
  check(strstr(scanjit_plan_why(plan), "bv=") != NULL, "a plan outlives its engine");
  scanjit_plan_free(plan);
}

int main(int argc, char** argv) {
  problems();
  if (argc > 2) {
    with_a_driver(argv[1], argv[2]);
  } else {
    without_a_driver();
  }
  if (failures == 0) printf("all as it should be\n");
  return failures == 0 ? 0 : 1;
}
