#include "scanjit/result.hpp"

namespace scanjit {

const char* error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk: return "ok";
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kCompileFailed: return "compile_failed";
    case ErrorCode::kCudaError: return "cuda_error";
    case ErrorCode::kDeviceLost: return "device_lost";
    case ErrorCode::kOutOfMemory: return "out_of_memory";
    case ErrorCode::kIoError: return "io_error";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kCaptureMiss: return "capture_miss";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

Status::Status(ErrorCode code, std::string message, ErrorDetails details)
    : rep_(code == ErrorCode::kOk
               ? nullptr
               : std::make_shared<const Rep>(Rep{code, std::move(message), std::move(details)})) {}

ErrorCode Status::code() const noexcept { return rep_ ? rep_->code : ErrorCode::kOk; }

const std::string& Status::message() const noexcept {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

const ErrorDetails& Status::details() const noexcept {
  static const ErrorDetails kNone;
  return rep_ ? rep_->details : kNone;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(error_code_name(code())) + ": " + message();
}

Status Status::with_context(const std::string& context) const {
  return ok() ? *this : Status(code(), context + ": " + message(), details());
}

Status invalid_argument(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}
Status unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }
Status not_found(std::string message, std::string path) {
  return {ErrorCode::kNotFound, std::move(message), {.compile_log = {}, .path = std::move(path)}};
}
Status io_error(std::string message, std::string path) {
  return {ErrorCode::kIoError, std::move(message), {.compile_log = {}, .path = std::move(path)}};
}
Status corrupt(std::string message, std::string path) {
  return {ErrorCode::kCorrupt, std::move(message), {.compile_log = {}, .path = std::move(path)}};
}
Status internal_error(std::string message) { return {ErrorCode::kInternal, std::move(message)}; }

}  // namespace scanjit
