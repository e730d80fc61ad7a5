// One register of the CPU, and what it computes. With bytes.h, this is the code that depends on the
// instruction set.
//
// The types are the compiler's vector extension (GCC and Clang). Intrinsics stand only where the
// extension has no words for an instruction.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define TOKENLOOM_AVX512 1
#define TOKENLOOM_REGISTER_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#define TOKENLOOM_AVX512 0
#define TOKENLOOM_REGISTER_BYTES 32
#else
#define TOKENLOOM_AVX512 0
#define TOKENLOOM_REGISTER_BYTES 16
#endif

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

namespace tokenloom {

constexpr int REGISTER_LANES = TOKENLOOM_REGISTER_BYTES / 4;

typedef float FloatRegister __attribute__((vector_size(TOKENLOOM_REGISTER_BYTES)));
typedef int32_t IntRegister __attribute__((vector_size(TOKENLOOM_REGISTER_BYTES)));
typedef uint32_t WordRegister __attribute__((vector_size(TOKENLOOM_REGISTER_BYTES)));
typedef uint16_t HalfRegister __attribute__((vector_size(TOKENLOOM_REGISTER_BYTES / 2)));
typedef uint8_t ByteRegister __attribute__((vector_size(TOKENLOOM_REGISTER_BYTES / 4)));

#if defined(__aarch64__)
typedef __fp16 Float16;  // GCC 12 has no _Float16 there
#else
typedef _Float16 Float16;
#endif

TOKENLOOM_INLINE FloatRegister as_floats(WordRegister x) { return (FloatRegister)x; }
TOKENLOOM_INLINE WordRegister as_words(FloatRegister x) { return (WordRegister)x; }
TOKENLOOM_INLINE WordRegister as_words(IntRegister x) { return (WordRegister)x; }
TOKENLOOM_INLINE IntRegister as_ints(WordRegister x) { return (IntRegister)x; }

TOKENLOOM_INLINE FloatRegister to_floats(IntRegister x) {
  return __builtin_convertvector(x, FloatRegister);
}
TOKENLOOM_INLINE IntRegister to_ints(FloatRegister x) {
  return __builtin_convertvector(x, IntRegister);
}

// Of masks, as comparisons return them, and what is taken where they are set and where not.
TOKENLOOM_INLINE FloatRegister select(IntRegister mask, FloatRegister a, FloatRegister b) {
  return mask ? a : b;
}

// a * b + c, rounded once where the CPU can.
TOKENLOOM_INLINE FloatRegister multiply_add(FloatRegister a, FloatRegister b, FloatRegister c) {
#if TOKENLOOM_AVX512
  return (FloatRegister)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (FloatRegister)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (FloatRegister)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

TOKENLOOM_INLINE FloatRegister maximum(FloatRegister a, FloatRegister b) {
#if TOKENLOOM_AVX512
  return (FloatRegister)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

TOKENLOOM_INLINE FloatRegister minimum(FloatRegister a, FloatRegister b) {
#if TOKENLOOM_AVX512
  return (FloatRegister)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}

// The lanes' sum, halves onto halves: the same order on every CPU.
TOKENLOOM_INLINE float sum(FloatRegister x) {
#if TOKENLOOM_AVX512
  return _mm512_reduce_add_ps((__m512)x);
#else
  for (int half = REGISTER_LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
#endif
}

TOKENLOOM_INLINE float maximum(FloatRegister x) {
#if TOKENLOOM_AVX512
  return _mm512_reduce_max_ps((__m512)x);
#else
  float best = x[0];
  for (int i = 1; i < REGISTER_LANES; i++) best = best < x[i] ? x[i] : best;
  return best;
#endif
}

// 2 to the power of n, a whole number from -126 to 127, times x.
TOKENLOOM_INLINE FloatRegister scale_by_power(FloatRegister x, FloatRegister n) {
#if TOKENLOOM_AVX512
  return (FloatRegister)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
  return x * (FloatRegister)((to_ints(n) + 127) << 23);
#endif
}

TOKENLOOM_INLINE FloatRegister round_to_whole(FloatRegister x) {
#if TOKENLOOM_AVX512
  return (FloatRegister)_mm512_roundscale_ps((__m512)x,
                                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const float ROUND = 12582912.f;  // 1.5 * 2**23: what is added to it loses its fraction
  return (x + ROUND) - ROUND;
#endif
}

// Sums plus the products of pairs of bfloat16, one pair in each word of both sides.
TOKENLOOM_INLINE FloatRegister dot_bfloat16(FloatRegister sums, WordRegister left,
                                            WordRegister right) {
#if defined(__AVX512BF16__) && TOKENLOOM_AVX512
  return (FloatRegister)_mm512_dpbf16_ps((__m512)sums, (__m512bh)left, (__m512bh)right);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return (FloatRegister)vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)left, (bfloat16x8_t)right);
#else
  sums = multiply_add(as_floats(left << 16), as_floats(right << 16), sums);
  return multiply_add(as_floats(left & 0xffff0000u), as_floats(right & 0xffff0000u), sums);
#endif
}

// To nearest, ties to even; NaN stays one.
TOKENLOOM_INLINE HalfRegister to_bfloat16(FloatRegister x) {
#if defined(__AVX512BF16__) && TOKENLOOM_AVX512
  return (HalfRegister)_mm512_cvtneps_pbh((__m512)x);
#else
  const WordRegister bits = as_words(x);
  const WordRegister rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const WordRegister nan = WordRegister{} + 0x7fc0;
  return __builtin_convertvector(x == x ? rounded : nan, HalfRegister);
#endif
}

TOKENLOOM_INLINE FloatRegister from_bfloat16(HalfRegister x) {
  return as_floats(__builtin_convertvector(x, WordRegister) << 16);
}

TOKENLOOM_INLINE FloatRegister from_float16(HalfRegister x) {
#if TOKENLOOM_AVX512
  return (FloatRegister)_mm512_cvtph_ps((__m256i)x);
#elif defined(__F16C__) && TOKENLOOM_REGISTER_BYTES == 32
  return (FloatRegister)_mm256_cvtph_ps((__m128i)x);
#elif defined(__aarch64__)
  return (FloatRegister)vcvt_f32_f16((float16x4_t)x);
#else
  Float16 halves[REGISTER_LANES];
  std::memcpy(halves, &x, sizeof halves);
  FloatRegister result;
  for (int i = 0; i < REGISTER_LANES; i++) result[i] = (float)halves[i];
  return result;
#endif
}

TOKENLOOM_INLINE HalfRegister to_float16(FloatRegister x) {
#if TOKENLOOM_AVX512
  return (HalfRegister)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__) && TOKENLOOM_REGISTER_BYTES == 32
  return (HalfRegister)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  return (HalfRegister)vcvt_f16_f32((float32x4_t)x);
#else
  Float16 halves[REGISTER_LANES];
  for (int i = 0; i < REGISTER_LANES; i++) halves[i] = (Float16)x[i];
  HalfRegister result;
  std::memcpy(&result, halves, sizeof result);
  return result;
#endif
}

// Sums plus the products of pairs of float16, one pair in each word of both sides.
TOKENLOOM_INLINE FloatRegister dot_float16(FloatRegister sums, uint32_t left, WordRegister right) {
  Float16 pair[2];
  std::memcpy(pair, &left, sizeof pair);
  const auto halves = [](WordRegister words) __attribute__((always_inline)) {
    return from_float16(__builtin_convertvector(words, HalfRegister));
  };
  sums = multiply_add((float)pair[0] - FloatRegister{}, halves(right & 0xffff), sums);
  return multiply_add((float)pair[1] - FloatRegister{}, halves(right >> 16), sums);
}

// One pause in a loop that waits for another thread.
inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tokenloom
