// What happens between the matrix products, row by row: norms, rotary embedding and the gated
// activation.
#include "parallel.h"
#include "row.h"

namespace tokenloom {
namespace {

template <class Function>
void each_row(int64_t rows, int threads, Function &&body) {
  parallel_ranges(rows, 8, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) body(row);
  });
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
  each_row(args.rows, args.threads, [&](int64_t row) { rotate_row<T>(args, row); });
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
