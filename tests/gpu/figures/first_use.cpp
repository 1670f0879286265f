// What a key costs the first time, and the times after that.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/plan.hpp"
#include "engine/tune_key.hpp"
#include "gpu/figures/allocations.hpp"
#include "gpu/figures/device_timer.hpp"
#include "gpu/figures/figures.hpp"
#include "gpu/memory.hpp"
#include "gpu/shape_map.hpp"
#include "ops/gated_delta_h.hpp"
#include "os/process.hpp"
#include "reference/gated_delta_h.hpp"

namespace scanjit::test {
namespace {

constexpr MapShape kShape{32, 8, 1024};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool nvrtc_is_loaded() {
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  return text.str().find("nvrtc") != std::string::npos;
}

/// The tensors of a dense contiguous problem, all zero: for calls whose results nobody looks at.
struct ZeroTensors {
  std::vector<GuardedBuffer> buffers;
  GatedDeltaHArgs args;
};
Result<ZeroTensors> zero_tensors(Gpu& gpu, const GatedDeltaHProblem& problem) {
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHSizes s, reference::sizes_of(problem));
  ZeroTensors tensors;
  for (const std::int64_t bytes :
       {2 * s.k, 2 * s.w, 2 * s.u, 4 * s.g, 4 * s.h0, 2 * s.h, 2 * s.v_new, 4 * s.ht}) {
    SCANJIT_ASSIGN_OR_RETURN(GuardedBuffer buffer, GuardedBuffer::make(gpu, bytes, Guard::kBytes));
    SCANJIT_TRY(buffer.fill(0));
    tensors.buffers.push_back(std::move(buffer));
  }
  std::vector<GuardedBuffer>& b = tensors.buffers;
  tensors.args.k = b[0].as();
  tensors.args.w = b[1].as();
  tensors.args.u = b[2].as();
  tensors.args.g = b[3].as<float>();
  tensors.args.h0 = b[4].as<float>();
  tensors.args.h = b[5].as();
  tensors.args.v_new = b[6].as();
  tensors.args.ht = b[7].as<float>();
  SCANJIT_TRY(gpu.synchronize());
  return tensors;
}

Status time_first_use(const std::string& cache, Report& report) {
  SCANJIT_ASSIGN_OR_RETURN(Engine engine, make_engine(TuneMode::kFirstUse, cache, false));
  const auto start = std::chrono::steady_clock::now();
  SCANJIT_ASSIGN_OR_RETURN(const Plan plan, engine.plan(map_problem(kShape, MapGate::kG)));
  const double seconds = seconds_since(start);
  const EngineStats stats = engine.stats();
  report.judged("first use of a key from nothing", seconds, "s", 2,
                seconds <= 2 && stats.first_uses == 1,
                {{"source", to_string(plan.why().source)},
                 {"partial", plan.why().partial},
                 {"compiles", stats.compiles},
                 {"busy", stats.first_uses_busy},
                 {"no_scratch", stats.first_uses_no_scratch}});
  return {};
}

Status time_whole_space(const std::string& cache, Report& report) {
  SCANJIT_ASSIGN_OR_RETURN(Engine engine, make_engine(TuneMode::kOff, cache, false));
  engine::Internals& internals = engine::internals(engine);
  SCANJIT_ASSIGN_OR_RETURN(const Problem op, op_of(map_problem(kShape, MapGate::kG)));
  SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, internals.context());
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals.limits(context));
  SCANJIT_ASSIGN_OR_RETURN(const std::vector<Config> candidates, ops::candidates(*op, limits));
  const auto start = std::chrono::steady_clock::now();
  SCANJIT_ASSIGN_OR_RETURN(const engine::TunedKey tuned,
                           engine::tune_key(internals, {op}, candidates, {}));
  report.row("whole space of one key from nothing", seconds_since(start), "s", 6,
             {{"configs", candidates.size()},
              {"noise", tuned.noise},
              {"busy", !tuned.record.has_value()}});
  return {};
}

// A process whose shipped key was compiled before: everything after the driver's own context.
Status time_warm_process(Gpu& gpu, const std::string& cache, Report& report) {
  const GatedDeltaHProblem problem = map_problem(kShape, MapGate::kG);
  SCANJIT_ASSIGN_OR_RETURN(const ZeroTensors tensors, zero_tensors(gpu, problem));
  const auto start = std::chrono::steady_clock::now();
  SCANJIT_ASSIGN_OR_RETURN(Engine engine, make_engine(TuneMode::kReplay, cache, true));
  SCANJIT_TRY(engine.gated_delta_h(problem, tensors.args, {}, gpu.stream()));
  const double ms = 1000 * seconds_since(start);
  SCANJIT_TRY(gpu.synchronize());
  SCANJIT_ASSIGN_OR_RETURN(const Why why, engine.why(problem));
  report.judged("warm process: engine, cubin and first launch of a shipped key", ms, "ms", 30,
                ms <= 30 && engine.stats().compiles == 0 && why.source == PickSource::kExact,
                {{"source", to_string(why.source)},
                 {"layer", why.layer},
                 {"binary_from", why.binary_from},
                 {"compiles", engine.stats().compiles}});
  return {};
}

