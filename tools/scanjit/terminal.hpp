#pragma once
/// \file
/// Tables that line up, and progress with an estimate of what is left.

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace scanjit::cli {

/// Rows of text under titles, two spaces apart.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns);
  void add(std::vector<std::string> cells);  ///< one for each column
  void print(std::ostream& out) const;
  [[nodiscard]] bool empty() const noexcept { return rows_.empty(); }

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Progress of a count of steps. Nothing is shown in the first two seconds; then a bar that is
/// redrawn in place on a terminal, elsewhere a plain line every ten seconds. Not thread-safe.
class Progress {
 public:
  /// `total` of 0: unknown, no estimate.
  Progress(std::ostream& err, bool terminal, std::string what, std::int64_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  ///< takes the bar away

  void advance(std::int64_t steps = 1);
  /// What is being done now; shown behind the bar.
  void note(std::string text);
  /// A whole line on `err` that does not break the bar.
  void line(const std::string& text);

 private:
  void show(bool now);
  void clear();

  std::ostream& err_;
  bool terminal_;
  std::string what_;
  std::string note_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  std::int64_t start_ms_;
  std::int64_t shown_ms_ = 0;
  bool on_screen_ = false;
};

/// Words of `text` in lines of at most `width` cells; lines after the first begin with `indent`
/// blanks. What is longer than a line stays whole. Line ends in the text stay.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

/// "12.34", with as many digits as make four figures: 0.6712, 12.34, 1234.
[[nodiscard]] std::string figures(double value);
/// "4.2%"; with its sign if `sign`.
[[nodiscard]] std::string percent(double fraction, bool sign = false);
/// "840 B", "1.5 MiB".
[[nodiscard]] std::string double_byte_text(double bytes);
template <class Number>
[[nodiscard]] std::string byte_text(Number bytes) {
  return double_byte_text(static_cast<double>(bytes));
}
/// "45 s", "3 min 20 s", "2 h 05 min".
[[nodiscard]] std::string duration_text(std::int64_t seconds);

}  // namespace scanjit::cli
