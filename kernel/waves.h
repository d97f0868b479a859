// Which parts of a backward pass may add to the gradient of the bias at the same time.
//
// A bias that is shared over batch entries or heads has one gradient to which many items add. Sums of floats depend on
// their order, so the order must follow from the problem: pairs (batch, key head) that share numbers of d_bias take turns,
// in waves; those of one wave share none and run on any thread. That needs neither locks nor memory. A small gradient is
// worth some memory: then pairs get copies of it to add to, waves are wide, and the copies are merged at the end.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace rootdk {

// Each wave a list of pairs, as attention_problem::pair_list takes it.
std::vector<std::vector<int64_t>> bias_waves(const attention_problem& problem);

// Copies of a small d_bias, and the view through which the kernel adds to them.
class bias_copies {
 public:
  explicit bias_copies(const attention_problem& problem);
  bool useful() const { return copies_ > 1 || heads_ > bias_heads_; }
  const pairs_view& view() const { return view_; }
  void merge();  // into d_bias, in a fixed order

 private:
  template <typename real>
  void merge_as();

  const attention_problem& problem_;
  // Sizes of d_bias without what is broadcast; heads_ is that of the copies, in which each head may have its own.
  int64_t parts_, bias_heads_, heads_, queries_, keys_, copies_;
  std::vector<int64_t> part_offset_, batch_offset_;  // in d_bias, by part; in the copies, by batch entry
  std::vector<double> numbers_;                      // floats where the problem's are
  pairs_view view_;
};

}  // namespace rootdk
