#include "engine/op_timer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "core/guard.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "engine/plan.hpp"

namespace scanjit::engine {
namespace {

constexpr std::int64_t kDefaultScratchBytes = 256 << 20;
constexpr double kDefaultScratchShare = 0.02;   // of free memory
constexpr unsigned char kPoison = 0xFF;         // NaN in every float type
constexpr std::int64_t kWindowBytes = 1 << 20;  // of a large output that is compared in parts
constexpr int kMaxSets = 64;
constexpr double kGraphUs = 500;  // a graph repeats short work until about so long
constexpr int kMaxRepeats = 64;

std::int64_t scratch_bytes(std::int64_t asked, const cuda::MemoryInfo& memory) {
  if (asked > 0) return std::min(asked, memory.free_bytes);
  return std::min(
      kDefaultScratchBytes,
      static_cast<std::int64_t>(kDefaultScratchShare * static_cast<double>(memory.free_bytes)));
}

cuda::CUdeviceptr device_pointer(const void* pointer) {
  return static_cast<cuda::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
}
void* as_pointer(cuda::CUdeviceptr address) {
  // The driver's addresses are numbers.
  const auto number = static_cast<std::uintptr_t>(address);
  return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr)
}

// Where `tensor` is compared: all of it, or windows spread evenly from its first to its last byte.
struct Window {
  std::int64_t offset;
  std::int64_t bytes;
};
std::vector<Window> windows_of(std::int64_t bytes, std::int64_t limit) {
  if (bytes <= std::max(limit, kWindowBytes)) return {{0, bytes}};
  const std::int64_t count = std::max<std::int64_t>(2, limit / kWindowBytes);
  std::vector<Window> windows;
  for (std::int64_t i = 0; i < count; ++i) {
    const double place = static_cast<double>(i) / static_cast<double>(count - 1);
    windows.push_back({static_cast<std::int64_t>(place * static_cast<double>(bytes - kWindowBytes)),
                       kWindowBytes});
  }
  return windows;
}

}  // namespace

struct OpTimer::State {
  // One config: its kernels, and the graph that repeats them.
  struct Candidate {
    Status status;  // of preparation
    std::vector<ops::Stage> plan;
    std::vector<Result<jit::Binary>> binaries;  // of `plan`, once compiled
    std::vector<LaunchStage> stages;
    struct Timer {
      cuda::GraphTimer graph;
      int replays = 1;
      bool settled = false;  // `replays` comes from a block, not from a single run
    };
    std::optional<Timer> timer, shorter;  // of `timed` and of `shorter`
  };
  struct Taken {
    cuda::CUdeviceptr address;
    std::int64_t bytes;
  };

  State(Internals& in, const OpTimerOptions& timer_options)
      : internals(in), options(timer_options), relaxed(in.api()) {}
  ~State();

  Status prepare_memory(const cuda::ContextId& id);
  Status fill_first_set();
  Status fill_other_sets();
  Result<cuda::CUdeviceptr> take(std::int64_t bytes);
  Candidate& candidate(const Config& config);
  Status load(Candidate& one);
  Status prepare(Candidate& one);
  Result<Candidate::Timer> make_timer(const Candidate& one, const ops::OpProblem& what);
  Result<double> run_block(Candidate::Timer& timer);
  Status run_once(const Candidate& one, std::size_t set);
  Result<std::string> poisoned_outputs(Candidate& one);

  const cuda::DriverApi& api() const { return internals.api(); }

  Internals& internals;
  OpTimerOptions options;
  cuda::RelaxedCaptureScope relaxed;
  std::optional<cuda::ScopedContext> current;
  cuda::ContextId context;
  ops::DeviceLimits limits;
  std::shared_ptr<const ops::OpProblem> problem, timed;
  // Where `timed` has fewer chunks than the problem: one of fewer still, in the same memory. From
  // the two times follows that of the whole, which is `reach` times their difference beyond the
  // longer.
  std::shared_ptr<const ops::OpProblem> shorter;
  double reach = 0;
  std::vector<ops::Tensor> tensors;
  std::optional<cuda::OwnedStream> stream;
  std::optional<cuda::ScratchPool> pool;
  std::vector<Taken> taken;
  std::vector<ops::Addresses> sets;
  const char* l2 = "warm";
  std::vector<cuda::Module> modules;  // ours to unload
  std::map<Config, Candidate> candidates;
  std::optional<Config> reference;
  std::string reference_bytes;
};

