#pragma once
/// \file
/// The files of a store directory `<cache>/tuned/<gpu>/`: reading, writing, setting aside. Internal
/// to src/tuning. Stateless; errors as in os/file_system.hpp, kCorrupt for a file that is not what
/// its name says.

#include <string>

#include "os/file_system.hpp"
#include "os/folder_sweep.hpp"
#include "tuning/record.hpp"

namespace scanjit::tuning {

/// The width buckets of a directory: a tuned file without entries.
inline constexpr const char* kWidthBucketsName = "width_buckets.json";

/// True of the file of an entry (not of width buckets, temporaries or what was set aside).
[[nodiscard]] bool is_entry_name(const std::string& name);
[[nodiscard]] os::StoreFileKind store_file_kind(const std::string& name);

/// Reads an entry's file or the width buckets: checksum, the right number of entries, a name that
/// fits the key and a directory that fits the GPU.
[[nodiscard]] Result<TunedFile> read_store_file(os::FileSystem& files, const std::string& path);

/// Publishes one entry, making the directory if needed; the size of its file.
[[nodiscard]] Result<std::int64_t> write_entry(os::FileSystem& files, const std::string& directory,
                                               const GpuFacts& gpu, const Record& record);
[[nodiscard]] Status write_width_buckets(os::FileSystem& files, const std::string& directory,
                                         const TunedFile& file);

/// Renames a damaged file to `<path>.corrupt-<id>`.
[[nodiscard]] Status set_aside(os::FileSystem& files, const std::string& path);

}  // namespace scanjit::tuning
