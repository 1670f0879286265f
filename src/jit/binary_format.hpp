#pragma once
/// \file
/// A stored binary: its names, and the bytes of its file (format `kBinaryFormat`):
///
///     "SCANJITB"                                                 8 bytes
///     format                                                     u32
///     source_id, binary_id, entry, arch, nvrtc                   each u32 length, bytes
///     registers, smem_static, spill_loads, spill_stores, stack   each u32
///     code_bytes                                                 u64
///     cubin                                                      u64 length, bytes
///     SHA-256 of all bytes before                                32 bytes
///
/// Integers are little-endian. Nothing follows.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jit/cubin.hpp"
#include "scanjit/result.hpp"

namespace scanjit::jit {

inline constexpr std::uint32_t kBinaryFormat = 1;

/// A cubin with what must be known to use it and to tell where it comes from.
struct StoredBinary {
  std::string source_id;
  std::string binary_id;
  std::string entry;
  std::string arch;
  std::string nvrtc;  ///< NvrtcApi::version
  KernelResources resources;
  std::string cubin;

  friend bool operator==(const StoredBinary&, const StoredBinary&) = default;
};

/// Identity of what is compiled: generated source, templates, options, architecture and the format
/// of the stored file. 40 hexadecimal digits. Nothing of this machine is in it.
[[nodiscard]] std::string make_source_id(const std::string& generated_source,
                                         const std::string& template_digest,
                                         const std::vector<std::string>& options,
                                         const std::string& arch);

/// Identity of the result: "<source_id>-<16 digits of the hash of source id and NVRTC build>".
[[nodiscard]] std::string make_binary_id(const std::string& source_id,
                                         const std::string& nvrtc_build);

[[nodiscard]] std::string encode_binary(const StoredBinary& binary);

/// Errors: kCorrupt for any bytes that `encode_binary` did not write.
[[nodiscard]] Result<StoredBinary> decode_binary(std::string_view bytes);

}  // namespace scanjit::jit
