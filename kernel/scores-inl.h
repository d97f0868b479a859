// The logits of one panel against one block of keys, in units of log2: scores[key][lane].
//
// What cannot be seen is -inf, whether a limit, a mask or a bias of -inf hides it; nothing else about hiding is kept.

namespace rootdk::ROOTDK_TARGET {

template <typename real>
constexpr real minus_infinity = -std::numeric_limits<real>::infinity();

// What q is multiplied with when it is packed: with a softcap the tanh's argument, else the logit itself.
template <typename real>
ROOTDK_INLINE void query_factors(const attention_problem& problem, int64_t batch, const panel<real>& p, real* factor) {
  const double common = problem.softcap > 0 ? problem.scale / problem.softcap : problem.scale * log2_e;
  for (int lane = 0; lane < p.lanes; ++lane) {
    const bool scaled = problem.row_scale && lane < p.live;
    factor[lane] = real(common * (scaled ? problem.row_scale[batch * problem.n_query + p.query[lane]] : 1.0));
  }
}

// slope, where wanted, gets the derivative of the cap, 1 - tanh^2.
template <typename real>
inline void cap_scores(real cap, int64_t keys, real* scores, real* slope) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int64_t at = 0; at < keys * lanes; at += width) {
    const vec<real> t = tanh<real>(load(scores + at));
    store(scores + at, t * (cap * real(log2_e)));
    if (slope) store(slope + at, real(1) - t * t);
  }
}

template <typename stored, typename real>
inline void add_bias(const attention_problem& problem, int64_t batch, const panel<real>& p, int64_t start, int64_t keys,
                     real* scores) {
  constexpr int lanes = panel_lanes<real>;
  const pairs_view& view = problem.bias;
  const stored* base = reinterpret_cast<const stored*>(view.data) + view.batch_offset[batch] + start * view.key_stride;
  for (int lane = 0; lane < p.live; ++lane) {
    const stored* row = base + p.head[lane] * view.head_stride + p.query[lane] * view.query_stride;
    for (int64_t key = 0; key < keys; ++key)
      scores[key * lanes + lane] += real(widen(row[key * view.key_stride])) * real(log2_e);
  }
}

template <typename real>
inline void hide_masked(const attention_problem& problem, int64_t batch, const panel<real>& p, int64_t start,
                        int64_t keys, real* scores) {
  constexpr int lanes = panel_lanes<real>;
  const pairs_view& view = problem.mask;
  const char* base = view.data + view.batch_offset[batch] + start * view.key_stride;
  for (int lane = 0; lane < p.live; ++lane) {
    const char* row = base + p.head[lane] * view.head_stride + p.query[lane] * view.query_stride;
    for (int64_t key = 0; key < keys; ++key) {
      real& score = scores[key * lanes + lane];
      score = row[key * view.key_stride] ? score : minus_infinity<real>;
    }
  }
}

template <typename real>
inline void hide_beyond_limits(const panel<real>& p, int64_t start, int64_t keys, real* scores) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  // Relative to the block the limits are small numbers: 32-bit lanes hold them however many keys there are.
  alignas(64) lane_int<real> first[lanes], last[lanes];
  for (int lane = 0; lane < lanes; ++lane) {
    first[lane] = lane_int<real>(at_least(at_most(p.first[lane] - start, keys), 0));
    last[lane] = lane_int<real>(at_least(at_most(p.last[lane] - start, keys), 0));
  }
  for (int v = 0; v < lanes; v += width) {
    const ivec<real> first_v = load_int<real>(first + v), last_v = load_int<real>(last + v);
    for (int64_t key = 0; key < keys; ++key) {
      const ivec<real> key_v = lane_int<real>(key) - ivec<real>{};
      real* at = scores + key * lanes + v;
      store(at, select<real>((key_v >= first_v) & (key_v < last_v), load(at), broadcast(minus_infinity<real>)));
    }
  }
}

// Whether some lane might not see some key of the block.
template <typename real>
ROOTDK_INLINE bool crosses_limits(const panel<real>& p, int64_t start, int64_t keys) {
  return start < p.first_all || start + keys > p.last_all;
}

template <typename real>
inline void compute_scores(const attention_problem& problem, int64_t batch, const panel<real>& p, const real* q_packed,
                           row_block<real> key_rows, int64_t start, int64_t keys, real* scores, real* slope) {
  constexpr int lanes = panel_lanes<real>;
  product<real, a_rows, panel_vectors>(key_rows.data, key_rows.stride, q_packed, lanes, problem.d_k, scores, lanes, keys,
                                       overwrite{});
  if (problem.softcap > 0) cap_scores<real>(real(problem.softcap), keys, scores, slope);
  if (problem.bias.data) {
    switch (problem.bias_type) {
      case element::float32: add_bias<float>(problem, batch, p, start, keys, scores); break;
      case element::float64: add_bias<double>(problem, batch, p, start, keys, scores); break;
      case element::float16: add_bias<half_bits>(problem, batch, p, start, keys, scores); break;
      case element::bfloat16: add_bias<bfloat_bits>(problem, batch, p, start, keys, scores); break;
    }
  }
  if (problem.mask.data) hide_masked(problem, batch, p, start, keys, scores);
  if (crosses_limits(p, start, keys)) hide_beyond_limits(p, start, keys, scores);
}

}  // namespace rootdk::ROOTDK_TARGET
