// Two vectors side by side, each a register or a pair itself, with the operators of one.
//
// The compiler's own vectors wider than a register live in memory, which makes a product ten times
// slower; members of a struct live in registers.
#pragma once

#include <type_traits>

#include "register.h"

namespace tokenloom {

template <class Half>
struct Pair {
  Half low, high;
};

template <class X>
struct PairTraits {
  static constexpr bool IS_PAIR = false;
};

template <class H>
struct PairTraits<Pair<H>> {
  static constexpr bool IS_PAIR = true;
  using Half = H;
};

template <class H>
TOKENLOOM_INLINE Pair<H> make_pair(H low, H high) {
  return {low, high};
}

#define TOKENLOOM_PAIR_OPERATOR(op)                                                          \
  template <class H>                                                                         \
  TOKENLOOM_INLINE auto operator op(const Pair<H> &a, const Pair<H> &b) {                    \
    return make_pair(a.low op b.low, a.high op b.high);                                      \
  }                                                                                          \
  template <class H, class S, class = std::enable_if_t<std::is_arithmetic_v<S>>>             \
  TOKENLOOM_INLINE auto operator op(const Pair<H> &a, S b) {                                 \
    return make_pair(a.low op b, a.high op b);                                               \
  }                                                                                          \
  template <class H, class S, class = std::enable_if_t<std::is_arithmetic_v<S>>>             \
  TOKENLOOM_INLINE auto operator op(S a, const Pair<H> &b) {                                 \
    return make_pair(a op b.low, a op b.high);                                               \
  }

TOKENLOOM_PAIR_OPERATOR(+)
TOKENLOOM_PAIR_OPERATOR(-)
TOKENLOOM_PAIR_OPERATOR(*)
TOKENLOOM_PAIR_OPERATOR(/)
TOKENLOOM_PAIR_OPERATOR(&)
TOKENLOOM_PAIR_OPERATOR(<<)
TOKENLOOM_PAIR_OPERATOR(>>)
TOKENLOOM_PAIR_OPERATOR(<)
TOKENLOOM_PAIR_OPERATOR(>)
TOKENLOOM_PAIR_OPERATOR(>=)
TOKENLOOM_PAIR_OPERATOR(!=)
#undef TOKENLOOM_PAIR_OPERATOR

template <class H>
TOKENLOOM_INLINE Pair<H> operator-(const Pair<H> &a) {
  return {-a.low, -a.high};
}

template <class H>
TOKENLOOM_INLINE Pair<H> &operator+=(Pair<H> &a, const Pair<H> &b) {
  return a = a + b;
}

#define TOKENLOOM_PAIR_FUNCTION(name)                                                        \
  template <class H>                                                                         \
  TOKENLOOM_INLINE auto name(const Pair<H> &a) {                                             \
    return make_pair(name(a.low), name(a.high));                                             \
  }

TOKENLOOM_PAIR_FUNCTION(as_floats)
TOKENLOOM_PAIR_FUNCTION(as_words)
TOKENLOOM_PAIR_FUNCTION(as_ints)
TOKENLOOM_PAIR_FUNCTION(to_floats)
TOKENLOOM_PAIR_FUNCTION(to_ints)
TOKENLOOM_PAIR_FUNCTION(round_to_whole)
#undef TOKENLOOM_PAIR_FUNCTION

template <class M, class H>
TOKENLOOM_INLINE Pair<H> select(const Pair<M> &mask, const Pair<H> &a, const Pair<H> &b) {
  return {select(mask.low, a.low, b.low), select(mask.high, a.high, b.high)};
}

template <class H>
TOKENLOOM_INLINE Pair<H> multiply_add(const Pair<H> &a, const Pair<H> &b, const Pair<H> &c) {
  return {multiply_add(a.low, b.low, c.low), multiply_add(a.high, b.high, c.high)};
}

template <class H>
TOKENLOOM_INLINE Pair<H> maximum(const Pair<H> &a, const Pair<H> &b) {
  return {maximum(a.low, b.low), maximum(a.high, b.high)};
}

template <class H>
TOKENLOOM_INLINE Pair<H> minimum(const Pair<H> &a, const Pair<H> &b) {
  return {minimum(a.low, b.low), minimum(a.high, b.high)};
}

template <class H>
TOKENLOOM_INLINE Pair<H> scale_by_power(const Pair<H> &x, const Pair<H> &n) {
  return {scale_by_power(x.low, n.low), scale_by_power(x.high, n.high)};
}

template <class H, class W>
TOKENLOOM_INLINE Pair<H> dot_bfloat16(const Pair<H> &sums, const Pair<W> &left, const Pair<W> &right) {
  return {dot_bfloat16(sums.low, left.low, right.low),
          dot_bfloat16(sums.high, left.high, right.high)};
}

template <class H, class W>
TOKENLOOM_INLINE Pair<H> dot_float16(const Pair<H> &sums, uint32_t left, const Pair<W> &right) {
  return {dot_float16(sums.low, left, right.low), dot_float16(sums.high, left, right.high)};
}

template <class H>
TOKENLOOM_INLINE float sum(const Pair<H> &x) {
  return sum(x.low + x.high);
}

template <class H>
TOKENLOOM_INLINE float maximum(const Pair<H> &x) {
  return maximum(maximum(x.low, x.high));
}

// The vector of registers make(first lane).
template <class X, class Make>
TOKENLOOM_INLINE X from_registers(Make &&make, int lane = 0) {
  if constexpr (PairTraits<X>::IS_PAIR) {
    using Half = typename PairTraits<X>::Half;
    return {from_registers<Half>(make, lane), from_registers<Half>(make, lane + sizeof(Half) / 4)};
  } else {
    return make(lane);
  }
}

// Calls body(register, first lane) for each register.
template <class X, class Body>
TOKENLOOM_INLINE void each_register(const X &x, Body &&body, int lane = 0) {
  if constexpr (PairTraits<X>::IS_PAIR) {
    each_register(x.low, body, lane);
    each_register(x.high, body, lane + sizeof(x.low) / 4);
  } else {
    body(x, lane);
  }
}

}  // namespace tokenloom