OpTimer::State::~State() {
  candidates.clear();
  if (stream) {
    // The memory may be in use until here, and is to be back with the device afterwards.
    Status status = stream->synchronize();
    for (const Taken& one : taken) {
      if (const Status given = pool->give_back(one.address, one.bytes, stream->get()); status.ok())
        status = given;
    }
    if (pool) {
      if (const Status waited = stream->synchronize(); status.ok()) status = waited;
      if (const Status trimmed = pool->trim(); status.ok()) status = trimmed;
    }
    if (!status.ok()) internals.log.debug("giving back scratch: " + status.message());
  }
  for (cuda::Module& module : modules) {
    if (const Status status = module.unload(); !status.ok()) internals.log.debug(status.message());
  }
}

Result<cuda::CUdeviceptr> OpTimer::State::take(std::int64_t bytes) {
  SCANJIT_ASSIGN_OR_RETURN(const cuda::CUdeviceptr address, pool->take(bytes, stream->get()));
  taken.push_back({address, bytes});
  return address;
}

Status OpTimer::State::prepare_memory(const cuda::ContextId& id) {
  context = id;
  SCANJIT_ASSIGN_OR_RETURN(auto entered, cuda::ScopedContext::enter(api(), id.context));
  current.emplace(std::move(entered));
  SCANJIT_ASSIGN_OR_RETURN(limits, internals.limits(id));
  SCANJIT_ASSIGN_OR_RETURN(const cuda::MemoryInfo memory, cuda::memory_info(api()));
  const std::int64_t limit = scratch_bytes(options.scratch_limit, memory);
  timed = problem->for_timing(limit);
  if (!timed) {
    if (problem->tokens_per_sequence() == 0)
      return invalid_argument("the problem has no token; there is nothing to time");
    return Status(ErrorCode::kOutOfMemory, "one chunk of each of " +
                                               std::to_string(problem->key_query().sequences) +
                                               " sequences does not fit into " +
                                               std::to_string(limit) + " bytes of scratch");
  }
  tensors = timed->tensors();
  const std::int64_t chunks = problem->key_query().chunks, longer = timed->key_query().chunks;
  if (chunks > longer && longer > 1) {
    std::int64_t bytes = timed->workspace_bound();
    for (const ops::Tensor& tensor : tensors) bytes += tensor.bytes;
    shorter = timed->for_timing(bytes / 2);
    if (shorter && shorter->key_query().chunks < longer) {
      reach = static_cast<double>(chunks - longer) /
              static_cast<double>(longer - shorter->key_query().chunks);
    } else {
      shorter = nullptr;
    }
  }
  SCANJIT_ASSIGN_OR_RETURN(auto made_stream,
                           cuda::OwnedStream::create(api(), cuda::OwnedStream::Priority::kLowest));
  stream.emplace(std::move(made_stream));
  SCANJIT_ASSIGN_OR_RETURN(auto made_pool, cuda::ScratchPool::create(api(), id.device, limit));
  pool.emplace(std::move(made_pool));

  std::int64_t set_bytes = 0;
  for (const ops::Tensor& tensor : tensors) set_bytes += tensor.bytes;
  const std::int64_t l2_bytes = internals.facts.l2_bytes;
  const bool cold = options.l2 == L2Policy::kCold ||
                    (options.l2 == L2Policy::kAuto && 2 * timed->floor_bytes() >= l2_bytes);
  l2 = cold ? "cold" : "warm";
  std::int64_t count = 1;
  if (cold) {
    const std::int64_t wanted =
        (2 * l2_bytes + set_bytes - 1) / std::max<std::int64_t>(1, set_bytes);
    count = std::clamp<std::int64_t>(
        std::min<std::int64_t>(wanted, limit / std::max<std::int64_t>(1, set_bytes)), 1, kMaxSets);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    ops::Addresses set;
    Status status;
    for (const ops::Tensor& tensor : tensors) {
      const Result<cuda::CUdeviceptr> address = take(tensor.bytes);
      if (!address.ok()) {
        status = address.status();
        break;
      }
      set.tensor[tensor.number] = as_pointer(*address);
    }
    if (status.ok() && timed->workspace_bound() > 0) {
      const Result<cuda::CUdeviceptr> address = take(timed->workspace_bound());
      if (address.ok()) set.workspace = as_pointer(*address);
      status = address.status();
    }
    if (!status.ok()) {
      if (i == 0) return status;
      break;  // fewer sets will have to do; what this one took goes back at the end
    }
    sets.push_back(set);
  }
  SCANJIT_TRY(fill_first_set());
  return fill_other_sets();
}

