// scanjit tune: times the whole config space of every key that some shapes fall into, and stores
// the winners. Each finished key is published at once, so that a run that is stopped can be
// resumed.

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <set>
#include <thread>

#include "commands.hpp"
#include "cuda/device_facts.hpp"
#include "engine/internals.hpp"
#include "engine/shortlists.hpp"
#include "flags.hpp"
#include "name_values.hpp"
#include "ops/registry.hpp"
#include "os/posix_file_system.hpp"
#include "terminal.hpp"
#include "tune_worker.hpp"
#include "tuning/journal.hpp"
#include "tuning/key_json.hpp"
#include "tuning/regret.hpp"

namespace scanjit::cli {
namespace {

struct TuneOptions {
  std::string op, out, shortlist, journal, devices = "0", shard;
  ShapeFlags shapes;
  double budget_s = 0;
  std::int64_t patience_s = 60;  // compiling 32 configs on one core takes less
  bool resume = false, top_three_first = false, find_buckets = false, worker = false;
  EngineOptions engine;
};

constexpr std::size_t kNeighbourConfigs = 3;

// One key to tune, and what came of it.
struct Job {
  tuning::ShapeKey key;
  tuning::KeyQuery query;
  std::shared_ptr<const ops::OpProblem> problem;  ///< one of the asked shapes
  std::vector<tuning::MeasuredPoint> asked;
  std::string
      state;  ///< "tuned", "confirmed" (by its neighbour's top three), "resumed", "busy", "failed"
  std::string message;
  std::optional<tuning::Record> record;
  double noise = 0;
  std::vector<PointTimes> points;
};

std::string program_path(const Session& session) {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length))
                    : session.arguments.front();
}

std::string short_key(const tuning::ShapeKey& key) {
  return "HV " + std::to_string(key.HV) + (key.H * 2 == key.HV ? "" : "/" + std::to_string(key.H)) +
         " K " + std::to_string(key.K) + " V " + std::to_string(key.V) +
         (key.packed ? " packed" : "") + (key.dtype == DType::kF16 ? " f16" : "") + ", N " +
         tuning::to_string(key.sequences) + ", chunks " + tuning::to_string(key.chunks);
}

// Corners of a key's box that would take more than 1/32 of the memory are drawn in: a launch long
// enough to time well, and filling and comparing it takes no longer than timing it.
constexpr std::int64_t kPointShare = 32;

// What the run needs of every GPU: all are of one model, the first one's stores are written to.
struct Fleet {
  std::vector<int> devices;
  std::shared_ptr<engine::Internals> internals;
  ops::DeviceLimits limits;
  std::string nvrtc;
};

// `count` devices are there, or may be as far as is known.
Result<std::vector<int>> parse_devices(const std::string& text, int count) {
  std::vector<int> devices;
  if (text == "all") {
    for (int i = 0; i < count; ++i) devices.push_back(i);
    return devices;
  }
  for (const std::string& word : split(text, ',')) {
    SCANJIT_ASSIGN_OR_RETURN(const std::int64_t device,
                             parse_integer("a device", word, 0, count - 1));
    if (std::find(devices.begin(), devices.end(), static_cast<int>(device)) == devices.end())
      devices.push_back(static_cast<int>(device));
  }
  if (devices.empty()) return invalid_argument("--devices names no device");
  return devices;
}

