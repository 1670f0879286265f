// scanjit cache: look at, check and move what the stores hold.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <system_error>

#include "commands.hpp"
#include "flags.hpp"
#include "jit/binary_cache.hpp"
#include "os/cache_directory.hpp"
#include "os/posix_file_system.hpp"
#include "store_check.hpp"
#include "terminal.hpp"
#include "tuning/key_json.hpp"
#include "tuning/tuned_store.hpp"

namespace scanjit::cli {
namespace {

struct CacheOptions {
  std::string cache_dir, path, into, out, gpu, text;
  std::vector<std::string> files;
  std::int64_t max_bytes = -1;
};

os::FileSystem& files() { return os::posix_file_system(); }

// The directory that a command is about, which need not be there if it is the user's own cache.
Result<std::string> directory_of(const Session& session, const CacheOptions& options) {
  if (!options.path.empty()) {
    const std::string path = absolute_path(options.path);
    SCANJIT_ASSIGN_OR_RETURN(const os::FileInfo info, files().info(path));
    if (info.type == os::FileType::kDirectory) return path;
    return invalid_argument(options.path + " is no directory");
  }
  const os::CacheDirectory chosen =
      os::choose_cache_directory(options.cache_dir, session.environment);
  if (chosen.memory_only()) return io_error(chosen.reason);
  return chosen.path;
}

// PATH names a file, not a directory.
bool names_a_file(const CacheOptions& options) {
  if (options.path.empty()) return false;
  const Result<os::FileInfo> info = files().info(options.path);
  return info.ok() && info->type != os::FileType::kDirectory;
}

Json record_json(const tuning::Record& record) {
  return Json::parse(tuning::to_json(record), nullptr, false);
}

Json binary_json(const BinaryItem& item) {
  Json json;
  json["path"] = item.path;
  json["bytes"] = item.bytes;
  json["ok"] = item.status.ok();
  if (!item.status.ok()) {
    json["message"] = item.status.message();
    return json;
  }
  json["entry"] = item.binary.entry;
  json["arch"] = item.binary.arch;
  json["nvrtc"] = item.binary.nvrtc;
  json["source_id"] = item.binary.source_id;
  json["registers"] = item.binary.resources.registers;
  json["spill_bytes"] = item.binary.resources.spill_loads + item.binary.resources.spill_stores;
  json["code_bytes"] = item.binary.resources.code_bytes;
  return json;
}

Json store_json(const tuning::StoreItem& item) {
  Json json;
  json["path"] = item.path;
  json["bytes"] = item.bytes;
  json["gpu"] = item.gpu;
  json["ok"] = item.status.ok();
  if (!item.status.ok()) json["message"] = item.status.message();
  return json;
}

std::string key_text(const tuning::ShapeKey& key) {
  std::string optional;
  for (const std::string& word : key.optional) optional += (optional.empty() ? "" : "+") + word;
  return std::string(to_string(key.dtype)) + " H " + std::to_string(key.H) + " HV " +
         std::to_string(key.HV) + " K " + std::to_string(key.K) + " V " + std::to_string(key.V) +
         " BT " + std::to_string(key.BT) + " gate " + key.gate + " " + optional +
         (key.packed ? " packed" : "");
}

Table entry_table() {
  using enum Table::Align;
  return Table({{"kernel"},
                {"shape class"},
                {"sequences", kRight},
                {"chunks", kRight},
                {"us", kRight},
                {"default us", kRight},
                {"config"},
                {"state"}});
}

void add_entry(Table& table, const tuning::Record& record) {
  table.add({record.key.kernel, key_text(record.key), tuning::to_string(record.key.sequences),
             tuning::to_string(record.key.chunks), figures(record.us.median),
             figures(record.default_us), to_string(record.config),
             record.partial ? "partial" : "whole"});
}

int run_path(Session& session, const CacheOptions& options) {
  const os::CacheDirectory chosen =
      os::choose_cache_directory(options.cache_dir, session.environment);
  if (chosen.memory_only()) return session.fail(io_error(chosen.reason));
  if (session.json) {
    session.print_json("scanjit-cache-path/1", {{"path", chosen.path}, {"reason", chosen.reason}});
  } else {
    session.out << chosen.path << std::endl;
  }
  return kExitOk;
}

int run_ls(Session& session, const CacheOptions& options) {
  const Result<std::string> directory = directory_of(session, options);
  if (!directory.ok()) return session.fail(directory.status());
  const auto items = tuning::list_store(files(), *directory);
  if (!items.ok()) return session.fail(items.status());
  const auto binaries = list_binaries(*directory);
  if (!binaries.ok()) return session.fail(binaries.status());
  if (session.json) {
    Json tuned = Json::array(), bin = Json::array();
    for (const tuning::StoreItem& item : *items) {
      Json json = store_json(item);
      if (item.file && !item.file->entries.empty()) {
        const tuning::Record& record = item.file->entries.front();
        json["key"] = record.key.text();
        json["config"] = tuning::config_json(record.config);
        json["us"] = record.us.median;
        json["partial"] = record.partial;
      }
      tuned.push_back(std::move(json));
    }
    for (const BinaryItem& item : *binaries) bin.push_back(binary_json(item));
    session.print_json(
        "scanjit-cache-ls/1",
        {{"directory", *directory}, {"tuned", std::move(tuned)}, {"binaries", std::move(bin)}});
    return kExitOk;
  }
  std::map<std::string, Table> by_gpu;
  std::int64_t bytes = 0, binary_bytes = 0, damaged = 0;
  for (const tuning::StoreItem& item : *items) {
    bytes += item.bytes;
    if (!item.file) {
      ++damaged;
      continue;
    }
    for (const tuning::Record& record : item.file->entries) {
      add_entry(by_gpu.try_emplace(item.gpu, entry_table()).first->second, record);
    }
  }
  for (const BinaryItem& item : *binaries) {
    binary_bytes += item.bytes;
    damaged += item.status.ok() ? 0 : 1;
  }
  for (const auto& [gpu, table] : by_gpu) {
    session.out << gpu << '\n';
    table.print(session.out);
    session.out << '\n';
  }
  session.out << *directory << ": " << items->size() << " tuned files (" << byte_text(bytes)
              << "), " << binaries->size() << " cubins (" << byte_text(binary_bytes) << ")";
  if (damaged != 0) session.out << ", " << damaged << " damaged: see 'scanjit cache verify'";
  session.out << std::endl;
  return kExitOk;
}

int show_binary(Session& session, const std::string& path) {
  const Result<BinaryItem> item = read_binary(path);
  if (!item.ok()) return session.fail(item.status());
  if (!item->status.ok()) return session.fail(kExitUsage, item->status.with_context(path));
  if (session.json) {
    session.print_json("scanjit-cache-binary/1", binary_json(*item));
    return kExitOk;
  }
  const jit::StoredBinary& binary = item->binary;
  session.out << "kernel       " << binary.entry << " for " << binary.arch << ", compiled by NVRTC "
              << binary.nvrtc << '\n'
              << "binary id    " << binary.binary_id << '\n'
              << "registers    " << binary.resources.registers << " a thread\n"
              << "spills       " << binary.resources.spill_stores << " B stored, "
              << binary.resources.spill_loads << " B loaded\n"
              << "code         " << byte_text(binary.resources.code_bytes) << std::endl;
  return kExitOk;
}

int run_show(Session& session, const CacheOptions& options) {
  std::vector<tuning::Record> records;
  std::string subject = options.path;
  if (names_a_file(options)) {
    if (options.path.ends_with(".cubin")) return show_binary(session, options.path);
    Result<tuning::TunedFile> file = read_tuned(options.path);
    if (!file.ok()) return session.fail(file.status());
    records = std::move(file->entries);
  } else {
    const Result<std::string> directory = directory_of(session, options);
    if (!directory.ok()) return session.fail(directory.status());
    subject = *directory;
    auto items = tuning::list_store(files(), *directory);
    if (!items.ok()) return session.fail(items.status());
    for (tuning::StoreItem& item : *items) {
      if (!item.file) continue;
      for (tuning::Record& record : item.file->entries) records.push_back(std::move(record));
    }
  }
  std::erase_if(records, [&](const tuning::Record& record) {
    return record.key.text().find(options.text) == std::string::npos;
  });
  if (records.empty() && !options.text.empty()) {
    return session.fail(not_found("there is no such entry: no key in " + subject + " has '" +
                                  options.text + "' in it"));
  }
  if (session.json) {
    Json entries = Json::array();
    for (const tuning::Record& record : records) entries.push_back(record_json(record));
    session.print_json("scanjit-cache-show/1", {{"entries", std::move(entries)}});
    return kExitOk;
  }
  if (records.empty()) session.out << subject << ": no tuned entries\n";
  for (const tuning::Record& record : records) {
    session.out << record.key.text() << '\n'
                << "  config      " << to_string(record.config) << ", " << figures(record.us.median)
                << " us (95%: " << figures(record.us.ci_low) << " to " << figures(record.us.ci_high)
                << ", " << record.us.samples << " samples), worst regret " << percent(record.regret)
                << (record.partial ? ", partial" : "") << '\n'
                << "  default     " << to_string(record.default_config) << ", "
                << figures(record.default_us) << " us\n";
    for (const tuning::Alternate& alternate : record.alternates) {
      session.out << "  alternate   " << to_string(alternate.config) << ", "
                  << figures(alternate.us) << " us, regret " << percent(alternate.regret) << '\n';
    }
    for (const tuning::Rejected& rejected : record.rejected) {
      session.out << "  rejected    " << to_string(rejected.config) << ": "
                  << tuning::to_string(rejected.reason) << (rejected.detail.empty() ? "" : ", ")
                  << printable(rejected.detail) << '\n';
    }
    session.out << "  measured at";
    for (const tuning::MeasuredPoint& point : record.measured_at)
      session.out << "  N " << point.sequences << " T " << point.tokens;
    session.out << "\n  toolchain   NVRTC " << record.toolchain.nvrtc << ", driver "
                << record.toolchain.driver << ", scanjit " << record.toolchain.scanjit << ", L2 "
                << record.l2 << "\n\n";
  }
  session.out.flush();
  return kExitOk;
}

int run_verify(Session& session, const CacheOptions& options) {
  StoreCheck check;
  std::string subject = options.path;
  if (names_a_file(options)) {
    check.checked = 1;
    Status status;
    if (options.path.ends_with(".cubin")) {
      const Result<BinaryItem> item = read_binary(options.path);
      status = item.ok() ? item->status : item.status();
    } else {
      status = read_tuned(options.path).status();
    }
    if (!status.ok()) check.findings.push_back({options.path, status});
  } else {
    const Result<std::string> directory = directory_of(session, options);
    if (!directory.ok()) return session.fail(directory.status());
    subject = *directory;
    Result<StoreCheck> done = check_store(*directory);
    if (!done.ok()) return session.fail(done.status());
    check = std::move(*done);
  }
  const std::vector<Finding>& damaged = check.findings;
  if (session.json) {
    Json list = Json::array();
    for (const Finding& finding : damaged)
      list.push_back({{"path", finding.path}, {"message", finding.status.message()}});
    session.print_json(
        "scanjit-cache-verify/1",
        {{"path", subject}, {"checked", check.checked}, {"damaged", std::move(list)}});
  } else {
    for (const Finding& finding : damaged) {
      session.out << "DAMAGED  " << printable(finding.path) << ": "
                  << printable(finding.status.message()) << '\n';
    }
    session.out << subject << ": " << check.checked << " files checked, " << damaged.size()
                << " damaged" << std::endl;
  }
  if (damaged.empty()) return kExitOk;
  session.err << "repeat: " << shell_line(session.arguments) << std::endl;
  return kExitFailed;
}

// A tuned file to --out, or to standard output where nothing is named.
int write_tuned(Session& session, const CacheOptions& options, const tuning::TunedFile& file,
                const char* schema) {
  const std::string text = tuning::to_json(file, tuning::Checksum::kWithout);
  if (options.out.empty()) {
    session.out << text << std::flush;
    return kExitOk;
  }
  // Published by a rename, which would put a file in the place of a link or a device.
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_status there = fs::symlink_status(options.out, ignored);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    return session.fail(kExitUsage, invalid_argument("--out names " + options.out +
                                                     ", which is there and is no regular file"));
  }
  if (const Status status = files().publish(options.out, text); !status.ok())
    return session.fail(kExitEnvironment, status);
  fs::permissions(options.out, fs::perms::group_read | fs::perms::others_read,
                  fs::perm_options::add, ignored);  // it is made to be shipped
  if (session.json) {
    session.print_json(
        schema,
        {{"out", options.out}, {"gpu", file.gpu.directory()}, {"entries", file.entries.size()}});
  } else {
    session.out << options.out << ": " << file.entries.size() << " entries of "
                << file.gpu.directory() << std::endl;
  }
  return kExitOk;
}

// All of them, or the error of the first bad one: nothing is done by halves.
Result<std::vector<tuning::TunedFile>> read_all(const std::vector<std::string>& paths) {
  std::vector<tuning::TunedFile> read;
  for (const std::string& path : paths) {
    SCANJIT_ASSIGN_OR_RETURN(tuning::TunedFile file, read_tuned(path));
    read.push_back(std::move(file));
  }
  return read;
}

int run_merge(Session& session, const CacheOptions& options) {
  const auto read = read_all(options.files);
  if (!read.ok()) return session.fail(read.status());
  const Result<tuning::TunedFile> merged = tuning::merge(*read);
  if (!merged.ok()) return session.fail(kExitUsage, merged.status());
  return write_tuned(session, options, *merged, "scanjit-cache-merge/1");
}

// The folder of the GPU model that is meant: by the model's name or the folder's, or the only one
// that holds anything.
Result<std::string> gpu_of_store(const std::string& directory, const std::string& wanted) {
  SCANJIT_ASSIGN_OR_RETURN(const auto items, tuning::list_store(files(), directory));
  std::map<std::string, std::string> models, meant;  // folder -> name
  for (const tuning::StoreItem& item : items) {
    if (!item.file) continue;
    const auto& names = item.file->gpu.names;
    const std::string name = names.empty() ? "" : names.front();
    models.try_emplace(item.gpu, name);
    if (wanted.empty() || item.gpu == wanted ||
        std::find(names.begin(), names.end(), wanted) != names.end())
      meant.try_emplace(item.gpu, name);
  }
  if (models.empty()) return not_found("there is no tuned entry in " + directory);
  if (meant.size() == 1) return meant.begin()->first;
  std::string all;
  for (const auto& [folder, name] : meant.empty() ? models : meant)
    all += (all.empty() ? "" : ", ") + folder + (name.empty() ? "" : " (" + name + ")");
  if (meant.empty()) {
    return not_found("there is no entry of GPU '" + wanted + "' in " + directory + "; there are " +
                     all);
  }
  return invalid_argument("there are entries of several GPU models, choose one by --gpu: " + all);
}

int run_export(Session& session, const CacheOptions& options) {
  const Result<std::string> directory = directory_of(session, options);
  if (!directory.ok()) return session.fail(directory.status());
  const Result<std::string> gpu = gpu_of_store(*directory, options.gpu);
  if (!gpu.ok()) return session.fail(gpu.status());
  const Result<tuning::TunedFile> file = tuning::export_store(files(), *directory, *gpu);
  if (!file.ok()) return session.fail(file.status());
  return write_tuned(session, options, *file, "scanjit-cache-export/1");
}

int run_import(Session& session, const CacheOptions& options) {
  CacheOptions target = options;
  if (!options.into.empty()) target.cache_dir = options.into;
  const Result<std::string> directory = directory_of(session, target);
  if (!directory.ok()) return session.fail(directory.status());
  const auto read = read_all(options.files);
  if (!read.ok()) return session.fail(read.status());
  std::int64_t written = 0, offered = 0;
  for (const tuning::TunedFile& file : *read) {
    const Result<std::int64_t> count = tuning::import_into_store(files(), *directory, file);
    if (!count.ok()) return session.fail(count.status());
    written += *count;
    offered += static_cast<std::int64_t>(file.entries.size());
  }
  if (session.json) {
    session.print_json("scanjit-cache-import/1",
                       {{"directory", *directory}, {"offered", offered}, {"written", written}});
  } else {
    session.out << *directory << ": " << written << " of " << offered << " entries written"
                << std::endl;
  }
  return kExitOk;
}

int run_gc(Session& session, const CacheOptions& options) {
  const Result<std::string> directory = directory_of(session, options);
  if (!directory.ok()) return session.fail(directory.status());
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t now_ns = static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  // Entries are few and cost measuring; machine code is large and costs a second each. The cap is
  // met by removing machine code first.
  Result<os::SweepResult> tuned = tuning::collect_garbage(files(), *directory, -1, now_ns);
  if (!tuned.ok()) return session.fail(tuned.status());
  const std::int64_t cap = options.max_bytes;
  const std::int64_t left = cap < 0 ? -1 : std::max<std::int64_t>(0, cap - tuned->kept_bytes);
  const Result<os::SweepResult> bin = os::sweep_folders(files(), {os::join_path(*directory, "bin")},
                                                        jit::binary_file_kind, left, now_ns);
  if (!bin.ok()) return session.fail(bin.status());
  if (cap >= 0 && tuned->kept_bytes + bin->kept_bytes > cap) {
    const Result<os::SweepResult> more = tuning::collect_garbage(
        files(), *directory, std::max<std::int64_t>(0, cap - bin->kept_bytes), now_ns);
    if (!more.ok()) return session.fail(more.status());
    tuned->removed_files += more->removed_files;
    tuned->removed_bytes += more->removed_bytes;
    tuned->kept_bytes = more->kept_bytes;
  }
  const Result<std::int64_t> locks =
      os::remove_idle_locks(files(), os::join_path(*directory, "locks"), now_ns);
  if (!locks.ok()) return session.fail(locks.status());
  const std::int64_t removed = tuned->removed_files + bin->removed_files + *locks;
  const std::int64_t removed_bytes = tuned->removed_bytes + bin->removed_bytes;
  const std::int64_t kept = tuned->kept_bytes + bin->kept_bytes;
  if (session.json) {
    session.print_json("scanjit-cache-gc/1", {{"directory", *directory},
                                              {"removed_files", removed},
                                              {"removed_bytes", removed_bytes},
                                              {"kept_bytes", kept}});
  } else {
    session.out << *directory << ": " << removed << " files removed (" << byte_text(removed_bytes)
                << "), " << byte_text(kept) << " kept" << std::endl;
  }
  return kExitOk;
}

}  // namespace

