// scanjit inspect: what a config's kernels are made of. Needs no GPU.

#include <algorithm>
#include <memory>
#include <ostream>

#include "arch_gpu.hpp"
#include "commands.hpp"
#include "flags.hpp"
#include "jit/kernel_provider.hpp"
#include "jit/specialiser.hpp"
#include "name_values.hpp"
#include "ops/registry.hpp"
#include "os/cache_directory.hpp"
#include "os/posix_file_system.hpp"
#include "terminal.hpp"
#include "tuning/key_json.hpp"

namespace scanjit::cli {
namespace {

struct InspectOptions {
  std::string op, config, shape, arch = "sm_90a";
  bool source = false, ptx = false, all = false;
  int jobs = 0;
  EngineOptions engine;
};

Json constants_json(const jit::KernelSource& source) {
  Json json;
  for (const jit::Constant& constant : source.constants) {
    if (constant.type == jit::Constant::Type::kBool) {
      json[constant.name] = constant.value != 0;
    } else {
      json[constant.name] = constant.value;
    }
  }
  return json;
}

struct Row {
  Config config;
  ops::Stage stage;
  Result<jit::Binary> binary;
};

void print_rows(Session& session, const std::vector<Row>& rows) {
  using enum Table::Align;
  Table table({{"config"},
               {"kernel"},
               {"blocks", kRight},
               {"threads", kRight},
               {"registers", kRight},
               {"shared memory", kRight},
               {"spills", kRight},
               {"stack", kRight},
               {"code", kRight},
               {"from"}});
  for (const Row& row : rows) {
    const jit::KernelSource& source = row.stage.source;
    if (!row.binary.ok()) {
      table.add(
          {to_string(row.config), source.entry, "", "", "", "", "", "", "", "does not compile"});
      continue;
    }
    const jit::KernelResources& taken = row.binary->resources;
    table.add({to_string(row.config), source.entry, std::to_string(row.stage.grid),
               std::to_string(source.threads), std::to_string(taken.registers),
               byte_text(source.smem_bytes + taken.smem_static),
               byte_text(taken.spill_loads + taken.spill_stores), byte_text(taken.stack),
               byte_text(taken.code_bytes), row.binary->from});
  }
  table.print(session.out);
}

int run_inspect(Session& session, const InspectOptions& options) {
  if (const Status status = check_op(options.op); !status.ok())
    return session.fail(kExitUsage, status);
  const Result<tuning::Shape> shape =
      parse_shape(options.op, options.shape.empty() ? "N=1" : options.shape);
  if (!shape.ok()) return session.fail(kExitUsage, shape.status());
  const auto problem = ops::make_problem(*shape);
  if (!problem.ok()) return session.fail(kExitUsage, problem.status());
  if (const Status known = check_arch(options.arch); !known.ok())
    return session.fail(kExitUsage, known);
  const ops::DeviceLimits limits = ops::limits_of(gpu_of_arch(options.arch));

  std::vector<Config> configs;
  if (!options.config.empty()) {
    const Result<Config> config = parse_config(options.config);
    if (!config.ok()) return session.fail(kExitUsage, config.status());
    if (const Status legal = (*problem)->legal(*config, limits); !legal.ok())
      return session.fail(kExitUsage, legal);
    configs.push_back(*config);
  } else if (options.all) {
    for (const Config& config : (*problem)->space().all()) {
      if ((*problem)->legal(config, limits).ok()) configs.push_back(config);
    }
  } else {
    const Result<Config> config = (*problem)->heuristic(limits);
    if (!config.ok()) return session.fail(kExitUsage, config.status());
    configs.push_back(*config);
  }

  jit::KernelProviderOptions provider_options;
  provider_options.environment = session.environment;
  provider_options.cache_dir =
      os::choose_cache_directory(options.engine.cache_dir, session.environment).path;
  provider_options.pack_dirs = options.engine.pack_dirs;
  provider_options.compile_jobs = options.jobs;
  provider_options.log = Log(session.log_sink());
  auto provider = jit::KernelProvider::create(provider_options, os::posix_file_system());
  if (!provider.ok()) return session.fail(provider.status());

  std::vector<ops::Stage> stages;
  std::vector<Config> config_of;
  for (const Config& config : configs) {
    for (ops::Stage& stage : (*problem)->stages(config, limits)) {
      stages.push_back(std::move(stage));
      config_of.push_back(config);
    }
  }
  if (options.source || options.ptx) {
    Json texts = Json::array();
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const jit::KernelSource& source = stages[i].source;
      const Result<std::string> text =
          options.source ? jit::generate_source(source) : (*provider)->ptx(source, options.arch);
      if (!text.ok()) return session.fail(text.status());
      if (session.json) {
        texts.push_back(
            {{"config", config_argument(config_of[i])}, {"kernel", source.entry}, {"text", *text}});
      } else {
        session.out << "// " << source.entry << ", " << to_string(config_of[i]) << '\n'
                    << *text << '\n';
      }
    }
    if (session.json) {
      session.print_json(options.source ? "scanjit-inspect-source/1" : "scanjit-inspect-ptx/1",
                         {{"op", options.op},
                          {"arch", options.arch},
                          {"shape", shape_argument(*shape)},
                          {"kernels", std::move(texts)}});
    }
    session.out.flush();
    return kExitOk;
  }

