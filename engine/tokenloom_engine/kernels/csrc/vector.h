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

// The lanes' sum, halves onto halves: the same order on every CPU.
inline float sum(Floats x) {
#if TOKENLOOM_AVX512
  return _mm512_reduce_add_ps((__m512)x);
#else
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
#endif
}

inline float maximum(Floats x) {
#if TOKENLOOM_AVX512
  return _mm512_reduce_max_ps((__m512)x);
#else
  float best = x[0];
  for (int i = 1; i < LANES; i++) best = best < x[i] ? x[i] : best;
  return best;
#endif
}

// 2 to the power of n, a whole number from -126 to 127, times x.
inline Floats scale_by_power(Floats x, Floats n) {
#if TOKENLOOM_AVX512
  return (Floats)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
  return x * (Floats)((__builtin_convertvector(n, Ints) + 127) << 23);
#endif
}

inline Floats round_to_whole(Floats x) {
#if TOKENLOOM_AVX512
  return (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Floats ROUND = broadcast(12582912.f);  // 1.5 * 2**23: what is added to it loses its fraction
  return (x + ROUND) - ROUND;
#endif
}

inline Floats between(Floats least, Floats x, Floats most) {
#if TOKENLOOM_AVX512
  return (Floats)_mm512_min_ps(_mm512_max_ps((__m512)x, (__m512)least), (__m512)most);
#else
  x = maximum(x, least);
  return x < most ? x : most;
#endif
}

// e to the power of x; 0 where x < -87, as for -inf. Relative error about 1e-7: the polynomial of
// Cephes' expf (S. Moshier).
inline Floats exp(Floats x) {
  const Words is_normal = (Words)(x > broadcast(-87.f));
  const Floats t = between(broadcast(-87.f), x, broadcast(88.f));
  const Floats n = round_to_whole(t * 1.44269504f);
  Floats r = multiply_add(n, broadcast(-0.693359375f), t);
  r = multiply_add(n, broadcast(2.12194440e-4f), r);
  Floats p = broadcast(1.9875691500e-4f);
  p = multiply_add(p, r, broadcast(1.3981999507e-3f));
  p = multiply_add(p, r, broadcast(8.3334519073e-3f));
  p = multiply_add(p, r, broadcast(4.1665795894e-2f));
  p = multiply_add(p, r, broadcast(1.6666665459e-1f));
  p = multiply_add(p, r, broadcast(5.0000001201e-1f));
  p = multiply_add(p, r * r, r) + 1.f;
  return (Floats)((Words)scale_by_power(p, n) & is_normal);
}

// The same for x <= 0 with a relative error of up to 3e-6, for what is then stored in 16 bits: two
// to the power of a fraction by the polynomial of degree 4 with the least of that error.
inline Floats rough_exp(Floats x) {
#if TOKENLOOM_AVX512
  const Floats t = maximum(x * 1.44269504f, broadcast(-150.f));  // 2**-150 is rounded to 0
  const Floats n = round_to_whole(t), f = t - n;
  Floats p = broadcast(0.0095701f);
  p = multiply_add(p, f, broadcast(0.05591786f));
  p = multiply_add(p, f, broadcast(0.24024745f));
  p = multiply_add(p, f, broadcast(0.69312181f));
  p = multiply_add(p, f, broadcast(0.99999926f));
  return scale_by_power(p, n);
#else
  return exp(x);
#endif
}

inline Floats tanh(Floats x) { return 1.f - 2.f / (exp(2.f * x) + 1.f); }

}  // namespace tokenloom
