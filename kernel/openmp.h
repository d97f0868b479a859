// The OpenMP runtime that some other library has loaded into the process, if there is one. None is linked here.
#pragma once

namespace rootdk {

// body(data) on every thread of a team of that size, including the caller; returns when all have finished.
typedef void (*openmp_parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

// Null where no runtime is loaded. Searched again until one is found: the framework may be imported later.
openmp_parallel find_openmp();

// For the child of a fork, where the team does not exist and the runtime would wait for it: from then on none is found.
void forget_openmp();

}  // namespace rootdk