Status OpTimer::State::fill_first_set() {
  std::vector<std::vector<unsigned char>> patterns;  // alive until the copies are done
  for (const ops::Tensor& tensor : tensors) {
    const cuda::CUdeviceptr to = device_pointer(sets.front().tensor[tensor.number]);
    if (tensor.output) {
      SCANJIT_TRY(cuda::check(
          api(),
          api().cuMemsetD8Async(to, 0, static_cast<std::size_t>(tensor.bytes), stream->get()),
          "cuMemsetD8Async"));
      continue;
    }
    patterns.emplace_back(static_cast<std::size_t>(tensor.pattern_bytes));
    timed->fill_pattern(tensor.number, patterns.back().data());
    SCANJIT_TRY(cuda::check(
        api(),
        api().cuMemcpyHtoDAsync(to, patterns.back().data(), patterns.back().size(), stream->get()),
        "cuMemcpyHtoDAsync"));
    // What is filled doubles with each copy.
    for (std::int64_t filled = tensor.pattern_bytes; filled < tensor.bytes;) {
      const std::int64_t bytes = std::min(filled, tensor.bytes - filled);
      SCANJIT_TRY(
          cuda::check(api(),
                      api().cuMemcpyDtoDAsync(to + static_cast<cuda::CUdeviceptr>(filled), to,
                                              static_cast<std::size_t>(bytes), stream->get()),
                      "cuMemcpyDtoDAsync"));
      filled += bytes;
    }
  }
  return stream->synchronize();
}

Status OpTimer::State::fill_other_sets() {
  for (std::size_t i = 1; i < sets.size(); ++i) {
    for (const ops::Tensor& tensor : tensors) {
      SCANJIT_TRY(cuda::check(
          api(),
          api().cuMemcpyDtoDAsync(device_pointer(sets[i].tensor[tensor.number]),
                                  device_pointer(sets[0].tensor[tensor.number]),
                                  static_cast<std::size_t>(tensor.bytes), stream->get()),
          "cuMemcpyDtoDAsync"));
    }
  }
  return stream->synchronize();
}

OpTimer::State::Candidate& OpTimer::State::candidate(const Config& config) {
  const auto [place, added] = candidates.try_emplace(config);
  Candidate& one = place->second;
  if (added) {
    one.status = timed->legal(config, limits);
    if (one.status.ok()) one.plan = timed->stages(config, limits);
  }
  return one;
}

Status OpTimer::State::load(Candidate& one) {
  if (one.binaries.empty()) {
    for (const ops::Stage& stage : one.plan)
      one.binaries.push_back(internals.provider->get(stage.source, internals.facts.arch));
  }
  for (std::size_t i = 0; i < one.plan.size(); ++i) {
    const ops::Stage& stage = one.plan[i];
    if (!one.binaries[i].ok()) return one.binaries[i].status();
    cuda::CUfunction function = nullptr;
    if (options.unload) {
      SCANJIT_ASSIGN_OR_RETURN(cuda::Module module,
                               cuda::Module::load(api(), *one.binaries[i]->cubin));
      modules.push_back(module);
      SCANJIT_ASSIGN_OR_RETURN(function, modules.back().function(stage.source.entry));
      SCANJIT_TRY(cuda::prepare(api(), function, stage.source.smem_bytes));
    } else {
      SCANJIT_ASSIGN_OR_RETURN(const auto kernel,
                               internals.parts.loader->load(api(), context, *internals.provider,
                                                            stage.source, internals.facts.arch));
      function = kernel->function;
    }
    SCANJIT_ASSIGN_OR_RETURN(LaunchStage launch, make_launch(api(), stage, function));
    one.stages.push_back(std::move(launch));
  }
  return {};
}