// Compiles that shipped key, in a process before.
Status fill_for_warm_process(const std::string& cache, Report& report) {
  SCANJIT_ASSIGN_OR_RETURN(Engine engine, make_engine(TuneMode::kReplay, cache, true));
  const auto start = std::chrono::steady_clock::now();
  SCANJIT_TRY(engine.plan(map_problem(kShape, MapGate::kG)).status());
  report.row("first plan of a shipped key from nothing", seconds_since(start), "s", std::nullopt,
             {{"compiles", engine.stats().compiles}});
  return {};
}

Status time_warm_start(Gpu& gpu, const std::string& cache, Report& report) {
  const GatedDeltaHProblem problem = map_problem(kShape, MapGate::kG);
  SCANJIT_ASSIGN_OR_RETURN(const ZeroTensors tensors, zero_tensors(gpu, problem));
  SCANJIT_ASSIGN_OR_RETURN(Engine engine, make_engine(TuneMode::kFirstUse, cache, false));
  const auto start = std::chrono::steady_clock::now();
  SCANJIT_ASSIGN_OR_RETURN(const Plan plan, engine.plan(problem));
  SCANJIT_TRY(plan.launch(tensors.args, {}, gpu.stream()));
  const double ms = 1000 * seconds_since(start);
  SCANJIT_TRY(gpu.synchronize());
  const bool nvrtc = nvrtc_is_loaded();
  report.judged("first launch from warm caches, one kernel", ms, "ms", 5, ms <= 5 && !nvrtc,
                {{"nvrtc_loaded", nvrtc},
                 {"source", to_string(plan.why().source)},
                 {"binary_from", plan.why().binary_from}});
  return {};
}

/// Nanoseconds per call of `body`, the median of 15 blocks of `calls`.
template <class Body>
double time_calls(int calls, const Body& body) {
  std::vector<double> blocks;
  for (int block = 0; block < 15; ++block) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) body();
    blocks.push_back(1e9 * seconds_since(start) / calls);
  }
  return median(blocks);
}

