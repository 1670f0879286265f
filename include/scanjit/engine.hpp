#pragma once
/// \file
/// The engine: finds, tunes, compiles, loads and launches. One per device and process is usual.
///
/// Threads: every member may be called from any thread at any time. Nothing here throws, prints,
/// exits, changes the caller's current context or synchronises a caller's stream. The only waiting
/// is in the first call of a key (compiling, and in `kFirstUse` timing on a private stream), and in
/// `seal`, `close` and the destructor, which wait for such calls. docs/runtime.md tells the whole.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scanjit/abc.hpp"
#include "scanjit/gated_delta_h.hpp"
#include "scanjit/kda_forward.hpp"
#include "scanjit/result.hpp"
#include "scanjit/types.hpp"

namespace scanjit {

/// Where a config may come from.
enum class TuneMode : int {
  kOff = 1,       ///< the heuristic only
  kReplay = 2,    ///< stored picks, else the heuristic; never times anything
  kFirstUse = 3,  ///< stored picks, else time a short list now and store the winner (the default)
  kStrict = 4,    ///< stored exact picks only; a miss is kNotFound
};

/// Who waits while a key is timed in `TuneMode::kFirstUse`.
enum class FirstUseMode : int {
  kBlock = 1,       ///< the call that met the key, and for `wait_ms` others of the same key
  kBackground = 2,  ///< nobody: the heuristic's plan serves at once, a thread of the engine's times
                    ///< and then puts the better plan in its place
};

/// Where the config of a plan came from, in the order in which it is looked for.
enum class PickSource : int {
  kForced = 0,            ///< the caller named the config
  kExact = 1,             ///< a record of this key
  kTimedNow = 2,          ///< timed in this call
  kOtherOptionalSet = 3,  ///< same class, another set of optional tensors
  kOtherDtype = 4,        ///< the other 16-bit type
  kNeighbourChunks = 5,   ///< the neighbouring chunk class
  kNeighbourWidth = 6,    ///< the neighbouring width bucket
  kNearestGpu = 7,        ///< another GPU model's record
  kHeuristic = 8,
};
[[nodiscard]] const char* to_string(PickSource source) noexcept;  ///< "exact", "timed_now", ...

/// Log levels of `EngineOptions::log`.
enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

struct EngineOptions {
  /// CUDA device ordinal (under CUDA_VISIBLE_DEVICES). The stream's own context is used for
  /// launches.
  int device = 0;
  TuneMode tune_mode = TuneMode::kFirstUse;
  FirstUseMode first_use = FirstUseMode::kBlock;
  /// Writable cache directory. "": SCANJIT_CACHE_DIR, else $XDG_CACHE_HOME/scanjit, else
  /// ~/.cache/scanjit. "none": memory only.
  std::string cache_dir;
  /// Bytes that the cache directory may hold of this GPU; beyond them what was used longest ago goes.
  /// 0: SCANJIT_CACHE_MAX_BYTES, else 1 GiB; negative: no cap. Compiled kernels may fill seven
  /// eighths, tuned entries the rest.
  std::int64_t cache_max_bytes = 0;
  /// Read-only packs (`scanjit prewarm`), looked in after the cache directory, in this order.
  std::vector<std::string> pack_dirs;
  /// Device memory for timing in `kFirstUse`. 0: the smaller of 256 MiB and 2% of free memory.
  std::int64_t scratch_limit = 0;
  /// Longest that a first use compiles and times, in milliseconds.
  std::int64_t tune_budget_ms = 2000;
  /// Longest that a call waits, in milliseconds, for another thread or process that is making the
  /// same plan, or for the GPU that another key is being timed on. After that the heuristic's plan
  /// serves it, and nothing is kept of the call.
  std::int64_t wait_ms = 2000;
  /// Where the journal of untuned keys goes when the engine ends; "": nowhere (see
  /// `flush_journal`).
  std::string journal_path;
  /// Parallel compilations; 0: as many as the machine has cores, at most 16.
  int compile_jobs = 0;
  /// Receives log lines, from any thread; must not call the engine. Null: silent.
  std::function<void(LogLevel, const std::string&)> log;
};

/// What is known of a choice.
struct Why {
  std::string key;  ///< the whole key, as text
  Config config;
  PickSource source = PickSource::kHeuristic;
  std::string layer;   ///< "cache", "pack:DIR", "shipped:NVIDIA_H200.json", "heuristic", ...
  bool tuned = false;  ///< source is kExact or kTimedNow
  bool stale_toolchain = false;  ///< recorded under another NVRTC or driver
  bool partial = false;          ///< the budget ended before every candidate was timed
  /// A later call may be served otherwise: the key is still being timed, the GPU was busy, or this
  /// is what a capture found loaded.
  bool provisional = false;
  /// What was passed over on the way and why, as a sentence: an entry's pick that is not legal
  /// here, machine code that did not load. "": nothing.
  std::string passed_over;
  std::string binary_id;
  std::string binary_from;   ///< "memory", "cache", "pack:DIR", "compiled"
  std::string binary_nvrtc;  ///< of the NVRTC that compiled it, not always the one at hand
  double recorded_us = 0;    ///< 0: not known
  std::string text;          ///< all of it, as a sentence or two
};

/// Counters since creation.
struct EngineStats {
  std::int64_t plans = 0;    ///< plans made (not looked up)
  std::int64_t lookups = 0;  ///< one-step calls and `plan` calls served from memory
  std::int64_t launches = 0;
  std::int64_t compiles = 0;
  std::int64_t compile_errors = 0;
  std::int64_t binary_hits = 0;      ///< cubins taken from the cache or a pack
  std::int64_t first_uses = 0;       ///< keys timed in this process
  std::int64_t first_uses_busy = 0;  ///< not stored: the GPU was busy
  std::int64_t first_uses_no_scratch = 0;
  std::int64_t scratch_peak_bytes = 0;  ///< the most device memory that a first use has taken
  std::int64_t waits_ended = 0;      ///< calls served the heuristic because another took `wait_ms`
  std::int64_t exact = 0;            ///< plans whose config came from an exact record
  std::int64_t fallback = 0;         ///< plans whose config came from a neighbour or the heuristic
  std::int64_t corrupt_files = 0;    ///< quarantined or skipped
  std::int64_t capture_misses = 0;   ///< calls refused with kCaptureMiss
  std::int64_t sealed_misses = 0;    ///< problems without a plan after `seal`, served or refused
  std::int64_t sealed_refused = 0;   ///< those of them for which no kernel was loaded
  std::int64_t journal_keys = 0;     ///< untuned keys in the journal now
  std::int64_t journal_dropped = 0;  ///< pushed out of it by later ones
};

/// A problem made ready: kernels loaded, geometry and workspace known. Immutable, cheap to copy,
/// usable from several threads at once. It stays valid after the engine is gone, for as long as the
/// context is.
class Plan {
 public:
  Plan() = default;
  [[nodiscard]] bool valid() const noexcept { return impl_ != nullptr; }
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept;
  [[nodiscard]] const Why& why() const noexcept;

