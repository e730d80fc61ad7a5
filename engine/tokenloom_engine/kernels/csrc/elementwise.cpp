// What happens between the matrix products: norms, rotary embedding and the gated activation.
//
// Intermediate results are rounded to the storage type where transformers' modules round them.
#include "kernels.h"
#include "parallel.h"
#include "storage.h"

namespace tokenloom {
namespace {

template <class Function>
void each_row(int64_t rows, int threads, Function &&body) {
  parallel_ranges(rows, 8, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) body(row);
  });
}

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
void rms_norm(const RmsNorm &args) {
  using S = Storage<T>;
  each_row(args.rows, args.threads, [&](int64_t row) {
    T *residual = (T *)args.residual + row * args.width;
    if (args.delta != nullptr) {
      const T *delta = (const T *)args.delta + row * args.width;
      for (int64_t i = 0; i < args.width; i += LANES)
        S::store(residual + i, S::load(residual + i) + S::load(delta + i));
    }
    norm_row(residual, (const T *)args.weight, (T *)args.result + row * args.width, args.width,
             args.epsilon);
  });
}

template <class T>
void silu_multiply(const SiluMultiply &args) {
  using S = Storage<T>;
  each_row(args.rows, args.threads, [&](int64_t row) {
    const T *gate = (const T *)args.gate_up + row * 2 * args.width, *up = gate + args.width;
    T *result = (T *)args.result + row * args.width;
    for (int64_t i = 0; i < args.width; i += LANES) {
      const Floats x = S::load(gate + i);
      S::store(result + i, rounded<T>(x / (exp(-x) + 1.f)) * S::load(up + i));
    }
  });
}

template <class T>
void rotary(const Rotary &args) {
  using S = Storage<T>;
  const int64_t half = args.dim / 2;
  each_row(args.rows, args.threads, [&](int64_t row) {
    const float *cosines = args.cosines + row * args.dim, *sines = args.sines + row * args.dim;
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
  });
}

}  // namespace
}  // namespace tokenloom

void tokenloom_rms_norm(const RmsNorm *args) {
  tokenloom::with_storage(args->storage, [&](auto t) { tokenloom::rms_norm<decltype(t)>(*args); });
}

void tokenloom_silu_multiply(const SiluMultiply *args) {
  tokenloom::with_storage(args->storage,
                          [&](auto t) { tokenloom::silu_multiply<decltype(t)>(*args); });
}

void tokenloom_rotary(const Rotary *args) {
  tokenloom::with_storage(args->storage, [&](auto t) { tokenloom::rotary<decltype(t)>(*args); });
}

const char *tokenloom_instructions() {
#if defined(__AVX512BF16__) && TOKENLOOM_AVX512
  return "AVX-512 with bfloat16";
#elif TOKENLOOM_AVX512
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "the compiler's vectors";
#endif
}
