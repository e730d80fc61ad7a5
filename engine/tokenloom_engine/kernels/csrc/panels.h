// How products with a weight in panels (see gemm.cpp) go through rows and outputs: in tiles of some
// rows and a panel, the panels shared out among threads.
#pragma once

#include <algorithm>

#include "parallel.h"
#include "storage.h"
#include "tiles.h"
#include "vector.h"

namespace tokenloom {

constexpr int PANEL = 2 * LANES;
constexpr int TILES_AT_ONCE = 192 / TILE_ROWS;  // their inputs stay in the cache
constexpr int LINE = 64;                        // bytes that memory gives at once

// What is fetched from memory while a tile is computed: a panel, or the half of one.
struct Ahead {
  const char *from;  // or null
  bool is_whole;
};

// A weight in panels, each of `words` times PANEL words.
struct Panels {
  const char *start;
  int64_t count, bytes;

  Panels(const void *start, int64_t num_outputs, int64_t words)
      : start((const char *)start),
        count((num_outputs + PANEL - 1) / PANEL),
        bytes(words * PANEL * (int64_t)sizeof(uint32_t)) {}

  const uint32_t *at(int64_t panel) const { return (const uint32_t *)(start + panel * bytes); }

  // What the tile of this number, of so many, fetches of a panel.
  Ahead ahead(int64_t panel, int64_t tile, int64_t tiles) const {
    if (panel >= count || tile > 1) return {nullptr, false};
    return {start + panel * bytes + tile * bytes / 2, tiles == 1};
  }
};

// All rows of the panels from `first` to `last`: calls tile(Count<rows>, first row, panel, ahead).
// While one panel is computed the next one is fetched, `then` after the last.
template <class Tile>
inline void over_panels(const Panels &weight, int64_t rows, int64_t first, int64_t last,
                        int64_t then, Tile &&tile) {
  const int64_t num_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
  for (int64_t begin = 0; begin < num_tiles; begin += TILES_AT_ONCE) {
    const int64_t end = num_tiles < begin + TILES_AT_ONCE ? num_tiles : begin + TILES_AT_ONCE;
    for (int64_t panel = first; panel < last; panel++) {
      const int64_t next = panel + 1 < last ? panel + 1 : end < num_tiles ? first : then;
      for (int64_t i = begin; i < end; i++) {
        // Tiles of about equal height: 13 rows are 7 and 6 and not 12 and 1.
        const int64_t row = i * rows / num_tiles, count = (i + 1) * rows / num_tiles - row;
        const Ahead ahead = weight.ahead(next, i - begin, end - begin);
        with_rows<TILE_ROWS>((int)count, [&](auto n) { tile(n, row, panel, ahead); });
      }
    }
  }
}

// Adds to a tile's sums the products of words `first` to `last` of ROWS rows, which are `words` long
// each, and of a panel. All in the order of the inputs.
template <int ROWS, class Sums, class Word, class Dot>
TOKENLOOM_INLINE void add_products(Sums (&sums)[ROWS][2], const Word *rows, int64_t words,
                                   const uint32_t *panel, int64_t first, int64_t last,
                                   const Ahead &ahead, Dot &&dot) {
  // A loop for each way to fetch: a branch in the loop would cost some percent of its time.
  const auto each_word = [&](auto lines) __attribute__((always_inline)) {
    for (int64_t k = first; k < last; k++) {
      const Words w0 = load_words(panel + k * PANEL), w1 = load_words(panel + k * PANEL + LANES);
      for (int i = 0; i < lines; i++) __builtin_prefetch(ahead.from + (lines * k + i) * LINE, 0, 2);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const Word x = rows[r * words + k];
        sums[r][0] = dot(sums[r][0], x, w0);
        sums[r][1] = dot(sums[r][1], x, w1);
      }
    }
  };
  if (ahead.from == nullptr)
    each_word(Count<0>{});
  else if (ahead.is_whole)
    each_word(Count<2>{});
  else
    each_word(Count<1>{});
}

// Where results go: [rows, num_outputs], of T or of float, after a bias is added where there is one.
template <class T>
struct Results {
  void *start;
  const T *bias;  // or null
  int64_t num_outputs;
  bool is_float;

  // Those of a tile: x(r, half) are sixteen outputs of its row r.
  template <int ROWS, class X>
  TOKENLOOM_INLINE void put(int64_t row, int64_t panel, X &&x) const {
    const int64_t output = panel * PANEL;
    if (bias != nullptr || output + PANEL > num_outputs) {
      Floats kept[ROWS][2];
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) kept[r][0] = x(r, 0), kept[r][1] = x(r, 1);
      for (int r = 0; r < ROWS; r++)
        for (int half = 0; half < 2; half++) put_part(row + r, output + half * LANES, kept[r][half]);
    } else if (is_float) {
      put_whole<ROWS, float>(row, output, x);
    } else {
      put_whole<ROWS, T>(row, output, x);
    }
  }

 private:
  // Unrolled: sums go from their registers to where they belong.
  template <int ROWS, class U, class X>
  TOKENLOOM_INLINE void put_whole(int64_t row, int64_t output, X &&x) const {
    U *to = (U *)start + row * num_outputs + output;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      Storage<U>::store(to, x(r, 0));
      Storage<U>::store(to + LANES, x(r, 1));
      to += num_outputs;
    }
  }

  // Sixteen outputs of a row, or those of them that there are.
  void put_part(int64_t row, int64_t output, const Floats &sums) const {
    float x[LANES];
    store_floats(x, sums);
    const int64_t count = std::min<int64_t>(LANES, num_outputs - output);
    for (int64_t i = 0; i < count; i++) {
      const int64_t at = row * num_outputs + output + i;
      const float y = bias == nullptr ? x[i] : x[i] + Storage<T>::to_float(bias[output + i]);
      if (is_float)
        ((float *)start)[at] = y;
      else
        ((T *)start)[at] = Storage<T>::from_float(y);
    }
  }
};

// Shares all panels of a product out among threads: calls body(first, last, then). A few shares a
// thread: who is held up leaves the rest to the others. `then` is where the thread most likely goes
// on: they take turns.
template <class Body>
inline void share_panels(int64_t num_outputs, int threads, Body &&body) {
  const int64_t panels = (num_outputs + PANEL - 1) / PANEL;
  const int64_t share = panels / (8 * threads) > 0 ? panels / (8 * threads) : 1;
  parallel_for((panels + share - 1) / share, threads, [&](int64_t i) {
    body(i * share, panels < (i + 1) * share ? panels : (i + 1) * share, (i + threads) * share);
  });
}

}  // namespace tokenloom