Status OpTimer::State::run_once(const Candidate& one, std::size_t set) {
  SCANJIT_TRY(enqueue(api(), *timed, one.stages, sets[set], stream->get()));
  return stream->synchronize();
}

// Warms up and captures so many runs that a block of them takes `block_us`.
Result<OpTimer::State::Candidate::Timer> OpTimer::State::make_timer(const Candidate& one,
                                                                    const ops::OpProblem& what) {
  const auto capture = [&](int repeats) {
    std::size_t next = 0;
    return cuda::GraphTimer::capture(api(), stream->get(), repeats, [&](cuda::CUstream on) {
      return enqueue(api(), what, one.stages, sets[next++ % sets.size()], on);
    });
  };
  const int cycle = static_cast<int>(sets.size());
  SCANJIT_ASSIGN_OR_RETURN(cuda::GraphTimer graph, capture(cycle));
  SCANJIT_ASSIGN_OR_RETURN(const double first_us, graph.run(1));
  const double once_us = std::max(first_us, 0.1);
  const int repeats = std::clamp(static_cast<int>(std::min<double>(
                                     kMaxRepeats, std::min(kGraphUs, options.block_us) / once_us)),
                                 1, kMaxRepeats);
  const int whole_cycles = std::max(1, repeats / cycle) * cycle;
  if (whole_cycles != cycle) {
    SCANJIT_ASSIGN_OR_RETURN(graph, capture(whole_cycles));
  }
  const int replays =
      std::max(1, static_cast<int>(std::lround(options.block_us / (once_us * whole_cycles))));
  return Candidate::Timer{std::move(graph), replays, false};
}

// Microseconds of one run. How many replays make a block follows from a single run at first, which
// takes longer than one among many by what a lone launch costs; a first block that shows it was too
// short is run again.
Result<double> OpTimer::State::run_block(Candidate::Timer& timer) {
  constexpr double kShort = 0.9;
  SCANJIT_ASSIGN_OR_RETURN(const double us, timer.graph.run(timer.replays));
  if (std::exchange(timer.settled, true)) return us;
  const double replay_us = std::max(us, 0.1) * timer.graph.repeats();
  if (replay_us * timer.replays >= kShort * options.block_us) return us;
  timer.replays =
      std::max(timer.replays + 1, static_cast<int>(std::lround(options.block_us / replay_us)));
  return timer.graph.run(timer.replays);
}

// Loads, warms up and captures; afterwards `timer` is there or `status` says why not.
Status OpTimer::State::prepare(Candidate& one) {
  if (!one.status.ok() || one.timer) return one.status;
  one.status = guard([&]() -> Status {
    if (one.stages.empty()) SCANJIT_TRY(load(one));
    SCANJIT_TRY(run_once(one, 0));
    if (shorter) {
      SCANJIT_ASSIGN_OR_RETURN(auto made, make_timer(one, *shorter));
      one.shorter.emplace(std::move(made));
    }
    SCANJIT_ASSIGN_OR_RETURN(auto made, make_timer(one, *timed));
    one.timer.emplace(std::move(made));
    return {};
  });
  return one.status;
}

Result<std::string> OpTimer::State::poisoned_outputs(Candidate& one) {
  const ops::Addresses& set = sets.front();
  for (const ops::Tensor& tensor : tensors) {
    if (!tensor.output) continue;
    SCANJIT_TRY(
        cuda::check(api(),
                    api().cuMemsetD8Async(device_pointer(set.tensor[tensor.number]), kPoison,
                                          static_cast<std::size_t>(tensor.bytes), stream->get()),
                    "cuMemsetD8Async"));
  }
  SCANJIT_TRY(run_once(one, 0));
  std::string bytes;
  for (const ops::Tensor& tensor : tensors) {
    if (!tensor.output) continue;
    for (const Window& window : windows_of(tensor.bytes, options.compare_limit)) {
      const std::size_t at = bytes.size();
      bytes.resize(at + static_cast<std::size_t>(window.bytes));
      const cuda::CUdeviceptr from =
          device_pointer(set.tensor[tensor.number]) + static_cast<cuda::CUdeviceptr>(window.offset);
      SCANJIT_TRY(cuda::check(
          api(),
          api().cuMemcpyDtoHAsync(bytes.data() + at, from, static_cast<std::size_t>(window.bytes),
                                  stream->get()),
          "cuMemcpyDtoHAsync"));
      SCANJIT_TRY(stream->synchronize());  // before `bytes` grows and moves
    }
  }
  return bytes;
}

