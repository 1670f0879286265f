#pragma once
// What scanjit_gpu_figures measures. Each adds its rows and never throws; a figure that cannot be
// had is a row that says why.

#include <string>
#include <vector>

#include "engine/internals.hpp"
#include "gpu/figures/report.hpp"
#include "gpu/gpu.hpp"
#include "os/clock.hpp"

namespace scanjit::test {

struct FigureOptions {
  bool quick = false;     // fewer points, fewer repeats: to see that it works
  std::string directory;  // an empty one, for caches
  std::string program;    // this program, to be run as a process of its own
  /// Milliseconds of os::steady_clock after which no further point is begun; 0: no limit.
  std::int64_t deadline_ms = 0;
  [[nodiscard]] bool late() const {
    return deadline_ms != 0 && os::steady_clock().now_ms() > deadline_ms;
  }
};

// picks.cpp
void width_story(Gpu& gpu, const FigureOptions& options, Report& report);
void held_out_regret(Gpu& gpu, const FigureOptions& options, Report& report);
void tuning_agreement(Gpu& gpu, const FigureOptions& options, Report& report);
// first_use.cpp: each in processes of their own, since "from nothing" holds once in a process
void first_use(Gpu& gpu, const FigureOptions& options, Report& report);
/// What those processes do: "first_use", "whole_space", "warm_start", "look_up", "fill" or
/// "warm_process".
void first_use_child(Gpu& gpu, const std::string& name, const std::string& cache, Report& report);
// speed.cpp
void speed_rows(Gpu& gpu, const FigureOptions& options, Report& report);

/// An engine with its cache in `cache`. `shipped`: with the tuned files that the library carries.
[[nodiscard]] Result<Engine> make_engine(TuneMode mode, const std::string& cache, bool shipped);

}  // namespace scanjit::test
