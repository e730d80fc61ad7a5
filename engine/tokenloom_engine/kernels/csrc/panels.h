// How products with a weight in panels (see gemm.cpp) go through rows and outputs: in tiles of some
// rows and a panel, the panels shared out among threads.
#pragma once

#include "parallel.h"
#include "tiles.h"
#include "vector.h"

namespace tokenloom {

constexpr int PANEL = 2 * LANES;
constexpr int TILE_ROWS = TOKENLOOM_AVX512 ? 12 : 3;  // as many as registers hold sums for
constexpr int TILES_AT_ONCE = 16;                     // their inputs stay in the cache
constexpr int LINE = 64;                              // bytes that memory gives at once

// What is fetched from memory while a tile is computed: a panel, or the half of one.
struct Ahead {
  const char *from;  // or null
  bool is_whole;

  // At step k of the inner loop, which itself reads two lines of 64 bytes.
  void fetch(int64_t k) const {
    if (from == nullptr) return;
    const char *line = from + (is_whole ? 2 * k : k) * LINE;
    __builtin_prefetch(line, 0, 2);
    if (is_whole) __builtin_prefetch(line + LINE, 0, 2);
  }
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
