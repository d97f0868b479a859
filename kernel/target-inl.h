// Everything that is compiled once per instruction set, and the table through which it is called.
// Included by target_<name>.cc after it has defined ROOTDK_TARGET.
#include "all-inl.h"

#define ROOTDK_TEXT_OF(name) #name
#define ROOTDK_TEXT(name) ROOTDK_TEXT_OF(name)

namespace rootdk::ROOTDK_TARGET {

// Calls `function<stored>` for the problem's stored type.
#define ROOTDK_BY_TYPE(function, ...)                               \
  switch (problem.type) {                                           \
    case element::float32: return function<float>(__VA_ARGS__);     \
    case element::float64: return function<double>(__VA_ARGS__);    \
    case element::float16: return function<half_bits>(__VA_ARGS__); \
    default: return function<bfloat_bits>(__VA_ARGS__);             \
  }

// Many rows: an item finishes its rows itself.
template <typename stored, typename cached = stored>
kernel_pass rows_pass(const attention_problem& problem) {
  typedef compute<stored> real;
  kernel_pass pass;
  pass.items = problem.batch * problem.kv_heads * ceil_div(problem.group() * problem.n_query, rows_per_item<real>(problem));
  pass.scratch_bytes = forward_scratch<stored, cached>(problem, nullptr).bytes;
  pass.item = [](const attention_problem& p, int64_t item, void* scratch, void*) {
    row_block_item<stored, cached>(p, item, scratch);
  };
  return pass;
}

// Few rows: chunks of keys leave parts in a shared buffer, and the parts of a key head are merged where there are several.
template <typename stored, typename cached = stored>
kernel_pass few_rows_pass(const attention_problem& problem) {
  typedef compute<stored> real;
  kernel_pass pass;
  pass.items = few_items<real>(problem);
  pass.scratch_bytes = few_scratch<stored>(problem, nullptr).bytes;
  pass.item = few_item<stored, cached>;
  if (few_chunks(problem) == 1) return pass;  // nothing to merge
  pass.merges = problem.batch * problem.kv_heads;
  pass.shared_bytes = pass.items * few_part_bytes<real>(problem);
  pass.merge = few_merge_item<stored>;
  return pass;
}

template <typename stored, typename cached = stored>
kernel_pass forward_pass(const attention_problem& problem) {
  return has_few_rows<compute<stored>>(problem) ? few_rows_pass<stored, cached>(problem) : rows_pass<stored, cached>(problem);
}

template <typename stored, typename maker>
kernel_pass backward_pass_by(const attention_problem& problem) {
  kernel_pass pass;
  pass.items = backward_items_of(problem);
  pass.scratch_bytes = backward_bytes_of<stored, maker>(problem);
  pass.item = backward_item_of<stored, maker>;
  pass.merges = backward_merge_items_of(problem);
  pass.shared_bytes = backward_shared_bytes_of(problem);
  pass.merge = backward_merge_item_of<stored>;
  return pass;
}

template <typename stored>
kernel_pass backward_pass(const attention_problem& problem) {
  return has_few_rows<compute<stored>>(problem) ? backward_pass_by<stored, vector_scores<stored, true>>(problem)
                                                : backward_pass_by<stored, vector_scores<stored, false>>(problem);
}

template <typename stored>
kernel_pass weights_pass(const attention_problem& problem) {
  return has_few_rows<compute<stored>>(problem) ? weights_pass_by<stored, vector_scores<stored, true>>(problem)
                                                : weights_pass_by<stored, vector_scores<stored, false>>(problem);
}

template <typename stored>
kernel_pass tangent_pass(const attention_problem& problem) {
  typedef compute<stored> real;
  if (has_few_rows<real>(problem)) {
    kernel_pass pass = few_rows_pass<stored>(problem);
    pass.items = problem.batch * problem.kv_heads * few_chunks(problem);  // a key head each
    pass.scratch_bytes = few_tangent_scratch<stored>(problem, nullptr).bytes;
    pass.item = few_tangent_item<stored>;
    if (pass.merges > 0) pass.shared_bytes = pass.items * few_tangent_bytes<real>(problem);
    pass.merge = few_tangent_merge_item<stored>;
    return pass;
  }
  kernel_pass pass = rows_pass<stored>(problem);
  pass.scratch_bytes = tangent_scratch<stored>(problem, nullptr).bytes;
  pass.item = [](const attention_problem& p, int64_t item, void* scratch, void*) { tangent_item<stored>(p, item, scratch); };
  return pass;
}

static kernel_pass forward(const attention_problem& problem) {
  if (problem.cache_type != problem.type)  // float32 over a cache of half types
    return problem.cache_type == element::float16 ? forward_pass<float, half_bits>(problem)
                                                  : forward_pass<float, bfloat_bits>(problem);
  ROOTDK_BY_TYPE(forward_pass, problem)
}
static kernel_pass backward(const attention_problem& problem) { ROOTDK_BY_TYPE(backward_pass, problem) }
static kernel_pass weights(const attention_problem& problem) { ROOTDK_BY_TYPE(weights_pass, problem) }
static kernel_pass tangent(const attention_problem& problem) { ROOTDK_BY_TYPE(tangent_pass, problem) }

extern const kernel_target target = {
    ROOTDK_TEXT(ROOTDK_TARGET), panel_lanes<float>, int(key_block), forward, backward, weights, tangent};

}  // namespace rootdk::ROOTDK_TARGET
