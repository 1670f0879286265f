#pragma once
/// \file
/// Errors as values. Nothing in scanjit throws to its caller: every call that can fail returns a
/// `Status` or a `Result<T>`. Both are thread-compatible values; an ok `Status` owns nothing.

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace scanjit {

/// Numbered for ever; the C interface uses the same numbers.
enum class ErrorCode : int {
  kOk = 0,
  kInvalidArgument = 1,  ///< the caller's shapes, pointers or options are wrong
  kUnsupported = 2,      ///< right, but not on this device, driver or version
  kNotFound = 3,         ///< a file, library, record or op does not exist
  kCompileFailed = 4,    ///< NVRTC refused the source; `details().compile_log`
  kCudaError = 5,        ///< a driver call failed; `details().cuda_result`
  kDeviceLost = 6,       ///< a sticky device fault, or the context is gone
  kOutOfMemory = 7,
  kIoError = 8,
  kCorrupt = 9,       ///< stored bytes do not match their checksum or schema
  kCaptureMiss = 10,  ///< no plan is loaded for this key and the stream is capturing
  kTimeout = 11,
  kCancelled = 12,
  kInternal = 13,
};

/// "invalid_argument" and so on; never null.
[[nodiscard]] const char* error_code_name(ErrorCode code) noexcept;

/// What a program may want to know beyond the sentence.
struct ErrorDetails {
  std::string compile_log;  ///< kCompileFailed: NVRTC's log
  std::string path;         ///< kIoError, kCorrupt, kNotFound: the file
  int cuda_result = 0;      ///< kCudaError: the CUresult
};

/// The outcome of a call: ok, or a code and one sentence that names what, the value and the bound.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(ErrorCode code, std::string message, ErrorDetails details = {});

  [[nodiscard]] bool ok() const noexcept { return rep_ == nullptr; }
  [[nodiscard]] ErrorCode code() const noexcept;
  [[nodiscard]] const std::string& message() const noexcept;  ///< "" when ok
  [[nodiscard]] const ErrorDetails& details() const noexcept;
  [[nodiscard]] std::string to_string() const;  ///< "invalid_argument: K is 257, ..."

  /// The same error with `context` and ": " before its sentence.
  [[nodiscard]] Status with_context(const std::string& context) const;

 private:
  struct Rep {
    ErrorCode code;
    std::string message;
    ErrorDetails details;
  };
  std::shared_ptr<const Rep> rep_;
};

[[nodiscard]] Status invalid_argument(std::string message);
[[nodiscard]] Status unsupported(std::string message);
[[nodiscard]] Status not_found(std::string message, std::string path = {});
[[nodiscard]] Status io_error(std::string message, std::string path = {});
[[nodiscard]] Status corrupt(std::string message, std::string path = {});
[[nodiscard]] Status internal_error(std::string message);

/// A value or an error.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status error) : state_(std::in_place_index<1>, std::move(error)) {
    if (std::get<1>(state_).ok())
      state_.template emplace<1>(internal_error("a Result was made from an ok Status"));
  }

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<1>(state_); }

  /// Only when ok().
  [[nodiscard]] T& value() & { return *std::get_if<0>(&state_); }
  [[nodiscard]] const T& value() const& { return *std::get_if<0>(&state_); }
  [[nodiscard]] T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  [[nodiscard]] T* operator->() { return std::get_if<0>(&state_); }
  [[nodiscard]] const T* operator->() const { return std::get_if<0>(&state_); }
  [[nodiscard]] T& operator*() & { return value(); }
  [[nodiscard]] const T& operator*() const& { return value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace scanjit

// `SCANJIT_TRY(status)`: return the error, if it is one.
#define SCANJIT_TRY(expression)                                                  \
  do {                                                                           \
    if (::scanjit::Status scanjit_status_ = (expression); !scanjit_status_.ok()) \
      return scanjit_status_;                                                    \
  } while (false)

#define SCANJIT_CONCAT_INNER_(a, b) a##b
#define SCANJIT_CONCAT_(a, b) SCANJIT_CONCAT_INNER_(a, b)
// `SCANJIT_ASSIGN_OR_RETURN(auto x, f())`: x = f()'s value, or return its error.
#define SCANJIT_ASSIGN_OR_RETURN(declaration, expression)                                  \
  SCANJIT_ASSIGN_OR_RETURN_INNER_(SCANJIT_CONCAT_(scanjit_result_, __LINE__), declaration, \
                                  expression)
#define SCANJIT_ASSIGN_OR_RETURN_INNER_(result, declaration, expression) \
  auto result = (expression);                                            \
  if (!result.ok()) return result.status();                              \
  declaration = std::move(result).value()
