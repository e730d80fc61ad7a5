#include "parallel.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "register.h"

namespace tokenloom {
namespace {

constexpr uint64_t NONE = 0xffffffff;   // no index
constexpr int SPINS_FOR_WORK = 4000;    // some 100 us: the pauses within a forward are shorter
constexpr int SPINS_FOR_OTHERS = 2000;  // then let whoever has begun a share have this core

// The shares of all loops of one program, numbered through: loops follow each other, so two numbers
// say how far all threads are.
class Team {
  alignas(64) std::atomic<int64_t> begun_{0};
  alignas(64) std::atomic<int64_t> done_{0};

 public:
  // A thread's part in a loop whose first share is number `first`. Returns when the loop is done,
  // which it may have been before.
  void share(int64_t first, int64_t count, Body body, void *context) {
    const int64_t end = first + count;
    int64_t next = begun_.load(std::memory_order_acquire);
    while (next < end) {
      // Nobody begins the next loop before this one is done, so a share below `end` is of this one.
      if (begun_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) {
        body(context, next - first);
        done_.fetch_add(1, std::memory_order_release);
        next = begun_.load(std::memory_order_acquire);
      }
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) < end; spins++)
      spins < SPINS_FOR_OTHERS ? pause() : std::this_thread::yield();
  }
};

// How far this thread is in its team's program, if it runs one.
struct Member {
  Team *team = nullptr;
  int64_t shares = 0;  // of the loops that it has seen the end of
};

thread_local Member member;

class Pool {
  // The loop's number and the next index, in one word: who takes an index knows of which loop.
  // Between two loops the number is odd and the index beyond any count, so whoever is late for the
  // old loop cannot take an index of it by what is already written down for the new one.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<int64_t> count_{0};
  std::atomic<Body> body_{nullptr};
  std::atomic<void *> context_{nullptr};
  std::atomic<int> sleepers_{0};
  std::mutex sleep_;
  std::condition_variable wake_;
  std::mutex use_;
  int workers_ = 0;

 public:
  void run(int64_t count, int threads, Body body, void *context) {
    std::unique_lock<std::mutex> use(use_, std::try_to_lock);
    if (!use.owns_lock() || threads <= 1 || count <= 1) {
      for (int64_t i = 0; i < count; i++) body(context, i);
      return;
    }
    for (; workers_ < threads - 1; workers_++) std::thread([this] { work(); }).detach();
    const uint64_t loop = (ticket_.load() >> 32) + 2;
    ticket_ = (loop - 1) << 32 | NONE;
    body_ = body;
    context_ = context;
    count_ = count;
    done_ = 0;
    ticket_ = loop << 32;
    if (sleepers_ > 0) {
      std::lock_guard<std::mutex> lock(sleep_);
      wake_.notify_all();
    }
    take_shares(loop);
    for (int spins = 0; done_.load(std::memory_order_acquire) < count; spins++)
      spins < SPINS_FOR_OTHERS ? pause() : std::this_thread::yield();
  }

 private:
  void take_shares(uint64_t loop) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (ticket >> 32 == (loop & NONE)) {
      const int64_t index = ticket & NONE;
      const Body body = body_.load(std::memory_order_relaxed);
      void *context = context_.load(std::memory_order_relaxed);
      if (index >= count_.load(std::memory_order_relaxed)) return;
      // Success means that the loop still runs, so what was read belongs to it.
      if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
        body(context, index);
        done_.fetch_add(1, std::memory_order_release);
        ticket = ticket_.load(std::memory_order_acquire);
      }
    }
  }

  void work() {
    uint64_t last = 0;
    for (;;) {
      for (int spins = 0; loop() == last; spins++) {
        if (spins < SPINS_FOR_WORK) {
          pause();
          continue;
        }
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_++;
        wake_.wait(lock, [&] { return loop() != last; });
        sleepers_--;
      }
      last = loop();
      take_shares(last);
    }
  }

  uint64_t loop() const { return ticket_.load() >> 32; }
};

Pool &pool() {
  static Pool *pool = new Pool;  // never freed: its threads run until the process ends
  return *pool;
}

}  // namespace

void run_parallel(int64_t count, int threads, Body body, void *context) {
  if (member.team == nullptr) return pool().run(count, threads, body, context);
  member.team->share(member.shares, count, body, context);
  member.shares += count;
}

// Each thread takes one turn of a loop. A thread that takes a turn after another has ended the
// program finds that all loops are done.
void run_program(int threads, Body program, void *context) {
  Team team;
  parallel_for(threads, threads, [&](int64_t i) {
    member = {&team, 0};
    program(context, i);
    member = {};
  });
}

}  // namespace tokenloom
