// Matrix products by the tiles of AMX: registers of 16 rows by 64 bytes, and products of two of them.
//
// In a panel (see gemm.cpp) sixteen words of inputs are two tiles side by side, so weights have the
// same layout as for vectors. A block of up to 32 rows and a panel are two by two tiles of sums.
//
// Products of bytes are exact, so they equal those of int8_gemm.cpp to the bit. Products of bfloat16
// are summed and rounded in another order than by vectors: for a weight, one way serves all numbers of
// rows, or a row would depend on the others.
#pragma once

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define TOKENLOOM_AMX 1
#else
#define TOKENLOOM_AMX 0
#endif

#if TOKENLOOM_AMX

#include <immintrin.h>

#include "panels.h"

namespace tokenloom {

constexpr int TILE_HEIGHT = 16;
constexpr int TILE_WORDS = 16;
constexpr int BLOCK_ROWS = 2 * TILE_HEIGHT;
constexpr int64_t ROWS_AT_ONCE = 6 * BLOCK_ROWS;  // their inputs stay in the cache

// Sums of a block: integers or floats.
struct BlockSums {
  alignas(64) uint32_t words[BLOCK_ROWS][PANEL];

  Words load(int row, int half) const { return load_words(words[row] + half * LANES); }
};

// Whether a product with so many rows is by tiles; `least` is of the caller, 0: none.
inline bool is_by_tiles(int64_t rows, int64_t least) { return least > 0 && rows >= least; }

// This thread's tiles, configured as long as the object lives: 0 to 3 for sums, 4 and 5 for rows, 6
// and 7 for the halves of a panel.
class Tiles {
  struct alignas(64) Config {  // palette 1, as LDTILECFG reads it
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  Config config_{};
  const int words_;  // of an input row in a tile
  int rows_ = 0;     // of the block

 public:
  // `words`: of an input row that a tile holds, 16 at most.
  explicit Tiles(int64_t words) : words_((int)words) {}
  Tiles(const Tiles &) = delete;
  ~Tiles() { _tile_release(); }

  // As over_panels (panels.h), in blocks: calls block(first row, rows, panel, ahead). `ahead` is the
  // panel that the block fetches meanwhile, or null.
  template <class Block>
  void over_blocks(const Panels &weight, int64_t rows, int64_t first, int64_t last, int64_t then,
                   Block &&block) {
    for (int64_t begin = 0; begin < rows; begin += ROWS_AT_ONCE) {
      const int64_t end = std::min(rows, begin + ROWS_AT_ONCE);
      for (int64_t panel = first; panel < last; panel++) {
        const int64_t next = panel + 1 < last ? panel + 1 : end < rows ? first : then;
        for (int64_t row = begin; row < end; row += BLOCK_ROWS) {
          const int count = (int)std::min<int64_t>(BLOCK_ROWS, end - row);
          configure(count);
          const bool fetches = row == begin && next < weight.count;
          block(row, count, panel, fetches ? (const char *)weight.at(next) : nullptr);
        }
      }
    }
  }

  // Sums of the products of words `first` to `last`, a multiple of a tile's, of the block's rows and a
  // panel. T is BFloat16 or uint8_t. `row_bytes`: from one row to the next.
  template <class T>
  void multiply(BlockSums &sums, const char *inputs, int64_t row_bytes, const char *panel,
                int64_t first, int64_t last, const char *ahead) const {
    if (rows_ > TILE_HEIGHT)
      multiply_as<T, true>(sums, inputs, row_bytes, panel, first, last, ahead);
    else
      multiply_as<T, false>(sums, inputs, row_bytes, panel, first, last, ahead);
  }

 private:
  // The intrinsics of some compilers do not tell what memory they read: all of it must be written.
  static void write_all() { asm volatile("" ::: "memory"); }

  void configure(int rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const int top = rows < TILE_HEIGHT ? rows : TILE_HEIGHT, bottom = rows - top;
    config_ = {};
    config_.palette = 1;
    const auto shape = [&](int tile, int height, int words) {
      config_.rows[tile] = (uint8_t)height;
      config_.row_bytes[tile] = (uint16_t)(height == 0 ? 0 : 4 * words);
    };
    shape(0, top, LANES), shape(1, top, LANES);
    shape(2, bottom, LANES), shape(3, bottom, LANES);
    shape(4, top, words_), shape(5, bottom, words_);
    shape(6, words_, LANES), shape(7, words_, LANES);
    write_all();
    _tile_loadconfig(&config_);
  }

  template <class T, bool IS_TALL>
  void multiply_as(BlockSums &sums, const char *inputs, int64_t row_bytes, const char *panel,
                   int64_t first, int64_t last, const char *ahead) const {
    constexpr int STRIDE = PANEL * sizeof(uint32_t), HALF = STRIDE / 2;
    constexpr bool IS_BFLOAT16 = sizeof(T) == 2;
    write_all();
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (IS_TALL) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t word = first; word < last; word += words_) {
      if (ahead != nullptr)
        for (int64_t at = word * STRIDE; at < (word + words_) * STRIDE; at += LINE)
          __builtin_prefetch(ahead + at, 0, 2);
      const char *weight = panel + word * STRIDE, *rows = inputs + word * sizeof(uint32_t);
      _tile_loadd(6, weight, STRIDE);
      _tile_loadd(7, weight + HALF, STRIDE);
      _tile_loadd(4, rows, row_bytes);
      if constexpr (IS_BFLOAT16) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
      } else {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
      }
      if constexpr (IS_TALL) {
        _tile_loadd(5, rows + TILE_HEIGHT * row_bytes, row_bytes);
        if constexpr (IS_BFLOAT16) {
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        } else {
          _tile_dpbusd(2, 5, 6);
          _tile_dpbusd(3, 5, 7);
        }
      }
    }
    _tile_stored(0, sums.words[0], STRIDE);
    _tile_stored(1, sums.words[0] + LANES, STRIDE);
    if constexpr (IS_TALL) {
      _tile_stored(2, sums.words[TILE_HEIGHT], STRIDE);
      _tile_stored(3, sums.words[TILE_HEIGHT] + LANES, STRIDE);
    }
    write_all();
  }
};

}  // namespace tokenloom

#endif
