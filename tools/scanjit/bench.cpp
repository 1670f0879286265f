// scanjit bench: GPU time of configs on a map of shapes, by graph replay.

#include <algorithm>
#include <istream>
#include <memory>
#include <ostream>

#include "arch_gpu.hpp"
#include "bench_rows.hpp"
#include "commands.hpp"
#include "engine/op_timer.hpp"
#include "flags.hpp"
#include "gpu.hpp"
#include "name_values.hpp"
#include "ops/registry.hpp"
#include "os/posix_file_system.hpp"
#include "picture.hpp"
#include "terminal.hpp"
#include "tuning/key_json.hpp"

namespace scanjit::cli {
namespace {

struct BenchOptions {
  std::string op, configs = "all", config, l2 = "warm", peer_json, out, csv, svg, html;
  std::vector<std::string> sweep;
  ShapeFlags shapes;
  int rounds = 7;
  double block_ms = 5;
  bool serve = false;
  EngineOptions engine;
};

constexpr std::size_t kFewShapes = 6;  // so many are shown config by config
constexpr std::int64_t kMaxPeerBytes = std::int64_t{64} << 20;

// Each shape under every combination of the swept values; the last sweep varies fastest.
Result<std::vector<tuning::Shape>> swept(std::vector<tuning::Shape> shapes,
                                         const std::vector<std::string>& sweeps) {
  for (const std::string& sweep : sweeps) {
    const std::size_t equals = sweep.find('=');
    if (equals == 0 || equals == std::string::npos)
      return invalid_argument("'" + sweep + "' is not of the form NAME=VALUE,VALUE");
    const std::string name = sweep.substr(0, equals);
    std::vector<tuning::Shape> next;
    for (const tuning::Shape& shape : shapes) {
      for (const std::string& value : split(sweep.substr(equals + 1), ',')) {
        SCANJIT_ASSIGN_OR_RETURN(NameValues values, parse_name_values(shape_argument(shape)));
        const auto field = std::find_if(values.begin(), values.end(),
                                        [&](const auto& pair) { return pair.first == name; });
        if (field != values.end()) {
          field->second = value;
        } else {
          values.emplace_back(name, value);
        }
        std::string text;
        for (const auto& [word, setting] : values)
          text += (text.empty() ? "" : ",") + word + "=" + setting;
        SCANJIT_ASSIGN_OR_RETURN(tuning::Shape one, parse_shape(shape.op, text));
        next.push_back(std::move(one));
      }
    }
    shapes = std::move(next);
  }
  return shapes;
}

Result<engine::L2Policy> parse_l2(const std::string& text) {
  if (text == "warm") return engine::L2Policy::kWarm;
  if (text == "cold") return engine::L2Policy::kCold;
  return invalid_argument("--l2 is '" + text + "', it must be warm or cold");
}

// A shape made ready: its timer, and what an engine would serve.
struct Prepared {
  std::shared_ptr<const ops::OpProblem> problem;
  engine::OpTimer timer;
  Why why;
};

Result<Prepared> prepare(Gpu& gpu, const BenchOptions& options, const tuning::Shape& shape) {
  SCANJIT_ASSIGN_OR_RETURN(auto problem, ops::make_problem(shape));
  SCANJIT_ASSIGN_OR_RETURN(Why why, why_of(gpu.engine, shape));
  engine::OpTimerOptions timer_options;
  SCANJIT_ASSIGN_OR_RETURN(timer_options.scratch_limit, usable_memory(gpu));
  SCANJIT_ASSIGN_OR_RETURN(timer_options.l2, parse_l2(options.l2));
  timer_options.block_us = options.block_ms * 1000;
  timer_options.unload = true;
  SCANJIT_ASSIGN_OR_RETURN(engine::OpTimer timer,
                           engine::OpTimer::create(gpu.internals, problem, timer_options));
  return Prepared{std::move(problem), std::move(timer), std::move(why)};
}

Result<BenchRow> time_shape(Gpu& gpu, const BenchOptions& options, const tuning::Shape& shape,
                            const std::optional<Config>& forced) {
  SCANJIT_ASSIGN_OR_RETURN(Prepared ready, prepare(gpu, options, shape));
  BenchRow row;
  row.shape = shape;
  row.kernel_revision = ready.problem->key_query().key.kernel_revision;
  row.source = forced ? "forced" : to_string(ready.why.source);
  row.floor_us = static_cast<double>(ready.problem->floor_bytes()) / kFloorBytesPerUs;
  row.l2 = ready.timer.l2();
  row.timed_tokens = ready.timer.timed().tokens_per_sequence();
  std::vector<Config> configs = {forced.value_or(ready.why.config)};
  if (options.configs == "all" && !forced) {
    SCANJIT_ASSIGN_OR_RETURN(const std::vector<Config> all,
                             ops::candidates(*ready.problem, gpu.limits));
    for (const Config& config : all) {
      if (config != configs.front()) configs.push_back(config);
    }
  }
  static_cast<void>(ready.timer.compile(configs));
  for (const Config& config : configs) row.configs.push_back({config, {}, 0, ""});
  // Interleaved: a drift of the clock touches all alike.
  for (int round = 0; round < options.rounds; ++round) {
    for (ConfigTimes& times : row.configs) {
      if (!times.failure.empty()) continue;
      const Result<double> us = ready.timer.measure(times.config);
      if (us.ok()) {
        times.samples.push_back(*us);
      } else if (us.status().code() == ErrorCode::kDeviceLost) {
        return us.status();
      } else {
        times.failure = us.status().message();
        times.samples.clear();
      }
    }
  }
  for (ConfigTimes& times : row.configs) times.us = median(times.samples);
  return row;
}

// --serve: see docs/command_line.md for the protocol.
int serve(Session& session, Gpu& gpu, const BenchOptions& options,
          const std::optional<Config>& forced) {
  std::optional<Prepared> ready;
  Config config;
  const auto say_error = [&](const Status& status) {
    session.out << dump({{"error", status.message()}}) << std::endl;
  };
  std::string line;
  while (std::getline(session.in, line)) {
    if (line.empty()) {
      if (!ready) {
        say_error(invalid_argument("no shape is prepared: write one first, as N=16,T=1024"));
        continue;
      }
      const Result<double> us = ready->timer.measure(config);
      if (us.ok()) {
        session.out << dump({{"us", *us}}) << std::endl;
      } else {
        say_error(us.status());
        if (us.status().code() == ErrorCode::kDeviceLost) return kExitFailed;
      }
      continue;
    }
    ready.reset();  // its memory is needed
    const Result<tuning::Shape> shape = parse_shape(options.op, line);
    if (!shape.ok()) {
      say_error(shape.status());
      continue;
    }
    Result<Prepared> made = prepare(gpu, options, *shape);
    if (!made.ok()) {
      say_error(made.status());
      continue;
    }
    ready.emplace(std::move(*made));
    config = forced.value_or(ready->why.config);
    // Compiles, loads, warms up and captures now, so that the next line is a timed block and no
    // more.
    if (const Result<double> first = ready->timer.measure(config); !first.ok()) {
      say_error(first.status());
      ready.reset();
      continue;
    }
    const auto& problem = *ready->problem;
    session.out << dump(
                       {{"ready", shape_json(*shape)},
                        {"config", tuning::config_json(config)},
                        {"source", forced ? "forced" : to_string(ready->why.source)},
                        {"kernel_revision", problem.key_query().key.kernel_revision},
                        {"l2", ready->timer.l2()},
                        {"timed_tokens", ready->timer.timed().tokens_per_sequence()},
                        {"floor_us", static_cast<double>(problem.floor_bytes()) / kFloorBytesPerUs},
                        {"provenance", provenance(session, gpu.internals)}})
                << std::endl;
  }
  return kExitOk;
}

std::string shape_name(const tuning::Shape& shape) {
  return "HV " + std::to_string(shape.HV) + " N " + std::to_string(shape.N) + " T " +
         std::to_string(shape.T);
}

void print_rows(Session& session, const std::vector<BenchRow>& rows) {
  using enum Table::Align;
  const bool many = !rows.empty() && rows.front().configs.size() > 1;
  const bool peers = std::any_of(rows.begin(), rows.end(),
                                 [](const BenchRow& row) { return row.peer.has_value(); });
  if (many && rows.size() <= kFewShapes) {
    std::vector<Table::Column> columns = {{"config"}};
    for (const BenchRow& row : rows) columns.push_back({shape_name(row.shape) + " us", kRight});
    Table table(columns);
    std::vector<Config> configs;
    for (const BenchRow& row : rows) {
      for (const ConfigTimes& times : row.configs) configs.push_back(times.config);
    }
    std::sort(configs.begin(), configs.end());
    configs.erase(std::unique(configs.begin(), configs.end()), configs.end());
    for (const Config& config : configs) {
      std::vector<std::string> cells = {to_string(config)};
      for (const BenchRow& row : rows) {
        std::string cell = "-";
        for (const ConfigTimes& times : row.configs) {
          if (times.config != config) continue;
          cell = times.samples.empty() ? "failed" : figures(times.us);
          if (&times == row.best()) cell = "best " + cell;
          if (&times == &row.pick()) cell = "served " + cell;
        }
        cells.push_back(std::move(cell));
      }
      table.add(std::move(cells));
    }
    table.print(session.out);
    session.out << '\n';
  }
  std::vector<Table::Column> columns = {
      {"shape"}, {"served"}, {"from"}, {"us", kRight}, {"spread", kRight}};
  if (many) columns.insert(columns.end(), {{"best"}, {"us", kRight}, {"behind", kRight}});
  columns.push_back({"floor us", kRight});
  if (peers) columns.insert(columns.end(), {{"peer us", kRight}, {"peer/ours", kRight}});
  Table table(columns);
  for (const BenchRow& row : rows) {
    const ConfigTimes& pick = row.pick();
    std::vector<std::string> cells = {shape_name(row.shape), to_string(pick.config), row.source};
    if (pick.samples.empty()) {
      cells.insert(cells.end(), {"failed", ""});
    } else {
      const auto [low, high] = std::minmax_element(pick.samples.begin(), pick.samples.end());
      cells.insert(cells.end(), {figures(pick.us), percent(*high / *low - 1)});
    }
    if (many) {
      const ConfigTimes* best = row.best();
      cells.insert(cells.end(), {best ? to_string(best->config) : "", best ? figures(best->us) : "",
                                 best && pick.us > 0 ? percent(pick.us / best->us - 1) : ""});
    }
    cells.push_back(figures(row.floor_us));
    if (peers)
      cells.insert(cells.end(), {row.peer ? figures(row.peer->us) : "",
                                 row.peer && pick.us > 0 ? figures(row.peer->us / pick.us) : ""});
    table.add(std::move(cells));
  }
  table.print(session.out);
}

int run_bench(Session& session, const BenchOptions& options) {
  if (const Status status = check_op(options.op); !status.ok())
    return session.fail(kExitUsage, status);
  if (options.configs != "all" && options.configs != "picks") {
    return session.fail(kExitUsage, invalid_argument("--configs is '" + options.configs +
                                                     "', it must be all or picks"));
  }
  if (const auto l2 = parse_l2(options.l2); !l2.ok()) return session.fail(kExitUsage, l2.status());
  std::optional<Config> forced;
  if (!options.config.empty()) {
    const Result<Config> config = parse_config(options.config);
    if (!config.ok()) return session.fail(kExitUsage, config.status());
    forced = *config;
  }
  ShapeFlags flags = options.shapes;
  if (!flags.any()) flags.file = "small";
  Result<std::vector<tuning::Shape>> shapes = std::vector<tuning::Shape>();
  if (!options.serve) {
    shapes = load_shapes(flags, options.op);
    if (shapes.ok()) shapes = swept(std::move(*shapes), options.sweep);
    if (!shapes.ok()) return session.fail(kExitUsage, shapes.status());
    for (const tuning::Shape& shape : *shapes) {
      if (!forced) break;
      const auto problem = ops::make_problem(shape);
      const Status legal = problem.ok() ? legal_somewhere(**problem, *forced) : problem.status();
      if (!legal.ok()) return session.fail(kExitUsage, legal.with_context(shape_argument(shape)));
    }
  }
  std::vector<std::pair<tuning::Shape, PeerTime>> peers;
  os::FileSystem& files = os::posix_file_system();
  if (!options.peer_json.empty()) {
    const Result<std::string> text = files.read_file(options.peer_json, kMaxPeerBytes);
    if (!text.ok()) return session.fail(kExitUsage, text.status());
    auto read = read_peers(*text);
    if (!read.ok()) return session.fail(kExitUsage, read.status().with_context(options.peer_json));
    peers = std::move(*read);
  }
  for (const std::string& path : {options.out, options.csv, options.svg, options.html}) {
    if (const Status status = check_writable(path); !status.ok())
      return session.fail(kExitEnvironment, status);
  }
  Result<Gpu> gpu = open_gpu(session, options.engine);
  if (!gpu.ok()) return session.fail(gpu.status());
  if (options.serve) return serve(session, *gpu, options, forced);

  std::vector<BenchRow> rows;
  std::int64_t failed = 0;
  {
    Progress progress(session.err, session.err_is_terminal, "shapes",
                      static_cast<std::int64_t>(shapes->size()));
    for (const tuning::Shape& shape : *shapes) {
      progress.note(shape_name(shape));
      Result<BenchRow> row = time_shape(*gpu, options, shape, forced);
      if (!row.ok()) {
        ++failed;
        progress.line("scanjit: " + shape_name(shape) + ": " + printable(row.status().message()));
        std::vector<std::string> again = {session.arguments.front(), "bench", options.op, "--shape",
                                          shape_argument(shape),     "--l2",  options.l2};
        if (forced) again.insert(again.end(), {"--config", options.config});
        for (std::string& word : engine_arguments(options.engine)) again.push_back(std::move(word));
        progress.line("repeat: " + shell_line(again));
        if (row.status().code() == ErrorCode::kDeviceLost)
          return session.fail(kExitFailed, row.status());
      } else {
        for (const auto& [peer_shape, time] : peers) {
          if (same_problem(peer_shape, shape)) row->peer = time;
        }
        failed += row->pick().samples.empty() ? 1 : 0;
        rows.push_back(std::move(*row));
      }
      progress.advance();
    }
  }
  Json document = {{"schema", "scanjit-bench/1"}};
  document.update(provenance(session, gpu->internals));
  document["l2"] = options.l2;
  Json list = Json::array();
  for (const BenchRow& row : rows) list.push_back(row_json(row));
  document["rows"] = std::move(list);

  const std::string title =
      options.op + " on " + gpu->internals.facts.name + ": time of each config by sequence count";
  const std::string note = "Median of " + std::to_string(options.rounds) + " graph replays of " +
                           figures(options.block_ms) + " ms, L2 " + options.l2 + ", driver " +
                           gpu->internals.facts.driver + ". Both axes are logarithmic.";
  const std::pair<const std::string&, std::string> outputs[] = {
      {options.out, options.out.empty()
                        ? ""
                        : document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"},
      {options.csv, options.csv.empty() ? "" : csv_of(rows)},
      {options.svg, options.svg.empty() ? "" : draw_svg(rows, title, note)},
      {options.html, options.html.empty() ? "" : draw_html(rows, title, note)}};
  for (const auto& [path, text] : outputs) {
    if (path.empty()) continue;
    if (const Status status = files.publish(path, text); !status.ok())
      return session.fail(kExitEnvironment, status);
  }
  if (session.json) {
    session.out << dump(document) << std::endl;
  } else {
    print_rows(session, rows);
  }
  if (failed == 0) return kExitOk;
  session.err << "scanjit: " << failed << " of " << shapes->size()
              << " shapes failed\nrepeat: " << shell_line(session.arguments) << std::endl;
  return kExitFailed;
}

}  // namespace

Command add_bench(CLI::App& parent, Session& session) {
  auto options = std::make_shared<BenchOptions>();
  options->engine.tune_mode = TuneMode::kReplay;
  CLI::App* app = parent.add_subcommand(
      "bench", "Time every config on a map of shapes; JSON, CSV and pictures");
  add_session_flags(*app, session);
  add_op(*app, options->op)->required();
  std::vector<CLI::Option*> of_maps = add_shape_flags(*app, options->shapes);
  of_maps.push_back(
      app->add_option(
             "--sweep", options->sweep,
             "A field of the shapes and the values it takes in turn, as N=1,4,16; may be repeated")
          ->type_name("NAME=A,B,...")
          ->allow_extra_args(false));
  CLI::Option* configs =
      app->add_option("--configs", options->configs,
                      "all: every config worth timing; picks: only what an engine serves")
          ->type_name("WHICH")
          ->capture_default_str();
  app->add_option("--config", options->config, "Only this config, as bv=64,bk=128,stages=2,warps=4")
      ->type_name("CONFIG")
      ->excludes(configs);
  app->add_option("--l2", options->l2,
                  "State of the L2 cache when a run starts: warm (replay over one set of tensors) "
                  "or cold (rotate sets over twice the L2)")
      ->type_name("STATE")
      ->capture_default_str();
  of_maps.push_back(configs);
  of_maps.push_back(
      app->add_option("--rounds", options->rounds, "Timed blocks of each config; the median counts")
          ->type_name("N")
          ->transform(whole_number(5, 1000))
          ->capture_default_str());
  app->add_option("--block-ms", options->block_ms, "GPU time of one timed block, in milliseconds")
      ->type_name("MS")
      ->check(finite_number(0.1, 10000.0))
      ->capture_default_str();
  const auto add_file = [&](const char* name, std::string& path, const char* about) {
    of_maps.push_back(app->add_option(name, path, about)->type_name("FILE"));
  };
  add_file("--peer-json", options->peer_json,
           "Benchmark file whose rows have a peer: shown beside ours, as measured before");
  add_file("-o,--out", options->out, "Write the benchmark file (JSON)");
  add_file("--csv", options->csv, "Write a table, one line for each shape and config");
  add_file("--svg", options->svg, "Draw time against sequence count");
  add_file("--html", options->html, "The same in a page, with the figures");
  CLI::Option* serving = app->add_flag(
      "--serve", options->serve,
      "Read lines on standard input: a shape (N=16,T=1024,...) is prepared, an empty line is "
      "answered with one timed block ({\"us\": 12.3}); for interleaving with another program");
  for (CLI::Option* option : of_maps) serving->excludes(option);
  add_device_flag(*app, options->engine);
  add_store_flags(*app, options->engine);
  app->footer(
      "Example: every config against the sequence count, as a picture\n"
      "  scanjit bench gated_delta_h --shape T=1024,HV=32 --sweep N=1,2,4,8,16 --svg width.svg\n"
      "  scanjit bench gated_delta_h --shapes scan_map --out h200.json --peer-json peers.json\n"
      "  printf 'N=16,T=1024,HV=32\\n\\n\\n' | scanjit bench gated_delta_h --serve");
  return {app, [options](Session& s) { return run_bench(s, *options); }};
}

}  // namespace scanjit::cli
