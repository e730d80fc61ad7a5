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
  static TOKENLOOM_INLINE Floats load(const float *from) { return load_floats(from); }
  static TOKENLOOM_INLINE void store(float *to, const Floats &x) { store_floats(to, x); }
  static TOKENLOOM_INLINE Floats dot(const Floats &sums, uint32_t left, const Words &right) {
    return multiply_add(broadcast(as_float(left)), as_floats(right), sums);
  }
};

TOKENLOOM_INLINE HalfRegister load_halves(const void *from) {
  HalfRegister x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

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

  static TOKENLOOM_INLINE Floats load(const BFloat16 *from) {
    return from_registers<Floats>([=](int lane) { return from_bfloat16(load_halves(from + lane)); });
  }

  static TOKENLOOM_INLINE void store(BFloat16 *to, const Floats &x) {
    each_register(x, [=](const FloatRegister &part, int lane) {
      const HalfRegister halves = to_bfloat16(part);
      std::memcpy(to + lane, &halves, sizeof halves);
    });
  }

  static TOKENLOOM_INLINE Floats dot(const Floats &sums, uint32_t left, const Words &right) {
    return dot_bfloat16(sums, broadcast_word(left), right);
  }
};

template <>
struct Storage<Float16> {
  static constexpr int PER_WORD = 2;

  static float to_float(Float16 x) { return (float)x; }
  static Float16 from_float(float x) { return (Float16)x; }

  static TOKENLOOM_INLINE Floats load(const Float16 *from) {
    return from_registers<Floats>([=](int lane) { return from_float16(load_halves(from + lane)); });
  }

  static TOKENLOOM_INLINE void store(Float16 *to, const Floats &x) {
    each_register(x, [=](const FloatRegister &part, int lane) {
      const HalfRegister halves = to_float16(part);
      std::memcpy(to + lane, &halves, sizeof halves);
    });
  }

  static TOKENLOOM_INLINE Floats dot(const Floats &sums, uint32_t left, const Words &right) {
    return dot_float16(sums, left, right);
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
