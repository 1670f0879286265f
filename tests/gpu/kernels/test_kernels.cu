// What the tests do on the device besides the kernels under test: fill inputs, hash outputs.
#include "kernels/test_params.h"

namespace scanjit::test {

__device__ long long thread_index() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ long long thread_total() { return static_cast<long long>(gridDim.x) * blockDim.x; }

extern "C" __global__ void hash_bytes(const HashParams p) {
  unsigned long long sum = 0;
  const long long vectors = p.count / 16;
  for (long long i = thread_index(); i < vectors; i += thread_total()) {
    const ulonglong2 word = reinterpret_cast<const ulonglong2*>(p.bytes)[i];
    const unsigned long long place = mix(2 * static_cast<unsigned long long>(i) + 1);
    sum += mix(word.x ^ place) + mix(word.y ^ ~place);
  }
  if (thread_index() == 0) {
    for (long long i = vectors * 16; i < p.count; ++i)
      sum += mix(mix(static_cast<unsigned long long>(i)) ^ (0x100ULL + p.bytes[i]));
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) atomicAdd(p.sum, sum);
}

// One block a token.
extern "C" __global__ void fill_from_bank(const FillParams p) {
  const int group = p.HV / p.H;
  for (long long row = blockIdx.x; row < p.B * p.T; row += gridDim.x) {
    const long long b = row / p.T, t = row % p.T, chunk = t / p.BT;
    const int key_vectors = p.K / 8, value_vectors = p.V / 8;
    for (int i = threadIdx.x; i < p.H * key_vectors; i += blockDim.x) {
      const int head = i / key_vectors, v = i % key_vectors;
      const long long from = choose(p.seed, b, chunk, head, p.bank_chunks) * p.BT + t % p.BT;
      reinterpret_cast<uint4*>(p.k)[(row * p.H + head) * key_vectors + v] =
          reinterpret_cast<const uint4*>(p.bank_k)[from * key_vectors + v];
    }
    for (int i = threadIdx.x; i < p.HV * key_vectors; i += blockDim.x) {
      const int head = i / key_vectors, v = i % key_vectors;
      const long long from =
          (choose(p.seed, b, chunk, head / group, p.bank_chunks) * p.BT + t % p.BT) * group +
          head % group;
      reinterpret_cast<uint4*>(p.w)[(row * p.HV + head) * key_vectors + v] =
          reinterpret_cast<const uint4*>(p.bank_w)[from * key_vectors + v];
      if (p.gk != nullptr) {
        for (int half = 0; half < 2; ++half)
          reinterpret_cast<uint4*>(p.gk)[((row * p.HV + head) * key_vectors + v) * 2 + half] =
              reinterpret_cast<const uint4*>(p.bank_gk)[(from * key_vectors + v) * 2 + half];
      }
    }
    for (int i = threadIdx.x; i < p.HV * value_vectors; i += blockDim.x) {
      const int head = i / value_vectors, v = i % value_vectors;
      const long long from =
          (choose(p.seed, b, chunk, head / group, p.bank_chunks) * p.BT + t % p.BT) * group +
          head % group;
      reinterpret_cast<uint4*>(p.u)[(row * p.HV + head) * value_vectors + v] =
          reinterpret_cast<const uint4*>(p.bank_u)[from * value_vectors + v];
      if (v == 0 && p.g != nullptr) p.g[row * p.HV + head] = p.bank_g[from];
    }
  }
}

extern "C" __global__ void fill_uniform(const UniformParams p) {
  for (long long i = thread_index(); i < p.count; i += thread_total()) {
    const unsigned long long bits = mix(mix(p.seed + 1) ^ static_cast<unsigned long long>(i));
    p.values[i] = p.scale * (static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f);
  }
}

// A fault that stays with the context.
extern "C" __global__ void trap(const UniformParams) { __trap(); }

}  // namespace scanjit::test