Result<Fleet> open_fleet(Session& session, const TuneOptions& options) {
  SCANJIT_ASSIGN_OR_RETURN(engine::Parts parts, engine::process_parts());
  parts.environment = session.environment;
  SCANJIT_ASSIGN_OR_RETURN(const int count, cuda::device_count(*parts.api));
  if (count == 0)
    return unsupported("the driver shows no GPU to this process (CUDA_VISIBLE_DEVICES?)");
  Fleet fleet;
  SCANJIT_ASSIGN_OR_RETURN(fleet.devices, parse_devices(options.devices, count));
  EngineOptions engine_options = options.engine;
  engine_options.log = session.log_sink();
  for (const int device : fleet.devices) {
    engine_options.device = device;
    SCANJIT_ASSIGN_OR_RETURN(auto internals, engine::Internals::make(engine_options, parts));
    if (!fleet.internals) {
      fleet.internals = std::move(internals);
    } else if (!fleet.internals->gpu.same_model(internals->gpu)) {
      return invalid_argument("device " + std::to_string(fleet.devices.front()) + " is a " +
                              fleet.internals->facts.name + " and device " +
                              std::to_string(device) + " a " + internals->facts.name +
                              ": tune one model at a time, by --devices");
    }
  }
  fleet.limits = engine::limits_of(fleet.internals->facts);
  // Without NVRTC what a cache or pack holds can still be timed.
  if (const Result<std::string> nvrtc = fleet.internals->provider->toolchain(); nvrtc.ok())
    fleet.nvrtc = *nvrtc;
  return fleet;
}

using Problems = std::vector<std::shared_ptr<const ops::OpProblem>>;

Result<Problems> problems_of(const std::vector<tuning::Shape>& shapes) {
  Problems problems;
  for (const tuning::Shape& shape : shapes) {
    auto problem = ops::make_problem(shape);
    if (!problem.ok()) return problem.status().with_context(shape.text());
    problems.push_back(*std::move(problem));
  }
  return problems;
}

// The keys that a server met untuned. What another version of a kernel wrote down is passed over.
Result<Problems> problems_of_journal(Session& session, const std::string& path,
                                     const std::string& op) {
  constexpr std::int64_t kMaxJournalBytes = std::int64_t{64} << 20;
  SCANJIT_ASSIGN_OR_RETURN(const std::string text,
                           os::posix_file_system().read_file(path, kMaxJournalBytes));
  const auto entries = tuning::journal_from_json(text);
  if (!entries.ok()) return entries.status().with_context("journal " + path);
  Problems problems;
  for (const tuning::JournalEntry& entry : *entries) {
    if (entry.key.kernel != op) continue;
    auto problem = ops::make_problem(entry.key, entry.point);
    if (problem.ok()) {
      problems.push_back(*std::move(problem));
    } else {
      session.err << "scanjit: passed over " << printable(entry.key.text()) << ": "
                  << printable(problem.status().message()) << std::endl;
    }
  }
  return problems;
}

// Problems of one key make one job; in the order in which keys are first met.
std::vector<Job> make_jobs(const Problems& problems, const tuning::TunedStore& store) {
  std::vector<Job> jobs;
  std::map<std::string, std::size_t> by_key;
  for (const auto& problem : problems) {
    const tuning::KeyQuery query = problem->key_query();
    const tuning::ShapeKey key = store.key_of(query);
    const auto [place, fresh] = by_key.try_emplace(key.text(), jobs.size());
    if (fresh) jobs.push_back({key, query, problem, {}, {}, {}, {}, 0, {}});
    jobs[place->second].asked.push_back({query.sequences, problem->tokens_per_sequence()});
  }
  return jobs;
}

// The middle and both corners of the key's box as far as memory goes, then the shapes that were
// asked for.
std::vector<tuning::MeasuredPoint> points_of(const Job& job, std::int64_t memory_bytes) {
  const std::int64_t tokens =
      std::max<std::int64_t>(1, job.query.sequences * job.problem->tokens_per_sequence());
  const double bytes_per_token =
      static_cast<double>(job.problem->floor_bytes()) / static_cast<double>(tokens);
  const auto max_tokens =
      static_cast<std::int64_t>(static_cast<double>(memory_bytes) / std::max(1.0, bytes_per_token));
  std::vector<tuning::MeasuredPoint> points = tuning::box_points(job.key, max_tokens);
  for (const tuning::MeasuredPoint& point : job.asked) {
    if (point.tokens > 0 && std::find(points.begin(), points.end(), point) == points.end())
      points.push_back(point);
  }
  return points;
}

