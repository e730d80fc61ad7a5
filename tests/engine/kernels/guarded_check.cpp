// The check of the products by tiles, with memory that ends where a page does that nobody may touch: a
// tile that reads behind the last row ends the process.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "kernels.h"

void *operator new(std::size_t size) {
  const std::size_t page = (std::size_t)sysconf(_SC_PAGESIZE), whole = (size + page - 1) / page * page;
  void *start = mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED || mprotect((char *)start + whole, page, PROT_NONE) != 0) std::abort();
  return (char *)start + whole - size;
}

void operator delete(void *) noexcept {}  // the process is short
void operator delete(void *, std::size_t) noexcept {}

int main() { return tokenloom_check_tiles(); }
