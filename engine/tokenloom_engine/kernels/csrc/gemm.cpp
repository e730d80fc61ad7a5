// Matrix product with a packed weight.
//
// A weight [outputs, inputs] is stored in panels of 32 outputs: [outputs / 32, inputs / p, 32, p],
// where p numbers make a word (see storage.h). One step of the inner loop then reads 32 words of
// the weight side by side and multiplies them with one word of each input row. For few rows the
// time is that of reading the weight once; for many, that of the multiplications.
//
// Every output is summed over the inputs in their order, whatever the number of rows. Tiles of AMX
// (amx.h) have an order of their own: the caller takes them for all numbers of rows or for none.
#include "amx.h"
#include "kernels.h"
#include "panels.h"
#include "storage.h"

namespace tokenloom {
namespace {

template <class T>
struct Product {
  using S = Storage<T>;
  const int64_t rows, words;  // words of an input row
  const uint32_t *const inputs;
  const Panels weight;
  const Results<T> results;

  explicit Product(const Gemm &args)
      : rows(args.rows),
        words(args.num_inputs / S::PER_WORD),
        inputs((const uint32_t *)args.inputs),
        weight(args.weight, args.num_outputs, words),
        results{args.result, (const T *)args.bias, args.num_outputs, args.is_float_result != 0} {}

  void panels(int64_t first, int64_t last, int64_t then) const {
    over_panels(weight, rows, first, last, then,
                [&](auto n, int64_t row, int64_t panel, Ahead ahead) { tile_of<n>(row, panel, ahead); });
  }

  template <int ROWS>
  void tile_of(int64_t row, int64_t panel, Ahead ahead) const {
    Floats sums[ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = Floats{};
    add_products(sums, inputs + row * words, words, weight.at(panel), 0, words, ahead, S::dot);
    results.template put<ROWS>(row, panel, [&](int r, int half) { return sums[r][half]; });
  }

#if TOKENLOOM_AMX
  void panels_by_tiles(int64_t first, int64_t last, int64_t then) const {
    Tiles tiles(TILE_WORDS);
    BlockSums sums;
    const auto block = [&](int64_t row, int count, int64_t panel, const char *ahead) {
      tiles.multiply<T>(sums, (const char *)(inputs + row * words), words * sizeof(uint32_t),
                        (const char *)weight.at(panel), 0, words, ahead);
      for (int r = 0; r < count; r++)
        results.template put<1>(
            row + r, panel, [&](int, int half) { return as_floats(sums.load(r, half)); });
    };
    tiles.over_blocks(weight, rows, first, last, then, block);
  }
#endif
};

template <class T>
void multiply(const Gemm &args) {
  const Product<T> product(args);
#if TOKENLOOM_AMX
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (is_by_tiles(args.rows, args.tile_rows) && product.words % TILE_WORDS == 0)
      return share_panels(args.num_outputs, args.threads,
                          [&](int64_t first, int64_t last, int64_t then) {
                            product.panels_by_tiles(first, last, then);
                          });
  }
#endif
  share_panels(args.num_outputs, args.threads,
               [&](int64_t first, int64_t last, int64_t then) { product.panels(first, last, then); });
}

}  // namespace
}  // namespace tokenloom

void tokenloom_gemm(const Gemm *args) {
  tokenloom::with_storage(args->storage, [&](auto t) { tokenloom::multiply<decltype(t)>(*args); });
}
