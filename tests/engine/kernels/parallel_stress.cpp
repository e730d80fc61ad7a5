// Many short loops, one by one and in programs: each index must come once, and in its own loop.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "parallel.h"

// Each thread goes through all loops; a loop reads what the one before it wrote.
static bool runs_program(int threads, int size) {
  const int loops = 20;
  std::vector<std::vector<int>> written(loops + 1, std::vector<int>(64));
  std::atomic<int> bad{0};
  tokenloom::run_together(threads, [&] {
    for (int loop = 1; loop <= loops; loop++) {
      const int now = 1 + (size + loop) % 64, before = 1 + (size + loop - 1) % 64;
      tokenloom::parallel_for(now, threads, [&](int64_t i) {
        written[loop][i]++;
        for (int j = 0; loop > 1 && j < before; j++) bad += written[loop - 1][j] != 1;
      });
    }
  });
  for (int loop = 1; loop <= loops; loop++)
    for (int i = 0; i < 64; i++) bad += written[loop][i] != (i < 1 + (size + loop) % 64);
  return bad == 0;
}

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
    if (loop % 20 == 0 && !runs_program(threads, size)) {
      std::printf("a program of %d threads, from size %d: an index is missing or late\n", threads, size);
      return 1;
    }
  }
  return 0;
}
