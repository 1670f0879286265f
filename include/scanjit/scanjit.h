/* scanjit in C: engines, plans and launches behind opaque handles.
 *
 * Conventions
 *  - Every call that can fail returns a scanjit_code, SCANJIT_OK or the kind of error. If its last
 *    argument is not null, *error becomes an object with the sentence, or null on success; the
 *    caller frees it. The object is made even when memory is out.
 *  - An output argument is written on success only. Handles are freed by the function that is named
 *    for it; freeing null does nothing. A plan may outlive its engine.
 *  - Structs begin with `struct_size`, set by the caller (the ..._init functions do it): fields that
 *    a caller's header did not have yet count as zero, and fields that this library does not know
 *    must be zero.
 *  - Strings are UTF-8, zero-terminated. What a call is given it copies; what a getter returns
 *    belongs to the handle and lives as long as that.
 *  - Every function may be called from any thread, also several times on one handle, except that a
 *    handle is freed only when no other call uses it. No exception leaves the library, and it
 * neither prints nor exits, nor changes the calling thread's current context.
 *  - Device addresses, streams (CUstream, cudaStream_t) and workspaces are the caller's.
 *
 * What the op computes, its tensors and what each field of a problem means is said in
 * scanjit/gated_delta_h.hpp, under the same names; modes, sources and counters in
 * scanjit/engine.hpp.
 */
#ifndef SCANJIT_SCANJIT_H
#define SCANJIT_SCANJIT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SCANJIT_API __attribute__((visibility("default")))
#else
#define SCANJIT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a program built against an older header would no longer do. */
#define SCANJIT_ABI_VERSION 1
SCANJIT_API uint32_t scanjit_abi_version(void);
SCANJIT_API const char* scanjit_version(void); /* "0.1.0" */

/* --- errors ----------------------------------------------------------------------------------- */

typedef int32_t scanjit_code;
enum {
  SCANJIT_OK = 0,
  SCANJIT_INVALID_ARGUMENT = 1, /* shapes, pointers or options are wrong */
  SCANJIT_UNSUPPORTED = 2,      /* right, but not on this device, driver or version */
  SCANJIT_NOT_FOUND = 3,        /* a file, library, record or op does not exist */
  SCANJIT_COMPILE_FAILED = 4,   /* NVRTC refused the source */
  SCANJIT_CUDA_ERROR = 5,       /* a driver call failed */
  SCANJIT_DEVICE_LOST = 6,      /* a sticky device fault, or the context is gone */
  SCANJIT_OUT_OF_MEMORY = 7,
  SCANJIT_IO_ERROR = 8,
  SCANJIT_CORRUPT = 9,       /* stored bytes do not match their checksum or schema */
  SCANJIT_CAPTURE_MISS = 10, /* the stream is capturing and no plan is loaded */
  SCANJIT_TIMEOUT = 11,
  SCANJIT_CANCELLED = 12,
  SCANJIT_INTERNAL = 13
};
SCANJIT_API const char* scanjit_code_name(scanjit_code code); /* "invalid_argument"; never null */

typedef struct scanjit_error scanjit_error;
SCANJIT_API scanjit_code scanjit_error_code(const scanjit_error* error); /* of null: SCANJIT_OK */
/* One sentence that names what, the value and the bound. Of null: "". */
SCANJIT_API const char* scanjit_error_message(const scanjit_error* error);
SCANJIT_API const char* scanjit_error_compile_log(const scanjit_error* error); /* "" if none */
SCANJIT_API const char* scanjit_error_path(const scanjit_error* error);        /* "" if none */
SCANJIT_API int32_t scanjit_error_cuda_result(const scanjit_error* error);     /* CUresult, or 0 */
SCANJIT_API void scanjit_error_free(scanjit_error* error);

/* --- engine ----------------------------------------------------------------------------------- */

typedef int32_t scanjit_tune_mode;
enum {
  SCANJIT_TUNE_OFF = 1,       /* the heuristic only */
  SCANJIT_TUNE_REPLAY = 2,    /* stored picks, else the heuristic; never times anything */
  SCANJIT_TUNE_FIRST_USE = 3, /* stored picks, else time a short list now (the default) */
  SCANJIT_TUNE_STRICT = 4     /* stored exact picks only */
};

typedef int32_t scanjit_first_use;
enum {
  SCANJIT_FIRST_USE_BLOCK = 1, /* the call that meets a key waits while it is timed (the default) */
  SCANJIT_FIRST_USE_BACKGROUND = 2 /* the heuristic serves at once, a thread of the engine times */
};

typedef int32_t scanjit_log_level;
enum {
  SCANJIT_LOG_DEBUG = 0,
  SCANJIT_LOG_INFO = 1,
  SCANJIT_LOG_WARNING = 2,
  SCANJIT_LOG_ERROR = 3
};
/* Called from any thread; must not call the engine, throw or jump out. */
typedef void (*scanjit_log_function)(void* context, scanjit_log_level level, const char* text);

