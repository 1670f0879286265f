// Shared by host and device: parameters of the kernels in this folder. Includes nothing.
#ifndef SCANJIT_GPU_TEST_PARAMS_H
#define SCANJIT_GPU_TEST_PARAMS_H

namespace scanjit::test {

// 64-bit sum over the words of a tensor, each mixed with its place: any changed, moved or swapped
// bit changes it, and the order of adding does not.
struct HashParams {
  const unsigned char* bytes;  // 16-byte aligned
  long long count;             // bytes
  unsigned long long* sum;     // added to
};

// Dense inputs of many heads and sequences from a bank of generated chunks: chunk c of key head h
// of sequence b takes the bank's chunk `choose(...)`, value head j of it the bank's value head j %
// (HV/H).
struct FillParams {
  // The bank: bank_chunks * BT tokens, one key head, HV/H value heads.
  const unsigned short *bank_k, *bank_w,
      *bank_u;                    // [tokens,1,K], [tokens,group,K], [tokens,group,V]
  const float *bank_g, *bank_gk;  // [tokens,group], [tokens,group,K]; or null
  unsigned short *k, *w, *u;      // [B,T,H,K], [B,T,HV,K], [B,T,HV,V]
  float *g, *gk;                  // [B,T,HV], [B,T,HV,K]; or null
  long long B, T;
  int H, HV, K, V, BT;  // K and V multiples of 8
  int bank_chunks;
  unsigned long long seed;
};

// values[i] = scale * U(-1,1) of (seed, i).
struct UniformParams {
  float* values;
  long long count;
  float scale;
  unsigned long long seed;
};

// The random bits behind all of it; the same on host and device.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr unsigned long long
    mix(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr long long
    choose(unsigned long long seed, long long b, long long chunk, int head, int bank_chunks) {
  unsigned long long x = mix(seed + 0x9e3779b97f4a7c15ULL);
  x = mix(x ^ static_cast<unsigned long long>(b));
  x = mix(x ^ static_cast<unsigned long long>(chunk));
  x = mix(x ^ static_cast<unsigned long long>(head));
  return static_cast<long long>(x % static_cast<unsigned long long>(bank_chunks));
}

}  // namespace scanjit::test

#endif
