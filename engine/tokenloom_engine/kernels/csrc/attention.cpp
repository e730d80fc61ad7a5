// Paged attention of packed rows: decode rows of one token and chunks of prompts alike.
//
// Layout of a layer's cache, so that one load brings the same word of sixteen keys, or sixteen
// dimensions of a value, and no sum runs across a register (p numbers make a word, see storage.h):
//   keys   [blocks, heads, key_dim / p, block_size, p]
//   values [blocks, heads, block_size / p, value_dim, p]
// key_dim is rounded up to whole words and value_dim to whole registers; the rest is zero.
//
// The softmax is computed in one pass over chunks of keys (Milakov, Gimelshein 2018; Dao et al.
// 2022). Chunks begin at multiples of CHUNK from the sequence's start, so a token's sums do not
// depend on how its prompt was cut, nor on who else is in the batch.
#include <algorithm>
#include <vector>

#include "kernels.h"
#include "parallel.h"
#include "storage.h"
#include "tiles.h"

namespace tokenloom {
namespace {

constexpr int CHUNK = 512;
constexpr int QUERY_ROWS = 24;  // a tile: some tokens times the query heads that share a KV head
constexpr int SCORE_ROWS = TOKENLOOM_AVX512 ? 8 : 2;  // as many as registers hold sums for
constexpr int VALUE_ROWS = TOKENLOOM_AVX512 ? 6 : 1;
constexpr int VALUE_GROUPS = 4;  // of LANES dimensions

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

struct Layout {
  int64_t key_words, value_dim, key_block, value_block;  // the blocks in words, of one head

  Layout(const Cache &cache, int per_word)
      : key_words(round_up(cache.key_dim, per_word) / per_word),
        value_dim(round_up(cache.value_dim, LANES)),
        key_block(key_words * cache.block_size),
        value_block(cache.block_size / per_word * value_dim) {}
};

struct Tile {
  int32_t row, head, first, count;  // tokens of the row, by their place in it
  int64_t cost;
};

template <class T>
class Attend {
  using S = Storage<T>;
  const Attention &args;
  const Layout layout;
  const int32_t group;  // query heads that share a KV head

 public:
  explicit Attend(const Attention &args)
      : args(args),
        layout(args.cache, S::PER_WORD),
        group(args.num_heads / args.cache.num_heads) {}

  // The longest first, so that no thread is left alone with one at the end.
  std::vector<Tile> tiles() const {
    std::vector<Tile> tiles;
    const int32_t most = std::max(1, QUERY_ROWS / group);
    for (int32_t row = 0; row < args.rows; row++) {
      const int32_t tokens = args.starts[row + 1] - args.starts[row];
      const int64_t before = args.lengths[row] - tokens;
      for (int32_t first = 0; first < tokens; first += most) {
        const int32_t count = std::min(most, tokens - first);
        for (int32_t head = 0; head < args.cache.num_heads; head++)
          tiles.push_back({row, head, first, count, count * (before + first + count)});
      }
    }
    std::stable_sort(tiles.begin(), tiles.end(),
                     [](const Tile &a, const Tile &b) { return a.cost > b.cost; });
    return tiles;
  }

  void compute(const Tile &tile) const {
    thread_local std::vector<float> memory;
    Scratch scratch(memory, *this, tile.count * group);
    const int32_t start = args.starts[tile.row];
    const int64_t tokens = args.starts[tile.row + 1] - start;
    const int64_t position = args.lengths[tile.row] - tokens + tile.first;  // of the first token
    const int64_t end = position + tile.count;  // keys that the last token sees
    const int64_t begin = args.window > 0 ? std::max<int64_t>(0, position + 1 - args.window) : 0;
    take_queries(tile, start, scratch);
    for (int64_t chunk = begin / CHUNK * CHUNK; chunk < end; chunk += CHUNK) {
      const int64_t first = std::max(begin, chunk), last = std::min(end, chunk + CHUNK);
      score_chunk(tile, chunk, first, last, scratch);
      weigh_chunk(chunk, first, last, position, scratch);
      add_values(tile, chunk, first, last, scratch);
    }
    put_result(tile, start, scratch);
  }

