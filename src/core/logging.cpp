#include "core/logging.hpp"

#include <cstddef>
#include <mutex>
#include <set>

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

namespace scanjit {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

LogLevel from_spdlog(spdlog::level::level_enum level) noexcept {
  switch (level) {
    case spdlog::level::trace:
    case spdlog::level::debug: return LogLevel::kDebug;
    case spdlog::level::info: return LogLevel::kInfo;
    case spdlog::level::warn: return LogLevel::kWarning;
    default: return LogLevel::kError;
  }
}

/// Hands each line to the owner's function, as it is: time stamps and prefixes are the owner's
/// matter.
class FunctionSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit FunctionSink(LogSink function) : function_(std::move(function)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    try {
      function_(from_spdlog(message.level),
                std::string(message.payload.data(), message.payload.size()));
    } catch (...) {  // NOLINT(bugprone-empty-catch): a broken sink must not break a launch
    }
  }
  void flush_() override {}

 private:
  LogSink function_;
};

}  // namespace

struct Log::State {
  // A key more than this is taken as already warned of: a process that runs for months stays
  // bounded.
  static constexpr std::size_t kMaxKeys = 4096;

  explicit State(LogSink sink)
      : logger("scanjit", std::make_shared<FunctionSink>(std::move(sink))) {
    logger.set_level(spdlog::level::debug);
    // spdlog's own handler prints to stderr.
    logger.set_error_handler([](const std::string&) {});
  }

  spdlog::logger logger;  // of our own: the host's default registry is not ours to touch
  std::mutex mutex;
  std::set<std::string> warned;
};

Log::Log(const LogSink& sink) : state_(sink ? std::make_shared<State>(sink) : nullptr) {}

void Log::write(LogLevel level, const std::string& text) const noexcept {
  if (!state_) return;
  try {
    state_->logger.log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for a log line
  }
}

void Log::warn_once(const std::string& key, const std::string& text) const noexcept {
  if (!state_) return;
  try {
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->warned.size() >= State::kMaxKeys || !state_->warned.insert(key).second) return;
    }
    warning(text);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for a log line
  }
}

}  // namespace scanjit
