// Loops over several threads, for a machine whose cores others use too.
//
// Who has finished waits only for shares that somebody has begun: a thread that does not get a core
// is not missed. (OpenMP's barriers wait for every thread, which stalls a step by whole time slices
// as soon as another process needs a core.)
#pragma once

#include <cstdint>
#include <type_traits>

namespace tokenloom {

using Body = void (*)(void *context, int64_t index);
void run_parallel(int64_t count, int threads, Body body, void *context);
void run_program(int threads, Body program, void *context);

// Calls body(i) once for every 0 <= i < count, in any order, on at most `threads` threads.
template <class Function>
void parallel_for(int64_t count, int threads, Function &&body) {
  using F = std::remove_reference_t<Function>;
  run_parallel(
      count, threads, [](void *context, int64_t i) { (*(F *)context)(i); }, (void *)&body);
}

// The same for a loop of cheap turns: body(first, last) for shares of at least `least` turns.
template <class Function>
void parallel_ranges(int64_t count, int64_t least, int threads, Function &&body) {
  const int64_t most = 4 * threads;  // shares
  const int64_t share = count > most * least ? (count + most - 1) / most : least;
  parallel_for((count + share - 1) / share, threads, [&](int64_t i) {
    body(i * share, count < (i + 1) * share ? count : (i + 1) * share);
  });
}

// Runs program() on `threads` threads, each the whole of it but for its loops: these they share. So
// whoever is there begins the next loop, and the caller is not missed either while it has no core.
// Outside of loops the program may write only what belongs to its own call.
template <class Program>
void run_together(int threads, Program &&program) {
  using P = std::remove_reference_t<Program>;
  run_program(
      threads, [](void *context, int64_t) { (*(P *)context)(); }, (void *)&program);
}

}  // namespace tokenloom
