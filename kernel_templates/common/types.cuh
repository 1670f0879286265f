// Words and numbers shared by every template. Letters: B batch, T tokens, H key heads, HV value heads,
// K key width, V value width, N sequences; BT tokens of a chunk, BV value columns of a block, BK key
// columns of a pipeline transaction.
#pragma once

namespace scanjit::dev {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// Cfg::DTYPE, the values of scanjit::DType.
inline constexpr int kBf16 = 1, kF16 = 2;

inline constexpr float kLog2E = 1.4426950408889634f;

}  // namespace scanjit::dev
