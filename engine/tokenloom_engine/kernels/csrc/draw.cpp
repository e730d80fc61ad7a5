// Draws a token from each row of logits.
//
// No row is sorted: what is narrowed down to (the k best, a nucleus) is found among the few tokens
// that can belong to it. The draw inverts the cumulated distribution in the order of the ids, so
// one uniform number decides, whatever else is in the batch.
#include <algorithm>
#include <functional>
#include <vector>

#include "kernels.h"
#include "parallel.h"
#include "vector.h"

namespace tokenloom {
namespace {

constexpr int64_t SPAN = 16 * LANES;  // tokens whose weights are summed up as one

class Row {
  const float *const logits_;
  const uint32_t *const allowed_;
  const int64_t num_tokens_;
  const int64_t width_;     // num_tokens rounded up to whole spans
  std::vector<float> &weights_;     // [width]
  std::vector<float> &candidates_;

 public:
  Row(const float *logits, const uint32_t *allowed, int64_t num_tokens,
      std::vector<float> &weights, std::vector<float> &candidates)
      : logits_(logits),
        allowed_(allowed),
        num_tokens_(num_tokens),
        width_((num_tokens + SPAN - 1) / SPAN * SPAN),
        weights_(weights),
        candidates_(candidates) {}

  // The most probable token, the first of equals; -1 if there is none.
  int32_t best() const {
    float most = -INFINITY;
    int64_t first = 0;  // of the span that has it
    for (int64_t span = 0; span < width_; span += SPAN) {
      const float x = largest(span);
      if (x > most) {
        most = x;
        first = span;
      }
    }
    if (most == -INFINITY) return -1;
    for (int64_t i = first; i < num_tokens_; i++)
      if (logits_[i] == most && is_allowed(i)) return (int32_t)i;
    return -1;
  }

  // A random token; -1 if there is none.
  int32_t draw(float temperature, float min_p, int32_t top_k, float top_p, double uniform) {
    const float most = largest();
    if (most == -INFINITY) return -1;
    weights_.resize(width_);
    for (int64_t i = 0; i < width_; i += LANES)
      store_floats(&weights_[i], exp((logits(i) - most) * (1.f / temperature)));
    float least = min_p;
    if (top_k > 0) least = std::max(least, kth(top_k, least));
    if (top_p < 1.f) least = std::max(least, nucleus(top_p, least));
    if (least > 0.f) drop_below(least);
    return invert(uniform);
  }

 private:
  bool is_allowed(int64_t i) const {
    return allowed_ == nullptr || (allowed_[i / 32] >> (i % 32) & 1);
  }

