// The intrinsics of AMX in plain C++, for CPUs without it: included before a source (-include).
//
// What the CPU refuses (a tile that is not configured, shapes that do not fit) ends the process.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_INT8__ 1
#define __AMX_BF16__ 1

namespace emulated {

struct Tile {
  int rows = 0, bytes = 0;
  uint8_t data[16][64] = {};

  uint32_t *words(int row) { return (uint32_t *)data[row]; }
};

inline thread_local Tile tiles[8];
inline thread_local bool is_configured = false;

inline void must(bool condition) {
  if (!condition) std::abort();
}

inline Tile &used(int number) {
  must(is_configured && tiles[number].rows > 0 && tiles[number].bytes > 0);
  return tiles[number];
}

inline void load_config(const void *from) {
  const uint8_t *bytes = (const uint8_t *)from;
  must(bytes[0] == 1);
  for (int i = 1; i < 16; i++) must(bytes[i] == 0);
  is_configured = true;
  for (int i = 0; i < 16; i++) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
    const int rows = bytes[48 + i];
    must(i < 8 ? rows <= 16 && row_bytes <= 64 && (rows == 0) == (row_bytes == 0)
               : rows == 0 && row_bytes == 0);
    if (i < 8) {
      tiles[i] = {};
      tiles[i].rows = rows;
      tiles[i].bytes = row_bytes;
    }
  }
}

inline void zero(int number) {
  Tile &tile = used(number);
  std::memset(tile.data, 0, sizeof tile.data);
}

inline void load(int number, const void *from, int64_t stride) {
  zero(number);
  Tile &tile = used(number);
  for (int row = 0; row < tile.rows; row++)
    std::memcpy(tile.data[row], (const char *)from + row * stride, tile.bytes);
}

inline void store(int number, void *to, int64_t stride) {
  Tile &tile = used(number);
  for (int row = 0; row < tile.rows; row++)
    std::memcpy((char *)to + row * stride, tile.data[row], tile.bytes);
}

// Calls add(sum, left word, right word) for all words that a sum is over.
template <class Add>
void each_word(int sums, int left, int right, Add &&add) {
  Tile &c = used(sums), &a = used(left), &b = used(right);
  must(a.rows == c.rows && a.bytes == 4 * b.rows && b.bytes == c.bytes);
  for (int m = 0; m < c.rows; m++)
    for (int n = 0; n < c.bytes / 4; n++) add(c.words(m)[n], a.words(m), b, n);
}

inline void dot_bytes(int sums, int left, int right) {
  each_word(sums, left, right, [&](uint32_t &sum, const uint32_t *row, Tile &b, int n) {
    for (int k = 0; k < b.rows; k++)
      for (int i = 0; i < 4; i++)
        sum += (uint32_t)((int)(uint8_t)(row[k] >> 8 * i) * (int8_t)(b.words(k)[n] >> 8 * i));
  });
}

inline float as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// As TDPBF16PS does: even and odd products apart, and both onto the sum in the end.
inline void dot_bfloat16(int sums, int left, int right) {
  each_word(sums, left, right, [&](uint32_t &sum, const uint32_t *row, Tile &b, int n) {
    float even = 0, odd = 0;
    for (int k = 0; k < b.rows; k++) {
      even = std::fma(as_float(row[k] << 16), as_float(b.words(k)[n] << 16), even);
      odd = std::fma(as_float(row[k] & 0xffff0000u), as_float(b.words(k)[n] & 0xffff0000u), odd);
    }
    const float total = as_float(sum) + (even + odd);
    std::memcpy(&sum, &total, 4);
  });
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) emulated::load_config(from)
#define _tile_release() (emulated::is_configured = false)
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::store(tile, to, stride)
#define _tile_dpbusd(sums, left, right) emulated::dot_bytes(sums, left, right)
#define _tile_dpbf16ps(sums, left, right) emulated::dot_bfloat16(sums, left, right)
#define syscall(...) 0L  // the permission to use tiles