// By how much `config` is slower than the best at the point where it does worst.
std::optional<double> worst_regret(const std::vector<PointTimes>& points, const Config& config) {
  double worst = 0;
  for (const PointTimes& point : points) {
    double best = 0, mine = 0;
    for (const auto& [other, us] : point.us) {
      if (best == 0 || us < best) best = us;
      if (other == config) mine = us;
    }
    if (mine == 0) return std::nullopt;
    worst = std::max(worst, mine / best - 1);
  }
  return worst;
}

class Tuning {
 public:
  Tuning(Session& session, const TuneOptions& options, Fleet& fleet, std::vector<Job>& jobs)
      : session_(session),
        options_(options),
        fleet_(fleet),
        jobs_(jobs),
        progress_(session.err, session.err_is_terminal, options.find_buckets ? "shapes" : "keys",
                  static_cast<std::int64_t>(jobs.size())) {}

  void run() {
    std::vector<std::thread> threads;
    for (const int device : fleet_.devices)
      threads.emplace_back([this, device] { run_device(device); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void run_device(int device) {
    EngineOptions engine_options = options_.engine;
    engine_options.device = device;
    TuneWorker worker(program_path(session_), options_.op, engine_options,
                      options_.patience_s * 1000);
    while (true) {
      Job* job = nullptr;
      {
        const std::scoped_lock lock(mutex_);
        if (next_ == jobs_.size()) return;
        job = &jobs_[next_++];
      }
      // What a thread may throw must end as this job's failure, not as the process's.
      Status status;
      try {
        status = options_.find_buckets ? time_shape(worker, *job) : tune_job(worker, *job);
      } catch (const std::exception& exception) {
        status = internal_error(exception.what());
      }
      const std::scoped_lock lock(mutex_);
      if (!status.ok()) {
        job->state = "failed";
        job->message = status.to_string();
        progress_.line("scanjit: " + short_key(job->key) + ": " + printable(job->message));
      }
      progress_.advance();
    }
  }

  Result<TuneAnswer> ask(TuneWorker& worker, const Job& job,
                         std::vector<tuning::MeasuredPoint> points,
                         std::vector<Config> candidates) {
    TuneRequest request{job.key, std::move(points), std::move(candidates),
                        options_.budget_s * 1000};
    return worker.tune(std::move(request), [&](const std::string& step) {
      const std::scoped_lock lock(mutex_);
      progress_.note(short_key(job.key) + ": " + step);
    });
  }

  Status time_shape(TuneWorker& worker, Job& job) {
    SCANJIT_ASSIGN_OR_RETURN(const std::vector<Config> candidates,
                             ops::candidates(*job.problem, fleet_.limits));
    SCANJIT_ASSIGN_OR_RETURN(const TuneAnswer answer, ask(worker, job, job.asked, candidates));
    job.points = answer.points;
    job.state = answer.record ? "tuned" : "busy";
    return {};
  }

  bool resume(Job& job) {
    if (!options_.resume) return false;
    std::optional<tuning::Pick> known = fleet_.internals->store->find_exact(job.query, {});
    if (!known || known->layer != "cache" || known->record->partial || known->stale_toolchain)
      return false;
    if (tuning::is_stale(known->record->toolchain,
                         {fleet_.nvrtc, fleet_.internals->facts.driver, ""}))
      return false;
    job.record = *known->record;
    job.state = "resumed";
    return true;
  }

  Status tune_job(TuneWorker& worker, Job& job) {
    if (resume(job)) return {};
    SCANJIT_ASSIGN_OR_RETURN(const std::vector<Config> all,
                             ops::candidates(*job.problem, fleet_.limits));
    const std::vector<tuning::MeasuredPoint> points =
        points_of(job, fleet_.internals->facts.total_bytes / kPointShare);
    if (points.empty())
      return invalid_argument("there is nothing to time: every sequence is empty");
    TuneAnswer answer;
    job.state = "tuned";
    if (const auto near = options_.top_three_first ? neighbour(job, all.front()) : std::nullopt) {
      SCANJIT_ASSIGN_OR_RETURN(answer, ask(worker, job, points, near->candidates));
      // Confirmed if nothing beats the neighbour's pick by more than the noise.
      const std::optional<double> regret = worst_regret(answer.points, near->pick);
      if (answer.record && regret && *regret <= std::max(answer.noise, 0.01)) {
        job.state = "confirmed";
      } else {
        answer = {};
      }
    }
    if (job.state == "tuned") {
      SCANJIT_ASSIGN_OR_RETURN(answer, ask(worker, job, points, all));
    }
    job.noise = answer.noise;
    job.points = std::move(answer.points);
    if (!answer.record) {
      job.state = "busy";
      job.message =
          "the GPU was busy: default against default differed by " + percent(answer.noise);
      return {};
    }
    job.record = std::move(answer.record);
    if (const Status status = fleet_.internals->store->publish(*job.record); !status.ok()) {
      const std::scoped_lock lock(mutex_);
      if (publish_error_.ok()) publish_error_ = status;
    }
    return {};
  }

  struct Neighbour {
    Config pick;
    std::vector<Config> candidates;  ///< the default, then the pick and the best alternates
  };
  // What a neighbouring key's record says; nothing if no neighbour is tuned.
  std::optional<Neighbour> neighbour(const Job& job, const Config& default_config) const {
    const tuning::LegalFn legal = [&](const Config& config) {
      return job.problem->legal(config, fleet_.limits);
    };
    const std::optional<tuning::Pick> pick = fleet_.internals->store->find(job.query, legal);
    if (!pick || pick->source == PickSource::kNearestGpu || pick->source == PickSource::kExact)
      return std::nullopt;
    Neighbour found{pick->config, {default_config}};
    std::size_t taken = 0;
    const auto take = [&](const Config& config) {
      if (taken == kNeighbourConfigs || !legal(config).ok()) return;
      ++taken;
      if (std::find(found.candidates.begin(), found.candidates.end(), config) ==
          found.candidates.end())
        found.candidates.push_back(config);
    };
    take(pick->config);
    for (const tuning::Alternate& alternate : pick->record->alternates) take(alternate.config);
    return found;
  }

 public:
  [[nodiscard]] const Status& publish_error() const noexcept { return publish_error_; }

 private:
  Session& session_;
  const TuneOptions& options_;
  Fleet& fleet_;
  std::vector<Job>& jobs_;
  std::mutex mutex_;  // all below, and what is shown
  Progress progress_;
  std::size_t next_ = 0;
  Status publish_error_;
};

// The entries of this run as one file, with the bounds that they were cut by.
Result<tuning::TunedFile> export_jobs(const Fleet& fleet, const std::vector<Job>& jobs) {
  tuning::TunedFile file;
  file.gpu = fleet.internals->gpu;
  if (!fleet.internals->cache.memory_only()) {
    const auto stored =
        tuning::list_store(*fleet.internals->parts.files, fleet.internals->cache.path);
    for (const tuning::StoreItem& item : stored.ok() ? *stored : std::vector<tuning::StoreItem>()) {
      if (item.gpu == file.gpu.directory() && item.file && item.file->entries.empty())
        file.width_buckets = item.file->width_buckets;
    }
  }
  std::vector<tuning::WidthBuckets> used;
  for (const Job& job : jobs) {
    if (!job.record) continue;
    const tuning::WidthBuckets buckets = file.buckets(job.key.HV, job.key.V);
    if (std::find(used.begin(), used.end(), buckets) == used.end()) used.push_back(buckets);
    file.entries.push_back(*job.record);
  }
  file.width_buckets = std::move(used);
  return tuning::merge({file});
}

// What each source class should time on first use: a greedy cover of everything measured.
engine::Shortlists make_shortlists(const Fleet& fleet, const std::vector<Job>& jobs) {
  struct Group {
    engine::Shortlist list;
    std::vector<tuning::MapPoint> points;
  };
  std::map<std::string, Group> groups;
  for (const Job& job : jobs) {
    if (!job.record) continue;
    for (const std::string& source_class : {job.problem->source_class(), std::string("any")}) {
      Group& group = groups[job.key.kernel + " " + source_class];
      group.list.kernel = job.key.kernel;
      group.list.kernel_revision = job.key.kernel_revision;
      group.list.arch = fleet.internals->facts.arch;
      group.list.source_class = source_class;
      if (job.points.empty()) group.points.push_back(tuning::map_point(*job.record));
      for (const PointTimes& point : job.points) group.points.push_back({job.key.text(), point.us});
    }
  }
  std::vector<engine::Shortlist> lists;
  for (auto& [name, group] : groups) {
    group.list.configs = tuning::shortlist(group.points).configs;
    lists.push_back(std::move(group.list));
  }
  return engine::Shortlists(std::move(lists));
}

Status write_outputs(const TuneOptions& options, const Fleet& fleet, const std::vector<Job>& jobs) {
  os::FileSystem& files = *fleet.internals->parts.files;
  const bool any =
      std::any_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.record.has_value(); });
  if (!any) return {};
  if (!options.out.empty()) {
    SCANJIT_ASSIGN_OR_RETURN(const tuning::TunedFile file, export_jobs(fleet, jobs));
    SCANJIT_TRY(files.publish(options.out, tuning::to_json(file, tuning::Checksum::kWithout)));
  }
  if (!options.shortlist.empty())
    SCANJIT_TRY(files.publish(options.shortlist, make_shortlists(fleet, jobs).to_json()));
  return {};
}

int report_keys(Session& session, const TuneOptions& options, const Fleet& fleet,
                const std::vector<Job>& jobs, const Status& publish_error, const Status& written) {
  std::int64_t tuned = 0, resumed = 0, failed = 0;
  Json list = Json::array();
  using enum Table::Align;
  Table table({{"key"},
               {"default us", kRight},
               {"best us", kRight},
               {"gain", kRight},
               {"noise", kRight},
               {"config"},
               {""}});
  for (const Job& job : jobs) {
    ++(job.state == "resumed" ? resumed : job.record ? tuned : failed);
    Json json = {{"key", job.key.text()}, {"state", job.state}};
    if (!job.record) {
      table.add({short_key(job.key), "", "", "", "", job.state + ": " + job.message, ""});
      json["message"] = job.message;
    } else {
      const tuning::Record& record = *job.record;
      const double gain = record.us.median > 0 ? record.default_us / record.us.median - 1 : 0;
      const bool kept = record.config == record.default_config;
      table.add({short_key(job.key), figures(record.default_us), figures(record.us.median),
                 kept ? "" : percent(gain, true), job.noise > 0 ? percent(job.noise) : "",
                 to_string(record.config),
                 kept                   ? "the default stays"
                 : job.state == "tuned" ? record.partial ? "partial" : ""
                                        : job.state});
      Json measured = Json::array();
      for (const tuning::MeasuredPoint& point : record.measured_at)
        measured.push_back({{"sequences", point.sequences}, {"tokens", point.tokens}});
      json["config"] = tuning::config_json(record.config);
      json["us"] = record.us.median;
      json["default_us"] = record.default_us;
      json["gain"] = gain;
      json["noise"] = job.noise;
      json["regret"] = record.regret;
      json["partial"] = record.partial;
      json["measured_at"] = std::move(measured);
      json["rejected"] = record.rejected.size();
    }
    list.push_back(std::move(json));
  }
  if (session.json) {
    session.print_json("scanjit-tune/1", {{"op", options.op},
                                          {"gpu", fleet.internals->facts.name},
                                          {"arch", fleet.internals->facts.arch},
                                          {"devices", fleet.devices},
                                          {"cache", fleet.internals->cache.path},
                                          {"tuned", tuned},
                                          {"resumed", resumed},
                                          {"failed", failed},
                                          {"out", options.out},
                                          {"keys", std::move(list)}});
  } else {
    table.print(session.out);
    session.out << '\n'
                << tuned << " keys tuned, " << resumed << " resumed, " << failed
                << " failed; stored in "
                << (fleet.internals->cache.memory_only() ? "memory only"
                                                         : fleet.internals->cache.path);
    if (!options.out.empty() && tuned + resumed != 0) session.out << " and " << options.out;
    session.out << std::endl;
  }
  if (!written.ok() || !publish_error.ok()) {
    const Status& status = written.ok() ? publish_error : written;
    session.err << "scanjit: " << printable(status.message())
                << "\nrepeat: " << shell_line(session.arguments) << std::endl;
    // Results that are in the file that was asked for are not lost.
    if (!written.ok() || options.out.empty()) return kExitEnvironment;
  }
  if (failed == 0) return kExitOk;
  std::vector<std::string> again = session.arguments;
  // Right behind the command: a "--" may end the flags later on.
  if (!options.resume) again.insert(again.begin() + 2, "--resume");
  session.err << "repeat what failed: " << shell_line(again) << std::endl;
  return kExitFailed;
}

// Width buckets for each (HV, V) out of every shape's times; into the cache, where later runs use
// them.
int report_buckets(Session& session, const TuneOptions& options, const Fleet& fleet,
                   const std::vector<Job>& jobs) {
  // Of the shapes of one N the worst ratio to the best counts, so that a bucket suits short and
  // long alike.
  std::map<std::pair<std::int64_t, std::int64_t>,
           std::map<std::int64_t, std::map<Config, std::pair<double, int>>>>
      ratios;
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::int64_t, int>> counts;
  std::int64_t failed = 0;
  for (const Job& job : jobs) {
    if (job.points.empty()) {
      ++failed;
      continue;
    }
    for (const PointTimes& point : job.points) {
      const std::pair<std::int64_t, std::int64_t> heads = {job.key.HV, job.key.V};
      ++counts[heads][point.point.sequences];
      double best = 0;
      for (const auto& [config, us] : point.us) best = best == 0 ? us : std::min(best, us);
      for (const auto& [config, us] : point.us) {
        auto& [worst, times] = ratios[heads][point.point.sequences][config];
        worst = std::max(worst, us / best);
        ++times;
      }
    }
  }
  tuning::TunedFile file;
  file.gpu = fleet.internals->gpu;
  Json list = Json::array();
  for (const auto& [heads, widths] : ratios) {
    std::vector<tuning::WidthPoint> points;
    for (const auto& [sequences, configs] : widths) {
      tuning::WidthPoint point{sequences, {}};
      for (const auto& [config, seen] : configs) {
        if (seen.second == counts[heads][sequences]) point.us.emplace_back(config, seen.first);
      }
      points.push_back(std::move(point));
    }
    const Result<tuning::FoundBuckets> found =
        tuning::find_buckets(heads.first, heads.second, std::move(points));
    if (!found.ok()) return session.fail(kExitFailed, found.status());
    file.width_buckets.push_back(found->buckets);
    if (!session.json)
      session.out << "HV " << heads.first << " V " << heads.second << '\n'
                  << found->to_text() << '\n';
    Json buckets = Json::array();
    for (const tuning::BucketReport& bucket : found->report) {
      buckets.push_back({{"sequences", tuning::to_string(bucket.sequences)},
                         {"config", config_argument(bucket.config)},
                         {"worst_regret", bucket.worst_regret}});
    }
    list.push_back({{"HV", heads.first},
                    {"V", heads.second},
                    {"starts", found->buckets.starts},
                    {"buckets", std::move(buckets)}});
  }
  const os::CacheDirectory& cache = fleet.internals->cache;
  if (!cache.memory_only() && !file.width_buckets.empty()) {
    const Result<std::int64_t> written =
        tuning::import_into_store(*fleet.internals->parts.files, cache.path, file);
    if (!written.ok()) return session.fail(kExitEnvironment, written.status());
  }
  if (session.json) {
    session.print_json("scanjit-tune-buckets/1", {{"op", options.op},
                                                  {"gpu", fleet.internals->facts.name},
                                                  {"cache", cache.path},
                                                  {"failed", failed},
                                                  {"width_buckets", std::move(list)}});
  } else {
    session.out << "stored in "
                << (cache.memory_only() ? "nothing: there is no cache directory" : cache.path)
                << "; tune the shapes again to fill the new buckets" << std::endl;
  }
  return failed == 0 ? kExitOk : kExitFailed;
}

int run_tune(Session& session, const TuneOptions& options) {
  if (const Status status = check_op(options.op); !status.ok())
    return session.fail(kExitUsage, status);
  if (options.worker) {
    EngineOptions engine_options = options.engine;
    const Result<std::int64_t> device = parse_integer("--devices", options.devices, 0, 1024);
    if (!device.ok()) return session.fail(kExitUsage, device.status());
    engine_options.device = static_cast<int>(*device);
    return serve_tuning(session, engine_options);
  }
  if (!options.shapes.any() && options.journal.empty()) {
    return session.fail(
        kExitUsage, invalid_argument("nothing to tune: give --model NAME --tp N, --shapes FILE, "
                                     "--shape N=...,T=... or --from-journal FILE"));
  }
  Shard shard;
  if (!options.shard.empty()) {
    const Result<Shard> parsed = parse_shard(options.shard);
    if (!parsed.ok()) return session.fail(kExitUsage, parsed.status());
    shard = *parsed;
  }
  const Result<std::vector<tuning::Shape>> shapes = load_shapes(options.shapes, options.op);
  if (!shapes.ok()) return session.fail(kExitUsage, shapes.status());
  if (options.devices != "all") {
    const auto devices = parse_devices(options.devices, std::numeric_limits<int>::max());
    if (!devices.ok()) return session.fail(kExitUsage, devices.status());
  }
  Result<Problems> problems = problems_of(*shapes);
  if (problems.ok() && !options.journal.empty()) {
    Result<Problems> met = problems_of_journal(session, options.journal, options.op);
    if (met.ok()) {
      problems->insert(problems->end(), met->begin(), met->end());
    } else {
      problems = met.status();
    }
  }
  if (!problems.ok()) return session.fail(kExitUsage, problems.status());
  for (const std::string& path : {options.out, options.shortlist}) {
    if (const Status status = check_writable(path); !status.ok())
      return session.fail(kExitEnvironment, status);
  }
  Result<Fleet> fleet = open_fleet(session, options);
  if (!fleet.ok()) {
    return session.fail(fleet.status());
  }
  if (fleet->internals->cache.memory_only() && options.out.empty()) {
    return session.fail(kExitEnvironment,
                        io_error("the winners have nowhere to go: there is no cache directory (" +
                                 fleet->internals->cache.reason + ") and no --out"));
  }

  std::vector<Job> jobs;
  if (options.find_buckets) {
    // Every shape by itself: where keys begin and end is what is asked.
    for (const auto& problem : *problems)
      jobs.push_back(std::move(make_jobs({problem}, *fleet->internals->store).front()));
  } else {
    jobs = make_jobs(*problems, *fleet->internals->store);
  }
  std::vector<Job> mine;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (static_cast<std::int64_t>(i) % shard.count == shard.index)
      mine.push_back(std::move(jobs[i]));
  }
  session.err << "scanjit: " << mine.size() << (options.find_buckets ? " shapes" : " keys")
              << " on " << fleet->devices.size() << " x " << fleet->internals->facts.name
              << (fleet->nvrtc.empty() ? ", without NVRTC" : ", NVRTC " + fleet->nvrtc)
              << std::endl;

