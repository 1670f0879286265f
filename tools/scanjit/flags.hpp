#pragma once
/// \file
/// Flags that several subcommands share, under one spelling and with one text each.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "scanjit/engine.hpp"
#include "session.hpp"
#include "shape_source.hpp"

namespace scanjit::cli {

/// --json and --verbose: every command has them.
inline void add_session_flags(CLI::App& app, Session& session) {
  app.add_flag("--json", session.json, "Print one JSON object on standard output instead of text");
  app.add_flag("-v,--verbose", session.verbose, "Print the library's whole log on standard error");
}

/// Where stores lie.
inline void add_store_flags(CLI::App& app, EngineOptions& options) {
  app.add_option("--cache-dir", options.cache_dir,
                 "Cache directory, an absolute path (default: SCANJIT_CACHE_DIR, else "
                 "$XDG_CACHE_HOME/scanjit, "
                 "else ~/.cache/scanjit); 'none' keeps everything in memory")
      ->type_name("DIR");
  app.add_option("--pack", options.pack_dirs,
                 "Read-only pack made by 'scanjit prewarm'; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false);
}

inline void add_device_flag(CLI::App& app, EngineOptions& options) {
  app.add_option("--device", options.device,
                 "Number of the GPU, as CUDA_VISIBLE_DEVICES leaves them")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
}

inline CLI::Option* add_op(CLI::App& app, std::string& op) {
  return app.add_option("OP", op, "The op: gated_delta_h")->type_name("");
}

inline void add_shapes_flag(CLI::App& app, ShapeFlags& flags) {
  app.add_option("--shapes", flags.file, "Shape file (JSON), or the name of a built-in map")
      ->type_name("FILE");
  app.add_option("--shape", flags.shapes,
                 "One shape, as N=16,T=1024,HV=32. Left out are N=1, T=1024, H=16, HV=2H (H if H "
                 "is given), K=128, "
                 "V=128, BT=64, dtype=bf16, gate=g (none, gk, g+gk), optional=h+h0+ht+v_new, "
                 "packed=false. May be "
                 "repeated")
      ->type_name("NAME=VALUE,...")
      ->allow_extra_args(false);
}

inline void add_model_flags(CLI::App& app, ShapeFlags& flags) {
  app.add_option("--model", flags.model, "Built-in model: the shapes that serving it meets")
      ->type_name("NAME");
  app.add_option("--tp", flags.tp, "Tensor-parallel size that divides the model's heads")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
}

}  // namespace scanjit::cli
