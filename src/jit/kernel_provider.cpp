#include "jit/kernel_provider.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <optional>
#include <thread>
#include <utility>

#include "core/guard.hpp"
#include "jit/specialiser.hpp"

namespace scanjit::jit {
namespace {

// Memory layer: enough for every kernel that a process launches, not for all that a long tuning run
// compiles. What is in use elsewhere stays alive through its own pointer.
constexpr std::int64_t kMostMemoryBytes = std::int64_t{128} << 20;
constexpr std::int64_t kFirstPauseMs = 1, kLongestPauseMs = 50;  // between looks at another process

Binary to_binary(StoredBinary stored, std::string from) {
  Binary binary;
  binary.cubin = std::make_shared<const std::string>(std::move(stored.cubin));
  binary.entry = std::move(stored.entry);
  binary.arch = std::move(stored.arch);
  binary.resources = stored.resources;
  binary.source_id = std::move(stored.source_id);
  binary.binary_id = std::move(stored.binary_id);
  binary.nvrtc = std::move(stored.nvrtc);
  binary.from = std::move(from);
  return binary;
}

}  // namespace

// One search or compilation that all callers of its source wait for.
struct KernelProvider::Flight {
  std::condition_variable landed;
  std::optional<Result<Binary>> result;
};

KernelProvider::KernelProvider(const KernelProviderOptions& options, TemplateStore templates,
                               os::FileSystem& files)
    : environment_(options.environment),
      templates_(std::move(templates)),
      compiler_(options.compile_jobs),
      cache_(files, options.cache_dir, options.pack_dirs, options.log, options.cache_max_bytes),
      clock_(*options.clock),
      process_wait_ms_(options.process_wait_ms) {}

Result<std::unique_ptr<KernelProvider>> KernelProvider::create(const KernelProviderOptions& options,
                                                               os::FileSystem& files) {
  SCANJIT_ASSIGN_OR_RETURN(TemplateStore templates,
                           TemplateStore::open(options.environment, files));
  return create_with(options, std::move(templates), files);
}

std::unique_ptr<KernelProvider> KernelProvider::create_with(const KernelProviderOptions& options,
                                                            TemplateStore templates,
                                                            os::FileSystem& files) {
  return std::unique_ptr<KernelProvider>(new KernelProvider(options, std::move(templates), files));
}

Result<std::string> KernelProvider::source_id(const KernelSource& kernel,
                                              const std::string& arch) const {
  SCANJIT_ASSIGN_OR_RETURN(const std::string source, generate_source(kernel));
  SCANJIT_ASSIGN_OR_RETURN(const std::string digest, template_digest(kernel.template_file));
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<std::string> options, compile_options(arch));
  return make_source_id(source, digest, options, arch);
}

// Templates do not change under a provider, and hashing them takes longer than all else of a plan.
Result<std::string> KernelProvider::template_digest(const std::string& name) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = digests_.find(name); found != digests_.end()) return found->second;
  }
  SCANJIT_ASSIGN_OR_RETURN(std::string digest, templates_.digest(name));
  const std::lock_guard lock(mutex_);
  return digests_.try_emplace(name, std::move(digest)).first->second;
}

Result<Binary> KernelProvider::get(const KernelSource& kernel, const std::string& arch) {
  SCANJIT_ASSIGN_OR_RETURN(const std::string id, source_id(kernel, arch));
  std::unique_lock lock(mutex_);
  if (const auto found = memory_.find(id); found != memory_.end()) {
    ++counters_.memory_hits;
    Binary binary = found->second;
    binary.from = "memory";
    return binary;
  }
  if (const auto found = flights_.find(id); found != flights_.end()) {
    const std::shared_ptr<Flight> flight = found->second;
    flight->landed.wait(lock, [&] { return flight->result.has_value(); });
    if (flight->result->ok()) ++counters_.memory_hits;
    return *flight->result;
  }
  const auto flight = std::make_shared<Flight>();
  flights_[id] = flight;
  lock.unlock();
  Result<Binary> result = guard([&] { return find_or_compile(kernel, arch, id); });
  lock.lock();
  flights_.erase(id);
  // Whatever memory runs out here, the waiters get an answer.
  const Status kept = guard([&] {
    flight->result = result;
    if (result.ok()) remember(*result);
    return Status();
  });
  if (!flight->result) flight->result = kept;
  lock.unlock();
  flight->landed.notify_all();
  return result;
}

Result<Binary> KernelProvider::found(BinaryCache::Found&& stored) {
  const std::lock_guard lock(mutex_);
  ++counters_.binary_hits;
  return to_binary(std::move(stored.binary), std::move(stored.from));
}

Result<Binary> KernelProvider::find_or_compile(const KernelSource& kernel, const std::string& arch,
                                               const std::string& source_id) {
  BinaryCache::Refused refused;
  {
    const std::lock_guard lock(mutex_);
    refused = refused_;
  }
  const cuda::NvrtcApi* nvrtc = cuda::loaded_nvrtc();
  const std::string binary_id =
      nvrtc != nullptr ? make_binary_id(source_id, nvrtc->build) : std::string();
  if (auto stored = cache_.find(source_id, binary_id, kernel.entry, refused))
    return found(std::move(*stored));
  const Result<const cuda::NvrtcApi*> loaded = cuda::load_nvrtc(environment_);
  if (!loaded.ok()) {
    const std::lock_guard lock(mutex_);
    ++counters_.compile_errors;
    return loaded.status();
  }
  if (refused.count(make_binary_id(source_id, (*loaded)->build)) > 0) {
    return unsupported("the driver refuses the machine code that NVRTC " + (*loaded)->version +
                       " makes of " + kernel.entry + " for " + arch +
                       ", and no other NVRTC's is stored: use a newer driver, or name an older "
                       "NVRTC by SCANJIT_NVRTC_LIBRARY");
  }
  return compile_alone(kernel, arch, source_id, **loaded);
}

