#pragma once
/// \file
/// Where scanjit's own code meets its caller, nothing may throw.

#include <exception>
#include <new>

#include "scanjit/result.hpp"

namespace scanjit {

/// kOutOfMemory, made before it is needed: copying it allocates nothing.
[[nodiscard]] const Status& out_of_memory_status() noexcept;
/// kInternal with the exception's text, or `out_of_memory_status()` if even that does not fit.
[[nodiscard]] Status status_of_exception(const char* what) noexcept;

/// What `body()` (a Status or Result<T>) returns; an exception out of it becomes kOutOfMemory
/// (std::bad_alloc) or kInternal (anything else).
template <class Body>
[[nodiscard]] auto guard(Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return out_of_memory_status();
  } catch (const std::exception& exception) {
    return status_of_exception(exception.what());
  } catch (...) {
    return status_of_exception("an exception of an unknown type");
  }
}

}  // namespace scanjit
