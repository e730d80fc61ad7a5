// What turns logits into log-probabilities: the logarithm of the sum of their exponentials.
#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "parallel.h"
#include "vector.h"

namespace tokenloom {
namespace {

constexpr int64_t SPAN = 16 * LANES;  // tokens that are summed up in float32

// Calls body with sixteen logits after the other, the last ones filled up with -inf.
template <class Function>
void each_floats(const float *logits, int64_t first, int64_t end, Function &&body) {
  for (int64_t i = first; i < end; i += LANES)
    body(load_floats(logits + i, end - i, -INFINITY));
}

// What is not a number counts for nothing.
float log_sum_exp(const float *logits, int64_t count) {
  Floats most = broadcast(-INFINITY);
  each_floats(logits, 0, count, [&](const Floats &x) { most = select(x > most, x, most); });
  const float largest = maximum(most);
  if (std::isinf(largest)) return largest;
  double total = 0;
  for (int64_t span = 0; span < count; span += SPAN) {
    Floats part = {};
    each_floats(logits, span, std::min(span + SPAN, count),
                [&](const Floats &x) { part += exp(x - largest); });
    total += sum(part);
  }
  return (float)(largest + std::log(total));
}

}  // namespace
}  // namespace tokenloom

void tokenloom_log_sum_exp(const LogSumExp *args) {
  tokenloom::parallel_for(args->rows, args->threads, [&](int64_t i) {
    args->results[i] = tokenloom::log_sum_exp(args->logits[i], args->num_tokens);
  });
}