  std::vector<Row> rows;
  {
    std::vector<jit::KernelSource> sources;
    sources.reserve(stages.size());
    for (const ops::Stage& stage : stages) sources.push_back(stage.source);
    Progress progress(session.err, session.err_is_terminal, "compiling",
                      static_cast<std::int64_t>(sources.size()));
    // In batches of what compiles at once, so that progress shows.
    const auto batch = static_cast<std::size_t>((*provider)->compile_jobs());
    for (std::size_t i = 0; i < sources.size(); i += batch) {
      const std::size_t end = std::min(sources.size(), i + batch);
      std::vector<Result<jit::Binary>> binaries =
          (*provider)->get_all({sources.begin() + static_cast<std::ptrdiff_t>(i),
                                sources.begin() + static_cast<std::ptrdiff_t>(end)},
                               options.arch);
      for (std::size_t j = i; j < end; ++j)
        rows.push_back({config_of[j], stages[j], std::move(binaries[j - i])});
      progress.advance(static_cast<std::int64_t>(end - i));
    }
  }
  Status failure;
  for (const Row& row : rows) {
    if (!row.binary.ok() && failure.ok()) failure = row.binary.status();
  }
  if (!failure.ok() && rows.size() == 1) return session.fail(failure);
  if (session.json) {
    Json list = Json::array();
    for (const Row& row : rows) {
      Json json;
      json["config"] = tuning::config_json(row.config);
      json["kernel"] = row.stage.source.entry;
      json["template"] = row.stage.source.template_file;
      json["constants"] = constants_json(row.stage.source);
      json["blocks"] = row.stage.grid;
      json["threads"] = row.stage.source.threads;
      json["smem_bytes"] = row.stage.source.smem_bytes;
      json["ok"] = row.binary.ok();
      if (row.binary.ok()) {
        const jit::KernelResources& taken = row.binary->resources;
        json["smem_static"] = taken.smem_static;
        json["registers"] = taken.registers;
        json["spill_stores"] = taken.spill_stores;
        json["spill_loads"] = taken.spill_loads;
        json["stack"] = taken.stack;
        json["code_bytes"] = taken.code_bytes;
        json["binary_id"] = row.binary->binary_id;
        json["from"] = row.binary->from;
        json["nvrtc"] = row.binary->nvrtc;
      } else {
        json["message"] = row.binary.status().message();
      }
      list.push_back(std::move(json));
    }
    session.print_json("scanjit-inspect/1", {{"op", options.op},
                                             {"arch", options.arch},
                                             {"shape", shape_argument(*shape)},
                                             {"source_class", (*problem)->source_class()},
                                             {"kernels", std::move(list)}});
  } else {
    session.out << options.op << " for " << options.arch << ": " << shape_argument(*shape)
                << "\n\n";
    print_rows(session, rows);
  }
  if (failure.ok()) return kExitOk;
  session.err << "scanjit: " << failure.message() << "\nrepeat: " << shell_line(session.arguments)
              << std::endl;
  return kExitFailed;
}

}  // namespace

Command add_inspect(CLI::App& parent, Session& session) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* app = parent.add_subcommand(
      "inspect", "Source, PTX, registers, shared memory and spills of a config; no GPU needed");
  add_session_flags(*app, session);
  add_op(*app, options->op)->required();
  CLI::Option* config =
      app->add_option("--config", options->config,
                      "The config, as bv=64,bk=128,stages=2,warps=4 (default: the heuristic's)")
          ->type_name("CONFIG");
  app->add_flag("--all", options->all, "Every legal config")->excludes(config);
  app->add_option("--shape", options->shape,
                  "The problem, as N=16,T=1024,HV=32; fields and what is left out as in 'scanjit "
                  "bench --help'")
      ->type_name("NAME=VALUE,...");
  app->add_option("--arch", options->arch, "Architecture to compile for")
      ->type_name("ARCH")
      ->capture_default_str();
  CLI::Option* source = app->add_flag("--source", options->source,
                                      "Print the generated CUDA source and compile nothing");
  app->add_flag("--ptx", options->ptx, "Print the PTX")->excludes(source);
  add_jobs_flag(*app, options->jobs);
  add_store_flags(*app, options->engine);
  app->footer(
      "Example: registers, shared memory and spills of every config at 16 sequences\n"
      "  scanjit inspect gated_delta_h --all --shape N=16,T=1024\n"
      "  scanjit inspect gated_delta_h --config bv=64,bk=64,stages=2,warps=4 --source");
  return {app, [options](Session& s) { return run_inspect(s, *options); }};
}

}  // namespace scanjit::cli
