#pragma once
/// \file
/// Benchmark rows as a picture: time of each config against the sequence count, one panel for each
/// group of shapes that differ in nothing else. Readable on light and dark grounds.

#include <string>
#include <vector>

#include "bench_rows.hpp"

namespace scanjit::cli {

/// A whole SVG document. `title` is the head line, `note` a line under it.
[[nodiscard]] std::string draw_svg(const std::vector<BenchRow>& rows, const std::string& title,
                                   const std::string& note);

/// The same in a page of its own, with the figures as a table under it.
[[nodiscard]] std::string draw_html(const std::vector<BenchRow>& rows, const std::string& title,
                                    const std::string& note);

}  // namespace scanjit::cli
