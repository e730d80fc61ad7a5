// Paged attention of packed rows: decode rows of one token and chunks of prompts alike.
#include "attention.h"

#include "cache.h"
#include "key_chunks.h"
#include "parallel.h"
#include "softmax.h"
#include "tiles.h"

namespace tokenloom {
namespace {

constexpr int SCORE_ROWS = TOKENLOOM_AVX512 ? 8 : 2;  // as many as registers hold sums for
constexpr int VALUE_ROWS = TOKENLOOM_AVX512 ? 6 : 1;
constexpr int VALUE_GROUPS = 4;  // of LANES dimensions

// Into the second cache: the first can wait for few lines at a time. Always inline, for the compiler
// may take a function that only fetches for one that does nothing.
inline __attribute__((always_inline)) void fetch(const void *line) {
  __builtin_prefetch(line, 0, 2);
}

template <class T>
class Attend {
  using S = Storage<T>;
  const Attention &args;
  const Blocks<T> blocks;
  const KeyChunks<T> chunks;
  const int32_t group;  // query heads that share a KV head

 public:
  explicit Attend(const Attention &args)
      : args(args),
        blocks(args.cache),
        chunks(args, blocks),
        group(args.num_heads / args.cache.num_heads) {}

  // `next`: the tile that this thread most likely computes after it.
  void compute(const Tile &tile, const Tile &next) const {
    thread_local std::vector<float> memory;
    Scratch scratch(memory, *this, tile.count * group);
    Softmax<T> softmax(scratch.softmax, scratch.rows);
    const int32_t start = args.starts[tile.row];
    const int64_t position = first_position(tile);
    const int64_t end = position + tile.count;  // keys that the last token sees
    const int64_t begin = first_key(tile);
    take_queries(tile, start, scratch);
    for (int64_t at = begin / CHUNK * CHUNK; at < end; at += CHUNK) {
      const uint32_t *then = at + CHUNK < end ? chunks.keys_of(tile, at + CHUNK)
                                              : chunks.keys_of(next, first_key(next));
      const Chunk chunk =
          chunks.chunk_of(tile, at, std::max(begin, at), std::min(end, at + CHUNK), then);
      score(chunk, scratch);
      weigh(chunk, position, scratch, softmax);
      add_values(chunk, scratch, softmax);
    }
    put_result(tile, start, scratch, softmax);
  }

 private:
  // What a tile works with; its rows are token * group + head.
  struct Scratch {
    int rows;
    uint32_t *queries;  // [rows, key_words]
    float *scores;      // [rows, CHUNK], and then the weights
    float *sums;        // [rows, value_dim]
    float *softmax;

    Scratch(std::vector<float> &memory, const Attend &on, int rows) : rows(rows) {
      const int64_t n = rows, value_dim = on.blocks.value_dim, words = on.blocks.key_words;
      const size_t size = n * (words + CHUNK + value_dim) + Softmax<T>::floats_for(n);
      if (memory.size() < size) memory.resize(size);
      queries = (uint32_t *)memory.data();
      scores = memory.data() + n * words;
      sums = scores + n * CHUNK;
      softmax = sums + n * value_dim;
      std::fill(sums, softmax, 0.f);
    }
  };

  int64_t first_position(const Tile &tile) const {
    return args.lengths[tile.row] - (args.starts[tile.row + 1] - args.starts[tile.row]) + tile.first;
  }

  // The oldest key that the tile's first token sees.
  int64_t first_key(const Tile &tile) const {
    return args.window > 0 ? std::max<int64_t>(0, first_position(tile) + 1 - args.window) : 0;
  }

  void take_queries(const Tile &tile, int32_t start, Scratch &scratch) const {
    const int64_t dim = args.cache.key_dim, width = blocks.key_words * S::PER_WORD;
    for (int r = 0; r < scratch.rows; r++) {
      const int64_t token = start + tile.first + r / group, head = tile.head * group + r % group;
      const T *from = (const T *)args.queries + token * args.query_stride + head * dim;
      T *to = (T *)(scratch.queries + r * blocks.key_words);
      std::copy(from, from + dim, to);
      for (int64_t i = dim; i < width; i++) to[i] = S::from_float(0.f);
    }
  }

  void score(const Chunk &chunk, const Scratch &scratch) const {
    for (int i = 0; i < chunk.count; i++) {
      const Span &span = chunk.spans[i];
      float *scores = scratch.scores + span.first;
      int64_t key = 0;
      for (; key + LANES < span.count; key += 2 * LANES)
        score_keys<2>(span.keys + key, span.next_keys + key, scores + key, scratch);
      if (key < span.count)
        score_keys<1>(span.keys + key, span.next_keys + key, scores + key, scratch);
    }
  }

