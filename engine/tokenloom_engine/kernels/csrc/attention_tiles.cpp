// How attention is cut into tiles.
#include "attention.h"

#include <algorithm>

namespace tokenloom {
namespace {

constexpr int QUERY_ROWS = 24;  // of a tile: some tokens times the query heads that share a KV head

}  // namespace

std::vector<Tile> attention_tiles(const Attention &args) {
  std::vector<Tile> tiles;
  const int32_t most = std::max(1, QUERY_ROWS / (args.num_heads / args.cache.num_heads));
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

}  // namespace tokenloom
