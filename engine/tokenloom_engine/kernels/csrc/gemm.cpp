// Matrix product with a packed weight.
//
// A weight [outputs, inputs] is stored in panels of 32 outputs: [outputs / 32, inputs / p, 32, p],
// where p numbers make a word (see storage.h). One step of the inner loop then reads 32 words of
// the weight side by side and multiplies them with one word of each input row. For few rows the
// time is that of reading the weight once; for many, that of the multiplications.
//
// Every output is summed over the inputs in their order, whatever the number of rows.
#include <algorithm>

#include "kernels.h"
#include "panels.h"
#include "storage.h"

namespace tokenloom {
namespace {

template <class T>
struct Product {
  using S = Storage<T>;
  const Gemm &args;
  const int64_t words;  // of an input row
  const T *const inputs, *const bias;
  const Panels weight;

  explicit Product(const Gemm &args)
      : args(args),
        words(args.num_inputs / S::PER_WORD),
        inputs((const T *)args.inputs),
        bias((const T *)args.bias),
        weight(args.weight, args.num_outputs, words) {}

  void panels(int64_t first, int64_t last, int64_t then) const {
    over_panels(weight, args.rows, first, last, then,
                [&](auto n, int64_t row, int64_t panel, Ahead ahead) { tile_of<n>(row, panel, ahead); });
  }

  template <int ROWS>
  void tile_of(int64_t row, int64_t panel, Ahead ahead) const {
    const uint32_t *left = (const uint32_t *)(inputs + row * args.num_inputs);
    const uint32_t *right = weight.at(panel);
    Floats sums[ROWS][2] = {};
    for (int64_t k = 0; k < words; k++) {
      const Words w0 = load_words(right + k * PANEL), w1 = load_words(right + k * PANEL + LANES);
      ahead.fetch(k);
      for (int r = 0; r < ROWS; r++) {
        const uint32_t x = left[r * words + k];
        sums[r][0] = S::dot(sums[r][0], x, w0);
        sums[r][1] = S::dot(sums[r][1], x, w1);
      }
    }
    for (int r = 0; r < ROWS; r++)
      for (int half = 0; half < 2; half++) put(row + r, panel * PANEL + half * LANES, sums[r][half]);
  }

  // Writes sixteen outputs of a row, or those of them that there are.
  void put(int64_t row, int64_t output, Floats x) const {
    const int64_t count = std::min<int64_t>(LANES, args.num_outputs - output);
    if (count <= 0) return;
    const int64_t at = row * args.num_outputs + output;
    if (bias != nullptr)
      for (int i = 0; i < count; i++) x[i] += S::to_float(bias[output + i]);
    if (args.is_float_result)
      put_as((float *)args.result + at, x, count);
    else
      put_as((T *)args.result + at, x, count);
  }

  template <class U>
  static void put_as(U *to, Floats x, int64_t count) {
    if (count == LANES) return Storage<U>::store(to, x);
    U whole[LANES];
    Storage<U>::store(whole, x);
    std::copy(whole, whole + count, to);
  }
};

template <class T>
void multiply(const Gemm &args) {
  const Product<T> product(args);
  share_panels(args.num_outputs, args.threads,
               [&](int64_t first, int64_t last, int64_t then) { product.panels(first, last, then); });
}

}  // namespace
}  // namespace tokenloom

void tokenloom_gemm(const Gemm *args) {
  tokenloom::with_storage(args->storage, [&](auto t) { tokenloom::multiply<decltype(t)>(*args); });
}