typedef struct scanjit_engine_options {
  size_t struct_size;
  int32_t device;               /* CUDA ordinal */
  scanjit_tune_mode tune_mode;  /* 0: the default */
  const char* cache_dir;        /* null: the user's; "none": memory only; else absolute */
  const char* const* pack_dirs; /* read-only packs, in order */
  size_t pack_dir_count;
  int64_t scratch_limit;    /* bytes for timing; 0: the default */
  int64_t tune_budget_ms;   /* 0: the default */
  int32_t compile_jobs;     /* 0: as many as cores, at most 16 */
  scanjit_log_function log; /* null: silent */
  void* log_context;
  scanjit_first_use first_use; /* 0: the default */
  int64_t cache_max_bytes;     /* that the cache directory may hold of this GPU; 0: the default,
                                  negative: no cap */
  int64_t wait_ms;             /* for another that makes the same plan; 0: the default */
  const char* journal_path;    /* where untuned keys go when the engine is freed; null: nowhere */
} scanjit_engine_options;
SCANJIT_API void scanjit_engine_options_init(scanjit_engine_options* options, size_t struct_size);

typedef struct scanjit_engine scanjit_engine;
/* `options` may be null: all defaults. */
SCANJIT_API scanjit_code scanjit_engine_create(const scanjit_engine_options* options,
                                               scanjit_engine** engine, scanjit_error** error);
/* Closes it first, then writes the journal. */
SCANJIT_API void scanjit_engine_free(scanjit_engine* engine);
/* Waits for calls that are being made; what is called later answers SCANJIT_CANCELLED. The way to end
   an engine that other threads still call. Plans stay usable. */
SCANJIT_API scanjit_code scanjit_engine_close(scanjit_engine* engine, scanjit_error** error);
/* From here on no call compiles, loads, takes device memory or touches a file: what is loaded serves,
   and what has no loaded kernel is refused with SCANJIT_NOT_FOUND. There is no way back. */
SCANJIT_API scanjit_code scanjit_engine_seal(scanjit_engine* engine, scanjit_error** error);
/* Writes the keys that were served untuned since the last flush to the file, with those that are in it
   already: `scanjit tune --from-journal` tunes them. *keys, if not null: how many it holds now. */
SCANJIT_API scanjit_code scanjit_engine_flush_journal(scanjit_engine* engine, const char* path,
                                                      int64_t* keys, scanjit_error** error);
/* A hash over every (key, config) that serves by now, 64 hex digits and a zero, into a buffer of
   `size` bytes, 65 at least: equal on two ranks that were asked for the same keys if they picked alike. */
SCANJIT_API scanjit_code scanjit_engine_selection_digest(const scanjit_engine* engine, char* digest,
                                                         size_t size, scanjit_error** error);

typedef struct scanjit_engine_stats {
  size_t struct_size;
  int64_t plans;
  int64_t lookups;
  int64_t launches;
  int64_t compiles;
  int64_t compile_errors;
  int64_t binary_hits;
  int64_t first_uses;
  int64_t first_uses_busy;
  int64_t first_uses_no_scratch;
  int64_t exact;
  int64_t fallback;
  int64_t corrupt_files;
  int64_t scratch_peak_bytes;
  int64_t waits_ended;
  int64_t capture_misses;
  int64_t sealed_misses;
  int64_t sealed_refused;
  int64_t journal_keys;
  int64_t journal_dropped;
} scanjit_engine_stats;
/* Fills as much of *stats as its struct_size says. */
SCANJIT_API scanjit_code scanjit_engine_get_stats(const scanjit_engine* engine,
                                                  scanjit_engine_stats* stats,
                                                  scanjit_error** error);

/* --- the gated-delta state scan --------------------------------------------------------------- */

enum { SCANJIT_BF16 = 1, SCANJIT_F16 = 2 };            /* dtype */
enum { SCANJIT_LAYOUT_KV = 1, SCANJIT_LAYOUT_VK = 2 }; /* layout */
enum { SCANJIT_GATE_TWO = 1, SCANJIT_GATE_E = 2 };     /* gate_base */
enum { SCANJIT_INT32 = 1, SCANJIT_INT64 = 2 };         /* cu_seqlens_type, index_type */

typedef struct scanjit_gated_delta_h_problem {
  size_t struct_size;
  int32_t dtype;
  int32_t cu_seqlens_type;
  int32_t gate_base;
  int32_t layout;
  int32_t index_type;
  int32_t packed; /* flags: 0 or 1 */
  int32_t has_chunk_offsets;
  int32_t has_g;
  int32_t has_gk;
  int32_t has_h0;
  int32_t has_h;
  int32_t has_v_new;
  int32_t has_ht;
  int32_t has_h0_indices;
  int32_t has_ht_indices;
  int32_t aligned16;
  int64_t B;
  int64_t T;
  int64_t H;
  int64_t HV;
  int64_t K;
  int64_t V;
  int64_t BT;
  int64_t sequences;
  int64_t h0_slots;
  int64_t ht_slots;
  int64_t k_stride;
  int64_t w_stride;
  int64_t u_stride;
  int64_t g_stride;
  int64_t gk_stride;
  int64_t v_new_stride;
  int64_t h0_slot_stride;
  int64_t ht_slot_stride;
  int64_t chunk_capacity;
  int64_t max_tokens;
  const char* numerics; /* null: "default" */
} scanjit_gated_delta_h_problem;
/* The defaults of scanjit/gated_delta_h.hpp: bf16, K = V = 128, BT = 64, dense, aligned, h and
   v_new as outputs. Start from these: a zero is no default of most fields. */
