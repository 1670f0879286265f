// The PTX instructions that the templates use, one small function each.
#pragma once
#include "common/types.cuh"

namespace scanjit::dev {

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// --- asynchronous copies, global to shared -------------------------------------------------------

// 16 bytes.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
// 16 bytes, of which the first `bytes` (0 or 16) are read and the rest is zero.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}
// 4 bytes, likewise.
__device__ __forceinline__ void copy_async_4(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING of this thread's latest groups are under way.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// --- 8x8 matrices of 16-bit elements: lane l holds [l/4][2*(l%4)] and the element after it ---------

// Lanes 8m..8m+7 give the addresses of the rows of matrix m.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrix_x4(u32 (&r)[4], const void* row) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)));
}
// Lanes 0..15 give the rows of two matrices.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrix_x2(u32 (&r)[2], const void* row) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)));
}

#if __CUDA_ARCH__ < 900
__device__ __forceinline__ u32 transpose_matrix(u32 r) {
  u32 t;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(r));
  return t;
}
#endif

// The opposite of load_matrix_x2: lanes 0..15 give the rows. Before sm_90 each lane stores its own
// pair, at the row address that lane l/4 (+8 for the second matrix) holds.
template <bool TRANSPOSED>
__device__ __forceinline__ void store_matrix_x2(void* row, u32 r0, u32 r1) {
#if __CUDA_ARCH__ >= 900
  if constexpr (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(shared_address(row)), "r"(r0),
                 "r"(r1) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};" ::"r"(shared_address(row)), "r"(r0), "r"(r1)
                 : "memory");
#else
  const u32 r[2] = {TRANSPOSED ? transpose_matrix(r0) : r0, TRANSPOSED ? transpose_matrix(r1) : r1};
  const int lane = threadIdx.x % 32;
  for (int m = 0; m < 2; ++m) {
    const u32 address = __shfl_sync(0xffffffffu, shared_address(row), m * 8 + lane / 4) + (lane % 4) * 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(r[m]) : "memory");
  }
#endif
}
template <bool TRANSPOSED>
__device__ __forceinline__ void store_matrix_x4(void* row, u32 r0, u32 r1, u32 r2, u32 r3) {
#if __CUDA_ARCH__ >= 900
  if constexpr (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)),
                 "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)), "r"(r0),
                 "r"(r1), "r"(r2), "r"(r3) : "memory");
#else
  const u32 r[4] = {r0, r1, r2, r3};
  const int lane = threadIdx.x % 32;
  for (int m = 0; m < 4; ++m) {
    const u32 value = TRANSPOSED ? transpose_matrix(r[m]) : r[m];
    const u32 address = __shfl_sync(0xffffffffu, shared_address(row), m * 8 + lane / 4) + (lane % 4) * 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
  }
#endif
}

// --- arithmetic ----------------------------------------------------------------------------------

// d[16,8] += a[16,16] * b[16,8], f32 accumulation.
template <int DTYPE>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (DTYPE == kBf16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rounds two values to DTYPE (nearest even, no saturation); `low` goes to the lower half.
template <int DTYPE>
__device__ __forceinline__ u32 round_pair(float low, float high) {
  u32 r;
  if constexpr (DTYPE == kBf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <int DTYPE>
__device__ __forceinline__ float low_value(u32 pair) {
  if constexpr (DTYPE == kBf16) return __uint_as_float(pair << 16);
  float f;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(f) : "r"(pair));
  return f;
}
template <int DTYPE>
__device__ __forceinline__ float high_value(u32 pair) {
  if constexpr (DTYPE == kBf16) return __uint_as_float(pair & 0xffff0000u);
  float f;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(pair));
  return f;
}

// 2^x (or e^x as 2^(x*log2 e)), subnormal results flushed to zero.
template <bool BASE_E>
__device__ __forceinline__ float exp_gate(float x) {
  if constexpr (BASE_E) x = x * kLog2E;
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace scanjit::dev
