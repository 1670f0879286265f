#include "engine/internals.hpp"

#include <algorithm>
#include <charconv>

#include "core/guard.hpp"
#include "engine/first_use.hpp"
#include "os/posix_file_system.hpp"

namespace scanjit::engine {
namespace {

struct CacheCaps {
  std::int64_t binaries = -1, tuned = -1;  // bytes; negative: none
};

CacheCaps cache_caps(const EngineOptions& options, const Environment& environment, const Log& log) {
  constexpr std::int64_t kDefault = std::int64_t{1} << 30;
  std::int64_t whole = options.cache_max_bytes;
  if (const std::string& text = environment.scanjit_cache_max_bytes; whole == 0 && !text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
    if (error != std::errc() || end != text.data() + text.size() || whole == 0) {
      log.warning("SCANJIT_CACHE_MAX_BYTES is \"" + text +
                  "\", it must be a number of bytes other than 0; 1 GiB is taken");
      whole = 0;
    }
  }
  if (whole < 0) return {};
  if (whole == 0) whole = kDefault;
  constexpr std::int64_t kTunedPart = 8;
  return {whole - whole / kTunedPart, whole / kTunedPart};
}

// Code is loaded from the cache, so one that others can write to is none at all: nothing is read
// there and nothing written. A directory that is not there yet will be made, for us alone.
void distrust_foreign_cache(os::FileSystem& files, os::CacheDirectory& cache) {
  if (cache.memory_only() || !files.exists(cache.path)) return;
  const Status trusted = files.check_trusted_directory(cache.path);
  if (trusted.code() == ErrorCode::kUnsupported) cache = {"", trusted.message(), false};
}

}  // namespace

const char* version() noexcept { return SCANJIT_VERSION; }

Result<Parts> process_parts() {
  Parts parts;
  parts.environment = read_environment();
  SCANJIT_ASSIGN_OR_RETURN(parts.api, cuda::load_driver(parts.environment));
  parts.files = &os::posix_file_system();
  parts.clock = &os::steady_clock();
  parts.loader = &KernelLoader::process();
  parts.vain_tries = &VainTries::process();
  parts.shipped = shipped_configs();
  parts.shortlists = shipped_shortlists();
  return parts;
}

tuning::GpuFacts gpu_facts(const cuda::DeviceFacts& facts) {
  tuning::GpuFacts gpu;
  gpu.names = {facts.name};
  gpu.compute_major = facts.cc_major;
  gpu.compute_minor = facts.cc_minor;
  gpu.sm_count = facts.sm_count;
  gpu.l2_bytes = facts.l2_bytes;
  gpu.smem_optin_bytes = facts.smem_optin_bytes;
  gpu.memory_bus_bits = facts.memory_bus_bits;
  return gpu;
}

ops::DeviceLimits limits_of(const cuda::DeviceFacts& facts) noexcept {
  ops::DeviceLimits limits;
  limits.compute_major = facts.cc_major;
  limits.compute_minor = facts.cc_minor;
  limits.sm_count = facts.sm_count;
  limits.smem_optin_bytes = facts.smem_optin_bytes;
  limits.smem_per_sm_bytes = facts.smem_per_sm_bytes;
  limits.smem_reserved_bytes = facts.smem_reserved_bytes;
  limits.regs_per_sm = facts.regs_per_sm;
  limits.regs_per_block = facts.regs_per_block;
  limits.threads_per_sm = facts.threads_per_sm;
  limits.threads_per_block = facts.threads_per_block;
  limits.blocks_per_sm = facts.blocks_per_sm;
  return limits;
}

namespace {

// A pack that cannot be read is a slower start, not an error: but nobody should have to guess at
// it.
void warn_of_useless_packs(const std::vector<std::string>& packs, os::FileSystem& files,
                           const Log& log) {
  for (const std::string& pack : packs) {
    const Result<std::vector<std::string>> names = files.list_directory(pack);
    if (!names.ok()) {
      log.warning("the pack " + pack + " is not used: " + names.status().message());
    } else if (std::none_of(names->begin(), names->end(), [](const std::string& name) {
                 return name == "bin" || name == "tuned";
               })) {
      log.warning("the pack " + pack +
                  " is not used: it holds neither bin nor tuned, as one by 'scanjit prewarm' does");
    }
  }
}

}  // namespace

Result<std::shared_ptr<Internals>> Internals::make(const EngineOptions& options, Parts parts) {
  auto made = std::make_shared<Internals>();
  made->options = options;
  made->parts = std::move(parts);
  made->log = Log(options.log);
  const cuda::RelaxedCaptureScope relaxed(made->api());
  SCANJIT_ASSIGN_OR_RETURN(const cuda::CUdevice device,
                           cuda::device_of_ordinal(made->api(), options.device));
  SCANJIT_ASSIGN_OR_RETURN(made->facts, cuda::device_facts(made->api(), device, nullptr));
  made->gpu = gpu_facts(made->facts);
  made->cache = os::choose_cache_directory(options.cache_dir, made->parts.environment);
  distrust_foreign_cache(*made->parts.files, made->cache);
  if (made->cache.memory_only()) {
    made->log.write(made->cache.asked_for ? LogLevel::kInfo : LogLevel::kWarning,
                    "nothing is stored on disk: " + made->cache.reason);
  }
  SCANJIT_ASSIGN_OR_RETURN(made->shortlists, Shortlists::from_json(made->parts.shortlists));

  warn_of_useless_packs(options.pack_dirs, *made->parts.files, made->log);

  jit::KernelProviderOptions provider;
  provider.environment = made->parts.environment;
  provider.cache_dir = made->cache.path;
  provider.pack_dirs = options.pack_dirs;
  const CacheCaps caps = cache_caps(options, made->parts.environment, made->log);
  provider.cache_max_bytes = caps.binaries;
  provider.compile_jobs = options.compile_jobs;
  provider.clock = made->parts.clock;
  provider.log = made->log;
  SCANJIT_ASSIGN_OR_RETURN(made->provider,
                           jit::KernelProvider::create(provider, *made->parts.files));

  tuning::StoreOptions store;
  store.files = made->parts.files;
  store.cache_dir = made->cache.path;
  store.pack_dirs = options.pack_dirs;
  store.shipped = made->parts.shipped;
  store.gpu = made->gpu;
  // NVRTC's version is not compared: knowing it would load NVRTC where cubins are at hand.
  store.toolchain = {"", made->facts.driver, version()};
  store.cache_max_bytes = caps.tuned;
  // Said under the same names as what the provider says, so that one trouble with the directory is
  // one warning.
  store.warn = [log = made->log](const std::string& about, const std::string& text) {
    log.warn_once(about, text);
  };
  made->store = std::make_unique<tuning::TunedStore>(std::move(store));
  return made;
}

Internals::~Internals() {
  // Giving the primary context back may end it; no thread's capture is to notice.
  const cuda::RelaxedCaptureScope relaxed(api());
  primary_.reset();
}

Result<cuda::ContextId> Internals::context(bool sealed) {
  const cuda::RelaxedCaptureScope relaxed(api());
  SCANJIT_ASSIGN_OR_RETURN(cuda::CUcontext context, cuda::current_context(api()));
  if (context == nullptr) {
    const std::lock_guard lock(mutex_);
    if (!primary_ && sealed) {
      return not_found(
          "the engine is sealed, no context is current, and nothing was planned in the primary "
          "one");
    }
    if (!primary_) {
      SCANJIT_ASSIGN_OR_RETURN(cuda::PrimaryContext primary,
                               cuda::PrimaryContext::retain(api(), facts.device));
      primary_.emplace(std::move(primary));
    }
    context = primary_->get();
  }
  return cuda::identify(api(), context);
}

Result<ops::DeviceLimits> Internals::limits(const cuda::ContextId& context) {
  if (context.device != facts.device) {
    return invalid_argument("the context is of device " + std::to_string(context.device) +
                            ", the engine of device " + std::to_string(facts.device) +
                            "; make one engine for each device");
  }
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, known] : limits_) {
      if (id == context.id) return known;
    }
  }
  const cuda::RelaxedCaptureScope relaxed(api());
  ops::DeviceLimits limits = limits_of(facts);
  limits.sm_count = cuda::context_sm_count(api(), context.context, facts.sm_count);
  if (limits.sm_count < facts.sm_count) limits.part_of_sms = facts.sm_count;
  const std::lock_guard lock(mutex_);
  limits_.emplace_back(context.id, limits);
  return limits;
}

}  // namespace scanjit::engine