Status time_look_up(Gpu& gpu, const std::string& cache, Report& report) {
  const GatedDeltaHProblem problem = map_problem(kShape, MapGate::kG),
                           small = map_problem({32, 1, 16}, MapGate::kG);
  SCANJIT_ASSIGN_OR_RETURN(Engine engine, make_engine(TuneMode::kReplay, cache, false));
  // Among a hundred other keys, as a server has them.
  for (std::int64_t n = 1; n <= 100; ++n) {
    const Result<Plan> plan = engine.plan(map_problem({32, n, 64 + n}, MapGate::kG));
    if (!plan.ok()) return plan.status();
  }
  SCANJIT_ASSIGN_OR_RETURN(const Plan plan, engine.plan(problem));
  std::atomic<bool> all_ok{true};
  const auto look_up = [&] {
    if (!engine.plan(problem).ok()) all_ok = false;
  };
  const double ns = time_calls(100'000, look_up);
  const std::int64_t before = allocations();
  for (int i = 0; i < 1000; ++i) look_up();
  const std::int64_t allocated = allocations() - before;
  report.judged("look-up of a planned key", ns, "ns", 100, ns <= 100 && allocated == 0 && all_ok,
                {{"allocations_in_1000_calls", allocated}});
  for (const int threads : {4, 16}) {
    std::vector<double> times(static_cast<std::size_t>(threads));
    std::vector<std::thread> workers;
    for (std::size_t t = 0; t < times.size(); ++t) {
      workers.emplace_back([&, t] {
        if (!gpu.make_current().ok()) all_ok = false;
        times[t] = time_calls(20'000, look_up);
      });
    }
    for (std::thread& worker : workers) worker.join();
    report.judged("look-up of one planned key, " + std::to_string(threads) + " threads at once",
                  median(times), "ns", std::nullopt, all_ok);
  }

  // A launch of a kernel that is over sooner than the next call is made, against the bare driver
  // call.
  SCANJIT_ASSIGN_OR_RETURN(const ZeroTensors tensors, zero_tensors(gpu, small));
  SCANJIT_ASSIGN_OR_RETURN(const Plan small_plan, engine.plan(small));
  engine::Internals& internals = engine::internals(engine);
  SCANJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const ops::GatedDeltaH> op,
                           ops::GatedDeltaH::make(small));
  SCANJIT_ASSIGN_OR_RETURN(const cuda::ContextId context, internals.context());
  SCANJIT_ASSIGN_OR_RETURN(const ops::DeviceLimits limits, internals.limits(context));
  const std::vector<ops::Stage> stages = op->stages(small_plan.why().config, limits);
  if (stages.size() != 1)
    return internal_error("the small problem has " + std::to_string(stages.size()) + " stages");
  SCANJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const engine::LoadedKernel> kernel,
                           internals.parts.loader->load(gpu.api(), context, *internals.provider,
                                                        stages[0].source, gpu.facts().arch));
  SCANJIT_ASSIGN_OR_RETURN(const engine::LaunchStage bare_launch,
                           engine::make_launch(gpu.api(), stages[0], kernel->function));
  ops::StageParams params;
  SCANJIT_TRY(engine::fill_launch_params(gpu.api(), *op, bare_launch,
                                         ops::GatedDeltaH::addresses(tensors.args, {}), params));
  void* arguments[] = {params.bytes.data()};
  // In turn, so that a drift of the clock touches all alike.
  const auto one_block_us = [&](const auto& launch) -> double {
    constexpr int kLaunches = 200;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kLaunches; ++i) launch();
    const double us = 1e6 * seconds_since(start) / kLaunches;
    if (!gpu.synchronize().ok()) all_ok = false;
    return us;
  };
  const auto bare = [&] {
    gpu.api().cuLaunchKernel(kernel->function, static_cast<unsigned>(stages[0].grid), 1, 1,
                             static_cast<unsigned>(stages[0].source.threads), 1, 1,
                             static_cast<unsigned>(stages[0].source.smem_bytes), gpu.stream(),
                             arguments, nullptr);
  };
  const auto planned = [&] {
    if (!small_plan.launch(tensors.args, {}, gpu.stream()).ok()) all_ok = false;
  };
  const auto one_step = [&] {
    if (!engine.gated_delta_h(small, tensors.args, {}, gpu.stream()).ok()) all_ok = false;
  };
  std::vector<double> bare_us, planned_more, one_step_more;
  for (int round = 0; round < 41; ++round) {
    const double before_us = one_block_us(bare), planned_us = one_block_us(planned),
                 between_us = one_block_us(bare), one_step_us = one_block_us(one_step),
                 after_us = one_block_us(bare);
    bare_us.push_back(between_us);
    planned_more.push_back(planned_us - (before_us + between_us) / 2);
    one_step_more.push_back(one_step_us - (between_us + after_us) / 2);
  }
  const Json bare_row = {{"bare_cuLaunchKernel", median(bare_us)}};
  report.judged("host time of a launch of a plan beyond the bare launch", median(planned_more),
                "us", 0.3, all_ok && median(planned_more) <= 0.3, bare_row);
  report.judged("host time of a call in one step beyond the bare launch", median(one_step_more),
                "us", std::nullopt, all_ok, bare_row);
  return {};
}

}  // namespace

void first_use_child(Gpu& gpu, const std::string& name, const std::string& cache, Report& report) {
  const Status status = name == "first_use"      ? time_first_use(cache, report)
                        : name == "whole_space"  ? time_whole_space(cache, report)
                        : name == "warm_start"   ? time_warm_start(gpu, cache, report)
                        : name == "look_up"      ? time_look_up(gpu, cache, report)
                        : name == "fill"         ? fill_for_warm_process(cache, report)
                        : name == "warm_process" ? time_warm_process(gpu, cache, report)
                                                 : not_found("there is no figure \"" + name + "\"");
  if (!status.ok()) report.failed(name, status);
}

void first_use(Gpu&, const FigureOptions& options, Report& report) {
  // In this order: the third and fourth start from what the first has left.
  const std::pair<const char*, const char*> steps[] = {
      {"first_use", "/first-use"},  {"whole_space", "/whole-space"},
      {"warm_start", "/first-use"}, {"look_up", "/first-use"},
      {"fill", "/shipped"},         {"warm_process", "/shipped"}};
  for (const auto& [name, cache] : steps) {
    os::ProcessOptions process;
    process.argv = {options.program, "--child", name, "--cache", options.directory + cache};
    const Result<os::ProcessOutput> output = os::run_process(process, "", 60'000);
    if (!output.ok()) {
      report.failed(name, output.status());
      continue;
    }
    std::istringstream lines(output->output);
    bool any = false;
    for (std::string line; std::getline(lines, line);) {
      const Json row = Json::parse(line, nullptr, false);
      if (!row.is_object()) continue;
      report.add(row);
      any = true;
    }
    if (!any)
      report.failed(name, internal_error("the process said nothing: " + to_string(output->exit)));
  }
}

}  // namespace scanjit::test
