// Sixteen floats at once, on any CPU: one AVX-512 register, two of AVX2, or four of SSE or NEON.
//
// Nothing is contracted or reordered by the compiler (see build.py), so a sum comes out the same in
// whichever loop it stands: that makes results independent of the rest of the batch.
#pragma once

#include "pair.h"

namespace tokenloom {

constexpr int LANES = 16;

#if TOKENLOOM_REGISTER_BYTES == 64
using Floats = FloatRegister;
using Ints = IntRegister;
using Words = WordRegister;
#elif TOKENLOOM_REGISTER_BYTES == 32
using Floats = Pair<FloatRegister>;
using Ints = Pair<IntRegister>;
using Words = Pair<WordRegister>;
#else
using Floats = Pair<Pair<FloatRegister>>;
using Ints = Pair<Pair<IntRegister>>;
using Words = Pair<Pair<WordRegister>>;
#endif

// Rows of a matrix product whose sums, of 32 outputs each, registers hold beside the operands.
#if TOKENLOOM_AVX512
constexpr int TILE_ROWS = 12;  // 32 registers
#elif TOKENLOOM_REGISTER_BYTES == 32 || defined(__aarch64__)
constexpr int TILE_ROWS = 3;  // 16 registers, or 32 of half the width
#else
constexpr int TILE_ROWS = 1;
#endif

TOKENLOOM_INLINE Floats broadcast(float x) {
  return from_registers<Floats>([=](int) { return x - FloatRegister{}; });
}

TOKENLOOM_INLINE Words broadcast_word(uint32_t x) {
  return from_registers<Words>([=](int) { return x + WordRegister{}; });
}

TOKENLOOM_INLINE Words load_words(const void *from) {
  return from_registers<Words>([=](int lane) {
    WordRegister x;
    std::memcpy(&x, (const char *)from + 4 * lane, sizeof x);
    return x;
  });
}

TOKENLOOM_INLINE Floats load_floats(const float *from) { return as_floats(load_words(from)); }

// The same of the first `count`, and `rest` for the others.
inline Floats load_floats(const float *from, int64_t count, float rest) {
  if (count >= LANES) return load_floats(from);
  float x[LANES];
  for (int i = 0; i < LANES; i++) x[i] = i < count ? from[i] : rest;
  return load_floats(x);
}

TOKENLOOM_INLINE void store_floats(float *to, const Floats &x) {
  each_register(x, [=](const FloatRegister &part, int lane) {
    std::memcpy(to + lane, &part, sizeof part);
  });
}

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

TOKENLOOM_INLINE Floats between(const Floats &least, const Floats &x, const Floats &most) {
  return minimum(maximum(x, least), most);
}

// e to the power of x; 0 where x < -87, as for -inf. Relative error about 1e-7: the polynomial of
// Cephes' expf (S. Moshier).
inline Floats exp(const Floats &x) {
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
  return select(x > broadcast(-87.f), scale_by_power(p, n), Floats{});
}

// The same for x <= 0 with a relative error of up to 3e-6, for what is then stored in 16 bits: two
// to the power of a fraction by the polynomial of degree 4 with the least of that error.
inline Floats rough_exp(const Floats &x) {
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

inline Floats tanh(const Floats &x) { return 1.f - 2.f / (exp(2.f * x) + 1.f); }

}  // namespace tokenloom
