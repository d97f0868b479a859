// What every query row sees of the keys, found once before a pass.
//
// A mask is read once per distinct number: an axis along which it was broadcast (stride 0) is not read again, so a mask that
// all heads share is scanned once and one that all rows share is one row. A bias may hide by -inf, and is read likewise if some
// rows that are checked first contain -inf: to read all of a bias that hides nothing would take as long. For each row the first
// and the last key that it sees are kept, and whether there are holes between them. A row without holes (causal, window,
// padding, packed documents) then has limits, as if they had been given, and the mask is not read again. For a row with holes a
// run per block of keys is kept as well: keys of a block outside of it are not computed, and only for a run with holes of its
// own is the mask read in the pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"

namespace rootdk {

constexpr int64_t key_block = 128;  // keys between two updates of the running maximum

class visibility {
 public:
  // Keys first <= j < last; first == last == 0 where the row sees nothing.
  struct row {
    int64_t first, last;
    bool holes;
  };
  // The same within one block of keys; {127, 0} where the row sees nothing of it.
  struct run {
    uint8_t first_and_holes, last;  // the highest bit of the first: there are holes
  };
  static constexpr uint8_t holes_bit = 0x80;

  static bool needed(const attention_problem& problem);
  explicit visibility(const attention_problem& problem);
  bool knows_bias() const { return bias_.data; }  // else -inf of the bias is not in here

  // Work for threads: every scan is of rows of its own.
  int64_t scans() const;
  void scan(int64_t item);

  int64_t row_index(int64_t batch, int64_t head, int64_t query) const {
    return (slice_[size_t(batch)] + head * head_step_) * rows_per_slice_ + query * query_step_;
  }
  const row& at(int64_t row_index) const { return rows_[size_t(row_index)]; }
  const run* runs(int64_t row_index) const { return runs_.get() + row_index * blocks_; }  // of a row with holes

 private:
  void scan_row(int64_t slice, int64_t query, run* runs);

  const attention_problem& problem_;
  const pairs_view mask_, bias_;  // without data: not read
  std::vector<int64_t> slice_;  // of a batch entry: that of its first head
  std::vector<int64_t> slice_batch_;  // a batch entry that has it
  int64_t head_step_, query_step_;  // 0 where all share
  int64_t rows_per_slice_, blocks_;
  std::vector<row> rows_;
  std::unique_ptr<run[]> runs_;  // not set for rows without holes, whose pages are never touched
};

}  // namespace rootdk
