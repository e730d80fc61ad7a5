// Many short loops: each index must come once, and in its own loop.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "parallel.h"

int main(int count, char **arguments) {
  const int loops = count > 1 ? std::atoi(arguments[1]) : 1;
  std::vector<std::atomic<int>> seen(64);
  unsigned random = 1;
  for (int loop = 0; loop < loops; loop++) {
    random = random * 1664525 + 1013904223;
    const int size = 1 + (random >> 16) % 64, threads = 2 + (random >> 8) % 3;
    for (auto &x : seen) x = 0;
    tokenloom::parallel_for(size, threads, [&](int64_t i) { seen[i]++; });
    for (int i = 0; i < 64; i++) {
      if (seen[i] != (i < size)) {
        std::printf("loop %d of %d: index %d came %d times\n", loop, size, i, seen[i].load());
        return 1;
      }
    }
  }
  return 0;
}