// One compilation among processes. The lock only saves work: without one, or when its holder takes
// too long, or when what was published is seen late, this process compiles as well.
Result<Binary> KernelProvider::compile_alone(const KernelSource& kernel, const std::string& arch,
                                             const std::string& source_id,
                                             const cuda::NvrtcApi& nvrtc) {
  const std::string binary_id = make_binary_id(source_id, nvrtc.build);
  const std::int64_t until = clock_.now_ms() + process_wait_ms_;
  // Held until the binary is published.
  Result<std::optional<os::FileLock>> claim = cache_.try_claim(binary_id);
  for (std::int64_t pause = kFirstPauseMs; claim.ok();
       pause = std::min(2 * pause, kLongestPauseMs)) {
    // Whoever held it may have just published.
    if (auto stored = cache_.find_published(source_id, binary_id, kernel.entry))
      return found(std::move(*stored));
    if (claim->has_value() || clock_.now_ms() >= until) break;
    clock_.sleep_ms(pause);
    claim = cache_.try_claim(binary_id);
  }
  return compile_and_store(kernel, arch, source_id, nvrtc);
}

Result<Binary> KernelProvider::compile_and_store(const KernelSource& kernel,
                                                 const std::string& arch,
                                                 const std::string& source_id,
                                                 const cuda::NvrtcApi& nvrtc) {
  Result<CompiledKernel> compiled = compiler_.compile(nvrtc, templates_, kernel, arch);
  {
    const std::lock_guard lock(mutex_);
    ++(compiled.ok() ? counters_.compiles : counters_.compile_errors);
  }
  if (!compiled.ok()) return compiled.status();
  StoredBinary stored;
  stored.source_id = source_id;
  stored.binary_id = make_binary_id(source_id, nvrtc.build);
  stored.entry = kernel.entry;
  stored.arch = arch;
  stored.nvrtc = nvrtc.version;
  stored.resources = compiled->resources;
  stored.cubin = std::move(compiled->cubin);
  cache_.put(stored);
  return to_binary(std::move(stored), "compiled");
}

Result<Binary> KernelProvider::get_instead(const Binary& refused, const KernelSource& kernel,
                                           const std::string& arch) {
  {
    const std::lock_guard lock(mutex_);
    refused_.insert(refused.binary_id);
    forget(refused);
  }
  return get(kernel, arch);
}

// With mutex_ held.
void KernelProvider::forget(const Binary& binary) {
  const auto known = memory_.find(binary.source_id);
  if (known == memory_.end() || known->second.binary_id != binary.binary_id) return;
  memory_bytes_ -= static_cast<std::int64_t>(known->second.cubin->size());
  memory_.erase(known);
  memory_order_.erase(std::find(memory_order_.begin(), memory_order_.end(), binary.source_id));
}

void KernelProvider::remember(const Binary& binary) {
  const auto bytes = [](const Binary& b) { return static_cast<std::int64_t>(b.cubin->size()); };
  if (const auto old = memory_.find(binary.source_id); old != memory_.end()) {
    memory_bytes_ -= bytes(old->second);
    old->second = binary;
  } else {
    memory_[binary.source_id] = binary;
    memory_order_.push_back(binary.source_id);
  }
  memory_bytes_ += bytes(binary);
  while (memory_bytes_ > kMostMemoryBytes && memory_order_.size() > 1) {
    const auto oldest = memory_.find(memory_order_.front());
    memory_bytes_ -= bytes(oldest->second);
    memory_.erase(oldest);
    memory_order_.pop_front();
  }
}

std::vector<Result<Binary>> KernelProvider::get_all(const std::vector<KernelSource>& kernels,
                                                    const std::string& arch,
                                                    const std::function<bool()>& stop) {
  std::vector<Result<Binary>> results(
      kernels.size(), Status(ErrorCode::kCancelled, "stopped before this kernel was looked for"));
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < kernels.size(); i = next++) {
      results[i] = guard([&]() -> Result<Binary> {
        if (stop && stop()) return results[i].status();
        return get(kernels[i], arch);
      });
    }
  };
  std::vector<std::thread> threads;
  const std::size_t wanted = std::min(kernels.size(), static_cast<std::size_t>(compiler_.jobs()));
  // Without threads (a limit of the system) the caller does what is left.
  static_cast<void>(guard([&] {
    threads.reserve(wanted);
    while (threads.size() + 1 < wanted) threads.emplace_back(work);
    return Status();
  }));
  work();
  for (std::thread& thread : threads) thread.join();
  return results;
}

Result<std::string> KernelProvider::ptx(const KernelSource& kernel, const std::string& arch) {
  SCANJIT_ASSIGN_OR_RETURN(const cuda::NvrtcApi* const nvrtc, cuda::load_nvrtc(environment_));
  return compiler_.ptx(*nvrtc, templates_, kernel, arch);
}

Result<std::string> KernelProvider::toolchain() {
  SCANJIT_ASSIGN_OR_RETURN(const cuda::NvrtcApi* const nvrtc, cuda::load_nvrtc(environment_));
  return nvrtc->version;
}

KernelProvider::Counters KernelProvider::counters() const {
  const BinaryCache::Counters files = cache_.counters();
  const std::lock_guard lock(mutex_);
  Counters counters = counters_;
  counters.corrupt_files = files.corrupt_files;
  counters.write_errors = files.write_errors;
  return counters;
}

}  // namespace scanjit::jit