Command add_cache(CLI::App& parent, Session& session) {
  auto options = std::make_shared<CacheOptions>();
  CLI::App* app = parent.add_subcommand("cache", "Look at, check and move what the stores hold");
  app->footer(
      "Example: what was tuned, is it whole, and one file of it to ship\n"
      "  scanjit cache ls\n"
      "  scanjit cache verify\n"
      "  scanjit cache export --out NVIDIA_H200.json\n"
      "PATH is a cache directory or a pack; left out, it is the one that 'scanjit cache path' "
      "prints.");
  app->require_subcommand(1);
  auto chosen = std::make_shared<std::function<int(Session&)>>();
  const auto add = [&](const char* name, const char* about,
                       int (*run)(Session&, const CacheOptions&)) {
    CLI::App* command = app->add_subcommand(name, about);
    add_session_flags(*command, session);
    add_cache_dir_flag(*command, options->cache_dir);
    command->callback([chosen, options, run] {
      *chosen = [options, run](Session& s) { return run(s, *options); };
    });
    return command;
  };
  const auto add_path = [&](CLI::App* command, const char* about) {
    command->add_option("PATH", options->path, about)->type_name("");
  };
  add("path", "Print the cache directory and where it comes from", run_path)
      ->footer("Example:\n  du -sh \"$(scanjit cache path)\"");
  CLI::App* ls = add("ls", "List tuned entries and cubins", run_ls);
  add_path(ls, "Cache directory or pack");
  ls->footer("Example:\n  scanjit cache ls pack/");
  CLI::App* show =
      add("show", "Show entries in full, with alternates and what was rejected", run_show);
  add_path(show, "Cache directory, pack, tuned file or cubin");
  show->add_option("--key", options->text, "Only entries whose key has this text in it")
      ->type_name("TEXT");
  show->footer("Example:\n  scanjit cache show configs/NVIDIA_H200.json --key 'HV=32'");
  CLI::App* verify = add("verify", "Check every file; exit status 1 on damage", run_verify);
  add_path(verify, "Cache directory, pack, tuned file or cubin");
  verify->footer("Example:\n  scanjit cache verify pack/");
  CLI::App* merge = add("merge", "Make one tuned file of several of one GPU model", run_merge);
  merge->add_option("FILES", options->files, "Tuned files")->required()->type_name("");
  merge->add_option("-o,--out", options->out, "File to write (default: standard output)")
      ->type_name("FILE");
  merge->footer(
      "Example: the shards of a job array\n  scanjit cache merge shard-*.json --out "
      "NVIDIA_H200.json");
  CLI::App* export_ = add("export", "Write one GPU model's entries as one tuned file", run_export);
  add_path(export_, "Cache directory or pack");
  export_
      ->add_option("--gpu", options->gpu,
                   "GPU model, by its name or its directory as 'cache ls' prints it; needed if "
                   "there are several")
      ->type_name("NAME");
  export_->add_option("-o,--out", options->out, "File to write (default: standard output)")
      ->type_name("FILE");
  export_->footer("Example:\n  scanjit cache export --out NVIDIA_H200.json");
  CLI::App* import = add("import", "Put the entries of tuned files into a cache", run_import);
  import->add_option("FILES", options->files, "Tuned files")->required()->type_name("");
  import
      ->add_option("--into", options->into,
                   "Cache directory, made if missing (default: the user's)")
      ->type_name("DIR")
      ->transform(cache_directory())
      ->excludes(import->get_option("--cache-dir"));
  import->footer("Example:\n  scanjit cache import NVIDIA_H200.json --into pack/");
  CLI::App* gc = add(
      "gc", "Remove what was set aside or left behind, and the oldest files above a cap", run_gc);
  add_path(gc, "Cache directory");
  gc->add_option("--max-bytes", options->max_bytes,
                 "Keep at most so many bytes; cubins go before tuned entries (default: no cap)")
      ->type_name("BYTES")
      ->transform(whole_number(0));
  gc->footer("Example:\n  scanjit cache gc --max-bytes 500000000");
  return {app, [chosen](Session& s) { return (*chosen)(s); }};
}

}  // namespace scanjit::cli
