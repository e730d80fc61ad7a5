// What is done to one row between the matrix products: norms and rotary embedding.
//
// Intermediate results are rounded to the storage type where transformers' modules round them.
#pragma once

#include "kernels.h"
#include "storage.h"

namespace tokenloom {

template <class T>
Floats rounded(Floats x) {
  T stored[LANES];
  Storage<T>::store(stored, x);
  return Storage<T>::load(stored);
}

// result = x / rms(x) * weight over `width` numbers; width is a multiple of LANES. May be in place.
template <class T>
void norm_row(const T *x, const T *weight, T *result, int64_t width, float epsilon) {
  using S = Storage<T>;
  Floats squares = {};
  for (int64_t i = 0; i < width; i += LANES) {
    const Floats v = S::load(x + i);
    squares = multiply_add(v, v, squares);
  }
  const float scale = 1.f / std::sqrt(sum(squares) / (float)width + epsilon);
  for (int64_t i = 0; i < width; i += LANES)
    S::store(result + i, rounded<T>(S::load(x + i) * scale) * S::load(weight + i));
}

template <class T>
void rotate_row(const Rotary &args, int64_t row) {
  using S = Storage<T>;
  const int64_t half = args.dim / 2;
  const int64_t angles = args.positions[row] * half;
  const float *cosines = args.cosines + angles, *sines = args.sines + angles;
  for (int head = 0; head < args.num_heads; head++) {
    T *x = (T *)args.heads + row * args.stride + head * args.dim, *y = x + half;
    if (args.norm != nullptr) norm_row(x, (const T *)args.norm, x, args.dim, args.epsilon);
    for (int64_t i = 0; i < half; i += LANES) {
      const Floats a = S::load(x + i), b = S::load(y + i);
      const Floats c = load_floats(cosines + i), s = load_floats(sines + i);
      S::store(x + i, rounded<T>(a * c) - rounded<T>(b * s));
      S::store(y + i, rounded<T>(b * c) + rounded<T>(a * s));
    }
  }
}

}  // namespace tokenloom
