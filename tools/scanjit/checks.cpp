#include "checks.hpp"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "name_values.hpp"

namespace scanjit::cli {
namespace {

std::string plain(double value) {
  std::string text(32, ' ');
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  return error == std::errc() ? std::string(text.data(), end) : "?";
}

}  // namespace

std::string absolute_path(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty() || path.front() == '/') return path;
  std::error_code error;
  fs::path whole = fs::absolute(path, error);
  if (error) return path;  // the working directory is gone: nothing relative will be found
  if (!whole.has_filename()) whole = whole.parent_path();
  const fs::path name = whole.filename();
  const bool steps = name == "." || name == "..";
  const fs::path known = fs::weakly_canonical(steps ? whole : whole.parent_path(), error);
  if (error) return whole.string();
  return (steps ? known : known / name).string();
}

CLI::Validator whole_number(std::int64_t low, std::int64_t high) {
  return {[low, high](std::string& text) -> std::string {
            const Result<std::int64_t> number = parse_integer("the value", text, low, high);
            if (!number.ok()) return number.status().message();
            text = std::to_string(*number);  // "010" is ten
            return "";
          },
          ""};
}

CLI::Validator finite_number(double low, double high) {
  return {[low, high](std::string& text) -> std::string {
            double number = 0;
            const auto [end, error] =
                std::from_chars(text.data(), text.data() + text.size(), number);
            const bool whole = error == std::errc() && end == text.data() + text.size();
            if (whole && std::isfinite(number) && number >= low && number <= high) return "";
            return "the value is '" + text + "', it must be a number from " + plain(low) + " to " +
                   plain(high);
          },
          ""};
}

CLI::Validator not_empty() {
  return {[](std::string& text) -> std::string {
            return text.empty() ? "the value is empty; leave the flag out for its default" : "";
          },
          ""};
}

CLI::Validator cache_directory() {
  return {[](std::string& text) -> std::string {
            if (text != "none") text = absolute_path(text);
            return "";
          },
          ""};
}

CLI::Validator pack_directory() {
  return {[](std::string& text) -> std::string {
            text = absolute_path(text);
            std::error_code error;
            if (std::filesystem::is_directory(text, error)) return "";
            return "there is no directory " + text;
          },
          ""};
}

}  // namespace scanjit::cli
