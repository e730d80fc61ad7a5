// Puts keys and values into the paged cache.
#include "cache.h"
#include "parallel.h"

namespace tokenloom {
namespace {

template <class T>
void store(const Store &args) {
  const Blocks<T> blocks(args.cache);
  parallel_ranges(args.tokens, 4, args.threads, [&](int64_t first, int64_t last) {
    for (int64_t token = first; token < last; token++)
      blocks.store(args.slots[token], (const T *)args.keys + token * args.key_stride,
                   (const T *)args.values + token * args.value_stride);
  });
}

}  // namespace
}  // namespace tokenloom

void tokenloom_store(const Store *args) {
  tokenloom::with_storage(args->cache.storage,
                          [&](auto t) { tokenloom::store<decltype(t)>(*args); });
}
