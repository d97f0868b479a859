// AVX-512, and AMX for the half types: forward by tiles, and backward with the same scores. What tiles bring nothing for is
// handed to the other target.
#define ROOTDK_TARGET amx
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "attention.h"
// Order matters: each file uses the ones before it.
#include "simd-inl.h"
#include "powers-inl.h"
#include "convert-inl.h"
#include "tile-inl.h"
#include "panel-inl.h"
#include "scores-inl.h"
#include "softmax-inl.h"
#include "reading-inl.h"
#include "dropout-inl.h"
#include "forward-inl.h"
#include "few-inl.h"
#include "bias_gradient-inl.h"
#include "backward_parts-inl.h"
#include "backward-inl.h"
#include "amx_tiles-inl.h"
#include "amx_forward-inl.h"

namespace rootdk::avx512 {
extern const kernel_target target;
}

namespace rootdk::amx {

static bool wants_tiles(const attention_problem& problem) {
  const bool half_type = problem.type == element::bfloat16 || problem.type == element::float16;
  return half_type && problem.d_k > 0 && !has_few_rows<float>(problem);
}

static int64_t forward_items(const attention_problem& problem) {
  if (!wants_tiles(problem)) return avx512::target.forward.items(problem);
  return problem.batch * problem.kv_heads * ceil_div(problem.group() * problem.n_query, tile_item_rows);
}
static int64_t forward_shared(const attention_problem& problem) {
  return wants_tiles(problem) ? 0 : avx512::target.forward.shared_bytes(problem);
}
static int64_t forward_bytes(const attention_problem& problem) {
  if (!wants_tiles(problem)) return avx512::target.forward.scratch_bytes(problem);
  return problem.type == element::bfloat16 ? tile_scratch<bfloat_bits>(problem, nullptr).bytes
                                           : tile_scratch<half_bits>(problem, nullptr).bytes;
}
static void forward_item(const attention_problem& problem, int64_t item, void* scratch, void* shared) {
  if (!wants_tiles(problem)) return avx512::target.forward.item(problem, item, scratch, shared);
  problem.type == element::bfloat16 ? tile_item<bfloat_bits>(problem, item, scratch)
                                    : tile_item<half_bits>(problem, item, scratch);
}
static int64_t forward_merge_items(const attention_problem& problem) {
  return wants_tiles(problem) ? 0 : avx512::target.forward.merges(problem);
}

static int64_t backward_bytes(const attention_problem& problem) {
  if (!wants_tiles(problem)) return avx512::target.backward.scratch_bytes(problem);
  return problem.type == element::bfloat16 ? backward_bytes_of<bfloat_bits, tile_scores_again<bfloat_bits>>(problem)
                                           : backward_bytes_of<half_bits, tile_scores_again<half_bits>>(problem);
}
static void backward_item(const attention_problem& problem, int64_t item, void* scratch, void* shared) {
  if (!wants_tiles(problem))
    avx512::target.backward.item(problem, item, scratch, shared);
  else if (problem.type == element::bfloat16)
    backward_item_of<bfloat_bits, tile_scores_again<bfloat_bits>>(problem, item, scratch, shared);
  else
    backward_item_of<half_bits, tile_scores_again<half_bits>>(problem, item, scratch, shared);
}

// A function, because the other target's table is filled when the program starts, in no order that could be relied on.
const kernel_target& target() {
  static const kernel_target both = {
      "amx",
      panel_lanes<float>,
      int(key_block),
      {forward_items, forward_shared, forward_bytes, forward_item, forward_merge_items, avx512::target.forward.merge},
      {avx512::target.backward.items, avx512::target.backward.shared_bytes, backward_bytes, backward_item,
       avx512::target.backward.merges, avx512::target.backward.merge}};
  return both;
}

}  // namespace rootdk::amx
