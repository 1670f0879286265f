#pragma once
/// \file
/// Tuned JSON: what was measured for one key, and the file of one GPU model. The layout is fixed by
/// `configs/schema/tuned.schema.json` ("scanjit-tuned/1"). Times are in microseconds.
/// Reading is strict: an unknown, missing, doubled or mistyped field is an error that names it.
/// Pure; thread-compatible values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"
#include "scanjit/types.hpp"
#include "tuning/shape_key.hpp"

namespace scanjit::tuning {

inline constexpr const char* kTunedSchema = "scanjit-tuned/1";

/// What a GPU is, for the stores: the facts identify it, the names are aliases.
struct GpuFacts {
  std::vector<std::string> names;  ///< "NVIDIA H200"
  int compute_major = 0;
  int compute_minor = 0;
  int sm_count = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t smem_optin_bytes = 0;  ///< shared memory that one block may have
  int memory_bus_bits = 0;

  [[nodiscard]] bool same_model(
      const GpuFacts& other) const noexcept;  ///< all facts, not the names
  [[nodiscard]] std::string directory()
      const;  ///< of its entries: "cc90-sm132-l2.52428800-smem.232448-bus.6144"
  friend bool operator==(const GpuFacts&, const GpuFacts&) = default;
};

/// An exact shape that was timed; `tokens` is the length of each sequence. Its sequences lie in the
/// key's bucket; its chunks may be fewer than the key's class (what does not fit into scratch
/// memory is timed on fewer chunks), never more.
struct MeasuredPoint {
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  friend bool operator==(const MeasuredPoint&, const MeasuredPoint&) = default;
};

struct Timing {
  double median = 0;
  double ci_low = 0;  ///< 95% confidence interval of the median
  double ci_high = 0;
  int samples = 0;
  friend bool operator==(const Timing&, const Timing&) = default;
};

/// A config that may serve if the pick is not legal here, best first. `regret` is by how much it is
/// slower than the best config at the measured point where it does worst (0.03: 3%).
struct Alternate {
  Config config;
  double us = 0;
  double regret = 0;
  friend bool operator==(const Alternate&, const Alternate&) = default;
};

/// Why a candidate was not timed. Persisted as words; never rename one.
enum class RejectReason : int {
  kIllegal = 1,        ///< "illegal": refused by the op's legality rule
  kCompileFailed = 2,  ///< "compile_failed"
  kLaunchFailed = 3,   ///< "launch_failed"
  kWrongBits = 4,      ///< "wrong_bits": outputs differ from the default config's
  kTimeout = 5,        ///< "timeout"
  kDeviceFault = 6,    ///< "device_fault": took its process down
};
[[nodiscard]] const char* to_string(RejectReason reason) noexcept;
/// The reason that an error code stands for (kCompileFailed, kTimeout, kDeviceLost,
/// kUnsupported...).
[[nodiscard]] RejectReason reject_reason(ErrorCode code) noexcept;

struct Rejected {
  Config config;
  RejectReason reason = RejectReason::kIllegal;
  std::string detail;
  friend bool operator==(const Rejected&, const Rejected&) = default;
};

struct Toolchain {
  std::string nvrtc;    ///< "13.0.88"
  std::string driver;   ///< "580.159.04"
  std::string scanjit;  ///< "0.1.0"
  friend bool operator==(const Toolchain&, const Toolchain&) = default;
};

/// One entry. Times belong to the first of `measured_at`; the pick is that of least worst regret
/// over all of them.
struct Record {
  ShapeKey key;
  std::vector<MeasuredPoint> measured_at;
  Config config;
  Timing us;
  double regret = 0;  ///< worst regret of `config` over `measured_at`
  Config default_config;
  double default_us = 0;
  std::vector<Alternate> alternates;
  std::vector<Rejected> rejected;
  std::string l2 = "warm";  ///< "warm" or "cold": the state of L2 when a sample starts
  int sm_clock_mhz = 0;     ///< 0: not known
  Toolchain toolchain;
  bool partial = false;  ///< the budget ended before every candidate was settled

  friend bool operator==(const Record&, const Record&) = default;
  [[nodiscard]] Status check() const;  ///< kCorrupt: names the field out of range
};

/// One GPU model's entries; also the form of a single cache file (one entry, with a checksum).
struct TunedFile {
  GpuFacts gpu;
  std::vector<WidthBuckets>
      width_buckets;  ///< one for each (HV, V); others take the default starts
  std::vector<Record> entries;

  /// The buckets of (HV, V): listed here, else `default_width_starts` of this GPU.
  [[nodiscard]] WidthBuckets buckets(std::int64_t HV, std::int64_t V) const;
  friend bool operator==(const TunedFile&, const TunedFile&) = default;
};

enum class Checksum { kWithout, kWith };

/// The file's text, one entry a line; `kWith` adds "checksum" over everything else.
[[nodiscard]] std::string to_json(const TunedFile& file, Checksum checksum);
/// Reads it strictly; with a "checksum" in the text it must match, `kWith` also demands one.
/// Errors: kCorrupt, the sentence names the field.
[[nodiscard]] Result<TunedFile> tuned_file_from_json(std::string_view text, Checksum checksum);
/// Of a text that `to_json` wrote without a checksum: the same with no other entries than those of this
/// kernel and these head counts ("": with none). A text of another form comes back whole.
[[nodiscard]] std::string only_entries(std::string_view text, const std::string& kernel,
                                       std::int64_t H, std::int64_t HV);
/// One entry alone, as in "entries".
[[nodiscard]] std::string to_json(const Record& record);
[[nodiscard]] Result<Record> record_from_json(std::string_view text);

}  // namespace scanjit::tuning
