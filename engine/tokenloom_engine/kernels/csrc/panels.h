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

// All rows of some panels: calls tile(Count<rows>, first row, panel, fetches). The panels of a
// thread are read one after the other, so the next one is to be fetched ahead where `fetches`: while
// the last rows of one are computed.
template <class Tile>
inline void over_panels(int64_t rows, int64_t first, int64_t last, Tile &&tile) {
  const int64_t num_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
  for (int64_t begin = 0; begin < num_tiles; begin += TILES_AT_ONCE) {
    const int64_t end = num_tiles < begin + TILES_AT_ONCE ? num_tiles : begin + TILES_AT_ONCE;
    for (int64_t panel = first; panel < last; panel++) {
      for (int64_t i = begin; i < end; i++) {
        // Tiles of about equal height: 13 rows are 7 and 6 and not 12 and 1.
        const int64_t row = i * rows / num_tiles, count = (i + 1) * rows / num_tiles - row;
        const bool fetches = i + 1 == end && panel + 1 < last;
        with_rows<TILE_ROWS>((int)count, [&](auto n) { tile(n, row, panel, fetches); });
      }
    }
  }
}

// Shares all panels of a product out among threads: calls body(first, last). A few shares a
// thread: who is held up leaves the rest to the others.
template <class Body>
inline void share_panels(int64_t num_outputs, int threads, Body &&body) {
  const int64_t panels = (num_outputs + PANEL - 1) / PANEL;
  const int64_t share = panels / (8 * threads) > 0 ? panels / (8 * threads) : 1;
  parallel_for((panels + share - 1) / share, threads, [&](int64_t i) {
    body(i * share, panels < (i + 1) * share ? panels : (i + 1) * share);
  });
}

}  // namespace tokenloom
