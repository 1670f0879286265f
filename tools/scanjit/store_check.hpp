#pragma once
/// \file
/// What `scanjit cache verify` and its sisters find out about a store directory or one of its
/// files.

#include <cstdint>
#include <string>
#include <vector>

#include "jit/binary_format.hpp"
#include "scanjit/result.hpp"
#include "tuning/tuned_store.hpp"

namespace scanjit::cli {

/// A stored cubin, as it was found.
struct BinaryItem {
  std::string path;
  std::int64_t bytes = 0;
  Status status;
  jit::StoredBinary binary;  ///< when ok
};

/// One file of `<directory>/bin`. Errors: kNotFound, kIoError; what is damaged is an item.
[[nodiscard]] Result<BinaryItem> read_binary(const std::string& path);
/// Every cubin of `<directory>/bin`, by name; a missing directory has none.
[[nodiscard]] Result<std::vector<BinaryItem>> list_binaries(const std::string& directory);

/// A tuned file of any kind: exported, shipped, or one of a cache; every config in it is legal on
/// its GPU. Errors: kNotFound, kIoError, kCorrupt, kInvalidArgument; the sentence begins with the
/// path.
[[nodiscard]] Result<tuning::TunedFile> read_tuned(const std::string& path);

/// Something wrong with a store: a file, or the rights of a file or directory.
struct Finding {
  std::string path;
  Status status;
};

struct StoreCheck {
  std::int64_t checked = 0;  ///< files
  std::vector<Finding> findings;
};

/// Every tuned file and cubin below `directory`, and the rights of it, `bin`, `tuned`, the folders
/// in `tuned`, and every file in them: an engine's user or root must be the owner, and nobody else
/// may write. Errors: kIoError (a folder cannot be listed).
[[nodiscard]] Result<StoreCheck> check_store(const std::string& directory);

}  // namespace scanjit::cli
