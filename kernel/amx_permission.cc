#include "amx_permission.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rootdk {

#if defined(__x86_64__) && defined(__linux__)

static bool ask() {
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;  // leaf 7, edx
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & amx_bf16) == 0 || (d & amx_tile) == 0) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

bool amx_permitted() {
  static const bool permitted = ask();
  return permitted;
}

#else

bool amx_permitted() { return false; }

#endif

}  // namespace rootdk