  // Sixteen logits; -inf for what is not allowed or does not exist. 0 <= i < width.
  Floats logits(int64_t i) const {
    const Floats x = load_floats(logits_ + i, std::min<int64_t>(LANES, num_tokens_ - i), -INFINITY);
    if (allowed_ == nullptr || i >= num_tokens_) return x;
    alignas(64) static constexpr uint32_t LANE[LANES] = {
        1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    const Words bits = broadcast_word(allowed_[i / 32] >> (i % 32) & 0xffff);
    return select((bits & load_words(LANE)) != 0u, x, broadcast(-INFINITY));
  }

  // What is not a number counts for nothing.
  float largest() const {
    float most = -INFINITY;
    for (int64_t span = 0; span < width_; span += SPAN) most = std::max(most, largest(span));
    return most;
  }

  // That of a span. Where few tokens are allowed, most spans need not be read.
  float largest(int64_t span) const {
    if (!is_any_allowed(span)) return -INFINITY;
    Floats most = broadcast(-INFINITY);
    for (int64_t i = span; i < span + SPAN; i += LANES) {
      const Floats x = logits(i);
      most = select(x > most, x, most);
    }
    return maximum(most);
  }

  bool is_any_allowed(int64_t span) const {
    if (allowed_ == nullptr) return true;
    const int64_t end = std::min(span + SPAN, num_tokens_);
    uint32_t bits = 0;
    for (int64_t i = span; i < end; i += 32) bits |= allowed_[i / 32];
    return bits != 0;
  }

  void take_candidates(float least) {
    candidates_.clear();
    for (const float weight : weights_)
      if (weight >= least && weight > 0.f) candidates_.push_back(weight);
  }

  // The weight of the k-th best token among those of at least `least`; 0 if there are fewer.
  float kth(int32_t k, float least) {
    // The k-th best of the spans' maxima is no better than the k-th best of all.
    candidates_.clear();
    for (int64_t span = 0; span < width_; span += SPAN) {
      Floats most = load_floats(&weights_[span]);
      for (int64_t i = span; i < span + SPAN; i += LANES)
        most = maximum(most, load_floats(&weights_[i]));
      candidates_.push_back(maximum(most));
    }
    float bound = 0.f;
    if (k <= (int64_t)candidates_.size()) bound = nth_largest(k);
    take_candidates(std::max(bound, least));
    return k <= (int64_t)candidates_.size() ? nth_largest(k) : 0.f;
  }

  float nth_largest(int32_t n) {
    std::nth_element(candidates_.begin(), candidates_.begin() + n - 1, candidates_.end(),
                     std::greater<float>());
    return candidates_[n - 1];
  }

  // The least weight of the nucleus: the fewest best tokens that have `share` of all that weigh at
  // least `least`.
  float nucleus(float share, float least) {
    double total = 0;
    for (const float weight : weights_)
      if (weight >= least) total += weight;
    const double wanted = share * total;
    for (float bound = 1e-3f;; bound *= 1e-2f) {
      const bool is_all = bound < 1e-30f;
      take_candidates(std::max(is_all ? 0.f : bound, least));
      double mass = 0;
      for (const float weight : candidates_) mass += weight;
      if (mass >= wanted || is_all) break;
    }
    std::sort(candidates_.begin(), candidates_.end(), std::greater<float>());
    double mass = 0;
    for (const float weight : candidates_) {
      mass += weight;
      if (mass >= wanted) return weight;
    }
    return candidates_.back();
  }

  void drop_below(float least) {
    for (int64_t i = 0; i < width_; i += LANES) {
      const Floats weight = load_floats(&weights_[i]);
      store_floats(&weights_[i], select(weight >= broadcast(least), weight, Floats{}));
    }
  }

  int32_t invert(double uniform) const {
    double total = 0;
    for (int64_t span = 0; span < width_; span += SPAN) total += span_weight(span);
    double below = 0;
    const double target = uniform * total;
    int64_t last = 0;  // of the spans that weigh anything
    for (int64_t span = 0; span < width_; span += SPAN) {
      const double weight = span_weight(span);
      if (weight == 0) continue;
      last = span;
      if (below + weight > target) break;
      below += weight;
    }
    int32_t token = -1;
    for (int64_t i = last; i < last + SPAN; i++) {
      if (weights_[i] == 0.f) continue;
      token = (int32_t)i;
      below += weights_[i];
      if (below > target) break;
    }
    return token;
  }

  double span_weight(int64_t span) const {
    Floats weight = {};
    for (int64_t i = span; i < span + SPAN; i += LANES) weight += load_floats(&weights_[i]);
    return sum(weight);
  }
};

}  // namespace
}  // namespace tokenloom

void tokenloom_draw(const Draw *args) {
  tokenloom::parallel_for(args->rows, args->threads, [&](int64_t i) {
    thread_local std::vector<float> weights, candidates;
    tokenloom::Row row(args->logits[i], args->allowed[i], args->num_tokens, weights, candidates);
    args->ids[i] = args->temperatures[i] == 0.f
                       ? row.best()
                       : row.draw(args->temperatures[i], args->min_ps[i], args->top_ks[i],
                                  args->top_ps[i], args->uniforms[i]);
  });
}
