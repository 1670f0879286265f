// scanjit prewarm: a pack of tuned entries and machine code, made without a GPU.

#include <filesystem>
#include <memory>
#include <ostream>
#include <system_error>

#include "arch_gpu.hpp"
#include "commands.hpp"
#include "cuda/device_facts.hpp"
#include "engine/internals.hpp"
#include "engine/pack.hpp"
#include "flags.hpp"
#include "ops/registry.hpp"
#include "os/posix_file_system.hpp"
#include "store_check.hpp"
#include "terminal.hpp"

namespace scanjit::cli {
namespace {

// A cache is its owner's alone, but a pack is often built as root and served by somebody else: all
// may read it, nobody else write it.
void let_all_read(const std::string& pack) {
  namespace fs = std::filesystem;
  constexpr auto kRead = fs::perms::group_read | fs::perms::others_read;
  constexpr auto kEnter = kRead | fs::perms::group_exec | fs::perms::others_exec;
  std::error_code ignored;  // the owner can read it all the same
  fs::permissions(pack, kEnter, fs::perm_options::add, ignored);
  for (const char* part : {"bin", "tuned"}) {
    const fs::path root = fs::path(pack) / part;
    if (!fs::is_directory(fs::symlink_status(root, ignored))) continue;
    fs::permissions(root, kEnter, fs::perm_options::add, ignored);
    for (fs::recursive_directory_iterator at(root, ignored), end; at != end;
         at.increment(ignored)) {
      const fs::file_status status = at->symlink_status(ignored);
      if (fs::is_symlink(status)) continue;
      fs::permissions(at->path(), fs::is_directory(status) ? kEnter : kRead, fs::perm_options::add,
                      ignored);
    }
  }
}

struct PrewarmOptions {
  std::string arch, tuned, out;
  bool picks_only = false;
  int jobs = 0;
  ShapeFlags shapes;
};

// The tuned file that was named, or the shipped one of the architecture.
Result<tuning::TunedFile> tuned_file(const PrewarmOptions& options, std::string* name) {
  if (!options.tuned.empty()) {
    *name = options.tuned;
    SCANJIT_ASSIGN_OR_RETURN(tuning::TunedFile file, read_tuned(options.tuned));
    const std::string arch = cuda::arch_name(file.gpu.compute_major, file.gpu.compute_minor);
    if (!options.arch.empty() && options.arch != arch) {
      return invalid_argument("--arch is " + options.arch + ", but " + options.tuned + " is for " +
                              arch +
                              ": leave --arch out, or --tuned and name shapes to pack what " +
                              "the heuristic picks for " + options.arch);
    }
    return file;
  }
  std::string shipped;
  for (const tuning::ShippedText& text : engine::shipped_configs()) {
    Result<tuning::TunedFile> file =
        tuning::tuned_file_from_json(text.text, tuning::Checksum::kWithout);
    if (!file.ok()) continue;
    const std::string arch = cuda::arch_name(file->gpu.compute_major, file->gpu.compute_minor);
    if (options.arch.empty() || arch == options.arch) {
      *name = "shipped " + std::string(text.name);
      return file;
    }
    shipped += (shipped.empty() ? "" : ", ") + std::string(text.name) + " (" + arch + ")";
  }
  if (options.shapes.any() && !options.arch.empty()) {
    *name = "the heuristic of " + options.arch;
    tuning::TunedFile none;
    none.gpu = gpu_of_arch(options.arch);
    return none;
  }
  return not_found(
      "no shipped tuned file is for " + (options.arch.empty() ? "any GPU" : options.arch) +
      " (there are: " + (shipped.empty() ? "none" : shipped) +
      "); name one by --tuned, or by --arch and --shapes what to pack under the heuristic");
}

int run_prewarm(Session& session, const PrewarmOptions& options) {
  if (!options.arch.empty()) {
    if (const Status known = check_arch(options.arch); !known.ok())
      return session.fail(kExitUsage, known);
  }
  std::string name;
  Result<tuning::TunedFile> tuned = tuned_file(options, &name);
  if (!tuned.ok()) return session.fail(kExitUsage, tuned.status());

  engine::PackOptions pack;
  if (options.shapes.any()) {
    const auto shapes = load_shapes(options.shapes, "");
    if (!shapes.ok()) return session.fail(kExitUsage, shapes.status());
    for (const tuning::Shape& shape : *shapes) {
      auto problem = ops::make_problem(shape);
      if (!problem.ok()) return session.fail(kExitUsage, problem.status());
      pack.problems.push_back(std::move(*problem));
    }
  }
  os::FileSystem& files = os::posix_file_system();
  if (const Status status = files.make_directories(options.out); !status.ok())
    return session.fail(kExitEnvironment, status);
  const Result<std::string> out = files.resolve(options.out);
  if (!out.ok()) return session.fail(kExitEnvironment, out.status());

  pack.out = *out;
  pack.arch = options.arch;
  pack.tuned = std::move(*tuned);
  pack.picks_only = options.picks_only;
  pack.compile_jobs = options.jobs;
  pack.environment = session.environment;
  pack.files = &files;
  pack.log = Log(session.log_sink());
  session.err << "scanjit: packing " << name << " (" << pack.tuned.entries.size() << " keys) into "
              << *out << std::endl;

  Result<engine::PackReport> report = internal_error("");
  {
    std::unique_ptr<Progress> progress;
    std::size_t shown = 0;
    pack.progress = [&](std::size_t done, std::size_t total, const std::string& what) {
      if (!progress)
        progress = std::make_unique<Progress>(session.err, session.err_is_terminal, "kernels",
                                              static_cast<std::int64_t>(total));
      if (done > shown) progress->advance(static_cast<std::int64_t>(done - shown));
      shown = done;
      progress->note(what);
    };
    report = engine::write_pack(pack);
  }
  if (!report.ok()) return session.fail(report.status());
  let_all_read(*out);
  for (const std::string& failure : report->failures)
    session.err << "scanjit: " << printable(failure) << '\n';
  const int exit = report->failures.empty() ? kExitOk : kExitFailed;
  if (exit != kExitOk) session.err << "repeat: " << shell_line(session.arguments) << std::endl;
  if (session.json) {
    session.print_json("scanjit-prewarm/1", {{"out", *out},
                                             {"tuned", name},
                                             {"entries", report->entries},
                                             {"kernels", report->kernels},
                                             {"compiled", report->compiled},
                                             {"bytes", report->bytes},
                                             {"failures", report->failures}});
  } else {
    session.out << *out << ": " << report->entries << " tuned entries, " << report->kernels
                << " kernels (" << report->compiled << " compiled now), "
                << byte_text(report->bytes) << " of machine code";
    if (!report->failures.empty()) session.out << ", " << report->failures.size() << " failed";
    session.out << std::endl;
  }
  return exit;
}

}  // namespace

Command add_prewarm(CLI::App& parent, Session& session) {
  auto options = std::make_shared<PrewarmOptions>();
  CLI::App* app = parent.add_subcommand(
      "prewarm", "Make a pack of tuned entries and compiled kernels; no GPU needed");
  add_session_flags(*app, session);
  app->add_option("--arch", options->arch,
                  "Architecture, as sm_90a (default: that of the tuned file)")
      ->type_name("ARCH");
  app->add_option("--tuned", options->tuned,
                  "Tuned file (default: the shipped one of the architecture)")
      ->type_name("FILE");
  app->add_option("-o,--out", options->out, "Directory to write; what is there already is kept")
      ->type_name("DIR")
      ->required();
  app->add_flag("--picks-only", options->picks_only,
                "Only the pick of each key, without alternates and heuristic: the smallest pack");
  add_jobs_flag(*app, options->jobs);
  add_shape_flags(*app, options->shapes);
  app->footer(
      "Example: in an image build, for servers with H200s (then EngineOptions::pack_dirs = "
      "{\"/opt/pack\"})\n"
      "  scanjit prewarm --arch sm_90a --tuned configs/NVIDIA_H200.json --out /opt/pack\n"
      "With --shapes, --shape or --model only what those problems need is packed.");
  return {app, [options](Session& s) { return run_prewarm(s, *options); }};
}

}  // namespace scanjit::cli
