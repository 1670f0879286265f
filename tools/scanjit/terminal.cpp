#include "terminal.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <utility>

#include "os/clock.hpp"

namespace scanjit::cli {
namespace {

constexpr std::int64_t kQuietMs = 2000;
constexpr std::int64_t kBarEveryMs = 200;
constexpr std::int64_t kLineEveryMs = 10000;
constexpr std::int64_t kBarWidth = 24;
constexpr std::size_t kNoteWidth = 40;

// Cells of a terminal that a text takes, if it is UTF-8 of letters and signs.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), pattern, values...);
  return buffer.data();
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

void Table::print(std::ostream& out) const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = width_of(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, width_of(row[c]));
    widths.push_back(width);
  }
  const auto print_row = [&](const auto& cell) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& text = cell(c);
      const std::string gap(widths[c] - width_of(text), ' ');
      if (c != 0) line += "  ";
      line += columns_[c].align == Align::kRight ? gap + text : text + gap;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  };
  print_row([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  for (const auto& row : rows_) {
    print_row([&](std::size_t c) -> const std::string& { return row[c]; });
  }
  out.flush();
}

Progress::Progress(std::ostream& err, bool terminal, std::string what, std::int64_t total)
    : err_(err),
      terminal_(terminal),
      what_(std::move(what)),
      total_(total),
      start_ms_(os::steady_clock().now_ms()) {}

Progress::~Progress() { clear(); }

void Progress::advance(std::int64_t steps) {
  done_ += steps;
  show(false);
}

void Progress::note(std::string text) {
  note_ = std::move(text);
  show(false);
}

void Progress::line(const std::string& text) {
  clear();
  err_ << text << std::endl;
  if (terminal_) show(true);
}

void Progress::clear() {
  if (!on_screen_) return;
  err_ << "\r\033[K" << std::flush;
  on_screen_ = false;
}

void Progress::show(bool now) {
  const std::int64_t time = os::steady_clock().now_ms();
  const std::int64_t elapsed = time - start_ms_;
  if (elapsed < kQuietMs) return;
  const std::int64_t every = terminal_ ? kBarEveryMs : kLineEveryMs;
  if (!now && shown_ms_ != 0 && time - shown_ms_ < every) return;
  shown_ms_ = time;

  std::string text = what_ + " " + std::to_string(done_);
  if (total_ > 0) {
    text += "/" + std::to_string(total_);
    if (terminal_) {
      const auto filled = static_cast<std::size_t>(
          std::clamp<std::int64_t>(kBarWidth * done_ / total_, 0, kBarWidth));
      text += " [" + std::string(filled, '#') +
              std::string(static_cast<std::size_t>(kBarWidth) - filled, '.') + "]";
    }
    if (done_ > 0 && done_ < total_) {
      const double left = static_cast<double>(elapsed) / static_cast<double>(done_) *
                          static_cast<double>(total_ - done_);
      text += " " + duration_text(static_cast<std::int64_t>(left / 1000)) + " left";
    }
  } else {
    text += ", " + duration_text(elapsed / 1000);
  }
  if (!note_.empty()) text += "  " + (terminal_ ? note_.substr(0, kNoteWidth) : note_);
  if (terminal_) {
    err_ << "\r\033[K" << text << std::flush;
    on_screen_ = true;
  } else {
    err_ << text << std::endl;
  }
}

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string out, word;
  std::size_t column = indent;
  bool line_has_word = false;
  const auto flush = [&] {
    if (word.empty()) return;
    const std::size_t length = width_of(word);
    if (line_has_word && column + 1 + length > width) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
      line_has_word = false;
    }
    if (line_has_word) {
      out += ' ';
      ++column;
    }
    out += word;
    column += length;
    line_has_word = true;
    word.clear();
  };
  for (const char c : text) {
    if (c != ' ' && c != '\n') {
      word += c;
      continue;
    }
    flush();
    if (c == '\n') {
      out += '\n' + std::string(indent, ' ');
      column = indent;
      line_has_word = false;
    }
  }
  flush();
  return out;
}

std::string figures(double value) {
  const double size = std::fabs(value);
  const int decimals = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return format("%.*f", decimals, value);
}

std::string percent(double fraction, bool sign) {
  return format(sign ? "%+.1f%%" : "%.1f%%", fraction * 100);
}

std::string double_byte_text(double bytes) {
  static constexpr std::array<const char*, 7> kUnits = {"B",   "KiB", "MiB", "GiB",
                                                        "TiB", "PiB", "EiB"};
  double value = bytes;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return format(unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string duration_text(std::int64_t seconds) {
  if (seconds < 60) return std::to_string(seconds) + " s";
  if (seconds < 3600)
    return std::to_string(seconds / 60) + " min " +
           format("%02d s", static_cast<int>(seconds % 60));
  return std::to_string(seconds / 3600) + " h " +
         format("%02d min", static_cast<int>(seconds % 3600 / 60));
}

}  // namespace scanjit::cli
