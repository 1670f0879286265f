#include "core/guard.hpp"

namespace scanjit {
namespace {
const Status out_of_memory(ErrorCode::kOutOfMemory, "the host is out of memory");
}

const Status& out_of_memory_status() noexcept { return out_of_memory; }

Status status_of_exception(const char* what) noexcept {
  try {
    return internal_error(std::string("unexpected exception: ") + what);
  } catch (...) {
    return out_of_memory;
  }
}

}  // namespace scanjit
