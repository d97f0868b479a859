// The gradient of the bias: dS of every pair, added to the number of the bias that the pair read.
//
// dS comes as the products leave it, [key][lane]; the bias lies row by row, so blocks are transposed on the way. What is
// shared inside an item (query rows, heads of a group) is summed here, one after the other. Items that share numbers of
// the bias run in waves (attention.cc), except chunks of keys where the bias has no axis of keys: each of them leaves
// one sum per row, and the merge adds those up.

namespace rootdk::ROOTDK_TARGET {

// All keys of a row add to one number. Without keys there is nothing to add, and perhaps no number.
inline bool bias_lacks_keys(const attention_problem& problem) {
  return problem.d_bias.data && problem.d_bias.key_stride == 0 && problem.n_key > 0;
}

template <typename real>
ROOTDK_INLINE real* pairs_row(const pairs_view& view, int64_t batch, int64_t head, int64_t query) {
  return reinterpret_cast<real*>(view.data) + view.batch_offset[batch] + head * view.head_stride + query * view.query_stride;
}

template <typename real>
ROOTDK_INLINE void add_to_row(vec<real> numbers, int count, int64_t stride, real* row) {
  constexpr int width = simd<real>::width;
  if (stride == 1 && count == width) {
    store(row, load<real>(row) + numbers);
    return;
  }
  alignas(64) real part[width];
  store<real>(part, numbers);
  for (int i = 0; i < count; ++i) row[i * stride] += part[i];
}

// Lanes that share a row of the view (it has no axis of queries, or of heads) are summed before they are added.
template <typename real>
inline void add_pairs(const pairs_view& view, int64_t batch, const panel<real>& p, int64_t start, int64_t keys,
                      const real* d_logits) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const int64_t stride = view.key_stride;
  real* row[lanes];
  for (int lane = 0; lane < p.live; ++lane)
    row[lane] = pairs_row<real>(view, batch, p.head[lane], p.query[lane]) + start * stride;
  for (int group = 0; group < p.live; group += width) {
    const int live = int(at_most(width, p.live - group));
    for (int64_t key = 0; key < keys; key += width) {
      const int count = int(at_most(width, keys - key));
      vec<real> block[width];
      for (int i = 0; i < width; ++i) block[i] = i < count ? load(d_logits + (key + i) * lanes + group) : vec<real>{};
      transpose<real>(block);
      for (int lane = 0; lane < live; ++lane) {
        if (lane + 1 < live && row[group + lane] == row[group + lane + 1])
          block[lane + 1] += block[lane];
        else
          add_to_row<real>(block[lane], count, stride, row[group + lane] + key * stride);
      }
    }
  }
}

// One panel against one block of keys. Lanes out of use may hold anything, NaN included, and are never added.
template <typename real>
inline void add_bias_gradient(const attention_problem& problem, int64_t batch, const panel<real>& p, int64_t start,
                              int64_t keys, const real* d_logits, real* bias_sum) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  if (!bias_lacks_keys(problem)) {
    add_pairs(problem.d_bias, batch, p, start, keys, d_logits);
    return;
  }
  for (int v = 0; v < lanes; v += width) {
    vec<real> sum = vec<real>{};
    for (int64_t key = 0; key < keys; ++key) sum += load(d_logits + key * lanes + v);
    store(bias_sum + v, load(bias_sum + v) + sum);
  }
}

}  // namespace rootdk::ROOTDK_TARGET
