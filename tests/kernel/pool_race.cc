// Several threads use the pool at once while others change its size and bodies throw. Meant for ThreadSanitizer (make
// sanitize), which reports every unordered access; what the program itself checks holds without it too:
//
//   - every item runs exactly once, with any number of threads, nested or not
//   - an exception reaches the caller that it belongs to, and no other, and the next call works
//   - a caller who waits for the others asks whether to give up, and the next call works
//   - attention gives bitwise the same numbers as alone
//
//   pool_race [rounds] [seed]
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "fuzz/dense_problem.h"
#include "interruption.h"
#include "pool.h"

namespace {

std::atomic<int64_t> failures{0};

void require(bool condition, const char* what) {
  if (condition) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

// Plain counters: only one thread may touch each item, and ThreadSanitizer sees if it is two, or if the caller reads
// before a helper has finished.
void each_item_once(int64_t items, int threads) {
  std::vector<int> runs(static_cast<size_t>(items), 0);
  rootdk::parallel_for(items, threads, [&](int64_t item) { ++runs[size_t(item)]; });
  bool once = true;
  for (const int count : runs) once &= count == 1;
  require(once, "parallel_for: an item did not run exactly once");
}

void nested(int64_t items, int threads) {
  const int64_t inner = 5;
  std::vector<int> runs(static_cast<size_t>(items * inner), 0);
  rootdk::parallel_for(items, threads, [&](int64_t item) {
    rootdk::parallel_for(inner, threads, [&](int64_t i) { ++runs[size_t(item * inner + i)]; });
  });
  bool once = true;
  for (const int count : runs) once &= count == 1;
  require(once, "nested parallel_for: an item did not run exactly once");
}

void throwing(int64_t items, int threads, const std::string& name) {
  std::vector<int> runs(static_cast<size_t>(items), 0);
  std::string caught;
  try {
    rootdk::parallel_for(items, threads, [&](int64_t item) {
      ++runs[size_t(item)];
      if (item % 3 == 0) throw std::runtime_error(name);
    });
  } catch (const std::runtime_error& error) {
    caught = error.what();
  }
  require(caught == name, "an exception did not reach its caller");
  bool at_most_once = true;
  for (const int count : runs) at_most_once &= count <= 1;
  require(at_most_once, "an item ran twice beside an exception");
  each_item_once(items, threads);
}

void nested_throwing(int64_t items, int threads, const std::string& name) {
  std::string caught;
  try {
    rootdk::parallel_for(items, threads, [&](int64_t) {
      rootdk::parallel_for(4, threads, [&](int64_t i) {
        if (i == 2) throw std::runtime_error(name);
      });
    });
  } catch (const std::runtime_error& error) {
    caught = error.what();
  }
  require(caught == name, "an exception of an inner call did not reach the outer caller");
}

// The caller has nothing left to do and waits; a helper is busy until the call is given up. Whoever waits must ask.
void giving_up() {
  rootdk::interruption stop([] { return true; });
  std::atomic<int> begun{0};
  int64_t finished = 0;
  rootdk::parallel_for(
      2, 2,
      [&](int64_t) {
        ++begun;
        if (!stop.on_the_calling_thread()) {
          while (!stop.given_up()) std::this_thread::yield();
          ++finished;
          return;
        }
        while (begun < 2 && !stop.given_up()) std::this_thread::yield();
      },
      0, &stop);
  require(stop.given_up() && finished == 1, "a caller who waits does not ask whether to give up");
  each_item_once(17, 3);
}

// One caller's life: a random mixture of everything.
void caller(uint64_t seed, int rounds, const std::vector<float>& expected) {
  fuzz::random_source random(seed);
  fuzz::dense_problem problem(1);
  for (int round = 0; round < rounds; ++round) {
    const int64_t items = random.pick<int64_t>({0, 1, 2, 3, 17, 64});
    const int threads = random.pick({1, 2, 3, 5});
    const std::string name = std::to_string(seed) + ":" + std::to_string(round);
    switch (random.below(7)) {
      case 0: each_item_once(items, threads); break;
      case 1: nested(items, threads); break;
      case 2: throwing(items + 1, threads, name); break;
      case 3: nested_throwing(items + 1, threads, name); break;
      case 4:
        rootdk::set_num_threads(threads);
        require(rootdk::num_threads() >= 1, "num_threads() below one");
        break;
      default: require(problem.run() == expected, "attention beside other callers is not bitwise what it is alone");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 500;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  constexpr int callers = 6;
  std::printf("seed %" PRIu64 ", %d callers, %d rounds each\n", seed, callers, rounds);
  rootdk::set_num_threads(1);
  const std::vector<float> expected = fuzz::dense_problem(1).run();
  rootdk::set_num_threads(4);
  alarm(600);  // a hang is a failure
  giving_up();
  require(fuzz::dense_problem(1).run() == expected, "four threads do not give bitwise what one gives");
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i) threads.emplace_back(caller, seed * 1000 + uint64_t(i), rounds, std::cref(expected));
  for (std::thread& thread : threads) thread.join();
  std::printf("%d passed, %" PRId64 " failed\n", callers * rounds - int(failures), int64_t(failures));
  return failures ? 1 : 0;
}
