// Panels: 64 rows of 64 16-bit elements, 8 KiB. Each row is 128 bytes, its eight 16-byte units permuted by
// the row's last three bits, so that eight rows of one unit lie in eight different bank groups. This is
// also the 128-byte swizzle of the tensor cores' and the copy engine's own layouts. A matrix of more than
// 64 columns is a run of panels.
#pragma once
#include "common/ptx.cuh"

namespace scanjit::dev {

inline constexpr int kPanelRows = 64, kPanelColumns = 64, kPanelBytes = kPanelRows * kPanelColumns * 2;

// Byte offset of column `column` (a multiple of 8) of a row, in a run of panels.
__device__ __forceinline__ int panel_unit(int row, int column) {
  return column / kPanelColumns * kPanelBytes + row * 128 + ((column / 8 ^ row) & 7) * 16;
}
// Of any element.
__device__ __forceinline__ int panel_offset(int row, int column) { return panel_unit(row, column) + column % 8 * 2; }

// Fragments of m16n8k16 out of a run of panels. `lane` is the caller's.
// A[16 rows][16 columns] as it lies.
__device__ __forceinline__ void load_a(u32 (&a)[4], const unsigned char* panels, int row, int column, int lane) {
  load_matrix_x4<false>(a, panels + panel_unit(row + lane / 8 % 2 * 8 + lane % 8, column + lane / 16 * 8));
}
// B[16 of k][16 of n], stored [n][k]: b[0], b[1] are the fragments of the first eight n.
__device__ __forceinline__ void load_b(u32 (&b)[4], const unsigned char* panels, int n, int k, int lane) {
  load_matrix_x4<false>(b, panels + panel_unit(n + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
}
// B[16 of k][16 of n], stored [k][n].
__device__ __forceinline__ void load_b_transposed(u32 (&b)[4], const unsigned char* panels, int k, int n, int lane) {
  load_matrix_x4<true>(b, panels + panel_unit(k + lane / 8 % 2 * 8 + lane % 8, n + lane / 16 * 8));
}

}  // namespace scanjit::dev
