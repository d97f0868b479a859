#include "waves.h"

#include <algorithm>
#include <map>

namespace rootdk {

namespace {

int64_t real_bytes(const attention_problem& problem) { return problem.type == element::float64 ? 8 : 4; }

// All copies together: never more than the query's gradient takes, and no more than a core's second cache holds.
int64_t copies_bytes(const attention_problem& problem) {
  return std::min(int64_t(1) << 20, problem.rows() * problem.d_k * real_bytes(problem));
}

}  // namespace

std::vector<std::vector<int64_t>> bias_waves(const attention_problem& problem) {
  const int64_t waves_per_entry = problem.d_bias.head_stride == 0 ? problem.kv_heads : 1;
  std::vector<std::vector<int64_t>> waves;
  std::map<int64_t, int64_t> before;  // batch entries so far that add to the same part of d_bias
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    const int64_t first = before[problem.d_bias.batch_offset[batch]]++ * waves_per_entry;
    if (int64_t(waves.size()) < first + waves_per_entry) waves.resize(size_t(first + waves_per_entry));
    for (int64_t head = 0; head < problem.kv_heads; ++head)
      waves[size_t(first + head % waves_per_entry)].push_back(batch * problem.kv_heads + head);
  }
  return waves;
}

bias_copies::bias_copies(const attention_problem& problem) : problem_(problem) {
  const pairs_view& given = problem.d_bias;
  std::map<int64_t, int64_t> part_of, sharers;
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    const int64_t offset = given.batch_offset[batch];
    if (part_of.emplace(offset, int64_t(part_offset_.size())).second) part_offset_.push_back(offset);
    ++sharers[offset];
  }
  int64_t most_sharers = 1;
  for (const auto& [offset, count] : sharers) most_sharers = std::max(most_sharers, count);
  parts_ = int64_t(part_offset_.size());
  bias_heads_ = given.head_stride == 0 ? std::min<int64_t>(problem.heads, 1) : problem.heads;
  queries_ = given.query_stride == 0 ? std::min<int64_t>(problem.n_query, 1) : problem.n_query;
  keys_ = given.key_stride == 0 ? std::min<int64_t>(problem.n_key, 1) : problem.n_key;
  // First a copy per head, then copies for batch entries, as many as fit.
  const int64_t one_head = std::max<int64_t>(parts_ * queries_ * keys_ * real_bytes(problem), 1);
  const int64_t allowed = copies_bytes(problem);
  heads_ = problem.kv_heads > 1 && problem.heads * one_head <= allowed ? problem.heads : bias_heads_;
  copies_ = std::max<int64_t>(std::min(most_sharers, allowed / (one_head * std::max<int64_t>(heads_, 1))), 1);
  if (!useful()) return;

  view_.head_stride = heads_ == 1 ? 0 : queries_ * keys_;
  view_.query_stride = given.query_stride == 0 ? 0 : keys_;
  view_.key_stride = given.key_stride == 0 ? 0 : 1;
  const int64_t size = heads_ * queries_ * keys_;
  std::map<int64_t, int64_t> before;
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    const int64_t offset = given.batch_offset[batch], copy = before[offset]++ % copies_;
    batch_offset_.push_back((copy * parts_ + part_of[offset]) * size);
  }
  numbers_.resize(size_t((copies_ * parts_ * size * real_bytes(problem) + 7) / 8));
  view_.data = reinterpret_cast<char*>(numbers_.data());
  view_.batch_offset = batch_offset_.data();
}

template <typename real>
void bias_copies::merge_as() {
  const pairs_view& to = problem_.d_bias;
  const real* from = reinterpret_cast<const real*>(view_.data);
  for (int64_t copy = 0; copy < copies_; ++copy)
    for (int64_t part = 0; part < parts_; ++part)
      for (int64_t head = 0; head < heads_; ++head)
        for (int64_t query = 0; query < queries_; ++query) {
          real* row =
              reinterpret_cast<real*>(to.data) + part_offset_[size_t(part)] + head * to.head_stride + query * to.query_stride;
          for (int64_t key = 0; key < keys_; ++key) row[key * to.key_stride] += *from++;
        }
}

void bias_copies::merge() { problem_.type == element::float64 ? merge_as<double>() : merge_as<float>(); }

}  // namespace rootdk
