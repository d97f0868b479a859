#if !defined(_WIN32)
#include "system.h"

#include <dlfcn.h>
#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rootdk {

int allowed_cpus() {
#if defined(__linux__)
  cpu_set_t allowed;  // a container or taskset may allow fewer CPUs than the machine has
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
#endif
  return 0;
}

void after_fork(void (*in_the_child)()) { pthread_atfork(nullptr, nullptr, in_the_child); }

void* loaded_function(const char* library, const char* function) {
  void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (!loaded) return nullptr;
  void* const found = dlsym(loaded, function);
  if (!found) dlclose(loaded);  // else the library must stay loaded
  return found;
}

bool permits_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace rootdk
#endif
