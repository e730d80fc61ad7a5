// The softmax of a tile's rows, computed in one pass over chunks of keys (Milakov, Gimelshein
// 2018; Dao et al. 2022): weights are relative to the best score so far, and what was summed by an
// older best is scaled down.
#pragma once

#include <algorithm>

#include "storage.h"

namespace tokenloom {

constexpr int CHUNK = 128;  // keys

template <class T>
class Softmax {
  using S = Storage<T>;
  struct Row {
    float best, factor;
    float total[LANES];
  };
  Row *const rows;

 public:
  static constexpr int64_t floats_for(int64_t rows) { return rows * sizeof(Row) / sizeof(float); }

  Softmax(float *memory, int count) : rows((Row *)memory) {
    for (int r = 0; r < count; r++) rows[r] = {-INFINITY, 1.f, {}};
  }

  // Makes weights, in place, of a row's scores of a chunk from `begin` to `end`, and zeros of the
  // others from `from` to `to`.
  void weigh(int r, float *scores, int64_t from, int64_t begin, int64_t end, int64_t to) {
    T *weights = (T *)scores;
    rows[r].factor = 1.f;
    if (begin >= end) return std::fill(weights + from, weights + to, S::from_float(0.f));
    const int64_t low = begin / LANES * LANES, high = round_up(end, LANES);
    std::fill(scores + low, scores + begin, -INFINITY);
    std::fill(scores + end, scores + high, -INFINITY);
    Floats most = broadcast(-INFINITY);
    for (int64_t k = low; k < high; k += LANES) most = maximum(most, load_floats(scores + k));
    raise(r, maximum(most));
    const Floats best = broadcast(rows[r].best);
    Floats total = load_floats(rows[r].total);
    for (int64_t k = low; k < high; k += LANES) {
      const Floats x = load_floats(scores + k) - best;
      const Floats weight = sizeof(T) < sizeof(float) ? rough_exp(x) : exp(x);
      total += weight;
      S::store(weights + k, weight);
    }
    store_floats(rows[r].total, total);
    // After the weights, which take no more place than the scores that they are made of.
    std::fill(weights + from, weights + low, S::from_float(0.f));
    std::fill(weights + high, weights + to, S::from_float(0.f));
  }

  // Adds what takes a share and has no value. Returns by what to multiply what was summed before.
  float add_sink(int r, float score) {
    rows[r].factor = 1.f;
    raise(r, score);
    rows[r].total[0] += std::exp(score - rows[r].best);
    return rows[r].factor;
  }

  // By what to multiply what was summed before the last chunk.
  float factor(int r) const { return rows[r].factor; }

  float total(int r) const { return sum(load_floats(rows[r].total)); }

 private:
  void raise(int r, float score) {
    Row &row = rows[r];
    if (!(score > row.best)) return;
    row.factor = std::exp(row.best - score);
    store_floats(row.total, load_floats(row.total) * row.factor);
    row.best = score;
  }
};

}  // namespace tokenloom
