#pragma once
/// \file
/// The kernel templates: files embedded in the library, or a folder while one is being written.

#include <map>
#include <string>
#include <vector>

#include "core/environment.hpp"
#include "os/file_system.hpp"
#include "scanjit/result.hpp"

namespace scanjit::jit {

struct TemplateFile {
  std::string name;  ///< relative to the store's root, as every #include spells it
  std::string text;
};

/// Immutable after opening: thread-safe.
class TemplateStore {
 public:
  /// The embedded templates; or, if SCANJIT_TEMPLATE_DIR is set, the .cu, .cuh and .h files below
  /// it, read now. Errors: kIoError and kNotFound name the folder.
  [[nodiscard]] static Result<TemplateStore> open(const Environment& environment,
                                                  os::FileSystem& files);
  /// The .cu, .cuh and .h files below `dir`.
  [[nodiscard]] static Result<TemplateStore> from_directory(const std::string& dir,
                                                            os::FileSystem& files);
  [[nodiscard]] static TemplateStore from_files(std::vector<TemplateFile> files);

  /// `name` and every file that it includes, directly or not: `name` first, the others by name.
  /// Templates are self-contained: an include that is not in the store is an error that names both
  /// files. Errors: kNotFound.
  [[nodiscard]] Result<std::vector<TemplateFile>> closure(const std::string& name) const;

  /// Digest of `closure(name)`: changes when any of those files does, and for no other reason.
  [[nodiscard]] Result<std::string> digest(const std::string& name) const;

  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::map<std::string, std::string> files_;
};

}  // namespace scanjit::jit
