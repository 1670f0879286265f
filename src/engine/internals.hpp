#pragma once
/// \file
/// What an engine stands on, for the parts of this folder, the tools and the tests.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/environment.hpp"
#include "core/logging.hpp"
#include "cuda/context.hpp"
#include "cuda/device_facts.hpp"
#include "engine/kernel_loader.hpp"
#include "engine/shortlists.hpp"
#include "jit/kernel_provider.hpp"
#include "ops/device_limits.hpp"
#include "os/cache_directory.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "scanjit/engine.hpp"
#include "tuning/tuned_store.hpp"

namespace scanjit::engine {

/// The world outside; tests hand in fakes. All pointers must outlive every engine and plan made of
/// them.
class VainTries;
struct Parts {
  const cuda::DriverApi* api = nullptr;
  os::FileSystem* files = nullptr;
  os::Clock* clock = nullptr;
  KernelLoader* loader = nullptr;
  VainTries* vain_tries = nullptr;
  Environment environment;
  std::vector<tuning::ShippedText> shipped;  ///< tuned files
  std::string shortlists;                    ///< JSON
};
/// The process's own: loads the driver. Errors: kUnsupported.
[[nodiscard]] Result<Parts> process_parts();
/// The tuned files (`configs/*.json` of schema scanjit-tuned/1) that are compiled in.
[[nodiscard]] std::vector<tuning::ShippedText> shipped_configs();
/// The text of `configs/shortlists.json` as compiled in.
[[nodiscard]] std::string shipped_shortlists();

/// Everything about one device that planning, timing and the tools share. Made once, then only its
/// stores change, which are thread-safe.
struct Internals {
  EngineOptions options;
  Parts parts;
  Log log;
  cuda::DeviceFacts facts;
  tuning::GpuFacts gpu;  ///< the same as tuned files name it
  os::CacheDirectory cache;
  Shortlists shortlists;
  std::unique_ptr<jit::KernelProvider> provider;
  std::unique_ptr<tuning::TunedStore> store;

  /// Errors: kUnsupported (no device), kInvalidArgument (ordinal).
  [[nodiscard]] static Result<std::shared_ptr<Internals>> make(const EngineOptions& options,
                                                               Parts parts);
  ~Internals();

  [[nodiscard]] const cuda::DriverApi& api() const noexcept { return *parts.api; }

  /// The current context, or the device's primary one, retained from then on, if none is current.
  /// `sealed`: the primary one only if it is retained already; else kNotFound.
  [[nodiscard]] Result<cuda::ContextId> context(bool sealed = false);
  /// Limits of a context: fewer multiprocessors under MPS or in a green context.
  /// Errors: kInvalidArgument if it is a context of another device.
  [[nodiscard]] Result<ops::DeviceLimits> limits(const cuda::ContextId& context);

 private:
  std::mutex mutex_;  // all below
  std::optional<cuda::PrimaryContext> primary_;
  std::vector<std::pair<unsigned long long, ops::DeviceLimits>> limits_;  // by context id
};

[[nodiscard]] tuning::GpuFacts gpu_facts(const cuda::DeviceFacts& facts);
[[nodiscard]] ops::DeviceLimits limits_of(const cuda::DeviceFacts& facts) noexcept;

/// An engine on these parts. Errors: as Engine::create.
[[nodiscard]] Result<Engine> create_engine(const EngineOptions& options, Parts parts);
/// What an engine is made of; lives as long as the engine.
[[nodiscard]] Internals& internals(Engine& engine) noexcept;

/// "0.1.0"
[[nodiscard]] const char* version() noexcept;

}  // namespace scanjit::engine
