// A server that embeds scanjit, small enough to read and large enough to go wrong: it probes with
// one sequence of 16 tokens inside a stream capture, keeps the states of its sequences in a pool,
// and then serves wide and narrow requests from several threads. It does all of that
//
//   - cold: whatever the first requests need is compiled and tuned while they wait;
//   - prewarmed: every shape was planned before the first request, so that none of them waits;
//   - with the tuned files exchanged between requests (--flip PACK; --flip off: with none),
//
// and compares: the same requests must give the same bits each time. Prints the delay of the first
// request of each kind, the picks, and the counters as Prometheus reads them. Exit status 0: all
// bits agree; 1: something does not; 0 and "skipped: ..." where there is no GPU.
//
//   scanjit_server [--pack DIR] [--flip DIR|off] [--cache-dir DIR] [--threads 4] [--requests 24]
//                  [--replay] [--heads H HV] [--width 128]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server.hpp"

namespace {

using server::Answer;
using server::Delay;
using server::Request;

struct Options {
  std::vector<std::string> packs;
  std::string flip, cache_dir = "none";
  int threads = 4;
  int requests = 24;  // of each thread
  scanjit::TuneMode mode = scanjit::TuneMode::kFirstUse;
  server::Layer layer;
};

// What a burst of users looks like: one long prompt, many short ones, a few of middle length.
const std::vector<Request>& mix() {
  static const std::vector<Request> requests = {{"narrow", 1, 4096},
                                                {"wide", 64, 16},
                                                {"middle", 8, 256},
                                                {"wide", 64, 16},
                                                {"narrow", 1, 1000}};
  return requests;
}
const Request kProbe{"probe", 1, 16};

// Everything of one way through the requests.
struct Run {
  std::string error;
  std::vector<std::uint64_t> digests;  // by request, the probe first
  std::vector<Delay> delays;
  std::map<std::string, std::string> picks;  // by kind
  scanjit::EngineStats stats;
  std::int64_t compiles_after_start = 0;
  bool capture_missed = false;
};

scanjit::Result<scanjit::Engine> make_engine(const Options& options,
                                             const std::vector<std::string>& packs,
                                             scanjit::TuneMode mode) {
  scanjit::EngineOptions engine_options;
  engine_options.cache_dir = options.cache_dir;
  engine_options.pack_dirs = packs;
  engine_options.tune_mode = mode;
  engine_options.log = [](scanjit::LogLevel level, const std::string& text) {
    if (level >= scanjit::LogLevel::kWarning) std::fprintf(stderr, "scanjit: %s\n", text.c_str());
  };
  return scanjit::Engine::create(engine_options);
}

std::vector<Delay> delays_of(const std::vector<std::pair<std::string, Answer>>& answers) {
  std::vector<std::string> kinds;
  std::map<std::string, std::vector<double>> times;
  for (const auto& [kind, answer] : answers) {
    if (times.find(kind) == times.end()) kinds.push_back(kind);
    times[kind].push_back(answer.ms);
  }
  std::vector<Delay> delays;
  for (const std::string& kind : kinds) {
    std::vector<double> later(times[kind].begin() + 1, times[kind].end());
    std::sort(later.begin(), later.end());
    delays.push_back({kind, times[kind].front(), later.empty() ? 0 : later[later.size() / 2]});
  }
  return delays;
}

// Serves everything on fresh states. Request i goes to `engines[i % engines.size()]`.
Run serve_all(const server::Gpu& gpu, const Options& options,
              const std::vector<scanjit::Engine*>& engines, bool prewarm) {
  Run run;
  const server::Layer& layer = options.layer;
  const std::int64_t slots = options.threads * layer.most_sequences;
  const auto pool_bytes = static_cast<std::size_t>(slots * layer.HV * layer.K * layer.V * 4);
  server::DeviceAddress pool = 0;
  server::Handle stream = nullptr;
  if (gpu.enter() != 0 || gpu.allocate(pool_bytes, &pool) != 0 || gpu.make_stream(&stream) != 0 ||
      gpu.fill(pool, 0, pool_bytes, stream) != 0 || gpu.wait(stream) != 0) {
    run.error = "no device memory for the pool of states";
    return run;
  }
  gpu.free_stream(stream);
  if (prewarm) {
    std::vector<scanjit::GatedDeltaHProblem> problems = {server::problem_of(layer, kProbe, slots)};
    for (const Request& request : mix())
      problems.push_back(server::problem_of(layer, request, slots));
    for (scanjit::Engine* engine : engines) {
      for (const scanjit::PrewarmItem& item : engine->prewarm(problems)) {
        if (!item.status.ok() && run.error.empty()) run.error = item.status.to_string();
      }
    }
  }
  const std::int64_t compiles_before = engines.front()->stats().compiles;

  std::vector<std::vector<std::pair<std::string, Answer>>> answers(
      static_cast<std::size_t>(options.threads));
  const auto work = [&](int thread, bool probe_first) {
    auto& mine = answers[static_cast<std::size_t>(thread)];
    server::Worker worker(gpu, layer, slots, thread * layer.most_sequences, pool);
    std::uint64_t seed = static_cast<std::uint64_t>(thread) << 32;
    if (probe_first)
      mine.emplace_back(kProbe.kind,
                        worker.probe(*engines.front(), kProbe, seed, &run.capture_missed));
    for (int i = 0; i < options.requests; ++i) {
      const Request& request = mix()[static_cast<std::size_t>(i + thread) % mix().size()];
      scanjit::Engine& engine = *engines[static_cast<std::size_t>(i) % engines.size()];
      mine.emplace_back(request.kind, worker.serve(engine, request, ++seed));
    }
  };
  if (run.error.empty()) {
    // The first thread probes alone, as an engine does before it takes requests.
    std::vector<std::thread> threads;
    work(0, true);
    for (int i = 1; i < options.threads; ++i) threads.emplace_back(work, i, false);
    for (std::thread& thread : threads) thread.join();
  }
  gpu.free(pool);
  std::vector<std::pair<std::string, Answer>> all;
  for (auto& of_thread : answers) {
    for (auto& answer : of_thread) {
      if (!answer.second.error.empty() && run.error.empty())
        run.error = answer.first + ": " + answer.second.error;
      run.digests.push_back(answer.second.digest);
      run.picks.try_emplace(answer.first, answer.second.pick);
      all.push_back(std::move(answer));
    }
  }
  run.delays = delays_of(all);
  run.stats = engines.front()->stats();
  run.compiles_after_start = run.stats.compiles - compiles_before;
  return run;
}

void print(const char* name, const Run& run) {
  std::printf("%s\n", name);
  for (const Delay& delay : run.delays) {
    std::printf("  %-7s first %9.3f ms, later %8.3f ms   %s\n", delay.kind.c_str(), delay.first_ms,
                delay.usual_ms, run.picks.at(delay.kind).c_str());
  }
  std::printf("  %lld launches, %lld plans, %lld compiled, %lld keys timed%s\n",
              static_cast<long long>(run.stats.launches), static_cast<long long>(run.stats.plans),
              static_cast<long long>(run.stats.compiles),
              static_cast<long long>(run.stats.first_uses),
              run.capture_missed ? "; the probe's capture met no plan and was done again" : "");
}

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (name == "--pack") {
      options->packs.push_back(value());
    } else if (name == "--flip") {
      options->flip = value();
    } else if (name == "--cache-dir") {
      options->cache_dir = value();
    } else if (name == "--threads") {
      options->threads = std::clamp(std::atoi(value().c_str()), 1, 64);
    } else if (name == "--requests") {
      options->requests = std::clamp(std::atoi(value().c_str()), 1, 100000);
    } else if (name == "--replay") {
      options->mode = scanjit::TuneMode::kReplay;
    } else if (name == "--heads") {
      options->layer.H = std::atoll(value().c_str());
      options->layer.HV = std::atoll(value().c_str());
    } else if (name == "--width") {
      options->layer.K = options->layer.V = std::atoll(value().c_str());
    } else {
      std::fprintf(stderr, "unknown flag %s\n", name.c_str());
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) return 2;
  server::Gpu gpu;
  if (const std::string problem = gpu.open(0); !problem.empty()) {
    std::printf("skipped: %s\n", problem.c_str());
    return 0;
  }
  int failures = 0;
  const auto check = [&](bool ok, const std::string& what) {
    if (ok) return;
    std::printf("FAILED: %s\n", what.c_str());
    ++failures;
  };
  {
    auto cold = make_engine(options, options.packs, options.mode);
    if (!cold.ok()) {
      std::printf("no engine: %s\n", cold.status().to_string().c_str());
      return 1;
    }
    const Run first = serve_all(gpu, options, {&*cold}, false);
    check(first.error.empty(), "cold: " + first.error);
    print("cold", first);

    auto warm = make_engine(options, options.packs, options.mode);
    check(warm.ok(), "a second engine in one process");
    if (warm.ok()) {
      const Run second = serve_all(gpu, options, {&*warm}, true);
      check(second.error.empty(), "prewarmed: " + second.error);
      check(second.digests == first.digests, "prewarmed: other bits than cold");
      check(!second.capture_missed, "prewarmed: the probe's capture met no plan");
      check(second.compiles_after_start == 0, "prewarmed: something was compiled while serving");
      print("prewarmed", second);
      std::printf("\n%s\n", server::prometheus_text(second.stats, second.delays).c_str());
    }

    if (!options.flip.empty()) {
      const bool untuned = options.flip == "off";
      std::vector<std::string> packs = options.packs;
      if (!untuned) packs.insert(packs.begin(), options.flip);
      auto a = make_engine(options, options.packs, options.mode),
           b = make_engine(options, packs, untuned ? scanjit::TuneMode::kOff : options.mode);
      check(a.ok() && b.ok(), "engines for flipping");
      if (a.ok() && b.ok()) {
        const Run flipped = serve_all(gpu, options, {&*a, &*b}, true);
        check(flipped.error.empty(), "flipped: " + flipped.error);
        check(flipped.digests == first.digests, "flipped: other bits than with one tuned file");
        bool other = false;
        for (const Request& request : mix()) {
          const auto problem = server::problem_of(options.layer, request,
                                                  options.threads * options.layer.most_sequences);
          const auto one = a->why(problem), two = b->why(problem);
          other = other || (one.ok() && two.ok() && !(one->config == two->config));
        }
        check(other || untuned, "flipped: the two tuned files pick the same everywhere");
        print("flipped", flipped);
      }
    }
  }
  gpu.close();
  if (failures == 0) std::printf("all bits agree\n");
  return failures == 0 ? 0 : 1;
}
