// Random numbers that are the same on every machine: the standard library's distributions are not.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace fuzz {

class random_source {
 public:
  explicit random_source(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) { next(), next(); }

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  double uniform() { return double(next() >> 11) / 9007199254740992.0; }  // [0, 1)
  int64_t below(int64_t n) { return int64_t(uniform() * double(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(double p) { return uniform() < p; }
  // Nearly normal: the sum of twelve uniforms, which needs no library function and never exceeds 6.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }
  template <typename type>
  type pick(std::initializer_list<type> choices) {
    return choices.begin()[below(int64_t(choices.size()))];
  }
  template <typename type>
  void shuffle(std::vector<type>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[size_t(below(int64_t(i)))]);
  }

 private:
  uint64_t state_;
};

}  // namespace fuzz
