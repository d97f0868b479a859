// The CPU itself is asked: __builtin_cpu_supports would need a runtime library of the compiler, which some compilers for other
// systems lack, and GCC 11 has no name for F16C in it.
#include "cpu.h"

#include "system.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rootdk {

#if defined(__x86_64__)

namespace {

constexpr unsigned bit(int number) { return 1u << number; }

struct registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

registers ask(unsigned leaf) {
  registers answer;  // stays 0 where the CPU does not have the leaf
  __get_cpuid_count(leaf, 0, &answer.a, &answer.b, &answer.c, &answer.d);
  return answer;
}

bool all_of(unsigned word, unsigned bits) { return (word & bits) == bits; }

// Whether a switch of threads saves these registers: a CPU may have registers that its system does not save.
bool saved(unsigned states) {
  if (!all_of(ask(1).c, bit(27))) return false;  // OSXSAVE: without it the next instruction does not exist
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return all_of(low, states);
}

constexpr unsigned vectors = bit(1) | bit(2);  // SSE, AVX
constexpr unsigned masks = bit(5) | bit(6) | bit(7);  // AVX-512: mask registers and the two parts of the wide ones
constexpr unsigned tiles = bit(17) | bit(18);  // AMX: their shape and what they hold
constexpr unsigned fma = bit(12), avx = bit(28), f16c = bit(29);  // leaf 1, c
constexpr unsigned avx2 = bit(5);  // leaf 7, b
constexpr unsigned avx512 = bit(16) | bit(17) | bit(30) | bit(31);  // leaf 7, b: F, DQ, BW, VL
constexpr unsigned amx = bit(22) | bit(24);  // leaf 7, d: BF16, TILE

// macOS turns the wide registers on when a thread first touches them: until then they do not count as saved.
#if defined(__APPLE__)
constexpr unsigned wide = vectors;
#else
constexpr unsigned wide = vectors | masks;
#endif

}  // namespace

bool has_avx2() { return saved(vectors) && all_of(ask(1).c, fma | avx | f16c) && all_of(ask(7).b, avx2); }

bool has_avx512() { return has_avx2() && saved(wide) && all_of(ask(7).b, avx512); }

bool has_amx() {
  static const bool permitted = has_avx512() && all_of(ask(7).d, amx) && saved(tiles) && permits_tiles();
  return permitted;
}

#else

bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_amx() { return false; }

#endif

}  // namespace rootdk
