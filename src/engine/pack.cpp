#include "engine/pack.hpp"

#include <algorithm>
#include <set>

#include "core/guard.hpp"
#include "cuda/device_facts.hpp"
#include "engine/config_choice.hpp"
#include "engine/record_check.hpp"
#include "jit/kernel_provider.hpp"
#include "ops/registry.hpp"
#include "tuning/tuned_store.hpp"

namespace scanjit::engine {
namespace {

class PackWriter {
 public:
  explicit PackWriter(const PackOptions& options)
      : options_(options), limits_(ops::limits_of(options.tuned.gpu)) {}

  Result<PackReport> write() {
    if (options_.out.empty()) return invalid_argument("no directory is named for the pack");
    const std::string arch =
        cuda::arch_name(options_.tuned.gpu.compute_major, options_.tuned.gpu.compute_minor);
    if (!options_.arch.empty() && options_.arch != arch) {
      return invalid_argument("a pack for " + options_.arch + " of a tuned file for " + arch +
                              ": no GPU would look for it");
    }
    SCANJIT_TRY(make_directories());
    jit::KernelProviderOptions provider_options;
    provider_options.environment = options_.environment;
    provider_options.cache_dir = options_.out;
    provider_options.compile_jobs = options_.compile_jobs;
    provider_options.log = options_.log;
    SCANJIT_ASSIGN_OR_RETURN(const auto provider,
                             jit::KernelProvider::create(provider_options, *options_.files));
    SCANJIT_TRY(provider->toolchain().status());

    SCANJIT_TRY(collect());
    if (!entries_.entries.empty()) {
      SCANJIT_ASSIGN_OR_RETURN(const std::int64_t written,
                               tuning::import_into_store(*options_.files, options_.out, entries_));
      report_.entries = static_cast<std::size_t>(written);
    }
    SCANJIT_TRY(compile(*provider, arch));
    return report_;
  }

 private:
  // Found now rather than after every kernel is compiled: an engine reads code from no directory
  // that others can write to, and neither does this write there.
  Status make_directories() {
    const std::string bin = os::join_path(options_.out, "bin");
    SCANJIT_TRY(options_.files->make_directories(bin));
    for (const std::string& directory : {options_.out, bin}) {
      if (const Status trusted = options_.files->check_trusted_directory(directory); !trusted.ok())
        return io_error("nothing is written to " + options_.out + ": " + trusted.message(),
                        directory);
    }
    return {};
  }

  // What to compile and which entries to write, from the problems or from every entry.
  Status collect() {
    entries_.gpu = options_.tuned.gpu;
    entries_.width_buckets = options_.tuned.width_buckets;
    if (options_.problems.empty()) {
      for (const tuning::Record& record : options_.tuned.entries) {
        const auto problem = ops::make_problem(record.key, record.measured_at.front());
        if (!problem.ok()) {
          report_.failures.push_back(record.key.text() + ": " + problem.status().message());
          continue;
        }
        if (const Status legal = check_record(record, options_.tuned.gpu); !legal.ok()) {
          report_.failures.push_back(legal.message());
          continue;
        }
        add_record(record);
        add_choice(**problem, choice_of(pick_of(record), **problem, limits_));
      }
      return {};
    }
    const std::string text = tuning::to_json(options_.tuned, tuning::Checksum::kWithout);
    tuning::StoreOptions store_options;
    store_options.files = options_.files;
    store_options.shipped = {{"pack.json", text}};
    store_options.gpu = options_.tuned.gpu;
    const tuning::TunedStore store(std::move(store_options));
    for (const auto& problem : options_.problems) {
      const Result<Choice> choice = choose(TuneMode::kReplay, store, *problem, limits_);
      if (!choice.ok()) {
        report_.failures.push_back(problem->key_query().key.kernel + ": " +
                                   choice.status().message());
        continue;
      }
      if (choice->record) add_record(*choice->record);
      add_choice(*problem, *choice);
    }
    return {};
  }

  static tuning::Pick pick_of(const tuning::Record& record) {
    tuning::Pick pick;
    pick.record = std::make_shared<const tuning::Record>(record);
    pick.config = record.config;
    pick.source = PickSource::kExact;
    return pick;
  }

  void add_record(const tuning::Record& record) {
    if (keys_.insert(record.key.text()).second) entries_.entries.push_back(record);
  }

  void add_choice(const ops::OpProblem& problem, const Choice& choice) {
    std::vector<Config> configs;
    if (problem.legal(choice.config, limits_).ok()) configs.push_back(choice.config);
    if (!options_.picks_only || configs.empty())
      configs.insert(configs.end(), choice.fallbacks.begin(), choice.fallbacks.end());
    for (const Config& config : configs) {
      for (const jit::KernelSource& source : problem.kernels(config, limits_)) {
        if (std::find(sources_.begin(), sources_.end(), source) == sources_.end())
          sources_.push_back(source);
      }
    }
  }

  static std::string name_of(const jit::KernelSource& source) {
    std::string name = source.entry;
    for (const jit::Constant& constant : source.constants) {
      if (constant.value == 0) continue;
      name += ' ' + constant.name;
      if (constant.type == jit::Constant::Type::kInt)
        name.append("=").append(std::to_string(constant.value));
    }
    return name;
  }

  // In batches, so that progress can be told.
  Status compile(jit::KernelProvider& provider, const std::string& arch) {
    const std::size_t batch = static_cast<std::size_t>(std::max(1, provider.compile_jobs())) * 2;
    for (std::size_t first = 0; first < sources_.size(); first += batch) {
      const std::vector<jit::KernelSource> part(
          sources_.begin() + static_cast<std::ptrdiff_t>(first),
          sources_.begin() + static_cast<std::ptrdiff_t>(std::min(first + batch, sources_.size())));
      const std::vector<Result<jit::Binary>> binaries = provider.get_all(part, arch);
      for (std::size_t i = 0; i < part.size(); ++i) {
        if (binaries[i].ok()) {
          ++report_.kernels;
          report_.bytes += static_cast<std::int64_t>(binaries[i]->cubin->size());
        } else {
          report_.failures.push_back(name_of(part[i]) + ": " + binaries[i].status().message());
        }
        if (options_.progress) options_.progress(first + i + 1, sources_.size(), name_of(part[i]));
      }
    }
    report_.compiled = static_cast<std::size_t>(provider.counters().compiles);
    if (const std::int64_t errors = provider.counters().write_errors; errors > 0) {
      return io_error(std::to_string(errors) + " kernels could not be written", options_.out);
    }
    return {};
  }

  const PackOptions& options_;
  ops::DeviceLimits limits_;
  tuning::TunedFile entries_;
  std::set<std::string> keys_;
  std::vector<jit::KernelSource> sources_;
  PackReport report_;
};

}  // namespace

Result<PackReport> write_pack(const PackOptions& options) {
  return guard([&] { return PackWriter(options).write(); });
}

}  // namespace scanjit::engine