 private:
  // What a tile works with; its rows are token * group + head.
  struct Scratch {
    int rows;
    uint32_t *queries;  // [rows, key_words]
    float *scores;      // [rows, CHUNK]
    T *weights;         // [rows, CHUNK]
    float *sums;        // [rows, value_dim]
    float *best;        // [rows]
    float *total;       // [rows]

    Scratch(std::vector<float> &memory, const Attend &on, int rows) : rows(rows) {
      const size_t n = rows;
      memory.resize(std::max(memory.size(), n * (on.layout.key_words + 2 * CHUNK +
                                                 on.layout.value_dim + 2)));
      queries = (uint32_t *)memory.data();
      scores = memory.data() + n * on.layout.key_words;
      weights = (T *)(scores + n * CHUNK);
      sums = scores + 2 * n * CHUNK;
      best = sums + n * on.layout.value_dim;
      total = best + n;
      std::fill(sums, sums + n * on.layout.value_dim, 0.f);
      std::fill(best, best + n, -INFINITY);
      std::fill(total, total + n, 0.f);
    }
  };

  const uint32_t *keys_of(const Tile &tile, int64_t block) const {
    const int64_t id = args.tables[tile.row * args.table_stride + block];
    const int64_t at = id * args.cache.num_heads + tile.head;
    return (const uint32_t *)args.cache.keys + at * layout.key_block;
  }

  const uint32_t *values_of(const Tile &tile, int64_t block) const {
    const int64_t id = args.tables[tile.row * args.table_stride + block];
    const int64_t at = id * args.cache.num_heads + tile.head;
    return (const uint32_t *)args.cache.values + at * layout.value_block;
  }

  void take_queries(const Tile &tile, int32_t start, Scratch &scratch) const {
    const int64_t dim = args.cache.key_dim, width = layout.key_words * S::PER_WORD;
    for (int r = 0; r < scratch.rows; r++) {
      const int64_t token = start + tile.first + r / group, head = tile.head * group + r % group;
      const T *from = (const T *)args.queries + token * args.query_stride + head * dim;
      T *to = (T *)(scratch.queries + r * layout.key_words);
      std::copy(from, from + dim, to);
      for (int64_t i = dim; i < width; i++) to[i] = S::from_float(0.f);
    }
  }

  // scores[r, key - chunk] for the blocks that hold the keys from `first` to `last`.
  void score_chunk(const Tile &tile, int64_t chunk, int64_t first, int64_t last,
                   Scratch &scratch) const {
    const int64_t size = args.cache.block_size;
    for (int64_t block = first / size; block * size < last; block++) {
      const uint32_t *keys = keys_of(tile, block);
      const bool is_last = (block + 1) * size >= last;
      // Hardware fetches ahead within a page of 4 KiB; the next block is elsewhere.
      const uint32_t *next = is_last ? values_of(tile, first / size) : keys_of(tile, block + 1);
      float *scores = scratch.scores + (block * size - chunk);
      int64_t key = 0;
      for (; key + 2 * LANES <= size; key += 2 * LANES)
        score_keys<2>(keys + key, next + key, scores + key, scratch);
      for (; key < size; key += LANES) score_keys<1>(keys + key, next + key, scores + key, scratch);
    }
  }

  template <int GROUPS>
  void score_keys(const uint32_t *keys, const uint32_t *next, float *scores,
                  const Scratch &scratch) const {
    const int64_t size = args.cache.block_size;
    in_groups<SCORE_ROWS>(scratch.rows, [&](auto count, int first) {
      constexpr int ROWS = count;
      const uint32_t *queries = scratch.queries + first * layout.key_words;
      Floats sums[ROWS][GROUPS] = {};
      for (int64_t d = 0; d < layout.key_words; d++) {
        Words k[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
          k[g] = load_words(keys + d * size + g * LANES);
          if (first == 0) __builtin_prefetch(next + d * size + g * LANES);
        }
        for (int r = 0; r < ROWS; r++)
          for (int g = 0; g < GROUPS; g++)
            sums[r][g] = S::dot(sums[r][g], queries[r * layout.key_words + d], k[g]);
      }
      for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < GROUPS; g++)
          store_floats(scores + (first + r) * CHUNK + g * LANES, sums[r][g] * args.scale);
    });
  }

