#pragma once
/// \file
/// From a kernel's source to its machine code, from wherever it is quickest: memory, the cache
/// directory, a pack, or NVRTC. The one door of this folder for the engine and the tools.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/environment.hpp"
#include "core/logging.hpp"
#include "jit/binary_cache.hpp"
#include "jit/compiler.hpp"
#include "jit/kernel_source.hpp"
#include "jit/template_store.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"

namespace scanjit::jit {

/// Machine code of one kernel. Cheap to copy.
struct Binary {
  std::shared_ptr<const std::string> cubin;
  std::string entry;
  std::string arch;
  KernelResources resources;
  std::string source_id;
  std::string binary_id;
  std::string nvrtc;  ///< version that compiled it
  std::string from;   ///< "memory", "cache", "pack:DIR" or "compiled"
};

struct KernelProviderOptions {
  Environment environment;
  std::string cache_dir;                               ///< absolute; "": nothing is written
  std::vector<std::string> pack_dirs;                  ///< read-only, in order of look-up
  std::int64_t cache_max_bytes = BinaryCache::kNoCap;  ///< of compiled kernels in `cache_dir`
  int compile_jobs = 0;  ///< compilations at once; 0: as many as the machine has cores, at most 16
  /// How long to wait for another process that compiles the same kernel, in milliseconds; then this
  /// one compiles it as well. Bounded, since that process may have been stopped.
  std::int64_t process_wait_ms = 10'000;
  os::Clock* clock = &os::steady_clock();
  Log log;
};

/// Thread-safe. NVRTC is loaded by the first call that has to compile, or by `toolchain`.
class KernelProvider {
 public:
  struct Counters {
    std::int64_t memory_hits = 0;  ///< also calls that shared another's flight
    std::int64_t binary_hits = 0;  ///< from the cache or a pack
    std::int64_t compiles = 0;     ///< that succeeded
    std::int64_t compile_errors = 0;
    std::int64_t corrupt_files = 0;
    std::int64_t write_errors = 0;
  };

  /// Errors: as TemplateStore::open. `files` must outlive the provider.
  [[nodiscard]] static Result<std::unique_ptr<KernelProvider>> create(
      const KernelProviderOptions& options, os::FileSystem& files);

  /// The same with templates of the caller's own.
  [[nodiscard]] static std::unique_ptr<KernelProvider> create_with(
      const KernelProviderOptions& options, TemplateStore templates, os::FileSystem& files);

  /// The kernel for `arch` ("sm_90a"). Calls of one source at the same time share one flight. While
  /// NVRTC is loaded, its own binary is wanted, though a pack may give another NVRTC's; otherwise
  /// any will do, so that NVRTC is neither needed nor loaded where a binary is stored. No lock of
  /// this process is held while compiling. Of several processes on one cache directory one compiles
  /// and the others take what it publishes, as long as the directory's file system has locks; what
  /// was compiled here is given from memory and never read again. Errors: kCompileFailed (log in
  /// the details), kInvalidArgument, kNotFound (template), kUnsupported (no binary and no NVRTC).
  /// An error is not remembered: the next call tries again.
  [[nodiscard]] Result<Binary> get(const KernelSource& kernel, const std::string& arch);

  /// `get` of each, on as many threads as compile at once. A non-empty `stop` is asked before each
  /// kernel, from any of the threads: once true, the rest is kCancelled.
  [[nodiscard]] std::vector<Result<Binary>> get_all(const std::vector<KernelSource>& kernels,
                                                    const std::string& arch,
                                                    const std::function<bool()>& stop = {});

  /// Another binary in place of one that the driver refused, which is not given again by this
  /// provider: another NVRTC's that is stored, else a newly compiled one, unless the NVRTC at hand
  /// made the refused one, since it would make the same bytes again. Errors: as `get`; kUnsupported
  /// names the versions that were refused.
  [[nodiscard]] Result<Binary> get_instead(const Binary& refused, const KernelSource& kernel,
                                           const std::string& arch);

  /// Identity of the kernel's source for `arch`, without finding or compiling it.
  [[nodiscard]] Result<std::string> source_id(const KernelSource& kernel,
                                              const std::string& arch) const;

  /// The kernel as PTX, for people to read. Loads NVRTC.
  [[nodiscard]] Result<std::string> ptx(const KernelSource& kernel, const std::string& arch);

  /// NVRTC's version, "13.0.88". Loads it. Errors: kUnsupported, listing where was looked.
  [[nodiscard]] Result<std::string> toolchain();

  [[nodiscard]] Counters counters() const;
  [[nodiscard]] int compile_jobs() const noexcept { return compiler_.jobs(); }
  [[nodiscard]] const TemplateStore& templates() const noexcept { return templates_; }

 private:
  struct Flight;
  KernelProvider(const KernelProviderOptions& options, TemplateStore templates,
                 os::FileSystem& files);
  Result<Binary> find_or_compile(const KernelSource& kernel, const std::string& arch,
                                 const std::string& source_id);
  Result<Binary> compile_alone(const KernelSource& kernel, const std::string& arch,
                               const std::string& source_id, const cuda::NvrtcApi& nvrtc);
  Result<Binary> compile_and_store(const KernelSource& kernel, const std::string& arch,
                                   const std::string& source_id, const cuda::NvrtcApi& nvrtc);
  Result<Binary> found(BinaryCache::Found&& stored);
  void remember(const Binary& binary);  // with mutex_ held
  void forget(const Binary& binary);    // with mutex_ held
  Result<std::string> template_digest(const std::string& name) const;

  Environment environment_;
  TemplateStore templates_;
  Compiler compiler_;
  BinaryCache cache_;
  os::Clock& clock_;
  std::int64_t process_wait_ms_;
  mutable std::mutex mutex_;                                          // of all below
  std::unordered_map<std::string, std::shared_ptr<Flight>> flights_;  // by source id
  std::unordered_map<std::string, Binary> memory_;                    // by source id
  std::deque<std::string> memory_order_;                              // source ids, oldest first
  std::int64_t memory_bytes_ = 0;                                     // of the cubins
  BinaryCache::Refused refused_;                                      // binary ids
  Counters counters_;                                                 // but what `cache_` counts
  mutable std::unordered_map<std::string, std::string> digests_;      // of templates, by name
};

}  // namespace scanjit::jit
