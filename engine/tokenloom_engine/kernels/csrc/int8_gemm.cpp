// Matrix product with a weight of bytes and inputs quantized on the way (W8A8).
//
// Per output: weight = scales[output] * byte. Per group of inputs that stand beside each other in a
// row: input = row_scale * number. A group is the whole row, or where a few large inputs would leave
// too little to the others, a part of it. Where the CPU multiplies unsigned bytes (bytes.h), 128 is
// added to the inputs, and `shifts`, -128 times each output's sum of weights over a group, take it out
// again. Sums in a group are of integers, so they are exact; groups are added in their order, so no
// row depends on another. The weight's layout: [outputs / 32, inputs / 4, 32, 4].
#include "amx.h"
#include "bytes.h"
#include "kernels.h"
#include "panels.h"
#include "storage.h"

namespace tokenloom {
namespace {

// Inputs that share a scale, to whole numbers from -127 to 127. Returns the scale.
template <class T>
float quantize_group(const T *inputs, Quantized *quantized, int64_t count) {
  using S = Storage<T>;
  Floats most = {};
  for (int64_t i = 0; i < count; i += LANES) {
    const Floats x = S::load(inputs + i);
    most = maximum(most, maximum(x, -x));
  }
  const float largest = std::max(maximum(most), 1e-8f);
  for (int64_t i = 0; i < count; i += LANES) {
    const Floats x = S::load(inputs + i) * (127.f / largest) + 128.5f;
    store_quantized(quantized + i, to_ints(x) - 128);
  }
  return largest / 127.f;
}

template <class T>
struct Int8Product {
  const Int8Gemm &args;
  const int64_t words, groups;  // of an input row
  const Panels weight;
  const Results<T> results;

  explicit Int8Product(const Int8Gemm &args)
      : args(args),
        words(args.num_inputs / 4),
        groups(args.num_inputs / args.group),
        weight(args.weight, args.num_outputs, words),
        results{args.result, (const T *)args.bias, args.num_outputs, args.is_float_result != 0} {}

  void quantize(int64_t row) const {
    const int64_t at = row * args.num_inputs;
    for (int64_t g = 0; g < groups; g++)
      args.row_scales[row * groups + g] =
          quantize_group((const T *)args.inputs + at + g * args.group,
                         (Quantized *)args.quantized + at + g * args.group, args.group);
  }

  void panels(int64_t first, int64_t last, int64_t then) const {
    over_panels(weight, args.rows, first, last, then,
                [&](auto n, int64_t row, int64_t panel, Ahead ahead) { tile_of<n>(row, panel, ahead); });
  }

  template <int ROWS>
  void tile_of(int64_t row, int64_t panel, Ahead ahead) const {
    const float *scales = args.scales + panel * PANEL;
    const Floats of_output[2] = {load_floats(scales), load_floats(scales + LANES)};
    if (groups == 1) {
      Ints sums[ROWS][2];
      add_group(sums, row, panel, 0, ahead);
      return results.template put<ROWS>(row, panel, [&](int r, int half) {
        return to_floats(sums[r][half]) * args.row_scales[row + r] *
               of_output[half];
      });
    }
    alignas(64) Floats totals[ROWS][2] = {};
    for (int64_t g = 0; g < groups; g++) {
      Ints sums[ROWS][2];
      add_group(sums, row, panel, g, ahead);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const Floats scale = broadcast(args.row_scales[(row + r) * groups + g]);
        for (int half = 0; half < 2; half++)
          totals[r][half] = multiply_add(to_floats(sums[r][half]), scale,
                                         totals[r][half]);
      }
    }
    results.template put<ROWS>(
        row, panel, [&](int r, int half) { return totals[r][half] * of_output[half]; });
  }

