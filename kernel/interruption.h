// How a long call is given up before its end: every 50 ms the thread that made it asks its caller, the others read the
// answer, and all of them leave at their next step.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "subnormals.h"

namespace rootdk {

// Thrown out of a call that was given up. What it has written by then is not a result.
struct call_given_up {};

class interruption {
 public:
  // Short for a person who waits, long enough that asking costs nothing that can be measured.
  static constexpr std::chrono::milliseconds pace{50};

  // Made by the thread that makes the call. `wants_to_stop` runs on that thread alone, and may run any code of the caller,
  // including other calls of the kernel.
  explicit interruption(bool (*wants_to_stop)())
      : wants_to_stop_(wants_to_stop), caller_(std::this_thread::get_id()), callers_mode_(current_float_mode()) {}
  interruption(const interruption&) = delete;
  interruption& operator=(const interruption&) = delete;

  bool on_the_calling_thread() const { return std::this_thread::get_id() == caller_; }
  bool given_up() const { return given_up_.load(std::memory_order_relaxed); }

  // On the calling thread only, at every step of the work: whether it is time to ask. Only every sixteenth step reads the
  // clock, so a small call never does.
  bool due() {
    if (++steps_ % 16 != 0) return false;
    const auto now = std::chrono::steady_clock::now();
    if (next_ == clock_time()) next_ = now + pace;
    return now >= next_;
  }

  // On the calling thread only.
  void ask() {
    if (given_up()) return;
    {
      const float_mode_scope as_the_caller(callers_mode_);
      if (wants_to_stop_()) given_up_.store(true, std::memory_order_relaxed);
    }
    next_ = std::chrono::steady_clock::now() + pace;
  }

 private:
  bool (*wants_to_stop_)();
  std::thread::id caller_;
  float_mode callers_mode_;
  typedef std::chrono::steady_clock::time_point clock_time;
  clock_time next_;  // not set before the clock is first read
  unsigned steps_ = 0;
  std::atomic<bool> given_up_{false};
};

}  // namespace rootdk
