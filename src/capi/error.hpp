#pragma once
/// \file
/// How a Status leaves the library: as a code and, if the caller wants one, an error object.

#include <utility>

#include "core/guard.hpp"
#include "scanjit/result.hpp"
#include "scanjit/scanjit.h"

namespace scanjit::capi {

/// Puts `status` where the caller asked for it (`error` may be null) and returns its code.
scanjit_code report(const Status& status, scanjit_error** error) noexcept;

/// Runs an entry point's body (a Status); no exception gets past it.
template <class Body>
scanjit_code entry(scanjit_error** error, Body&& body) noexcept {
  return report(guard(std::forward<Body>(body)), error);
}

/// Ok, or kInvalidArgument: "`name` is null".
[[nodiscard]] Status check_given(const void* pointer, const char* name);

}  // namespace scanjit::capi
