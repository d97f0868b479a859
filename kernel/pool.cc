#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

#include "interruption.h"
#include "openmp.h"
#include "subnormals.h"
#include "system.h"

namespace rootdk {
namespace {

int default_threads() {
  int cpus = allowed_cpus();
  if (cpus == 0) cpus = int(std::thread::hardware_concurrency());
  return cpus < 1 ? 1 : cpus < most_threads ? cpus : most_threads;
}

std::atomic<int>& thread_setting() {
  static std::atomic<int> setting{default_threads()};
  return setting;
}

// One call's work: the items still to be taken, and what went wrong.
struct job {
  const std::function<void(int64_t)>& body;
  int64_t items;
  std::atomic<int64_t> next{0};
  std::mutex error_lock;
  std::exception_ptr error;

  job(const std::function<void(int64_t)>& body_, int64_t items_) : body(body_), items(items_) {}

  void work() {
    const float_mode_scope flushed(flushing(current_float_mode()));
    try {
      for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) body(item);
    } catch (...) {
      std::lock_guard<std::mutex> hold(error_lock);
      if (!error) error = std::current_exception();
      next.store(items, std::memory_order_relaxed);
    }
  }
};

// Waking a sleeping thread takes as long as a small attention call, so both sides keep checking for this long before they go to
// sleep.
constexpr std::chrono::microseconds waiting_awake{50};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename condition_t>
bool becomes_true_soon(const condition_t& condition) {
  const auto deadline = std::chrono::steady_clock::now() + waiting_awake;
  do {
    for (int i = 0; i < 8; ++i) {
      if (condition()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return condition();
}

// Counts the workers that are busy, and wakes the caller when the last one is done.
class countdown {
 public:
  void start(int workers) { busy_.store(workers); }
  void add_worker() { busy_.fetch_add(1); }

  // A worker's last access to anything that belongs to the call: after it the caller may leave. The lock makes sure that a
  // caller that is just about to sleep gets the signal.
  void worker_is_done() {
    if (busy_.fetch_sub(1) != 1) return;
    std::lock_guard<std::mutex> hold(lock_);
    changed_.notify_one();
  }

  // The caller has no work left, but workers may take long: it goes on asking whether to give up.
  void wait(interruption* stop) {
    const auto all_done = [this] { return busy_.load() == 0; };
    if (becomes_true_soon(all_done)) return;
    std::unique_lock<std::mutex> hold(lock_);
    if (!stop) return changed_.wait(hold, all_done);
    while (!changed_.wait_for(hold, interruption::pace, all_done)) {
      hold.unlock();
      stop->ask();
      hold.lock();
    }
  }

 private:
  std::atomic<int> busy_{0};
  std::mutex lock_;
  std::condition_variable changed_;
};

// One thread and the place for its next job. Only threads that get a job are woken; the others sleep on.
class worker {
 public:
  explicit worker(countdown& done) : done_(done), thread_([this] { loop(); }) {}

  void give(job* work) {
    {
      std::lock_guard<std::mutex> hold(lock_);
      work_.store(work);
    }
    wake_.notify_one();
  }

 private:
  void loop() {
    for (;;) {
      becomes_true_soon([this] { return work_.load() != nullptr; });
      std::unique_lock<std::mutex> hold(lock_);
      wake_.wait(hold, [this] { return work_.load() != nullptr; });
      job* work = work_.load();
      work_.store(nullptr);
      hold.unlock();
      work->work();
      done_.worker_is_done();
    }
  }

  std::mutex lock_;
  std::condition_variable wake_;
  std::atomic<job*> work_{nullptr};
  countdown& done_;
  std::thread thread_;  // last: it starts when all the rest is there
};

class pool {
 public:
  // Runs the job on up to `helpers` threads besides the caller.
  void run(job& work, int helpers, interruption* stop) {
    helpers = start_threads(helpers);
    done_.start(helpers);
    for (int i = 0; i < helpers; ++i) workers_[size_t(i)]->give(&work);
    work.work();
    done_.wait(stop);
  }

 private:
  // Returns how many there are: where the system gives no more, the work is done with fewer.
  int start_threads(int wanted) {
    try {
      while (int(workers_.size()) < wanted) workers_.push_back(std::make_unique<worker>(done_));
    } catch (const std::exception&) {
    }
    return int(workers_.size()) < wanted ? int(workers_.size()) : wanted;
  }

  countdown done_;
  std::vector<std::unique_ptr<worker>> workers_;
};

// The pool is never destroyed: its threads sleep until the process ends, and a child of fork() must not touch the
// parent's, whose threads do not exist there.
pool* shared_pool = nullptr;
std::atomic<bool> in_use{false};

void make_new_pool() {
  shared_pool = new pool;
  in_use.store(false);
}

// When the library is loaded, not at the first call: a fork() in the middle of that would leave a lock held for ever.
const bool prepared = [] {
  make_new_pool();
  after_fork([] {
    forget_openmp();
    make_new_pool();
  });
  return true;
}();

}  // namespace

int num_threads() { return thread_setting().load(std::memory_order_relaxed); }

void set_num_threads(int threads) {
  if (threads < 1 || threads > most_threads)
    throw std::invalid_argument("threads: must be from 1 to " + std::to_string(most_threads) + ", got " +
                                std::to_string(threads));
  thread_setting().store(threads, std::memory_order_relaxed);
}

bool has_openmp() { return find_openmp() != nullptr; }

namespace {

// A team of another size than the framework's would make the runtime end threads and start others. So the whole team is
// started, and threads beyond the wanted number return at once. With `stop` the caller always works, because only it may ask
// whether to give up; it then waits for the others here and not in the runtime, where it could not ask.
void run_on_team(openmp_parallel parallel, job& work, int threads, int team, interruption* stop) {
  struct shared_state {
    job& work;
    std::atomic<int> places_left;
    interruption* stop;
    countdown helpers_left;
  } shared{work, {stop ? threads - 1 : threads}, stop, {}};
  const auto work_on_thread = [](void* data) {
    shared_state& shared = *static_cast<shared_state*>(data);
    if (shared.stop && shared.stop->on_the_calling_thread()) {
      shared.work.work();
      shared.helpers_left.wait(shared.stop);
    } else if (shared.places_left.fetch_sub(1, std::memory_order_relaxed) > 0) {
      shared.helpers_left.add_worker();
      shared.work.work();
      shared.helpers_left.worker_is_done();
    }
  };
  parallel(work_on_thread, &shared, unsigned(team), 0);
}

}  // namespace

void parallel_for(int64_t items, int max_threads, const std::function<void(int64_t)>& body, int team, interruption* stop) {
  if (items <= 0) return;
  job work(body, items);
  int threads = items < max_threads ? int(items) : max_threads;
  if (team > 0 && team < threads) threads = team;
  if (threads <= 1 || in_use.exchange(true)) {
    work.work();
  } else {
    const openmp_parallel parallel = team > 0 ? find_openmp() : nullptr;
    if (parallel)
      run_on_team(parallel, work, threads, team, stop);
    else
      shared_pool->run(work, threads - 1, stop);
    in_use.store(false);
  }
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace rootdk