  // The chunk's softmax weights, relative to the best score so far; what was summed by an older
  // best is scaled down.
  void weigh_chunk(int64_t chunk, int64_t first, int64_t last, int64_t position,
                   Scratch &scratch) const {
    const int64_t size = args.cache.block_size;
    const int64_t from = first / size * size - chunk, to = round_up(last, size) - chunk;
    for (int r = 0; r < scratch.rows; r++) {
      T *weights = scratch.weights + r * CHUNK;
      const int64_t own = position + r / group;
      const int64_t oldest = args.window > 0 ? std::max<int64_t>(0, own + 1 - args.window) : 0;
      const int64_t begin = std::max(oldest, first) - chunk;
      const int64_t end = std::min(own + 1, last) - chunk;
      std::fill(weights + from, weights + to, S::from_float(0.f));
      if (begin >= end) continue;
      float *scores = scratch.scores + r * CHUNK;
      const int64_t low = begin / LANES * LANES, high = round_up(end, LANES);
      if (args.softcap > 0)
        for (int64_t k = low; k < high; k += LANES)
          store_floats(scores + k, args.softcap * tanh(load_floats(scores + k) / args.softcap));
      std::fill(scores + low, scores + begin, -INFINITY);
      std::fill(scores + end, scores + high, -INFINITY);
      Floats most = broadcast(-INFINITY);
      for (int64_t k = low; k < high; k += LANES) most = maximum(most, load_floats(scores + k));
      const float best = std::max(scratch.best[r], maximum(most));
      Floats total = {};
      for (int64_t k = low; k < high; k += LANES) {
        const Floats weight = exp(load_floats(scores + k) - best);
        total += weight;
        S::store(weights + k, weight);
      }
      rescale(r, best, scratch);
      scratch.total[r] += sum(total);
    }
  }

  void rescale(int r, float best, Scratch &scratch) const {
    const float old = scratch.best[r];
    scratch.best[r] = best;
    if (old == best || old == -INFINITY) return;
    const float factor = std::exp(old - best);
    float *sums = scratch.sums + r * layout.value_dim;
    for (int64_t d = 0; d < layout.value_dim; d++) sums[d] *= factor;
    scratch.total[r] *= factor;
  }

  void add_values(const Tile &tile, int64_t chunk, int64_t first, int64_t last,
                  Scratch &scratch) const {
    const int64_t size = args.cache.block_size;
    for (int64_t block = first / size; block * size < last; block++) {
      const uint32_t *values = values_of(tile, block);
      const bool is_last = (block + 1) * size >= last;
      const uint32_t *next = is_last ? values : values_of(tile, block + 1);
      const int64_t keys = std::min(size, last - block * size);
      const T *weights = scratch.weights + (block * size - chunk);
      int64_t d = 0;
      for (; d + VALUE_GROUPS * LANES <= layout.value_dim; d += VALUE_GROUPS * LANES)
        add_dims<VALUE_GROUPS>(values, next, d, keys, weights, scratch);
      for (; d < layout.value_dim; d += LANES)
        add_dims<1>(values, next, d, keys, weights, scratch);
    }
  }

