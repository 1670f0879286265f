#pragma once
/// \file
/// Shared libraries opened at run time: the CUDA driver and NVRTC. Replaceable in tests.

#include <memory>
#include <string>
#include <vector>

#include "scanjit/result.hpp"

namespace scanjit::os {

/// An opened library. It stays in the process for ever: the driver starts threads and registers
/// exit handlers that must not lose their code. Thread-safe.
class DynamicLibrary {
 public:
  virtual ~DynamicLibrary() = default;

  /// Address of an exported symbol, never null. kNotFound names the symbol and the library.
  [[nodiscard]] virtual Result<void*> symbol(const std::string& name) const = 0;

  /// The file that was loaded, as the loader found it.
  [[nodiscard]] virtual const std::string& path() const noexcept = 0;
};

class LibraryLoader {
 public:
  virtual ~LibraryLoader() = default;

  /// Opens a library, with its symbols kept to itself. A name without '/' is looked for on the
  /// loader's path, one with '/' is that file. kNotFound: the loader's own sentence,
  /// `details().path`.
  [[nodiscard]] virtual Result<std::shared_ptr<DynamicLibrary>> open(const std::string& name) = 0;
};

/// Libraries that were tried in vain, told without repeating a name in its own reason, or a reason
/// that several share: "/a/libx.so, /b/libx.so (no such file); /c/libx.so (too old)".
class FailedLibraries {
 public:
  void add(const std::string& name, const Status& status);
  [[nodiscard]] std::string text() const;

 private:
  struct Group {
    std::string names, reason;
  };
  std::vector<Group> groups_;
};

/// dlopen; lives as long as the process.
[[nodiscard]] LibraryLoader& system_loader() noexcept;

}  // namespace scanjit::os
