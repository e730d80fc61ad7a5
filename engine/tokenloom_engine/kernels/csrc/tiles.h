// Register tiles: a micro kernel is compiled for each number of rows, and these pick the right one.
#pragma once

#include <type_traits>

#include "vector.h"

namespace tokenloom {

template <int N>
using Count = std::integral_constant<int, N>;

// Calls kernel(Count<rows>); 0 < rows <= MOST.
template <int MOST, class Kernel>
inline void with_rows(int rows, Kernel &&kernel) {
  if constexpr (MOST > 1) {
    if (rows < MOST) return with_rows<MOST - 1>(rows, kernel);
  }
  kernel(Count<MOST>{});
}

// Calls kernel(Count<n>, first) for groups of at most MOST rows, until all are served.
template <int MOST, class Kernel>
inline void in_groups(int rows, Kernel &&kernel) {
  for (int first = 0; first < rows; first += MOST) {
    const int left = rows - first;
    with_rows<MOST>(left < MOST ? left : MOST, [&](auto count) { kernel(count, first); });
  }
}

}  // namespace tokenloom