  template <int GROUPS>
  void add_dims(const uint32_t *values, const uint32_t *next, int64_t d, int64_t keys,
                const T *weights, Scratch &scratch) const {
    const int64_t words = round_up(keys, S::PER_WORD) / S::PER_WORD;
    // Half of the last word may be a place that nobody wrote: whatever stands there, weight 0 must
    // give 0.
    const bool is_torn = keys % S::PER_WORD != 0;
    in_groups<VALUE_ROWS>(scratch.rows, [&](auto count, int first) {
      constexpr int ROWS = count;
      float *to = scratch.sums + first * layout.value_dim + d;
      Floats sums[ROWS][GROUPS];
      for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < GROUPS; g++)
          sums[r][g] = load_floats(to + r * layout.value_dim + g * LANES);
      for (int64_t k = 0; k < words; k++) {
        Words v[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
          const int64_t at = k * layout.value_dim + d + g * LANES;
          v[g] = load_words(values + at);
          if (is_torn && k + 1 == words) v[g] &= 0xffffu;
          if (first == 0) __builtin_prefetch(next + at);
        }
        for (int r = 0; r < ROWS; r++) {
          uint32_t weight;
          std::memcpy(&weight, weights + (first + r) * CHUNK + k * S::PER_WORD, sizeof weight);
          for (int g = 0; g < GROUPS; g++) sums[r][g] = S::dot(sums[r][g], weight, v[g]);
        }
      }
      for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < GROUPS; g++)
          store_floats(to + r * layout.value_dim + g * LANES, sums[r][g]);
    });
  }

  void put_result(const Tile &tile, int32_t start, Scratch &scratch) const {
    const int64_t dim = args.cache.value_dim;
    for (int r = 0; r < scratch.rows; r++) {
      const int64_t token = start + tile.first + r / group, head = tile.head * group + r % group;
      if (args.sinks != nullptr) {  // takes its share and has no value
        rescale(r, std::max(scratch.best[r], args.sinks[head]), scratch);
        scratch.total[r] += std::exp(args.sinks[head] - scratch.best[r]);
      }
      T *to = (T *)args.result + token * args.result_stride + head * dim;
      const float *sums = scratch.sums + r * layout.value_dim;
      for (int64_t d = 0; d < dim; d += LANES) {
        T whole[LANES];
        S::store(whole, load_floats(sums + d) / scratch.total[r]);
        std::copy(whole, whole + std::min<int64_t>(LANES, dim - d), to + d);
      }
    }
  }
};

template <class T>
void attend(const Attention &args) {
  const Attend<T> attention(args);
  const std::vector<Tile> tiles = attention.tiles();
  parallel_for(tiles.size(), args.threads, [&](int64_t i) { attention.compute(tiles[i]); });
}

template <class T>
void store(const Store &args) {
  constexpr int PER_WORD = Storage<T>::PER_WORD;
  const Cache &cache = args.cache;
  const Layout layout(cache, PER_WORD);
  const auto store_token = [&](int64_t token) {
    const int64_t block = args.slots[token] / cache.block_size;
    const int64_t place = args.slots[token] % cache.block_size;
    for (int head = 0; head < cache.num_heads; head++) {
      const int64_t at = block * cache.num_heads + head;
      const T *key = (const T *)args.keys + token * args.key_stride + head * cache.key_dim;
      T *keys = (T *)cache.keys + at * layout.key_block * PER_WORD;
      for (int64_t d = 0; d < cache.key_dim; d++)
        keys[(d / PER_WORD * cache.block_size + place) * PER_WORD + d % PER_WORD] = key[d];
      const T *value = (const T *)args.values + token * args.value_stride + head * cache.value_dim;
      T *values = (T *)cache.values + at * layout.value_block * PER_WORD;
      values += place / PER_WORD * layout.value_dim * PER_WORD + place % PER_WORD;
      for (int64_t d = 0; d < cache.value_dim; d++) values[d * PER_WORD] = value[d];
    }
  };
  parallel_ranges(args.tokens, 16, args.threads, [&](int64_t first, int64_t last) {
    for (int64_t token = first; token < last; token++) store_token(token);
  });
}

}  // namespace
}  // namespace tokenloom

void tokenloom_attention(const Attention *args) {
  tokenloom::with_storage(args->cache.storage,
                          [&](auto t) { tokenloom::attend<decltype(t)>(*args); });
}

void tokenloom_store(const Store *args) {
  tokenloom::with_storage(args->cache.storage,
                          [&](auto t) { tokenloom::store<decltype(t)>(*args); });
}
