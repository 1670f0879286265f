#include "picture.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "terminal.hpp"

namespace scanjit::cli {
namespace {

constexpr double kLeft = 46, kRight = 14, kTop = 30, kBottom = 34;  // margins inside a panel
constexpr double kHead = 62, kLegendRow = 19, kMargin = 14;
constexpr std::size_t kMostColumns = 4;
// Mid tones that stand out from white and from near black; the text's too.
constexpr std::array<const char*, 6> kColours = {"#3b82f6", "#f08c1d", "#12a594",
                                                 "#e5484d", "#9b6bdf", "#a1824a"};
constexpr const char* kText = "#7a828e";
constexpr const char* kGrid = "#7a828e";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string number(double value) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << value;
  return text.str();
}

// What panels have in common and what tells them apart.
enum class Axis { kSequences, kTokens };
std::int64_t place(const BenchRow& row, Axis axis) {
  return axis == Axis::kSequences ? row.shape.N : row.shape.T;
}

struct Panel {
  std::string title;
  std::vector<const BenchRow*> rows;  // ascending on the axis
};

using GroupKey = std::array<std::int64_t, 9>;
GroupKey group_of(const BenchRow& row, Axis axis) {
  const tuning::Shape& s = row.shape;
  // Heads first and length last: panels of one row share their heads.
  return {s.K,
          s.V,
          s.BT,
          static_cast<int>(s.dtype),
          s.packed ? 1 : 0,
          s.H,
          s.HV,
          static_cast<std::int64_t>(s.gate.size()),
          axis == Axis::kSequences ? s.T : s.N};
}

std::vector<Panel> panels_of(const std::vector<BenchRow>& rows, Axis* axis) {
  std::map<GroupKey, std::vector<const BenchRow*>> groups;
  for (const Axis tried : {Axis::kSequences, Axis::kTokens}) {
    *axis = tried;
    groups.clear();
    for (const BenchRow& row : rows) groups[group_of(row, tried)].push_back(&row);
    std::size_t longest = 0;
    for (const auto& [key, group] : groups) longest = std::max(longest, group.size());
    if (longest > 1) break;
  }
  std::size_t longest = 0;
  for (const auto& [key, group] : groups) longest = std::max(longest, group.size());
  // Titles name what differs among the panels.
  std::set<std::int64_t> heads;
  for (const auto& [key, group] : groups) heads.insert(key[6]);
  std::vector<Panel> panels;
  for (auto& [key, group] : groups) {
    if (longest > 1 && group.size() < 2) continue;  // a single point is no curve
    std::sort(group.begin(), group.end(), [&](const BenchRow* a, const BenchRow* b) {
      return place(*a, *axis) < place(*b, *axis);
    });
    const tuning::Shape& s = group.front()->shape;
    std::string title =
        "HV " + std::to_string(s.HV) + ", " +
        (*axis == Axis::kSequences ? "T " + std::to_string(s.T) : "N " + std::to_string(s.N));
    if (s.K != 128 || s.V != 128)
      title += ", K " + std::to_string(s.K) + " V " + std::to_string(s.V);
    if (s.packed) title += ", packed";
    panels.push_back({std::move(title), std::move(group)});
  }
  return panels;
}

// Configs in order of interest: those that are the best somewhere, most often first; then the rest.
std::vector<Config> configs_by_wins(const std::vector<BenchRow>& rows, std::size_t* winners) {
  std::map<Config, int> wins;
  for (const BenchRow& row : rows) {
    for (const ConfigTimes& times : row.configs) {
      if (!times.samples.empty()) wins.try_emplace(times.config, 0);
    }
    if (const ConfigTimes* best = row.best()) ++wins[best->config];
    if (!row.pick().samples.empty()) ++wins[row.pick().config];
  }
  std::vector<std::pair<Config, int>> order(wins.begin(), wins.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<Config> configs;
  *winners = 0;
  for (const auto& [config, count] : order) {
    configs.push_back(config);
    if (count > 0 && *winners < kColours.size()) ++*winners;
  }
  return configs;
}

std::string short_config(const Config& config) {
  return "bv " + std::to_string(config.bv) + ", bk " + std::to_string(config.bk) + ", " +
         std::to_string(config.stages) + " stages, " + std::to_string(config.warps) + " warps" +
         (config.segment_chunks == 0
              ? ""
              : ", segments of " + std::to_string(config.segment_chunks) + " chunks");
}

class Drawing {
 public:
  Drawing(const std::vector<BenchRow>& rows, const std::string& title, const std::string& note)
      : title_(title), note_(note) {
    panels_ = panels_of(rows, &axis_);
    configs_ = configs_by_wins(rows, &winners_);
    for (const BenchRow& row : rows) {
      has_floor_ = has_floor_ || row.floor_us > 0;
      if (row.peer) peer_ = row.peer->name;
    }
    // As many columns as there are lengths of one set of heads, so that heads make the rows.
    std::map<std::int64_t, std::size_t> per_heads;
    for (const Panel& panel : panels_) ++per_heads[panel.rows.front()->shape.HV];
    columns_ = 1;
    for (const auto& [heads, count] : per_heads) columns_ = std::max(columns_, count);
    columns_ = std::min({columns_, kMostColumns, std::max<std::size_t>(1, panels_.size())});
    if (per_heads.size() > 1 && columns_ == 1) columns_ = std::min(kMostColumns, panels_.size());
    // Few panels are drawn larger, so that the picture fills a page either way.
    panel_width_ = columns_ == 1 ? 640 : columns_ == 2 ? 400 : columns_ == 3 ? 320 : 268;
    panel_height_ = 0.6 * panel_width_ + 54;
  }

  std::string draw() {
    const double words =
        std::max(8.8 * static_cast<double>(title_.size()), 6.2 * static_cast<double>(note_.size()));
    const double width =
        std::max(words, static_cast<double>(columns_) * panel_width_) + 2 * kMargin;
    const double legend = draw_legend(width);
    const std::size_t lines = (panels_.size() + columns_ - 1) / columns_;
    const double height = kHead + legend + static_cast<double>(lines) * panel_height_ + kMargin;
    for (std::size_t i = 0; i < panels_.size(); ++i) {
      const double x = kMargin + static_cast<double>(i % columns_) * panel_width_;
      const double y = kHead + legend + static_cast<double>(i / columns_) * panel_height_;
      draw_panel(panels_[i], x, y, i % columns_ == 0);
    }
    std::ostringstream svg;
    svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << number(width) << ' '
        << number(height) << "\" width=\"" << number(width) << "\" height=\"" << number(height)
        << "\" font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\" "
           "font-size=\"11\" fill=\""
        << kText << "\">\n"
        << "<title>" << escaped(title_) << "</title>\n"
        << "<text x=\"" << kMargin << "\" y=\"24\" font-size=\"15\" font-weight=\"600\">"
        << escaped(title_) << "</text>\n"
        << "<text x=\"" << kMargin << "\" y=\"44\">" << escaped(note_) << "</text>\n"
        << body_.str() << "</svg>\n";
    return svg.str();
  }

 private:
  // Returns the height that the legend takes.
  double draw_legend(double width) {
    struct Item {
      std::string line, text;
    };
    std::vector<Item> items;
    const auto stroke = [](const char* colour, const char* extra) {
      return std::string("<line x1=\"0\" x2=\"20\" y1=\"-4\" y2=\"-4\" stroke=\"") + colour +
             "\" " + extra + "/>";
    };
    for (std::size_t i = 0; i < winners_; ++i)
      items.push_back({stroke(kColours[i], "stroke-width=\"2\""), short_config(configs_[i])});
    if (configs_.size() > winners_) {
      items.push_back({stroke(kText, "stroke-width=\"1\" stroke-opacity=\"0.45\""),
                       std::to_string(configs_.size() - winners_) + " other configs"});
    }
    items.push_back({std::string("<circle cx=\"10\" cy=\"-4\" r=\"4.5\" fill=\"none\" stroke=\"") +
                         kText + "\" stroke-width=\"1.6\"/>",
                     "what scanjit serves"});
    if (!peer_.empty())
      items.push_back({stroke(kText, "stroke-width=\"1.8\" stroke-dasharray=\"6 4\""), peer_});
    if (has_floor_)
      items.push_back({stroke(kText, "stroke-width=\"1.4\" stroke-dasharray=\"1.5 3\""),
                       "fewest bytes at 4.3 TB/s"});
    double x = kMargin, y = kHead + 8;
    for (const Item& item : items) {
      const double item_width = 46 + 5.9 * static_cast<double>(item.text.size());
      if (x != kMargin && x + item_width > width - kMargin) {
        x = kMargin;
        y += kLegendRow;
      }
      body_ << "<g transform=\"translate(" << number(x) << ' ' << number(y) << ")\">" << item.line
            << "<text x=\"26\">" << escaped(item.text) << "</text></g>\n";
      x += item_width;
    }
    return y - kHead + 14;
  }

  void draw_panel(const Panel& panel, double x0, double y0, bool leftmost) {
    const double width = panel_width_ - kLeft - kRight, height = panel_height_ - kTop - kBottom;
    double low = 0, high = 0;
    const auto include = [&](double us) {
      if (us <= 0) return;
      low = low == 0 ? us : std::min(low, us);
      high = std::max(high, us);
    };
    for (const BenchRow* row : panel.rows) {
      for (const ConfigTimes& times : row->configs) include(times.us);
      include(row->floor_us);
      if (row->peer) include(row->peer->us);
    }
    if (low == 0) return;
    const double bottom = std::log10(low) - 0.06, top = std::log10(high) + 0.06;
    const auto log_place = [&](const BenchRow& row) {
      return std::log2(static_cast<double>(std::max<std::int64_t>(1, place(row, axis_))));
    };
    const double first = log_place(*panel.rows.front()), last = log_place(*panel.rows.back());
    const auto at_x = [&](const BenchRow& row) {
      const double value = log_place(row);
      return x0 + kLeft + (last > first ? (value - first) / (last - first) : 0.5) * width;
    };
    const auto at_y = [&](double us) {
      return y0 + kTop + (1 - (std::log10(us) - bottom) / (top - bottom)) * height;
    };

    body_ << "<text x=\"" << number(x0 + kLeft) << "\" y=\"" << number(y0 + 19)
          << "\" font-weight=\"600\">" << escaped(panel.title) << "</text>\n";
    // Steps of 1, 2, 5; every decade alone where these would crowd.
    const bool wide = top - bottom > 2.2;
    for (int decade = static_cast<int>(std::floor(bottom));
         decade <= static_cast<int>(std::ceil(top)); ++decade) {
      for (const double step : {1.0, 2.0, 5.0}) {
        const double us = step * std::pow(10.0, decade);
        if (std::log10(us) < bottom || std::log10(us) > top || (wide && step != 1.0)) continue;
        const double y = at_y(us);
        body_ << "<line x1=\"" << number(x0 + kLeft) << "\" x2=\"" << number(x0 + kLeft + width)
              << "\" y1=\"" << number(y) << "\" y2=\"" << number(y) << "\" stroke=\"" << kGrid
              << "\" stroke-opacity=\"0.22\"/><text x=\"" << number(x0 + kLeft - 6) << "\" y=\""
              << number(y + 3.5) << "\" text-anchor=\"end\">" << tick(us) << "</text>\n";
      }
    }
    for (const BenchRow* row : panel.rows) {
      body_ << "<text x=\"" << number(at_x(*row)) << "\" y=\"" << number(y0 + kTop + height + 15)
            << "\" text-anchor=\"middle\">" << place(*row, axis_) << "</text>\n";
    }
    body_ << "<text x=\"" << number(x0 + kLeft + width / 2) << "\" y=\""
          << number(y0 + kTop + height + 29) << "\" text-anchor=\"middle\">"
          << (axis_ == Axis::kSequences ? "sequences" : "tokens of a sequence") << "</text>\n";
    if (leftmost) {
      body_ << "<text transform=\"translate(" << number(x0 + 8) << ' '
            << number(y0 + kTop + height / 2)
            << ") rotate(-90)\" text-anchor=\"middle\">microseconds</text>\n";
    }

    curve(
        panel, [](const BenchRow& row) { return row.floor_us; }, at_x, at_y, kText,
        "stroke-width=\"1.4\" stroke-dasharray=\"1.5 3\"", "", false);
    for (std::size_t i = configs_.size(); i-- > 0;) {
      const Config& config = configs_[i];
      const bool winner = i < winners_;
      curve(
          panel,
          [&](const BenchRow& row) {
            for (const ConfigTimes& times : row.configs) {
              if (times.config == config) return times.us;
            }
            return 0.0;
          },
          at_x, at_y, winner ? kColours[i] : kText,
          winner ? "stroke-width=\"2\"" : "stroke-width=\"1\" stroke-opacity=\"0.45\"",
          winner ? short_config(config) : "", winner);
    }
    curve(
        panel, [](const BenchRow& row) { return row.peer ? row.peer->us : 0.0; }, at_x, at_y, kText,
        "stroke-width=\"1.8\" stroke-dasharray=\"6 4\"", peer_, false);
    for (const BenchRow* row : panel.rows) {
      if (row->pick().us <= 0) continue;
      body_ << "<circle cx=\"" << number(at_x(*row)) << "\" cy=\"" << number(at_y(row->pick().us))
            << "\" r=\"4.5\" fill=\"none\" stroke=\"" << kText << "\" stroke-width=\"1.6\"/>\n";
    }
  }

  template <class Value, class X, class Y>
  void curve(const Panel& panel, const Value& value, const X& at_x, const Y& at_y,
             const char* colour, const char* style, const std::string& name, bool dots) {
    std::string points, marks;
    std::size_t count = 0;
    for (const BenchRow* row : panel.rows) {
      const double us = value(*row);
      if (us <= 0) continue;
      const std::string x = number(at_x(*row)), y = number(at_y(us));
      points += (points.empty() ? "" : " ") + x + "," + y;
      ++count;
      if (dots || panel.rows.size() == 1) {
        marks += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"2.2\" fill=\"" + colour +
                 "\"><title>" + escaped(name) + ": " + figures(us) + " us at " +
                 std::to_string(place(*row, axis_)) + "</title></circle>";
      }
    }
    if (count > 1) {
      body_ << "<polyline points=\"" << points << "\" fill=\"none\" stroke=\"" << colour
            << "\" stroke-linejoin=\"round\" " << style << ">";
      if (!name.empty()) body_ << "<title>" << escaped(name) << "</title>";
      body_ << "</polyline>\n";
    }
    if (!marks.empty()) body_ << marks << '\n';
  }

  static std::string tick(double us) {
    std::ostringstream text;
    text << us;
    return text.str();
  }

  std::string title_, note_, peer_;
  Axis axis_ = Axis::kSequences;
  std::vector<Panel> panels_;
  std::vector<Config> configs_;
  std::size_t winners_ = 0, columns_ = 1;
  double panel_width_ = 0, panel_height_ = 0;
  bool has_floor_ = false;
  std::ostringstream body_;
};

}  // namespace

std::string draw_svg(const std::vector<BenchRow>& rows, const std::string& title,
                     const std::string& note) {
  return Drawing(rows, title, note).draw();
}

std::string draw_html(const std::vector<BenchRow>& rows, const std::string& title,
                      const std::string& note) {
  std::ostringstream html;
  html << "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
          "content=\"width=device-width\">\n<title>"
       << escaped(title)
       << "</title>\n<style>\n"
          ":root { color-scheme: light dark; }\n"
          "body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5rem; }\n"
          "svg { max-width: 100%; height: auto; }\n"
          "table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-top: "
          "1rem; }\n"
          "th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid #8884; }\n"
          "th { text-align: right; position: sticky; top: 0; background: Canvas; }\n"
          "</style>\n"
       << draw_svg(rows, title, note) << "<table>\n<tr><th>HV<th>N<th>T<th>served<th>us<th>best of "
       << (rows.empty() ? 0 : rows.front().configs.size())
       << "<th>us<th>behind best<th>floor us<th>peer us</tr>\n";
  for (const BenchRow& row : rows) {
    const ConfigTimes* best = row.best();
    if (best == nullptr) continue;
    html << "<tr><td>" << row.shape.HV << "<td>" << row.shape.N << "<td>" << row.shape.T << "<td>"
         << to_string(row.pick().config) << "<td>" << figures(row.pick().us) << "<td>"
         << to_string(best->config) << "<td>" << figures(best->us) << "<td>"
         << percent(row.pick().us / best->us - 1) << "<td>" << figures(row.floor_us) << "<td>"
         << (row.peer ? figures(row.peer->us) : "") << "</tr>\n";
  }
  html << "</table>\n</html>\n";
  return html.str();
}

}  // namespace scanjit::cli
