#pragma once
/// \file
/// Files of named tensors in the safetensors format: 8 bytes little-endian header length, a JSON
/// header, the tensors' bytes. The reader trusts nothing in the file.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scanjit/result.hpp"

namespace scanjit::io {

/// Element types that the reader knows; a file with another is refused.
enum class TensorType : int {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kF16,
  kBf16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};

[[nodiscard]] const char* to_string(TensorType type) noexcept;  ///< "BF16", as in the file
[[nodiscard]] std::size_t element_bytes(TensorType type) noexcept;

/// A tensor of a file. Its bytes are little-endian, last index fastest, and need not be aligned.
struct TensorView {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::span<const std::byte> data;  ///< exactly the product of shape elements
};

/// The header may have at most so many bytes.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// A safetensors file in memory. Move-only; views are valid as long as the object (or, for `parse`,
/// the bytes) lives. Const members may be called from several threads.
class Safetensors {
 public:
  /// Reads a whole regular file, once, into one buffer.
  /// Errors: kNotFound, kIoError, kCorrupt (names the tensor, the value and the bound),
  /// kOutOfMemory.
  [[nodiscard]] static Result<Safetensors> read(const std::string& path);

  /// The same from bytes in memory, which it refers to and does not copy.
  /// Errors: kCorrupt, kOutOfMemory.
  [[nodiscard]] static Result<Safetensors> parse(std::span<const std::byte> bytes);

  [[nodiscard]] const std::vector<TensorView>& tensors() const noexcept {
    return tensors_;
  }  ///< by offset
  [[nodiscard]] const TensorView* find(
      std::string_view name) const noexcept;  ///< null if there is none
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return metadata_;
  }

 private:
  std::unique_ptr<std::byte[]> buffer_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes tensors, in the given order but wider elements first so that all are aligned, to a
/// temporary file beside `path` and renames it: `path` holds the old file or the whole new one.
/// Errors: kInvalidArgument (a repeated, empty or reserved name, or data that does not fit its
/// shape), kIoError, kOutOfMemory.
[[nodiscard]] Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                                       const std::map<std::string, std::string>& metadata = {});

}  // namespace scanjit::io
