#include "session.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <ostream>

#include "os/file_system.hpp"

namespace scanjit::cli {
namespace {

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

std::string quoted(const std::string& argument) {
  static constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=,./:@%";
  if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) return argument;
  // What a terminal must not be sent is spelt out, in quotes that the shell reads it back from.
  const bool control = std::any_of(argument.begin(), argument.end(), is_control);
  std::string text = control ? "$'" : "'";
  for (const char c : argument) {
    if (control && is_control(c)) {
      std::array<char, 8> octal{};
      std::snprintf(octal.data(), octal.size(), "\\%03o", static_cast<unsigned char>(c));
      text += octal.data();
    } else if (control && (c == '\'' || c == '\\')) {
      text += std::string("\\") + c;
    } else if (c == '\'') {
      text += "'\\''";
    } else {
      text += c;
    }
  }
  return text + "'";
}

}  // namespace

std::function<void(LogLevel, const std::string&)> Session::log_sink() {
  auto mutex = std::make_shared<std::mutex>();
  return [this, mutex](LogLevel level, const std::string& text) {
    if (level < LogLevel::kWarning && !verbose) return;
    const char* word = level == LogLevel::kDebug     ? "debug: "
                       : level == LogLevel::kInfo    ? "info: "
                       : level == LogLevel::kWarning ? "warning: "
                                                     : "error: ";
    const std::scoped_lock lock(*mutex);
    err << "scanjit: " << word << printable(text) << std::endl;
  };
}

void Session::print_json(const char* schema, Json fields) {
  Json object;
  object["schema"] = schema;
  for (auto& [name, value] : fields.items()) object[name] = std::move(value);
  out << dump(object) << std::endl;
}

int Session::fail(int exit, const Status& status, const std::string& repeat) {
  const std::string again = repeat.empty() ? shell_line(arguments) : repeat;
  err << "scanjit: " << printable(status.message()) << '\n';
  if (!status.details().compile_log.empty()) err << status.details().compile_log << '\n';
  err << "repeat: " << printable(again) << std::endl;
  if (json) {
    Json fields;
    fields["code"] = error_code_name(status.code());
    fields["message"] = status.message();
    if (!status.details().path.empty()) fields["path"] = status.details().path;
    if (!status.details().compile_log.empty()) fields["compile_log"] = status.details().compile_log;
    fields["exit"] = exit;
    fields["repeat"] = again;
    print_json("scanjit-error/1", std::move(fields));
  }
  return exit;
}

int Session::fail(const Status& status, const std::string& repeat) {
  return fail(exit_of(status.code()), status, repeat);
}

int exit_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk: return kExitOk;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kCorrupt: return kExitUsage;
    case ErrorCode::kCompileFailed:
    case ErrorCode::kInternal: return kExitFailed;
    case ErrorCode::kUnsupported:
    case ErrorCode::kCudaError:
    case ErrorCode::kDeviceLost:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kIoError:
    case ErrorCode::kCaptureMiss:
    case ErrorCode::kTimeout:
    case ErrorCode::kCancelled: return kExitEnvironment;
  }
  return kExitFailed;
}

Status check_writable(const std::string& path) {
  if (path.empty()) return {};
  const std::string folder = os::parent_path(path);
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
    return os::system_error(EISDIR, "write", path);
  if (access(folder.c_str(), W_OK) == 0) return {};
  return os::system_error(errno, "write to the folder", folder);
}

std::string shell_line(const std::vector<std::string>& arguments) {
  std::string line;
  for (const std::string& argument : arguments) {
    if (!line.empty()) line += ' ';
    line += quoted(argument);
  }
  return line;
}

std::string printable(std::string text) {
  for (char& c : text) {
    if (is_control(c)) c = c == '\n' || c == '\t' ? c : '?';
  }
  return text;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace scanjit::cli
