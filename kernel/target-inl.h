// Everything that is compiled once per instruction set, and the table through which it is called.
// Included by target_<name>.cc after it has defined ROOTDK_TARGET.
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "attention.h"
// Order matters: each file uses the ones before it.
#include "simd-inl.h"
#include "convert-inl.h"
#include "tile-inl.h"
#include "panel-inl.h"
#include "scores-inl.h"
#include "softmax-inl.h"
#include "dropout-inl.h"
#include "forward-inl.h"
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

template <typename stored>
int64_t forward_bytes_of(const attention_problem& problem) {
  return forward_scratch<stored>(problem, nullptr).bytes;
}

static int64_t forward_items(const attention_problem& problem) { ROOTDK_BY_TYPE(forward_items_of, problem) }
static int64_t forward_bytes(const attention_problem& problem) { ROOTDK_BY_TYPE(forward_bytes_of, problem) }
static void forward_item(const attention_problem& problem, int64_t item, void* scratch) {
  ROOTDK_BY_TYPE(forward_item_of, problem, item, scratch)
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

extern const kernel_target target = {ROOTDK_TEXT(ROOTDK_TARGET),
                                     panel_lanes<float>,
                                     int(key_block),
                                     forward_items,
                                     forward_bytes,
                                     forward_item,
                                     backward_items,
                                     backward_shared,
                                     backward_bytes,
                                     backward_item,
                                     backward_merge_items,
                                     backward_merge_item};

}  // namespace rootdk::ROOTDK_TARGET
