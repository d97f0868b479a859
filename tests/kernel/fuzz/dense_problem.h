// A plain causal float32 problem, large enough to be shared among threads: for tests of the threads, not of the numbers.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "attention.h"
#include "random.h"

namespace fuzz {

class dense_problem {
 public:
  static constexpr int64_t heads = 4, n = 130, d = 8;  // heads * n * n * 2 d: beyond what the kernel does on one thread

  explicit dense_problem(uint64_t seed)
      : zero_(1, 0),
        query_(size()),
        key_(size()),
        value_(size()),
        d_out_(size()),
        out_(size()),
        d_query_(size()),
        d_key_(size()),
        d_value_(size()),
        d_bias_(size_t(n * n)),
        row_state_(size_t(2 * heads * n)),
        moved_out_(size()) {
    random_source random(seed);
    for (std::vector<float>* numbers : {&query_, &key_, &value_, &d_out_})
      for (float& x : *numbers) x = float(random.normal());
    facts_.batch = 1, facts_.heads = facts_.kv_heads = heads, facts_.n_query = facts_.n_key = n;
    facts_.d_k = facts_.d_v = d;
    facts_.scale = 0.35, facts_.right = 0, facts_.query_offset = zero_.data(), facts_.row_state = row_state_.data();
    facts_.query = view(query_), facts_.key = view(key_), facts_.value = view(value_), facts_.out = view(out_);
    facts_.d_out = view(d_out_), facts_.d_query = view(d_query_), facts_.d_key = view(d_key_), facts_.d_value = view(d_value_);
    facts_.d_bias = {reinterpret_cast<char*>(d_bias_.data()), zero_.data(), 0, n, 1};  // heads share it: they take turns
  }
  dense_problem(const dense_problem&) = delete;

  // Forward, backward and tangent; all results one after the other.
  std::vector<float> run() {
    std::fill(d_bias_.begin(), d_bias_.end(), 0.0f);
    rootdk::attention_forward(facts_);
    rootdk::attention_backward(facts_);
    rootdk::attention_problem moved = facts_;  // along the inputs themselves
    moved.d_query = facts_.query, moved.d_key = facts_.key, moved.d_value = facts_.value, moved.d_bias = {};
    moved.out = {}, moved.d_out = view(moved_out_), moved.row_state = nullptr;
    rootdk::attention_tangent(moved);
    std::vector<float> all;
    for (const std::vector<float>* part : {&out_, &d_query_, &d_key_, &d_value_, &d_bias_, &moved_out_})
      all.insert(all.end(), part->begin(), part->end());
    return all;
  }

 private:
  static size_t size() { return size_t(heads * n * d); }
  rootdk::rows_view view(std::vector<float>& numbers) {
    return {reinterpret_cast<char*>(numbers.data()), zero_.data(), n * d, d};
  }
  std::vector<int64_t> zero_;
  std::vector<float> query_, key_, value_, d_out_, out_, d_query_, d_key_, d_value_, d_bias_, row_state_, moved_out_;
  rootdk::attention_problem facts_;
};

}  // namespace fuzz