  template <int ROWS>
  TOKENLOOM_INLINE void add_group(Ints (&sums)[ROWS][2], int64_t row, int64_t panel, int64_t g,
                                  const Ahead &ahead) const {
    Ints s0 = {}, s1 = {};
    if constexpr (ZERO != 0) {
      const int32_t *shifts = args.shifts + (g * weight.count + panel) * PANEL;
      s0 = as_ints(load_words(shifts)), s1 = as_ints(load_words(shifts + LANES));
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) sums[r][0] = s0, sums[r][1] = s1;
    const QuantizedWord *rows = (const QuantizedWord *)args.quantized + row * words;
    const int64_t in_group = args.group / 4;
    add_products(sums, rows, words, weight.at(panel), g * in_group, (g + 1) * in_group, ahead,
                 [](const Ints &sum, QuantizedWord x, const Words &w)
                     __attribute__((always_inline)) { return dot_bytes(sum, x, w); });
  }

#if TOKENLOOM_AMX
  static_assert(sizeof(Quantized) == 1 && ZERO == 128, "_tile_dpbusd: unsigned bytes of inputs");

  // Words of a row in a tile: a group is one tile, or several whole ones. 0 if it is neither.
  int64_t tile_words() const {
    const int64_t in_group = args.group / 4;
    return in_group <= TILE_WORDS ? in_group : in_group % TILE_WORDS == 0 ? TILE_WORDS : 0;
  }

  void panels_by_tiles(int64_t first, int64_t last, int64_t then) const {
    Tiles tiles(tile_words());
    const auto block = [&](int64_t row, int count, int64_t panel, const char *ahead) {
      block_by_tiles(tiles, row, count, panel, ahead);
    };
    tiles.over_blocks(weight, args.rows, first, last, then, block);
  }

  void block_by_tiles(const Tiles &tiles, int64_t row, int count, int64_t panel,
                      const char *ahead) const {
    const int64_t in_group = args.group / 4;
    const char *rows = (const char *)args.quantized + row * args.num_inputs;
    alignas(64) Floats totals[BLOCK_ROWS][2] = {};
    BlockSums sums;
    for (int64_t g = 0; g < groups; g++) {
      tiles.multiply<Quantized>(sums, rows, args.num_inputs, (const char *)weight.at(panel),
                                g * in_group, (g + 1) * in_group, ahead);
      const int32_t *shifts = args.shifts + (g * weight.count + panel) * PANEL;
      const Ints shift[2] = {as_ints(load_words(shifts)), as_ints(load_words(shifts + LANES))};
      for (int r = 0; r < count; r++) {
        const Floats scale = broadcast(args.row_scales[(row + r) * groups + g]);
        for (int half = 0; half < 2; half++)
          totals[r][half] = multiply_add(to_floats(as_ints(sums.load(r, half)) + shift[half]),
                                         scale, totals[r][half]);
      }
    }
    const float *scales = args.scales + panel * PANEL;
    const Floats of_output[2] = {load_floats(scales), load_floats(scales + LANES)};
    for (int r = 0; r < count; r++)
      results.template put<1>(
          row + r, panel, [&](int, int half) { return totals[r][half] * of_output[half]; });
  }
#endif
};

template <class T>
void multiply(const Int8Gemm &args) {
  const Int8Product<T> product(args);
  parallel_ranges(args.rows, 8, args.threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) product.quantize(row);
  });
#if TOKENLOOM_AMX
  if (is_by_tiles(args.rows, args.tile_rows) && product.tile_words() > 0)
    return share_panels(args.num_outputs, args.threads,
                        [&](int64_t first, int64_t last, int64_t then) {
                          product.panels_by_tiles(first, last, then);
                        });
#endif
  share_panels(args.num_outputs, args.threads,
               [&](int64_t first, int64_t last, int64_t then) { product.panels(first, last, then); });
}

}  // namespace
}  // namespace tokenloom

void tokenloom_int8_gemm(const Int8Gemm *args) {
  tokenloom::with_storage(args->storage, [&](auto t) { tokenloom::multiply<decltype(t)>(*args); });
}
