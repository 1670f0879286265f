#include "capi/error.hpp"

#include <new>
#include <string>

struct scanjit_error {
  scanjit::Status status;
};

namespace scanjit::capi {
namespace {

// Handed out where there is no memory for another; never freed.
scanjit_error& out_of_memory_error() noexcept {
  static scanjit_error error{out_of_memory_status()};
  return error;
}

}  // namespace

scanjit_code report(const Status& status, scanjit_error** error) noexcept {
  if (error != nullptr) {
    *error = nullptr;
    if (!status.ok()) {
      *error = new (std::nothrow) scanjit_error{status};
      if (*error == nullptr) *error = &out_of_memory_error();
    }
  }
  return static_cast<scanjit_code>(status.code());
}

Status check_given(const void* pointer, const char* name) {
  if (pointer != nullptr) return {};
  return invalid_argument(std::string(name) + " is null");
}

}  // namespace scanjit::capi

using scanjit::Status;

const char* scanjit_code_name(scanjit_code code) {
  return scanjit::error_code_name(static_cast<scanjit::ErrorCode>(code));
}

scanjit_code scanjit_error_code(const scanjit_error* error) {
  return error == nullptr ? SCANJIT_OK : static_cast<scanjit_code>(error->status.code());
}
const char* scanjit_error_message(const scanjit_error* error) {
  return error == nullptr ? "" : error->status.message().c_str();
}
const char* scanjit_error_compile_log(const scanjit_error* error) {
  return error == nullptr ? "" : error->status.details().compile_log.c_str();
}
const char* scanjit_error_path(const scanjit_error* error) {
  return error == nullptr ? "" : error->status.details().path.c_str();
}
int32_t scanjit_error_cuda_result(const scanjit_error* error) {
  return error == nullptr ? 0 : error->status.details().cuda_result;
}
void scanjit_error_free(scanjit_error* error) {
  if (error != &scanjit::capi::out_of_memory_error()) delete error;
}
