// Products of bytes: what each instruction set has for sums of four of them in a word.
//
// An input is quantized to a whole number from -127 to 127 and stored as `Quantized`, with ZERO added
// where the CPU multiplies unsigned bytes with signed ones. All sums are exact, so every way has the
// same result.
#pragma once

#include "vector.h"

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !TOKENLOOM_AVX512)
#define TOKENLOOM_UNSIGNED_BYTES 1  // vpdpbusd: unsigned with signed bytes
#elif defined(__ARM_FEATURE_DOTPROD)
#define TOKENLOOM_SIGNED_BYTES 1  // sdot: signed bytes
#endif

namespace tokenloom {

#if defined(TOKENLOOM_UNSIGNED_BYTES)
using Quantized = uint8_t;
constexpr int ZERO = 128;
#elif defined(TOKENLOOM_SIGNED_BYTES)
using Quantized = int8_t;
constexpr int ZERO = 0;
#else
using Quantized = int16_t;  // no products of bytes: of 16 bits, in pairs where the CPU has that
constexpr int ZERO = 0;
#endif

// Four inputs that stand beside each other. Those of 16 bits are kept as first and third, then
// second and fourth: so a word of weights yields its partners by two shifts.
using QuantizedWord = std::conditional_t<sizeof(Quantized) == 1, uint32_t, uint64_t>;

// Adds four products to each sum.
TOKENLOOM_INLINE IntRegister dot_bytes(IntRegister sums, QuantizedWord left, WordRegister right) {
#if defined(TOKENLOOM_UNSIGNED_BYTES) && TOKENLOOM_AVX512
  return (IntRegister)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32((int)left),
                                          (__m512i)right);
#elif defined(TOKENLOOM_UNSIGNED_BYTES) && defined(__AVXVNNI__)
  return (IntRegister)_mm256_dpbusd_avx_epi32((__m256i)sums, _mm256_set1_epi32((int)left),
                                              (__m256i)right);
#elif defined(TOKENLOOM_UNSIGNED_BYTES)
  return (IntRegister)_mm256_dpbusd_epi32((__m256i)sums, _mm256_set1_epi32((int)left),
                                          (__m256i)right);
#elif defined(TOKENLOOM_SIGNED_BYTES)
  return (IntRegister)vdotq_s32((int32x4_t)sums, (int8x16_t)vdupq_n_u32(left), (int8x16_t)right);
#elif defined(__x86_64__)
  const WordRegister first = uint32_t(left) + WordRegister{};
  const WordRegister second = uint32_t(left >> 32) + WordRegister{};
#if TOKENLOOM_AVX512
  const __m512i bytes = (__m512i)right;
  const __m512i products =
      _mm512_madd_epi16(_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), (__m512i)first);
  return sums + (IntRegister)products +
         (IntRegister)_mm512_madd_epi16(_mm512_srai_epi16(bytes, 8), (__m512i)second);
#elif TOKENLOOM_REGISTER_BYTES == 32
  const __m256i bytes = (__m256i)right;
  const __m256i products =
      _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), (__m256i)first);
  return sums + (IntRegister)products +
         (IntRegister)_mm256_madd_epi16(_mm256_srai_epi16(bytes, 8), (__m256i)second);
#else
  const __m128i bytes = (__m128i)right;
  const __m128i products =
      _mm_madd_epi16(_mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8), (__m128i)first);
  return sums + (IntRegister)products +
         (IntRegister)_mm_madd_epi16(_mm_srai_epi16(bytes, 8), (__m128i)second);
#endif
#else
  const auto times = [&](int shift, int from) __attribute__((always_inline)) {
    return (as_ints(right << shift) >> 24) * (int32_t)(int16_t)(left >> from);
  };
  return sums + times(24, 0) + times(16, 32) + times(8, 16) + times(0, 48);
#endif
}

template <class H, class W>
TOKENLOOM_INLINE Pair<H> dot_bytes(const Pair<H> &sums, QuantizedWord left, const Pair<W> &right) {
  return {dot_bytes(sums.low, left, right.low), dot_bytes(sums.high, left, right.high)};
}

// Stores sixteen whole numbers from -127 to 127.
inline void store_quantized(Quantized *to, const Ints &x) {
  if constexpr (sizeof(Quantized) == 1) {
    each_register(x + ZERO, [=](const IntRegister &part, int lane) {
      const ByteRegister bytes = __builtin_convertvector(as_words(part), ByteRegister);
      std::memcpy(to + lane, &bytes, sizeof bytes);
    });
  } else {
    // Word by word: the low halves hold the first and the second input.
    each_register(x, [=](const IntRegister &part, int lane) {
      for (int i = 0; i < REGISTER_LANES; i++)
        to[(lane + i) / 4 * 4 + (i & 1) * 2 + (i >> 1 & 1)] = (Quantized)part[i];
    });
  }
}

}  // namespace tokenloom
