// Sixteen floats at once, on any CPU.
//
// The types are the compiler's vector extension (GCC and Clang), which becomes one AVX-512
// register, two of AVX2, or four of SSE or NEON. Intrinsics stand only where the extension has no
// words for an instruction. Nothing is contracted or reordered by the compiler (see build.py), so
// a sum comes out the same in whichever loop it stands: that makes results independent of the
// rest of the batch.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define TOKENLOOM_AVX512 1
#else
#define TOKENLOOM_AVX512 0
#endif

namespace tokenloom {

constexpr int LANES = 16;

typedef float Floats __attribute__((vector_size(64), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(64), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4)));

inline Floats broadcast(float x) { return Floats{} + x; }

inline Words load_words(const void *from) {
  Words w;
  std::memcpy(&w, from, sizeof w);
  return w;
}

inline Floats load_floats(const float *from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store_floats(float *to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline float as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t as_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// a * b + c, rounded once where the CPU can.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if TOKENLOOM_AVX512
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  __m256 x[2], y[2], z[2];
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &b, sizeof b);
  std::memcpy(z, &c, sizeof c);
  for (int i = 0; i < 2; i++) z[i] = _mm256_fmadd_ps(x[i], y[i], z[i]);
  std::memcpy(&c, z, sizeof c);
  return c;
#else
  return a * b + c;
#endif
}

inline Floats maximum(Floats a, Floats b) {
#if TOKENLOOM_AVX512
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

inline float sum(Floats x) {
  float total = 0;
  for (int i = 0; i < LANES; i++) total += x[i];
  return total;
}

inline float maximum(Floats x) {
  float best = x[0];
  for (int i = 1; i < LANES; i++) best = best < x[i] ? x[i] : best;
  return best;
}

// e to the power of x; 0 where x < -87, as for -inf. Relative error about 1e-7: the polynomial of
// Cephes' expf (S. Moshier).
inline Floats exp(Floats x) {
  const Floats ROUND = broadcast(12582912.f);  // 1.5 * 2**23: what is added to it loses its fraction
  const Words is_normal = (Words)(x > broadcast(-87.f));
  Floats t = maximum(x, broadcast(-87.f));
  t = t < broadcast(88.f) ? t : broadcast(88.f);
  const Floats n = (t * 1.44269504f + ROUND) - ROUND;
  Floats r = multiply_add(n, broadcast(-0.693359375f), t);
  r = multiply_add(n, broadcast(2.12194440e-4f), r);
  Floats p = broadcast(1.9875691500e-4f);
  p = multiply_add(p, r, broadcast(1.3981999507e-3f));
  p = multiply_add(p, r, broadcast(8.3334519073e-3f));
  p = multiply_add(p, r, broadcast(4.1665795894e-2f));
  p = multiply_add(p, r, broadcast(1.6666665459e-1f));
  p = multiply_add(p, r, broadcast(5.0000001201e-1f));
  p = multiply_add(p, r * r, r) + 1.f;
  const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
  return (Floats)((Words)(p * (Floats)exponent) & is_normal);
}

inline Floats tanh(Floats x) { return 1.f - 2.f / (exp(2.f * x) + 1.f); }

}  // namespace tokenloom