OpTimer::OpTimer(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
OpTimer::OpTimer(OpTimer&&) noexcept = default;
OpTimer::~OpTimer() = default;

Result<OpTimer> OpTimer::create(Internals& internals, std::shared_ptr<const ops::OpProblem> problem,
                                const OpTimerOptions& options) {
  return guard([&]() -> Result<OpTimer> {
    SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, internals.context());
    auto state = std::make_unique<State>(internals, options);
    state->problem = std::move(problem);
    SCANJIT_TRY(state->prepare_memory(context));
    return OpTimer(std::move(state));
  });
}

std::vector<Config> OpTimer::compile(const std::vector<Config>& configs,
                                     const std::function<bool()>& stop) {
  struct Wanted {
    Config config;
    std::size_t first;  // place in `sources`
  };
  std::vector<Wanted> wanted;
  std::vector<jit::KernelSource> sources;
  for (const Config& config : configs) {
    State::Candidate& one = state_->candidate(config);
    if (!one.status.ok() || !one.binaries.empty()) continue;
    wanted.push_back({config, sources.size()});
    for (const ops::Stage& stage : one.plan) sources.push_back(stage.source);
  }
  const std::vector<Result<jit::Binary>> binaries =
      state_->internals.provider->get_all(sources, state_->internals.facts.arch, stop);
  std::vector<Config> stopped;
  for (const Wanted& want : wanted) {
    State::Candidate& one = state_->candidate(want.config);
    const auto first = binaries.begin() + static_cast<std::ptrdiff_t>(want.first),
               last = first + static_cast<std::ptrdiff_t>(one.plan.size());
    if (std::any_of(first, last, [](const Result<jit::Binary>& binary) {
          return !binary.ok() && binary.status().code() == ErrorCode::kCancelled;
        })) {
      stopped.push_back(want.config);
    } else {
      one.binaries.assign(first, last);
    }
  }
  return stopped;
}

Result<double> OpTimer::measure(const Config& config) {
  State::Candidate& one = state_->candidate(config);
  SCANJIT_TRY(state_->prepare(one));
  SCANJIT_ASSIGN_OR_RETURN(const double us, state_->run_block(*one.timer));
  if (!one.shorter) return us;
  SCANJIT_ASSIGN_OR_RETURN(const double shorter_us, state_->run_block(*one.shorter));
  // Never less than what was seen: a difference below zero is noise.
  return us + std::max(0.0, us - shorter_us) * state_->reach;
}

Result<bool> OpTimer::bits_equal(const Config& config, const Config& reference) {
  return guard([&]() -> Result<bool> {
    if (state_->reference != reference) {
      State::Candidate& one = state_->candidate(reference);
      SCANJIT_TRY(state_->prepare(one));
      SCANJIT_ASSIGN_OR_RETURN(state_->reference_bytes, state_->poisoned_outputs(one));
      state_->reference = reference;
    }
    State::Candidate& one = state_->candidate(config);
    SCANJIT_TRY(state_->prepare(one));
    SCANJIT_ASSIGN_OR_RETURN(const std::string bytes, state_->poisoned_outputs(one));
    return bytes == state_->reference_bytes;
  });
}

const ops::OpProblem& OpTimer::problem() const noexcept { return *state_->problem; }
const ops::OpProblem& OpTimer::timed() const noexcept { return *state_->timed; }
const char* OpTimer::l2() const noexcept { return state_->l2; }
int OpTimer::sets() const noexcept { return static_cast<int>(state_->sets.size()); }
std::int64_t OpTimer::taken_bytes() const noexcept { return state_->pool->taken_bytes(); }

std::optional<jit::Binary> OpTimer::binary(const Config& config) const {
  const auto found = state_->candidates.find(config);
  if (found == state_->candidates.end() || found->second.binaries.empty() ||
      !found->second.binaries.back().ok())
    return std::nullopt;
  return *found->second.binaries.back();
}

}  // namespace scanjit::engine
