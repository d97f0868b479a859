// Threads that are kept between calls.
#pragma once

#include <cstdint>
#include <functional>

namespace rootdk {

class interruption;

constexpr int most_threads = 1024;  // more than any machine has cores: a larger number is a mistake
int num_threads();                  // at first as many as this process has CPUs
void set_num_threads(int threads);  // throws std::invalid_argument for what is not from 1 to most_threads

// Runs body(item) for every item in [0, items), each exactly once, in any order and on any thread. Items are taken one
// at a time. If another caller is using the threads, this caller does all its items alone: never a wait, never a
// deadlock. Works after fork(): the child starts threads of its own when it first needs them.
//
// team > 0: the caller is beside a framework that keeps a team of so many OpenMP threads. They go on looking for work for
// some milliseconds after each of the framework's loops, and a second set of threads would have to share the cores with
// them. So this loop then runs on that team, though on no more than max_threads of it; where the process has no OpenMP
// runtime (and in the child of a fork, where the team does not exist), on the threads that are kept here.
//
// stop: the thread that waits here for the others goes on asking it. Ending the items early is up to their body.
void parallel_for(int64_t items, int max_threads, const std::function<void(int64_t)>& body, int team = 0,
                  interruption* stop = nullptr);

bool has_openmp();  // whether the process has loaded a runtime for such teams

}  // namespace rootdk
