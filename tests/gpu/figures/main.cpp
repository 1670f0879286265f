// scanjit_gpu_figures: measures what the library promises about picks, first use and look-ups on
// the GPU it stands on. One JSON line a figure on stdout; exit 0 if all limits hold, 1 if one is
// missed, 3 without a GPU. --out FILE writes them as a benchmark file; after --seconds N no further
// point is begun.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu/figures/figures.hpp"
#include "support/temporary_directory.hpp"

namespace scanjit::test {

Result<Engine> make_engine(TuneMode mode, const std::string& cache, bool shipped) {
  SCANJIT_ASSIGN_OR_RETURN(engine::Parts parts, engine::process_parts());
  if (!shipped) parts.shipped.clear();
  EngineOptions options;
  options.tune_mode = mode;
  options.cache_dir = cache;
  return engine::create_engine(options, parts);
}

namespace {

struct Section {
  const char* name;
  void (*run)(Gpu&, const FigureOptions&, Report&);
};
constexpr Section kSections[] = {{"first_use", first_use},
                                 {"width_story", width_story},
                                 {"speed", speed_rows},
                                 {"agreement", tuning_agreement},
                                 {"regret", held_out_regret}};

int usage() {
  std::fprintf(stderr,
               "usage: scanjit_gpu_figures [--quick] [--only SECTION] [--seconds N] [--out FILE] | "
               "--digest | --commit | --gpu | --list\n");
  return 2;
}

int run(const std::vector<std::string>& arguments) {
  FigureOptions options;
  std::string only, out, child, cache, seconds, command;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    command += (i == 0 ? "" : " ") + word;
    if (i == 0) continue;
    const bool has_value = i + 1 < arguments.size();
    const auto take = [&](std::string* value) {
      *value = arguments[++i];
      command += " " + *value;
    };
    if (word == "--digest") {
      std::printf("%s\n", source_digest());
      return 0;
    }
    if (word == "--commit") {
      std::printf("%s\n", source_commit());
      return 0;
    }
    if (word == "--list") {
      for (const Section& section : kSections) std::printf("%s\n", section.name);
      return 0;
    }
    if (word == "--gpu") {
      const Result<Gpu*> found = Gpu::get();
      if (found.ok())
        std::printf("%s|%s\n", (*found)->facts().name.c_str(), (*found)->facts().driver.c_str());
      else
        std::fprintf(stderr, "skipped: %s\n", found.status().message().c_str());
      return found.ok() ? 0 : 3;
    }
    if (word == "--quick")
      options.quick = true;
    else if (word == "--only" && has_value)
      take(&only);
    else if (word == "--out" && has_value)
      take(&out);
    else if (word == "--seconds" && has_value)
      take(&seconds);
    else if (word == "--child" && has_value)
      take(&child);
    else if (word == "--cache" && has_value)
      take(&cache);
    else
      return usage();
  }

  const Result<Gpu*> gpu = Gpu::get();
  if (!gpu.ok()) {
    std::fprintf(stderr, "skipped: %s\n", gpu.status().message().c_str());
    return 3;
  }
  Report report;
  if (!child.empty()) {
    first_use_child(**gpu, child, cache, report);
    return report.all_ok() ? 0 : 1;
  }
  if (const int limit = std::atoi(seconds.c_str()); limit > 0) {
    options.deadline_ms = os::steady_clock().now_ms() + std::int64_t{1000} * limit;
  }
  const TemporaryDirectory directory;
  options.directory = directory.path();
  options.program = "/proc/self/exe";
  bool any = false;
  for (const Section& section : kSections) {
    if (!only.empty() && only != section.name) continue;
    any = true;
    section.run(**gpu, options, report);
  }
  if (!any) return usage();
  if (!out.empty()) {
    const Status written = report.write(out, **gpu, command);
    if (!written.ok()) {
      std::fprintf(stderr, "%s\n", written.to_string().c_str());
      return 3;
    }
  }
  return report.all_ok() ? 0 : 1;
}

}  // namespace
}  // namespace scanjit::test

int main(int count, char** words) { return scanjit::test::run({words, words + count}); }
