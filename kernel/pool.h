// Threads that are kept between calls.
#pragma once

#include <cstdint>
#include <functional>

namespace rootdk {

int num_threads();
void set_num_threads(int threads);  // >= 1

// Runs body(item) for every item in [0, items), each exactly once, in any order and on any thread. Items are taken one
// at a time. If another caller is using the threads, this caller does all its items alone: never a wait, never a
// deadlock. Works after fork(): the child starts threads of its own when it first needs them.
void parallel_for(int64_t items, int max_threads, const std::function<void(int64_t)>& body);

}  // namespace rootdk
