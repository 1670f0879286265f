#pragma once
/// \file
/// Flags that several subcommands share, under one spelling and with one text each.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "checks.hpp"
#include "scanjit/engine.hpp"
#include "session.hpp"
#include "shape_source.hpp"

namespace scanjit::cli {

/// --json and --verbose: every command has them.
inline void add_session_flags(CLI::App& app, Session& session) {
  app.add_flag("--json", session.json, "Print one JSON object on standard output instead of text");
  app.add_flag("-v,--verbose", session.verbose, "Print the library's whole log on standard error");
}

/// The one flag of the cache directory, the same in every command.
inline void add_cache_dir_flag(CLI::App& app, std::string& directory) {
  app.add_option("--cache-dir", directory,
                 "Cache directory (default: SCANJIT_CACHE_DIR, else $XDG_CACHE_HOME/scanjit, else "
                 "~/.cache/scanjit); 'none' keeps everything in memory")
      ->type_name("DIR")
      ->transform(cache_directory());
}

/// Where stores lie.
inline void add_store_flags(CLI::App& app, EngineOptions& options) {
  add_cache_dir_flag(app, options.cache_dir);
  app.add_option("--pack", options.pack_dirs,
                 "Read-only pack made by 'scanjit prewarm'; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false)
      ->transform(pack_directory());
}

inline void add_device_flag(CLI::App& app, EngineOptions& options) {
  app.add_option("--device", options.device,
                 "Number of the GPU, as CUDA_VISIBLE_DEVICES leaves them")
      ->type_name("N")
      ->transform(whole_number(0, std::numeric_limits<int>::max()));
}

inline void add_jobs_flag(CLI::App& app, int& jobs) {
  app.add_option("--jobs", jobs, "Parallel compilations (default: as many as cores, at most 16)")
      ->type_name("N")
      ->transform(whole_number(1, 256));
}

/// The arguments by which the same device and stores are named again, for lines that repeat one
/// case.
inline std::vector<std::string> engine_arguments(const EngineOptions& options) {
  std::vector<std::string> words;
  if (options.device != 0) words = {"--device", std::to_string(options.device)};
  if (!options.cache_dir.empty()) words.insert(words.end(), {"--cache-dir", options.cache_dir});
  for (const std::string& pack : options.pack_dirs) words.insert(words.end(), {"--pack", pack});
  return words;
}

inline CLI::Option* add_op(CLI::App& app, std::string& op) {
  return app
      .add_option("OP", op, "The op: gated_delta_h, kda_forward, abc_forward or abc_backward")
      ->type_name("");
}

/// The flags that name shapes, all of them; a caller may make others exclude them.
inline std::vector<CLI::Option*> add_shape_flags(CLI::App& app, ShapeFlags& flags) {
  CLI::Option* file =
      app.add_option("--shapes", flags.file, "Shape file (JSON), or the name of a built-in map")
          ->type_name("FILE");
  CLI::Option* shape =
      app.add_option(
             "--shape", flags.shapes,
             "One shape, as N=16,T=1024,HV=32. Left out are N=1, T=1024, H=16, HV=2H (H if H "
             "is given), K=128, "
             "V=128, BT=64, dtype=bf16, gate=g (none, gk, g+gk), optional=h+h0+ht+v_new, "
             "packed=false (ABC: H=4, HV=H, K=256, V=512, M=64, no gate and no optional tensors). "
             "May "
             "be repeated")
          ->type_name("NAME=VALUE,...")
          ->allow_extra_args(false);
  CLI::Option* model =
      app.add_option("--model", flags.model, "Built-in model: the shapes that serving it meets")
          ->type_name("NAME");
  app.add_option("--tp", flags.tp, "Tensor-parallel size that divides the model's heads")
      ->type_name("N")
      ->transform(whole_number(1, std::int64_t{1} << 20))
      ->needs(model);
  return {file, shape, model};
}

}  // namespace scanjit::cli