SCANJIT_API void scanjit_gated_delta_h_problem_init(scanjit_gated_delta_h_problem* problem,
                                                    size_t struct_size);

typedef struct scanjit_gated_delta_h_args {
  size_t struct_size;
  const void* k;
  const void* w;
  const void* u;
  const float* g;
  const float* gk;
  const float* h0;
  const void* h0_indices;
  const void* cu_seqlens;
  const void* chunk_offsets;
  const void* ht_indices;
  void* h;
  void* v_new;
  float* ht;
  uint32_t* status;
  const int64_t* host_cu_seqlens; /* on the host */
} scanjit_gated_delta_h_args;
SCANJIT_API void scanjit_gated_delta_h_args_init(scanjit_gated_delta_h_args* args,
                                                 size_t struct_size);

/* Bytes of workspace that any config of the problem can need. */
SCANJIT_API scanjit_code scanjit_gated_delta_h_workspace_bound(
    const scanjit_gated_delta_h_problem* problem, int64_t* bytes, scanjit_error** error);

typedef struct scanjit_config {
  int32_t bv;
  int32_t bk;
  int32_t stages;
  int32_t warps;
  int32_t segment_chunks; /* 0: not split */
} scanjit_config;

typedef struct scanjit_plan scanjit_plan;
/* The plan in the calling thread's current context, or in the device's primary one. The first of a
   key may compile and time. */
SCANJIT_API scanjit_code scanjit_gated_delta_h_plan(scanjit_engine* engine,
                                                    const scanjit_gated_delta_h_problem* problem,
                                                    scanjit_plan** plan, scanjit_error** error);
/* The same with a config of the caller's: SCANJIT_UNSUPPORTED if it is not legal here. */
SCANJIT_API scanjit_code scanjit_gated_delta_h_plan_with(
    scanjit_engine* engine, const scanjit_gated_delta_h_problem* problem,
    const scanjit_config* config, scanjit_plan** plan, scanjit_error** error);
/* Plans `count` problems now, so that no later call of them compiles or loads. Goes on after a failure;
   returns the first one's code and sentence. `codes`, if not null, gets one for each problem. */
SCANJIT_API scanjit_code scanjit_gated_delta_h_prewarm(
    scanjit_engine* engine, const scanjit_gated_delta_h_problem* const* problems, size_t count,
    scanjit_code* codes, scanjit_error** error);
/* Enqueues the op on `stream`; `workspace` is device memory of the plan's workspace_bytes at least.
 */
SCANJIT_API scanjit_code scanjit_gated_delta_h_launch(const scanjit_plan* plan,
                                                      const scanjit_gated_delta_h_args* args,
                                                      void* workspace, int64_t workspace_bytes,
                                                      void* stream, scanjit_error** error);
/* Plan and launch in one step, in the stream's own context. */
SCANJIT_API scanjit_code scanjit_gated_delta_h(scanjit_engine* engine,
                                               const scanjit_gated_delta_h_problem* problem,
                                               const scanjit_gated_delta_h_args* args,
                                               void* workspace, int64_t workspace_bytes,
                                               void* stream, scanjit_error** error);

SCANJIT_API int64_t scanjit_plan_workspace_bytes(const scanjit_plan* plan);
SCANJIT_API scanjit_config scanjit_plan_config(const scanjit_plan* plan);
SCANJIT_API const char* scanjit_plan_key(const scanjit_plan* plan);
/* "exact", "heuristic", ... */
SCANJIT_API const char* scanjit_plan_source(const scanjit_plan* plan);
/* "cache", "pack:DIR", "shipped:NVIDIA_H200.json", "heuristic", ... */
SCANJIT_API const char* scanjit_plan_layer(const scanjit_plan* plan);
/* 1: a later call may be served otherwise, since the key is still being timed. */
SCANJIT_API int32_t scanjit_plan_provisional(const scanjit_plan* plan);
SCANJIT_API const char* scanjit_plan_binary_id(const scanjit_plan* plan);
/* The version of the NVRTC that compiled it, not always the one at hand. */
SCANJIT_API const char* scanjit_plan_binary_nvrtc(const scanjit_plan* plan);
SCANJIT_API const char* scanjit_plan_why(const scanjit_plan* plan); /* a sentence or two */
SCANJIT_API void scanjit_plan_free(scanjit_plan* plan);

#ifdef __cplusplus
}
#endif

#endif