  Status publish_error;
  {
    Tuning tuning(session, options, *fleet, mine);
    tuning.run();
    publish_error = tuning.publish_error();
  }
  if (options.find_buckets) return report_buckets(session, options, *fleet, mine);
  return report_keys(session, options, *fleet, mine, publish_error,
                     write_outputs(options, *fleet, mine));
}

}  // namespace

Command add_tune(CLI::App& parent, Session& session) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* app = parent.add_subcommand(
      "tune",
      "Time the config space of every key that some shapes fall into, and store the winners");
  add_session_flags(*app, session);
  add_op(*app, options->op)->default_val("gated_delta_h");
  add_shape_flags(*app, options->shapes);
  app->add_option("--from-journal", options->journal,
                  "The keys that a server met untuned, as Engine::flush_journal wrote them")
      ->type_name("FILE");
  CLI::Option* out =
      app->add_option("-o,--out", options->out, "Also write this run's entries as one tuned file")
          ->type_name("FILE");
  CLI::Option* resume =
      app->add_flag("--resume", options->resume,
                    "Skip keys that the cache holds already, measured under this NVRTC and driver");
  app->add_option("--budget", options->budget_s,
                  "Seconds of compiling and timing for each key; then the best so far serves and "
                  "the entry is marked partial (default: no limit)")
      ->type_name("SECONDS")
      ->check(finite_number(0, 1e6));
  app->add_option(
         "--patience", options->patience_s,
         "Seconds after which a worker that says nothing counts as hung: the config in hand "
         "is recorded as rejected and the rest goes on")
      ->type_name("SECONDS")
      ->transform(whole_number(1, 86400))
      ->capture_default_str();
  app->add_option("--shard", options->shard,
                  "Only every COUNT-th key, from INDEX on: for job arrays; merge the files by "
                  "'scanjit cache merge'")
      ->type_name("INDEX/COUNT");
  CLI::Option* top_three = app->add_flag(
      "--top-three-first", options->top_three_first,
      "Where a neighbouring key is tuned, time its top three first, and the whole space only if "
      "they disagree with it by more than the noise");
  CLI::Option* find = app->add_flag("--find-buckets", options->find_buckets,
                                    "Find at which sequence counts the best config changes, and "
                                    "store these width buckets instead of winners")
                          ->excludes(out)
                          ->excludes(resume)
                          ->excludes(top_three);
  app->add_option("--shortlist", options->shortlist,
                  "Write the shortlists of first use: a cover of everything measured")
      ->type_name("FILE")
      ->excludes(find);
  app->add_option("--devices", options->devices,
                  "GPUs to tune on at once: all, or numbers as 0,1; one worker process each")
      ->type_name("LIST")
      ->capture_default_str();
  app->add_flag("--worker", options->worker,
                "Answer requests of another scanjit on standard input (internal)")
      ->group("");
  add_store_flags(*app, options->engine);
  app->footer(
      "Example: everything that serving a model on two GPUs a replica meets; then the file that "
      "ships\n"
      "  scanjit tune gated_delta_h --model qwen3.5-4b --tp 2 --devices all --resume\n"
      "  scanjit tune gated_delta_h --shapes scan_map --out NVIDIA_H200.json\n"
      "Keys are measured in the middle and at both ends of their box of widths and lengths, and at "
      "the shapes\n"
      "themselves. Each finished key is stored at once: stop whenever you like and go on by "
      "--resume.");
  return {app, [options](Session& s) { return run_tune(s, *options); }};
}

}  // namespace scanjit::cli
