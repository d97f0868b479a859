#include "openmp.h"

#include <atomic>
#include <initializer_list>

#include "system.h"

namespace rootdk {
namespace {

std::atomic<openmp_parallel> found{nullptr};
std::atomic<bool> forgotten{false};

}  // namespace

openmp_parallel find_openmp() {
  if (forgotten.load(std::memory_order_relaxed)) return nullptr;
  if (openmp_parallel known = found.load(std::memory_order_relaxed)) return known;
  // GCC's runtime, and LLVM's and Intel's, which offer GCC's entry points too, though not on Windows.
  for (const char* runtime : {"libgomp.so.1", "libiomp5.so", "libomp.so.5", "libomp.so", "libomp.dylib"})
    if (void* entry = loaded_function(runtime, "GOMP_parallel")) {
      found.store(reinterpret_cast<openmp_parallel>(entry), std::memory_order_relaxed);
      break;
    }
  return found.load(std::memory_order_relaxed);
}

void forget_openmp() { forgotten.store(true, std::memory_order_relaxed); }

}  // namespace rootdk
