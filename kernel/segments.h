// Packed documents: a pair is visible only inside one segment. What every query row sees of the keys is found once before a
// pass, from one number per query and per key.
//
// Causal and window limits count the keys of the segment. A row whose keys follow each other gets limits, as if they had been
// given, and the segments are not read again. Only where keys of other segments lie between does the pass compare ids.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace rootdk {

class segment_rows {
 public:
  // Keys first <= j < last, of this segment; first == last == 0 where the row sees nothing.
  struct row {
    int64_t first, last;
    int32_t segment;
    bool holes;  // keys of other segments lie between
  };

  static bool needed(const attention_problem& problem) {
    return problem.key_segment && problem.rows() > 0 && problem.n_key > 0;
  }
  explicit segment_rows(const attention_problem& problem);

  // Work for threads, one batch entry each.
  void scan(int64_t batch);

  const row& at(int64_t batch, int64_t query) const { return rows_[size_t(batch * problem_.n_query + query)]; }
  const int32_t* of_keys(int64_t batch) const { return keys_.data() + batch * problem_.n_key; }

 private:
  const attention_problem& problem_;
  std::vector<row> rows_;
  std::vector<int32_t> keys_;  // the segment of each key, counted in the order in which they appear
};

}  // namespace rootdk
