#pragma once
/// \file
/// The log of one engine or tool: lines go to the sink that its owner gave, or nowhere.

#include <concepts>
#include <functional>
#include <memory>
#include <string>

#include "scanjit/engine.hpp"

namespace scanjit {

using LogSink = std::function<void(LogLevel, const std::string&)>;

/// A handle on a log; copies share the sink and the memory of `warn_once`. Thread-safe: the sink
/// may be called from several threads at once. What the sink throws is swallowed. Without a sink
/// nothing is formatted: give long texts as a callable, `log.debug([&] { return ...; })`.
class Log {
 public:
  Log() noexcept = default;           ///< silent
  explicit Log(const LogSink& sink);  ///< an empty function is silent

  [[nodiscard]] bool enabled() const noexcept { return state_ != nullptr; }
  void write(LogLevel level, const std::string& text) const noexcept;

  void debug(const std::string& text) const noexcept { write(LogLevel::kDebug, text); }
  void info(const std::string& text) const noexcept { write(LogLevel::kInfo, text); }
  void warning(const std::string& text) const noexcept { write(LogLevel::kWarning, text); }
  void error(const std::string& text) const noexcept { write(LogLevel::kError, text); }

  template <std::invocable MakeText>
  void debug(MakeText&& make_text) const {
    if (enabled()) debug(std::string(make_text()));
  }
  template <std::invocable MakeText>
  void info(MakeText&& make_text) const {
    if (enabled()) info(std::string(make_text()));
  }

  /// A warning, unless one of this key was written before through this log or a copy of it.
  void warn_once(const std::string& key, const std::string& text) const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace scanjit
