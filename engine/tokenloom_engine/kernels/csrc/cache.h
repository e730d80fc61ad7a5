// The layout of a layer's paged cache, so that one load brings the same word of sixteen keys, or
// sixteen dimensions of a value, and no sum runs across a register (p numbers make a word, see
// storage.h):
//   keys   [blocks, heads, key_dim / p, block_size, p]
//   values [blocks, heads, block_size / p, value_dim, p]
// key_dim is rounded up to whole words and value_dim to whole registers; the rest is zero.
#pragma once

#include "kernels.h"
#include "storage.h"

namespace tokenloom {

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

template <class T>
class Blocks {
  static constexpr int PER_WORD = Storage<T>::PER_WORD;
  const Cache cache;

 public:
  const int64_t size;                                    // tokens of a block
  const int64_t key_words, value_dim;                    // of a head
  const int64_t key_block, value_block;                  // words of a block of a head

  explicit Blocks(const Cache &cache)
      : cache(cache),
        size(cache.block_size),
        key_words(round_up(cache.key_dim, PER_WORD) / PER_WORD),
        value_dim(round_up(cache.value_dim, LANES)),
        key_block(key_words * size),
        value_block(size / PER_WORD * value_dim) {}

  uint32_t *keys(int64_t block, int64_t head) const {
    return (uint32_t *)cache.keys + (block * cache.num_heads + head) * key_block;
  }

  uint32_t *values(int64_t block, int64_t head) const {
    return (uint32_t *)cache.values + (block * cache.num_heads + head) * value_block;
  }

  // Puts a token's key and value, heads one after the other, into its slot.
  void store(int64_t slot, const T *key, const T *value) const {
    const int64_t block = slot / size, place = slot % size;
    for (int head = 0; head < cache.num_heads; head++) {
      uint32_t *to = keys(block, head) + place;
      const int64_t whole = cache.key_dim / PER_WORD;
      for (int64_t w = 0; w < whole; w++) std::memcpy(to + w * size, key + w * PER_WORD, 4);
      for (int64_t d = whole * PER_WORD; d < cache.key_dim; d++)
        std::memcpy(to + whole * size, key + d, sizeof(T));  // half a word
      T *values = (T *)(this->values(block, head) + place / PER_WORD * value_dim) + place % PER_WORD;
      for (int64_t d = 0; d < cache.value_dim; d++) values[d * PER_WORD] = value[d];
      key += cache.key_dim;
      value += cache.value_dim;
    }
  }
};

}  // namespace tokenloom
