#include "openmp.h"

#include <atomic>
#include <initializer_list>

#include <dlfcn.h>

namespace rootdk {
namespace {

std::atomic<openmp_parallel> found{nullptr};
std::atomic<bool> forgotten{false};

}  // namespace

openmp_parallel find_openmp() {
  if (forgotten.load(std::memory_order_relaxed)) return nullptr;
  if (openmp_parallel known = found.load(std::memory_order_relaxed)) return known;
  // GCC's runtime, and LLVM's and Intel's, which offer GCC's entry points too. NOLOAD: only what is there already.
  for (const char* name : {"libgomp.so.1", "libiomp5.so", "libomp.so.5", "libomp.so", "libomp.dylib"}) {
    void* runtime = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (!runtime) continue;
    if (void* entry = dlsym(runtime, "GOMP_parallel")) {
      found.store(reinterpret_cast<openmp_parallel>(entry), std::memory_order_relaxed);
      break;
    }
    dlclose(runtime);
  }
  return found.load(std::memory_order_relaxed);
}

void forget_openmp() { forgotten.store(true, std::memory_order_relaxed); }

}  // namespace rootdk
