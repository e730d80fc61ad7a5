// Attention as other kernels use it: how it is cut into tiles, and its computation by them.
#pragma once

#include <vector>

#include "kernels.h"

namespace tokenloom {

// Some tokens of a row, by their place in it, with the query heads that share a KV head.
struct Tile {
  int32_t row, head, first, count;
  int64_t cost;
};

// The longest first, so that no thread is left alone with one at the end. They depend on the rows
// and the numbers of heads, so layers may share them.
std::vector<Tile> attention_tiles(const Attention &args);

void attend(const Attention &args, const std::vector<Tile> &tiles);

}  // namespace tokenloom