  template <int GROUPS>
  void score_keys(const uint32_t *keys, const uint32_t *next, float *scores,
                  const Scratch &scratch) const {
    const int64_t size = blocks.size, words = blocks.key_words;
    in_groups<SCORE_ROWS>(scratch.rows, [&](auto count, int first) {
      constexpr int ROWS = count;
      const uint32_t *queries = scratch.queries + first * words;
      Floats sums[ROWS][GROUPS] = {};
      for (int64_t d = 0; d < words; d++) {
        Words k[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
          k[g] = load_words(keys + d * size + g * LANES);
          if (first == 0) fetch(next + d * size + g * LANES);
        }
        for (int r = 0; r < ROWS; r++)
          for (int g = 0; g < GROUPS; g++)
            sums[r][g] = S::dot(sums[r][g], queries[r * words + d], k[g]);
      }
      for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < GROUPS; g++)
          store_floats(scores + (first + r) * CHUNK + g * LANES, sums[r][g] * args.scale);
    });
  }

  void weigh(const Chunk &chunk, int64_t position, const Scratch &scratch,
             Softmax<T> &softmax) const {
    const int64_t from = chunk.first / LANES * LANES - chunk.start;
    const int64_t to = round_up(chunk.last - chunk.start, LANES);
    for (int r = 0; r < scratch.rows; r++) {
      float *scores = scratch.scores + r * CHUNK;
      if (args.softcap > 0)
        for (int64_t k = from; k < to; k += LANES)
          store_floats(scores + k, args.softcap * tanh(load_floats(scores + k) / args.softcap));
      const int64_t own = position + r / group;
      const int64_t oldest = args.window > 0 ? std::max<int64_t>(0, own + 1 - args.window) : 0;
      softmax.weigh(r, scores, from, std::max(oldest, chunk.first) - chunk.start,
                    std::min(own + 1, chunk.last) - chunk.start, to);
    }
  }

  void add_values(const Chunk &chunk, const Scratch &scratch, const Softmax<T> &softmax) const {
    int64_t d = 0;
    for (; d + VALUE_GROUPS * LANES <= blocks.value_dim; d += VALUE_GROUPS * LANES)
      add_dims<VALUE_GROUPS>(chunk, d, scratch, softmax);
    for (; d < blocks.value_dim; d += LANES) add_dims<1>(chunk, d, scratch, softmax);
  }

  template <int GROUPS>
  void add_dims(const Chunk &chunk, int64_t d, const Scratch &scratch,
                const Softmax<T> &softmax) const {
    const int64_t value_dim = blocks.value_dim;
    in_groups<VALUE_ROWS>(scratch.rows, [&](auto count, int first) {
      constexpr int ROWS = count;
      float *to = scratch.sums + first * value_dim + d;
      Floats sums[ROWS][GROUPS];
      for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < GROUPS; g++)
          sums[r][g] = load_floats(to + r * value_dim + g * LANES) * softmax.factor(first + r);
      for (int i = 0; i < chunk.count; i++) {
        const Span &span = chunk.spans[i];
        const uint32_t *weights = (const uint32_t *)(scratch.scores + first * CHUNK) +
                                  span.first / S::PER_WORD;
        const uint32_t *values = span.values + d, *next = span.next_values + d;
        const auto add = [&](int64_t word, uint32_t kept) {
          Words v[GROUPS];
          for (int g = 0; g < GROUPS; g++) {
            v[g] = load_words(values + word * value_dim + g * LANES) & kept;
            if (first == 0) fetch(next + word * value_dim + g * LANES);
          }
          for (int r = 0; r < ROWS; r++)
            for (int g = 0; g < GROUPS; g++)
              sums[r][g] = S::dot(sums[r][g], weights[r * CHUNK + word], v[g]);
        };
        const int64_t words = span.count / S::PER_WORD;
        for (int64_t word = 0; word < words; word++) add(word, ~0u);
        // Half of the last word may be a place that nobody wrote: whatever stands there, weight 0
        // must give 0.
        if (span.count % S::PER_WORD != 0) add(words, 0xffffu);
      }
      for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < GROUPS; g++)
          store_floats(to + r * value_dim + g * LANES, sums[r][g]);
    });
  }

  void put_result(const Tile &tile, int32_t start, const Scratch &scratch,
                  Softmax<T> &softmax) const {
    const int64_t dim = args.cache.value_dim;
    for (int r = 0; r < scratch.rows; r++) {
      const int64_t token = start + tile.first + r / group, head = tile.head * group + r % group;
      float scale = 1.f;
      if (args.sinks != nullptr) scale = softmax.add_sink(r, args.sinks[head]);
      scale /= softmax.total(r);
      T *to = (T *)args.result + token * args.result_stride + head * dim;
      const float *sums = scratch.sums + r * blocks.value_dim;
      for (int64_t d = 0; d < dim; d += LANES) {
        if (d + LANES <= dim) {
          S::store(to + d, load_floats(sums + d) * scale);
          continue;
        }
        T whole[LANES];
        S::store(whole, load_floats(sums + d) * scale);
        std::copy(whole, whole + dim - d, to + d);
      }
    }
  }
};

}  // namespace

void attend(const Attention &args, const std::vector<Tile> &tiles) {
  with_storage(args.cache.storage, [&](auto t) {
    const Attend<decltype(t)> attention(args);
    const int64_t count = tiles.size();
    parallel_ranges(count, 1, args.threads, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++)
        attention.compute(tiles[i], tiles[i + 1 < count ? i + 1 : i]);
    });
  });
}

}  // namespace tokenloom

void tokenloom_attention(const Attention *args) {
  tokenloom::attend(*args, tokenloom::attention_tiles(*args));
}