  /// Launches on `stream`, which belongs to the context that the plan was made in. Asynchronous; no
  /// allocation, no lock, no system call of ours. Capturable.
  /// Errors: kInvalidArgument (sentence names the tensor), kCudaError, kDeviceLost.
  /// kInvalidArgument also if the plan is of another op than the arguments.
  [[nodiscard]] Status launch(const GatedDeltaHArgs& args, Workspace workspace,
                              Stream stream) const;
  [[nodiscard]] Status launch(const KdaForwardArgs& args, Workspace workspace, Stream stream) const;
  [[nodiscard]] Status launch(const AbcForwardArgs& args, Workspace workspace, Stream stream) const;
  [[nodiscard]] Status launch(const AbcBackwardArgs& args, Workspace workspace,
                              Stream stream) const;

  struct Impl;
  explicit Plan(std::shared_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

/// One line of a `prewarm` report.
struct PrewarmItem {
  Status status;
  Why why;
};

class Engine {
 public:
  /// Loads the driver, looks at the device, opens the stores. Touches no context of the caller;
  /// makes the device's primary context if no context is current when timing or loading needs one.
  /// Errors: kUnsupported (no driver, no device, or one too old), kInvalidArgument.
  [[nodiscard]] static Result<Engine> create(const EngineOptions& options);

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  /// `close`, then writes the journal to `EngineOptions::journal_path`. In a forked child it leaves
  /// everything as it is.
  ~Engine();

  /// Waits for the calls that are being made and ends the background thread; what is called later
  /// answers kCancelled. Plans stay usable. The way to end an engine that other threads still call.
  void close();

  /// The plan of a problem in the calling thread's current context, or in the device's primary
  /// context if none is current. The first call of a key may compile and time; later ones look it
  /// up. Errors: kInvalidArgument, kUnsupported, kNotFound (kStrict), kCompileFailed, kCudaError.
  [[nodiscard]] Result<Plan> plan(const GatedDeltaHProblem& problem);
  [[nodiscard]] Result<Plan> plan(const KdaForwardProblem& problem);
  [[nodiscard]] Result<Plan> plan(const AbcForwardProblem& problem);
  [[nodiscard]] Result<Plan> plan(const AbcBackwardProblem& problem);

  /// The same with a config named by the caller: kUnsupported if it is not legal here.
  [[nodiscard]] Result<Plan> plan_with(const GatedDeltaHProblem& problem, const Config& config);
  [[nodiscard]] Result<Plan> plan_with(const KdaForwardProblem& problem, const Config& config);
  [[nodiscard]] Result<Plan> plan_with(const AbcForwardProblem& problem, const Config& config);
  [[nodiscard]] Result<Plan> plan_with(const AbcBackwardProblem& problem, const Config& config);

  /// `plan` and `Plan::launch` in one step, in the stream's own context.
  [[nodiscard]] Status gated_delta_h(const GatedDeltaHProblem& problem, const GatedDeltaHArgs& args,
                                     Workspace workspace, Stream stream);
  [[nodiscard]] Status kda_forward(const KdaForwardProblem& problem, const KdaForwardArgs& args,
                                   Workspace workspace, Stream stream);
  [[nodiscard]] Status abc_forward(const AbcForwardProblem& problem, const AbcForwardArgs& args,
                                   Workspace workspace, Stream stream);
  [[nodiscard]] Status abc_backward(const AbcBackwardProblem& problem, const AbcBackwardArgs& args,
                                    Workspace workspace, Stream stream);

  /// Plans every problem now, so that no later call of them compiles or loads.
  [[nodiscard]] std::vector<PrewarmItem> prewarm(const std::vector<GatedDeltaHProblem>& problems);
  [[nodiscard]] std::vector<PrewarmItem> prewarm(const std::vector<KdaForwardProblem>& problems);
  [[nodiscard]] std::vector<PrewarmItem> prewarm(const std::vector<AbcForwardProblem>& problems);
  [[nodiscard]] std::vector<PrewarmItem> prewarm(const std::vector<AbcBackwardProblem>& problems);

  /// Which config a problem would get and why; times and compiles nothing.
  [[nodiscard]] Result<Why> why(const GatedDeltaHProblem& problem);
  [[nodiscard]] Result<Why> why(const KdaForwardProblem& problem);
  [[nodiscard]] Result<Why> why(const AbcForwardProblem& problem);
  [[nodiscard]] Result<Why> why(const AbcBackwardProblem& problem);

  /// From here on no call compiles, loads, takes device memory or touches a file: waits for what is
  /// being made, then serves what is loaded. A problem without a plan is served by kernels that are
  /// loaded already (every config gives the same bits), else refused with kNotFound; either is
  /// counted and goes into the journal. There is no way back.
  void seal();

  /// Writes the keys that were served untuned, or refused, since the last flush to `path`, together
  /// with those that are in that file already, and forgets them: `scanjit tune --from-journal`
  /// tunes exactly these. The journal holds the latest 1024 keys. Returns how many keys the file
  /// holds. Errors: kIoError, kCorrupt (a file that is no journal is left as it is).
  [[nodiscard]] Result<std::int64_t> flush_journal(const std::string& path);

  /// A hash over every (key, config) that `plan`, `prewarm` and one-step calls serve by now, 64 hex
  /// digits, whatever the order in which they were met: equal on two ranks that were asked for the
  /// same keys if they picked alike.
  [[nodiscard]] std::string selection_digest() const;

  [[nodiscard]] EngineStats stats() const;

  struct Impl;

 private:
  friend struct EngineAccess;  // src/engine/internals.hpp
  explicit Engine(std::shared_ptr<Impl> impl) noexcept;
  std::shared_ptr<Impl> impl_;
};

}  // namespace scanjit
