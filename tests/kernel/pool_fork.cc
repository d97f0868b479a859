// fork() while the pool has threads, also while they are at work: the child, in which those threads do not exist, must
// compute the same numbers with threads of its own and not wait for ever.
//
//   pool_fork [forks]
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "fuzz/dense_problem.h"
#include "pool.h"

namespace {

constexpr int patience_ms = 20000;

// Whether the child ends well in time. A child that hangs is ended.
bool child_ends_well(pid_t child) {
  for (int waited = 0; waited < patience_ms; waited += 5) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (ended < 0) return false;
    usleep(5000);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::printf("FAILED: the child did not end in %d s\n", patience_ms / 1000);
  return false;
}

bool fork_and_compute(fuzz::dense_problem& problem, const std::vector<float>& expected) {
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) _exit(problem.run() == expected && problem.run() == expected ? 0 : 1);
  // The parent works on beside the child, with the threads it had.
  const bool parent_is_well = problem.run() == expected;
  return child_ends_well(child) && parent_is_well;
}

}  // namespace

int main(int argc, char** argv) {
  const int forks = argc > 1 ? std::atoi(argv[1]) : 10;
  rootdk::set_num_threads(3);
  fuzz::dense_problem problem(1);
  int failed = 0;
  const std::vector<float> expected = problem.run();
  for (int i = 0; i < forks; ++i) failed += !fork_and_compute(problem, expected);

  // Another thread keeps the pool busy, so that fork() meets its locks held. It allocates nothing: what an allocator
  // under a sanitizer does at fork() is not the question here.
  std::atomic<bool> stop{false};
  std::atomic<int64_t> sum{0};
  std::thread busy([&] {
    while (!stop) rootdk::parallel_for(16, 3, [&](int64_t item) { sum += item; });
  });
  for (int i = 0; i < forks; ++i) failed += !fork_and_compute(problem, expected);
  stop = true;
  busy.join();
  std::printf("%d forks passed, %d failed\n", 2 * forks - failed, failed);
  return failed ? 1 : 0;
}
