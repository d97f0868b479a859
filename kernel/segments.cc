#include "segments.h"

#include <unordered_map>

namespace rootdk {

segment_rows::segment_rows(const attention_problem& problem)
    : problem_(problem), rows_(size_t(problem.batch * problem.n_query)), keys_(size_t(problem.batch * problem.n_key)) {}

void segment_rows::scan(int64_t batch) {
  const int64_t n_key = problem_.n_key, length = problem_.key_length ? problem_.key_length[batch] : n_key;
  std::unordered_map<int64_t, int32_t> number_of;
  // Neighbouring keys usually belong to one segment.
  int64_t last_id = 0;
  int32_t last_number = -1;
  const auto number = [&](int64_t id, bool fresh) {
    if (last_number >= 0 && id == last_id) return last_number;
    const auto found = fresh ? number_of.try_emplace(id, int32_t(number_of.size())).first : number_of.find(id);
    if (found == number_of.end()) return int32_t(-1);
    last_id = id, last_number = found->second;
    return last_number;
  };
  int32_t* const segments = keys_.data() + batch * n_key;
  for (int64_t key = 0; key < n_key; ++key) segments[key] = number(problem_.key_segment[batch * n_key + key], true);

  // The keys of each segment, in their order: from starts[segment] on.
  std::vector<int64_t> starts(number_of.size() + 1, 0), ordered(static_cast<size_t>(length));
  for (int64_t key = 0; key < length; ++key) ++starts[size_t(segments[key]) + 1];
  for (size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
  std::vector<int64_t> next(starts.begin(), starts.end() - 1);
  for (int64_t key = 0; key < length; ++key) ordered[size_t(next[size_t(segments[key])]++)] = key;

  for (int64_t query = 0; query < problem_.n_query; ++query) {
    const int64_t at = batch * problem_.n_query + query, position = problem_.position(batch, query);
    row& here = rows_[size_t(at)];
    here = {0, 0, number(problem_.query_segment[at], false), false};
    if (here.segment < 0) continue;
    const int64_t start = starts[size_t(here.segment)], count = starts[size_t(here.segment) + 1] - start;
    const int64_t low = problem_.left < 0 || position < problem_.left ? 0 : position - problem_.left;
    const int64_t high = problem_.right < 0 || position + problem_.right + 1 > count ? count : position + problem_.right + 1;
    if (low >= high) continue;
    here.first = ordered[size_t(start + low)], here.last = ordered[size_t(start + high - 1)] + 1;
    here.holes = here.last - here.first > high - low;
  }
}

}  // namespace rootdk
