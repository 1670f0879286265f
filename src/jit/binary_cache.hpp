#pragma once
/// \file
/// Compiled kernels on disk: `<dir>/bin/<binary_id>.cubin`, one writable directory and any number of
/// read-only packs. A cubin is code, so directories are trusted only if nobody else can write to them,
/// and every byte of a file is under its checksum.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/logging.hpp"
#include "jit/compiler.hpp"
#include "os/file_system.hpp"

namespace scanjit::jit {

/// A cubin with what must be known to use it and to tell where it comes from.
struct StoredBinary {
  std::string source_id;
  std::string binary_id;
  std::string entry;
  std::string arch;
  std::string nvrtc;  ///< NvrtcApi::version
  KernelResources resources;
  std::string cubin;

  friend bool operator==(const StoredBinary&, const StoredBinary&) = default;
};

/// Identity of what is compiled: generated source, templates, options, architecture and the format of the
/// stored file. 40 hexadecimal digits. Nothing of this machine is in it.
[[nodiscard]] std::string make_source_id(const std::string& generated_source, const std::string& template_digest,
                                         const std::vector<std::string>& options, const std::string& arch);
/// Identity of the result: "<source_id>-<16 digits of the hash of source id and NVRTC build>".
[[nodiscard]] std::string make_binary_id(const std::string& source_id, const std::string& nvrtc_build);

/// The bytes of a stored file, and back.
/// Errors of decoding: kCorrupt for any difference from what encoding wrote, also of a single bit.
[[nodiscard]] std::string encode_binary(const StoredBinary& binary);
[[nodiscard]] Result<StoredBinary> decode_binary(std::string_view bytes);

/// Thread-safe. Never fails a look-up: what cannot be read or trusted is a miss, counted and warned of
/// once.
class BinaryCache {
 public:
  struct Found {
    StoredBinary binary;
    std::string from;  ///< "cache" or "pack:DIR"
  };
  struct Counters {
    std::int64_t corrupt_files = 0;  ///< quarantined (cache) or passed over (packs)
    std::int64_t write_errors = 0;
  };

  /// `directory`: the writable store, absolute, made when first written to; "": none. `packs`: in order of
  /// look-up. An untrusted directory is not used and warned of. `files` must outlive this.
  BinaryCache(os::FileSystem& files, std::string directory, std::vector<std::string> packs, Log log);

  /// The binary of exactly `binary_id`, cache before packs; if `binary_id` is "", any of `source_id`, the
  /// one of the newest NVRTC first. `any_from_packs`: a pack may also give another binary of `source_id`.
  /// Null: a miss. A damaged file in the cache is moved aside (`*.corrupt-*`), in a pack passed over.
  [[nodiscard]] std::unique_ptr<Found> find(const std::string& source_id, const std::string& binary_id,
                                            const std::string& entry, bool any_from_packs);

  /// Writes it into the cache, at once or not at all; keeps going without on an error (counted, warned of
  /// once).
  void put(const StoredBinary& binary);

  [[nodiscard]] Counters counters() const;

 private:
  struct Layer {
    std::string bin;   // <dir>/bin
    std::string from;
    bool writable = false;
    bool trusted = false;
    bool checked = false;
  };
  bool usable(Layer& layer);
  std::unique_ptr<Found> read(const Layer& layer, const std::string& file_name, const std::string& source_id,
                              const std::string& entry);
  std::vector<std::string> names_of(const Layer& layer, const std::string& source_id);

  os::FileSystem& files_;
  Log log_;
  std::mutex mutex_;  // layers' `checked` and `trusted`
  std::vector<Layer> layers_;
  std::atomic<std::int64_t> corrupt_files_{0};
  std::atomic<std::int64_t> write_errors_{0};
};

}  // namespace scanjit::jit
