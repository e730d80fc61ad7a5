// How numbers are stored: float, bfloat16 or float16. All arithmetic is in float.
//
// Matrix products read words of 32 bits: a float, or a pair of halves that stand beside each other
// in the direction that is summed over. `dot` adds the products of one word of the left side with
// sixteen words of the right side to sixteen sums.
#pragma once

#include "vector.h"

namespace tokenloom {

template <class T>
struct Storage;

template <>
struct Storage<float> {
  static constexpr int PER_WORD = 1;

  static float to_float(float x) { return x; }
  static float from_float(float x) { return x; }
  static Floats load(const float *from) { return load_floats(from); }
  static void store(float *to, Floats x) { store_floats(to, x); }
  static Floats dot(Floats sums, uint32_t left, Words right) {
    return multiply_add(broadcast(as_float(left)), (Floats)right, sums);
  }
};

struct BFloat16 {
  uint16_t bits;
};

template <>
struct Storage<BFloat16> {
  static constexpr int PER_WORD = 2;

  static float to_float(BFloat16 x) { return as_float(uint32_t(x.bits) << 16); }

  static BFloat16 from_float(float x) {
    const uint32_t bits = as_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fc0};  // NaN stays one
    return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};  // to nearest, ties to even
  }

  static Floats load(const BFloat16 *from) {
#if TOKENLOOM_AVX512
    return (Floats)_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16);
#else
    Words w;
    for (int i = 0; i < LANES; i++) w[i] = uint32_t(from[i].bits) << 16;
    return (Floats)w;
#endif
  }

  static void store(BFloat16 *to, Floats x) {
#if defined(__AVX512BF16__) && TOKENLOOM_AVX512
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    for (int i = 0; i < LANES; i++) to[i] = from_float(x[i]);
#endif
  }

  static Floats dot(Floats sums, uint32_t left, Words right) {
#if defined(__AVX512BF16__) && TOKENLOOM_AVX512
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32((int)left),
                                    (__m512bh)right);
#else
    sums = multiply_add(broadcast(as_float(left << 16)), (Floats)(right << 16), sums);
    return multiply_add(broadcast(as_float(left & 0xffff0000u)), (Floats)(right & 0xffff0000u),
                        sums);
#endif
  }
};

typedef _Float16 Float16;

template <>
struct Storage<Float16> {
  static constexpr int PER_WORD = 2;

  typedef Float16 Halves __attribute__((vector_size(32), aligned(2)));

  static float to_float(Float16 x) { return (float)x; }
  static Float16 from_float(float x) { return (Float16)x; }

  static Floats load(const Float16 *from) {
#if TOKENLOOM_AVX512
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#else
    Floats x;
    for (int i = 0; i < LANES; i++) x[i] = (float)from[i];
    return x;
#endif
  }

  static void store(Float16 *to, Floats x) {
#if TOKENLOOM_AVX512
    _mm256_storeu_si256((__m256i *)to,
                        _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    for (int i = 0; i < LANES; i++) to[i] = (Float16)x[i];
#endif
  }

  static Floats dot(Floats sums, uint32_t left, Words right) {
    Float16 pair[2];
    std::memcpy(pair, &left, sizeof pair);
#if TOKENLOOM_AVX512
    const Floats low = (Floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)right));
    const Floats high = (Floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)(right >> 16)));
#else
    Float16 halves[2 * LANES];
    std::memcpy(halves, &right, sizeof halves);
    Floats low, high;
    for (int i = 0; i < LANES; i++) low[i] = (float)halves[2 * i], high[i] = (float)halves[2 * i + 1];
#endif
    sums = multiply_add(broadcast((float)pair[0]), low, sums);
    return multiply_add(broadcast((float)pair[1]), high, sums);
  }
};

// Calls `body` with a value of the storage type that `code` names: 0 float, 1 bfloat16, 2 float16.
template <class Body>
void with_storage(int code, Body &&body) {
  if (code == 0) body(float{});
  if (code == 1) body(BFloat16{});
  if (code == 2) body(Float16{});
}

}  // namespace tokenloom
