#if defined(_WIN32)
#include "system.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

namespace rootdk {

int allowed_cpus() {
  DWORD_PTR process = 0, machine = 0;
  // The system gives no mask if the process runs in several groups of 64 CPUs.
  if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &machine)) return 0;
  int count = 0;
  for (; process; process &= process - 1) ++count;
  return count;
}

void after_fork(void (*)()) {}

void* loaded_function(const char* library, const char* function) {
  const HMODULE loaded = GetModuleHandleA(library);
  return loaded ? reinterpret_cast<void*>(GetProcAddress(loaded, function)) : nullptr;
}

// Not used on Windows: it has not been tried there.
bool permits_tiles() { return false; }

}  // namespace rootdk
#endif
