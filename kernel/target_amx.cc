// AVX-512, and AMX for the half types: forward by tiles, and backward with the same scores. Passes that gain nothing from tiles
// are left to the other target.
#define ROOTDK_TARGET amx
// clang-format off
#include "all-inl.h"
#include "amx_tiles-inl.h"
#include "amx_forward-inl.h"
// clang-format on

namespace rootdk::avx512 {
extern const kernel_target target;
}

namespace rootdk::amx {

static bool wants_tiles(const attention_problem& problem) {
  const bool half_type = problem.type == element::bfloat16 || problem.type == element::float16;
  return half_type && problem.d_k > 0 && !has_few_rows<float>(problem);
}

template <typename stored>
static kernel_pass tiles_pass(const attention_problem& problem) {
  kernel_pass pass;
  pass.items = problem.batch * problem.kv_heads * ceil_div(problem.group() * problem.n_query, tile_item_rows);
  pass.scratch_bytes = tile_scratch<stored>(problem, nullptr).bytes;
  pass.item = [](const attention_problem& p, int64_t item, void* scratch, void*) { tile_item<stored>(p, item, scratch); };
  return pass;
}

// The other target's pass with the scores by tiles again.
template <typename stored>
static kernel_pass tiles_backward_pass(const attention_problem& problem) {
  kernel_pass pass = avx512::target.backward(problem);
  pass.scratch_bytes = backward_bytes_of<stored, tile_scores_again<stored>>(problem);
  pass.item = backward_item_of<stored, tile_scores_again<stored>>;
  return pass;
}

static kernel_pass forward(const attention_problem& problem) {
  if (!wants_tiles(problem)) return avx512::target.forward(problem);
  return problem.type == element::bfloat16 ? tiles_pass<bfloat_bits>(problem) : tiles_pass<half_bits>(problem);
}

static kernel_pass backward(const attention_problem& problem) {
  if (!wants_tiles(problem)) return avx512::target.backward(problem);
  return problem.type == element::bfloat16 ? tiles_backward_pass<bfloat_bits>(problem)
                                           : tiles_backward_pass<half_bits>(problem);
}

static kernel_pass weights(const attention_problem& problem) {
  if (!wants_tiles(problem)) return avx512::target.weights(problem);
  return problem.type == element::bfloat16 ? weights_pass_by<bfloat_bits, tile_scores_again<bfloat_bits>>(problem)
                                           : weights_pass_by<half_bits, tile_scores_again<half_bits>>(problem);
}

// Reads nothing that another pass left, so it need not round as the tiles do.
static kernel_pass tangent(const attention_problem& problem) { return avx512::target.tangent(problem); }

extern const kernel_target target = {"amx", panel_lanes<float>, int(key_block), forward, backward, weights, tangent};

}  // namespace rootdk::amx
