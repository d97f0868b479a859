// Subnormal results (on ARM, inputs too) are flushed to zero while the kernel works: squares of small weights would otherwise
// take a slow path of the processor many thousand times. The caller's own setting is restored afterwards, and while the
// caller's code runs.
#pragma once

#include <cstdint>
#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace rootdk {

// How this thread computes: the control register of its floating-point unit.
#if defined(__x86_64__) || defined(__i386__)
typedef unsigned float_mode;
inline float_mode current_float_mode() { return _mm_getcsr(); }
inline void set_float_mode(float_mode mode) { _mm_setcsr(mode); }
inline float_mode flushing(float_mode mode) { return mode | 0x8000u; }
#elif defined(__aarch64__)
typedef uint64_t float_mode;
inline float_mode current_float_mode() {
  float_mode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(float_mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
inline float_mode flushing(float_mode mode) { return mode | (uint64_t(1) << 24); }
#else
typedef unsigned float_mode;
inline float_mode current_float_mode() { return 0; }
inline void set_float_mode(float_mode) {}
inline float_mode flushing(float_mode mode) { return mode; }
#endif

// Sets another mode for as long as this lives.
class float_mode_scope {
 public:
  explicit float_mode_scope(float_mode mode) : before_(current_float_mode()) { set_float_mode(mode); }
  ~float_mode_scope() { set_float_mode(before_); }
  float_mode_scope(const float_mode_scope&) = delete;
  float_mode_scope& operator=(const float_mode_scope&) = delete;

 private:
  float_mode before_;
};

}  // namespace rootdk
