// The keys and values of a row, in chunks that begin at multiples of CHUNK from the sequence's start,
// so a token's sums do not depend on how its prompt was cut, nor on who else is in the batch.
#pragma once

#include <algorithm>

#include "attention.h"
#include "cache.h"
#include "softmax.h"

namespace tokenloom {

// Keys of a chunk that lie in one block, and what memory is wanted after them.
struct Span {
  const uint32_t *keys, *values, *next_keys, *next_values;
  int64_t first, count;  // by their place in the chunk
};

struct Chunk {
  int64_t first, last;  // by their place in the sequence
  int64_t start;        // of the chunk itself
  int count;
  Span spans[CHUNK / LANES];
};

template <class T>
class KeyChunks {
  using S = Storage<T>;
  const Attention &args;
  const Blocks<T> blocks;

 public:
  KeyChunks(const Attention &args, const Blocks<T> &blocks) : args(args), blocks(blocks) {}

  // Where a key of a tile lies.
  const uint32_t *keys_of(const Tile &tile, int64_t key) const {
    const int64_t block = args.tables[tile.row * args.table_stride + key / blocks.size];
    return blocks.keys(block, tile.head) + key % blocks.size;
  }

  // The keys from `first` to `last` of the chunk that begins at `start`; `then` is what memory is
  // wanted after it.
  Chunk chunk_of(const Tile &tile, int64_t start, int64_t first, int64_t last,
                 const uint32_t *then) const {
    Chunk chunk{first, last, start, 0, {}};
    const int64_t size = blocks.size;
    for (int64_t key = first / LANES * LANES; key < last;) {
      const int64_t block = args.tables[tile.row * args.table_stride + key / size];
      const int64_t end = std::min(last, (key / size + 1) * size), place = key % size;
      Span &span = chunk.spans[chunk.count++];
      span = {blocks.keys(block, tile.head) + place,
              blocks.values(block, tile.head) + place / S::PER_WORD * blocks.value_dim,
              nullptr, nullptr, key - start, end - key};
      key = end;
    }
    for (int i = 0; i + 1 < chunk.count; i++) {
      chunk.spans[i].next_keys = chunk.spans[i + 1].keys;
      chunk.spans[i].next_values = chunk.spans[i + 1].values;
    }
    chunk.spans[chunk.count - 1].next_keys = chunk.spans[0].values;
    chunk.spans[chunk.count - 1].next_values = then;
    return chunk;
  }
};

}  // namespace tokenloom
