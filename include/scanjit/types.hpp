#pragma once
/// \file
/// Words shared by all ops. Symbols everywhere: B batch, T tokens, H query/key heads, HV value
/// heads (value head j uses key head j / (HV/H)), K key width, V value width, N sequences,
/// BT tokens in a chunk.

#include <cstdint>
#include <string>

namespace scanjit {

/// Element type of a tensor. The numbers are persisted: never change one.
enum class DType : int { kBf16 = 1, kF16 = 2, kF32 = 3 };

/// How a state is stored: [K,V] or [V,K], last index fastest.
enum class StateLayout : int { kKV = 1, kVK = 2 };

/// Units of a cumulative gate: log2 or natural logarithm.
enum class GateBase : int { kTwo = 1, kE = 2 };

/// Integer type of device arrays of lengths or indices.
enum class IndexType : int { kInt32 = 1, kInt64 = 2 };

/// A `CUstream` (equivalently a `cudaStream_t`); null is the legacy default stream.
using Stream = void*;

/// Scratch memory of one launch: device memory, 256-byte aligned, of at least
/// `Plan::workspace_bytes()`. It needs no initial value and carries nothing between launches; a
/// launch in flight needs one of its own. Null with 0 bytes where none is needed.
struct Workspace {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

/// A kernel configuration. One spelling everywhere: `bv` here, `BV` in templates, "bv" in JSON and
/// on the command line.
struct Config {
  int bv = 0;      ///< value columns of the state that one block owns
  int bk = 0;      ///< key columns of k and w in one pipeline transaction
  int stages = 0;  ///< transactions of k, and as many of w, that fit in the block's shared memory
  int warps = 0;   ///< warps of a block
  /// Chunks that a segment of a split form has. 0: the serial form, or an op that has no such choice.
  int segment_chunks = 0;

  friend bool operator==(const Config&, const Config&) = default;
  friend auto operator<=>(const Config&, const Config&) = default;
};

/// "bv=64 bk=128 stages=2 warps=4"; " segment_chunks=16" after it where that is not 0.
[[nodiscard]] std::string to_string(const Config& config);

[[nodiscard]] const char* to_string(DType dtype) noexcept;         ///< "bf16", "f16", "f32"
[[nodiscard]] const char* to_string(StateLayout layout) noexcept;  ///< "kv", "vk"
[[nodiscard]] const char* to_string(GateBase base) noexcept;       ///< "2", "e"
[[nodiscard]] const char* to_string(IndexType type) noexcept;      ///< "i32", "i64"

}  // namespace scanjit
