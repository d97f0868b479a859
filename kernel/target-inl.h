// Everything that is compiled once per instruction set, and the table through which it is called.
// Included by target_<name>.cc after it has defined ROOTDK_TARGET.
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

#define ROOTDK_TEXT_OF(name) #name
#define ROOTDK_TEXT(name) ROOTDK_TEXT_OF(name)

namespace rootdk::ROOTDK_TARGET {

// Calls `function<stored>` for the problem's stored type.
#define ROOTDK_BY_TYPE(function, ...)                                          \
  switch (problem.type) {                                                      \
    case element::float32: return function<float>(__VA_ARGS__);                \
    case element::float64: return function<double>(__VA_ARGS__);               \
    case element::float16: return function<half_bits>(__VA_ARGS__);            \
    default: return function<bfloat_bits>(__VA_ARGS__);                        \
  }

// Few rows take the path of few-inl.h, whose chunks leave parts in a shared buffer; else an item finishes its rows itself.
template <typename stored>
int64_t forward_items_of(const attention_problem& problem) {
  typedef compute<stored> real;
  if (has_few_rows<real>(problem)) return problem.batch * problem.kv_heads * few_chunks(problem);
  return problem.batch * problem.kv_heads * ceil_div(problem.group() * problem.n_query, item_rows<real>);
}
template <typename stored>
int64_t forward_bytes_of(const attention_problem& problem) {
  return has_few_rows<compute<stored>>(problem) ? few_scratch<stored>(problem, nullptr).bytes
                                                : forward_scratch<stored>(problem, nullptr).bytes;
}
template <typename stored>
int64_t forward_shared_of(const attention_problem& problem) {
  typedef compute<stored> real;
  return has_few_rows<real>(problem) ? forward_items_of<stored>(problem) * few_part_bytes<real>(problem) : 0;
}
template <typename stored>
int64_t forward_merge_items_of(const attention_problem& problem) {
  return has_few_rows<compute<stored>>(problem) ? problem.batch * problem.kv_heads : 0;
}
template <typename stored>
void forward_item_of(const attention_problem& problem, int64_t item, void* scratch, void* shared) {
  if (has_few_rows<compute<stored>>(problem))
    few_item<stored>(problem, item, scratch, shared);
  else
    row_block_item<stored>(problem, item, scratch);
}

static int64_t forward_items(const attention_problem& problem) { ROOTDK_BY_TYPE(forward_items_of, problem) }
static int64_t forward_shared(const attention_problem& problem) { ROOTDK_BY_TYPE(forward_shared_of, problem) }
static int64_t forward_bytes(const attention_problem& problem) { ROOTDK_BY_TYPE(forward_bytes_of, problem) }
static void forward_item(const attention_problem& problem, int64_t item, void* scratch, void* shared) {
  ROOTDK_BY_TYPE(forward_item_of, problem, item, scratch, shared)
}
static int64_t forward_merge_items(const attention_problem& problem) { ROOTDK_BY_TYPE(forward_merge_items_of, problem) }
static void forward_merge_item(const attention_problem& problem, int64_t item, void* shared) {
  ROOTDK_BY_TYPE(few_merge_item, problem, item, shared)
}
static int64_t backward_items(const attention_problem& problem) { return backward_items_of(problem); }
static int64_t backward_shared(const attention_problem& problem) { return backward_shared_bytes_of(problem); }
static int64_t backward_bytes(const attention_problem& problem) { ROOTDK_BY_TYPE(backward_bytes_of, problem) }
static void backward_item(const attention_problem& problem, int64_t item, void* scratch, void* shared) {
  ROOTDK_BY_TYPE(backward_item_of, problem, item, scratch, shared)
}
static int64_t backward_merge_items(const attention_problem& problem) { return backward_merge_items_of(problem); }
static void backward_merge_item(const attention_problem& problem, int64_t item, void* shared) {
  ROOTDK_BY_TYPE(backward_merge_item_of, problem, item, shared)
}

extern const kernel_target target = {
    ROOTDK_TEXT(ROOTDK_TARGET),
    panel_lanes<float>,
    int(key_block),
    {forward_items, forward_shared, forward_bytes, forward_item, forward_merge_items, forward_merge_item},
    {backward_items, backward_shared, backward_bytes, backward_item, backward_merge_items, backward_merge_item}};

}  // namespace rootdk::ROOTDK_TARGET
