#include "pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace rootdk {
namespace {

int default_threads() {
  if (const char* wanted = std::getenv("ROOTDK_NUM_THREADS")) {
    const int n = std::atoi(wanted);
    if (n >= 1) return n;
  }
#if defined(__linux__)
  cpu_set_t allowed;  // a container or taskset may allow fewer CPUs than the machine has
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed) > 0 ? CPU_COUNT(&allowed) : 1;
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n ? int(n) : 1;
}

std::atomic<int>& thread_setting() {
  static std::atomic<int> setting{default_threads()};
  return setting;
}

// Subnormal results are flushed to zero while the kernel works: squares of small weights would otherwise take a slow
// path of the processor many thousand times. The caller's own setting comes back afterwards.
class flush_subnormals {
 public:
#if defined(__x86_64__) || defined(__i386__)
  flush_subnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8000u); }
  ~flush_subnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  flush_subnormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | (uint64_t(1) << 24)));
  }
  ~flush_subnormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#else
  flush_subnormals() {}
#endif
};

// One call's work: the items still to be taken, and what went wrong.
struct job {
  const std::function<void(int64_t)>& body;
  int64_t items;
  std::atomic<int64_t> next{0};
  std::mutex error_lock;
  std::exception_ptr error;

  job(const std::function<void(int64_t)>& body_, int64_t items_) : body(body_), items(items_) {}

  void work() {
    flush_subnormals guard;
    try {
      for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) body(item);
    } catch (...) {
      std::lock_guard<std::mutex> hold(error_lock);
      if (!error) error = std::current_exception();
      next.store(items, std::memory_order_relaxed);
    }
  }
};

// Waking a sleeping thread takes as long as a small attention call, so both sides look for each other a little while
// (some ten microseconds) before they go to sleep.
constexpr int patience = 4000;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename condition_t>
bool soon(const condition_t& condition) {
  for (int i = 0; i < patience; ++i) {
    if (condition()) return true;
    pause();
  }
  return false;
}

class pool {
 public:
  // Runs the job on up to `helpers` threads besides the caller.
  void run(job& work, int helpers) {
    {
      std::lock_guard<std::mutex> hold(lock_);
      helpers = start_threads(helpers);
      current_ = &work;
      wanted_ = helpers;
      busy_.store(helpers);
      round_.fetch_add(1);
    }
    wake_.notify_all();
    work.work();
    if (!soon([this] { return busy_.load() == 0; })) {
      std::unique_lock<std::mutex> hold(lock_);
      done_.wait(hold, [this] { return busy_.load() == 0; });
    }
  }

 private:
  // Returns how many there are: where the system gives no more, the work is done with fewer.
  int start_threads(int wanted) {
    try {
      while (int(threads_.size()) < wanted) {
        const int index = int(threads_.size());
        threads_.emplace_back([this, index] { loop(index); });
      }
    } catch (const std::system_error&) {
    }
    return int(threads_.size()) < wanted ? int(threads_.size()) : wanted;
  }

  void loop(int index) {
    uint64_t seen = 0;
    for (;;) {
      soon([&] { return round_.load() != seen; });
      std::unique_lock<std::mutex> hold(lock_);
      wake_.wait(hold, [&] { return round_.load() != seen; });
      seen = round_.load();
      if (index >= wanted_) continue;
      job* work = current_;
      hold.unlock();
      work->work();
      // The last touch of the job: after it the caller may leave. The lock makes sure that a caller who is just falling
      // asleep hears the bell.
      if (busy_.fetch_sub(1) == 1) {
        std::lock_guard<std::mutex> bell(lock_);
        done_.notify_one();
      }
    }
  }

  std::mutex lock_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  job* current_ = nullptr;
  int wanted_ = 0;
  std::atomic<int> busy_{0};
  std::atomic<uint64_t> round_{0};
};

// The pool is never destroyed: its threads sleep until the process ends, and a child of fork() must not touch the
// parent's, whose threads do not exist there.
pool* the_pool = nullptr;
std::atomic<bool> in_use{false};

void start_afresh() {
  the_pool = new pool;
  in_use.store(false);
}

// When the library is loaded, not at the first call: a fork() in the middle of that would leave a lock held for ever.
const bool prepared = [] {
  start_afresh();
  pthread_atfork(nullptr, nullptr, start_afresh);
  return true;
}();

}  // namespace

int num_threads() { return thread_setting().load(std::memory_order_relaxed); }

void set_num_threads(int threads) { thread_setting().store(threads < 1 ? 1 : threads, std::memory_order_relaxed); }

void parallel_for(int64_t items, int max_threads, const std::function<void(int64_t)>& body) {
  if (items <= 0) return;
  job work(body, items);
  const int64_t threads = items < max_threads ? items : int64_t(max_threads);
  if (threads <= 1) {
    work.work();
  } else {
    if (!in_use.exchange(true)) {
      the_pool->run(work, int(threads) - 1);
      in_use.store(false);
    } else {
      work.work();
    }
  }
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace rootdk
