// Matrix product with a weight of bytes and inputs quantized on the way (W8A8).
//
// Per output: weight = scales[output] * byte. Per row: input = row_scale * (byte - 128). Bytes of
// the inputs are unsigned because that is what the CPU multiplies; `sums`, 128 times each output's
// sum of weights, takes the shift out again. Sums are of integers, so they are exact, and no row
// depends on another. The weight's layout: [outputs / 32, inputs / 4, 32, 4].
#include <algorithm>

#include "kernels.h"
#include "panels.h"
#include "storage.h"

namespace tokenloom {
namespace {

// Adds four products of bytes to each of sixteen sums; `left` are unsigned, `right` signed.
inline Ints dot(Ints sums, uint32_t left, Words right) {
#if defined(__AVX512VNNI__) && TOKENLOOM_AVX512
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32((int)left), (__m512i)right);
#else
  for (int i = 0; i < 4; i++)
    sums += ((Ints)(right << (24 - 8 * i)) >> 24) * (int32_t)((left >> (8 * i)) & 255);
  return sums;
#endif
}

template <class T>
void quantize_row(const T *row, uint8_t *bytes, float *scale, int64_t width) {
  using S = Storage<T>;
  Floats most = {};
  for (int64_t i = 0; i < width; i += LANES) {
    const Floats x = S::load(row + i);
    most = maximum(most, maximum(x, -x));
  }
  const float largest = std::max(maximum(most), 1e-8f);
  *scale = largest / 127.f;
  for (int64_t i = 0; i < width; i += LANES) {
    const Floats x = S::load(row + i) * (127.f / largest) + 128.5f;
    const Ints whole = __builtin_convertvector(x, Ints);
    for (int j = 0; j < LANES; j++) bytes[i + j] = (uint8_t)whole[j];
  }
}

template <class T>
struct Int8Product {
  using S = Storage<T>;
  const Int8Gemm &args;
  const int64_t words;
  const Panels weight;

  explicit Int8Product(const Int8Gemm &args)
      : args(args), words(args.num_inputs / 4), weight(args.weight, args.num_outputs, words) {}

  void panels(int64_t first, int64_t last, int64_t then) const {
    over_panels(weight, args.rows, first, last, then,
                [&](auto n, int64_t row, int64_t panel, Ahead ahead) { tile_of<n>(row, panel, ahead); });
  }

  template <int ROWS>
  void tile_of(int64_t row, int64_t panel, Ahead ahead) const {
    const uint32_t *left = (const uint32_t *)(args.quantized + row * args.num_inputs);
    const uint32_t *right = weight.at(panel);
    Ints sums[ROWS][2] = {};
    for (int64_t k = 0; k < words; k++) {
      const Words w0 = load_words(right + k * PANEL), w1 = load_words(right + k * PANEL + LANES);
      ahead.fetch(k);
      for (int r = 0; r < ROWS; r++) {
        const uint32_t x = left[r * words + k];
        sums[r][0] = dot(sums[r][0], x, w0);
        sums[r][1] = dot(sums[r][1], x, w1);
      }
    }
    for (int r = 0; r < ROWS; r++)
      for (int half = 0; half < 2; half++) put(row + r, panel * PANEL + half * LANES, sums[r][half]);
  }

  void put(int64_t row, int64_t output, Ints sums) const {
    const int64_t count = std::min<int64_t>(LANES, args.num_outputs - output);
    if (count <= 0) return;
    T *to = (T *)args.result + row * args.num_outputs + output;
    const T *bias = args.bias == nullptr ? nullptr : (const T *)args.bias + output;
    if (count == LANES) {
      const Ints shift = (Ints)load_words(args.sums + output);
      Floats x = __builtin_convertvector(sums - shift, Floats) * load_floats(args.scales + output);
      x *= args.row_scales[row];
      return S::store(to, bias == nullptr ? x : x + S::load(bias));
    }
    for (int64_t i = 0; i < count; i++) {
      float x = (float)(sums[i] - args.sums[output + i]) * args.scales[output + i];
      x *= args.row_scales[row];
      if (bias != nullptr) x += S::to_float(bias[i]);
      to[i] = S::from_float(x);
    }
  }
};

template <class T>
void multiply(const Int8Gemm &args) {
  parallel_ranges(args.rows, 8, args.threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++)
      quantize_row((const T *)args.inputs + row * args.num_inputs,
                   args.quantized + row * args.num_inputs, args.row_scales + row,
                   args.num_inputs);
  });
  const Int8Product<T> product(args);
  share_panels(args.num_outputs, args.threads,
               [&](int64_t first, int64_t last, int64_t then) { product.panels(first, last, then); });
}

}  // namespace
}  // namespace tokenloom

void tokenloom_int8_gemm(const Int8Gemm *args) {
  tokenloom::with_storage(args->storage, [&](auto t) { tokenloom::multiply<decltype(t)>(*args); });
}
