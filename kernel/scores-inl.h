// The logits of one panel against one block of keys, in units of log2: scores[key][lane].
//
// What cannot be seen is -inf, whether a limit, a mask or a bias of -inf hides it; nothing else about hiding is kept.

namespace rootdk::ROOTDK_TARGET {

template <typename real>
constexpr real minus_infinity = -std::numeric_limits<real>::infinity();

// What q is multiplied with when it is packed.
template <typename real>
ROOTDK_INLINE void query_factors(const attention_problem& problem, int64_t batch, const panel<real>& p, real* factor) {
  const double common = problem.scale * log2_e;
  for (int lane = 0; lane < p.lanes; ++lane) {
    const bool scaled = problem.row_scale && lane < p.live;
    factor[lane] = real(common * (scaled ? problem.row_scale[batch * problem.n_query + p.query[lane]] : 1.0));
  }
}

// A factor above 1 can carry a number out of the range, and infinity times a key of 0 is NaN, where the definition, which
// multiplies the product, says 0. Then the factor is at most 1, and a power of two, which rounds nothing, is left for later.
template <typename real>
ROOTDK_INLINE bool may_overflow(const attention_problem& problem, const real* factor) {
  if (likely(!problem.row_scale)) return !(factor[0] <= 1 && factor[0] >= -1);  // one for all
  bool some = false;
  for (int lane = 0; lane < panel_lanes<real>; ++lane) some |= !(factor[lane] <= 1 && factor[lane] >= -1);
  return some;
}
template <typename real>
inline void hold_back(int lanes, real* factor, real* stretch) {
  for (int lane = 0; lane < lanes; ++lane) {
    int exponent = 0;
    std::frexp(factor[lane], &exponent);
    exponent = int(at_most(at_least(exponent, 0), std::numeric_limits<real>::max_exponent - 1));
    stretch[lane] = std::ldexp(real(1), exponent);
    factor[lane] /= stretch[lane];
  }
}

// tile[key][lane] *= factor[lane].
template <typename real>
inline __attribute__((noinline, cold)) void multiply_lanes(const real* factor, int64_t keys, real* tile) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int64_t key = 0; key < keys; ++key)
    for (int v = 0; v < lanes; v += width) store(tile + key * lanes + v, load(tile + key * lanes + v) * load(factor + v));
}

// The queries of a panel with their factors, to[d][lane].
template <typename stored>
inline void pack_scaled(const attention_problem& problem, int64_t batch, const stored* const* from, panel<compute<stored>>& p,
                        compute<stored>* to) {
  typedef compute<stored> real;
  alignas(64) real factor[panel_lanes<real>];
  query_factors(problem, batch, p, factor);
  pack_transposed<stored>(from, p.live, factor, problem.d_k, to);
  if (likely(!may_overflow(problem, factor)) || finite_numbers(to, problem.d_k * p.lanes)) return;
  hold_back(p.lanes, factor, p.stretch);
  p.stretched = true;
  pack_transposed<stored>(from, p.live, factor, problem.d_k, to);
}

// slope, where wanted, gets the derivative of the cap, 1 - tanh^2.
template <typename real>
inline void cap_scores(double softcap, int64_t keys, real* scores, real* slope) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  constexpr real largest = std::numeric_limits<real>::max();
  const real cap = real(softcap * log2_e);
  // Bounded: 0 times infinity would not be 0.
  const real inverse = 1 / (softcap * log2_e) < double(largest) ? real(1 / (softcap * log2_e)) : largest;
  // tanh y = y (1 - y^2/3 + ...): below this the cap changes no bit. A cap beyond the range of floats caps nothing.
  const real negligible = sizeof(real) == 4 ? real(1.0 / 8192) : real(1.0 / 268435456);
  for (int64_t at = 0; at < keys * lanes; at += width) {
    const vec<real> score = load(scores + at), y = score * inverse, t = tanh<real>(y);
    const ivec<real> small = (y < broadcast(negligible)) & (y > broadcast(-negligible));
    store(scores + at, select<real>(small, score, t * cap));
    if (slope) store(slope + at, real(1) - t * t);
  }
}

// A finite bias stays finite in units of log2: the most negative float is a visible key, as it is in the definition.
template <typename real, typename given>
ROOTDK_INLINE real bias_log2(given stored_bias) {
  typedef typename std::common_type<real, given>::type wide;
  const wide bias = stored_bias, scaled = bias * wide(log2_e);
  constexpr wide largest = wide(std::numeric_limits<real>::max());
  // Written as selections, so that a row of them can be computed in vectors. NaN and infinities stay what they are.
  const wide bounded = scaled > largest ? largest : scaled < -largest ? -largest : scaled;
  return real(bias - bias == 0 ? bounded : bias);
}

// Bias and mask lie row by row, scores key by key. Blocks of width x width are transposed on the way: `read(lane, key,
// count, part)` gives a lane's numbers for some keys, `use(score, number)` makes the new score of them.
template <typename real, typename read_t, typename use_t>
ROOTDK_INLINE void for_pairs(const panel<real>& p, int64_t keys, real* scores, const read_t& read, const use_t& use) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int group = 0; group < p.live; group += width)
    for (int64_t key = 0; key < keys; key += width) {
      const int count = int(at_most(width, keys - key));
      vec<real> block[width];
      for (int lane = 0; lane < width; ++lane) {
        alignas(64) real part[width] = {};
        if (group + lane < p.live) read(group + lane, key, count, part);
        block[lane] = load<real>(part);
      }
      transpose<real>(block);
      for (int i = 0; i < count; ++i) {
        real* at = scores + (key + i) * lanes + group;
        store(at, use(load(at), block[i]));
      }
    }
}

template <typename stored, typename real>
inline void add_bias(const attention_problem& problem, int64_t batch, const panel<real>& p, int64_t start, int64_t keys,
                     real* scores) {
  const pairs_view& view = problem.bias;
  const stored* base = reinterpret_cast<const stored*>(view.data) + view.batch_offset[batch] + start * view.key_stride;
  const auto read = [&](int lane, int64_t key, int count, real* part) __attribute__((always_inline)) {
    const stored* row = base + p.head[lane] * view.head_stride + p.query[lane] * view.query_stride + key * view.key_stride;
    for (int i = 0; i < count; ++i) part[i] = bias_log2<real>(widen(row[i * view.key_stride]));
  };
  for_pairs(p, keys, scores, read, [](vec<real> score, vec<real> bias) { return score + bias; });
}

template <typename real>
inline void hide_masked(const attention_problem& problem, int64_t batch, const panel<real>& p, int64_t start, int64_t keys,
                        real* scores) {
  const pairs_view& view = problem.mask;
  const char* base = view.data + view.batch_offset[batch] + start * view.key_stride;
  const auto read = [&](int lane, int64_t key, int count, real* part) __attribute__((always_inline)) {
    const char* row = base + p.head[lane] * view.head_stride + p.query[lane] * view.query_stride + key * view.key_stride;
    if (view.key_stride == 1 && count == simd<real>::width)
      for (int i = 0; i < simd<real>::width; ++i) part[i] = real(row[i]);
    else
      for (int i = 0; i < count; ++i) part[i] = real(row[i * view.key_stride]);
  };
  for_pairs(p, keys, scores, read, [](vec<real> score, vec<real> keep) {
    return select<real>(keep != vec<real>{}, score, broadcast(minus_infinity<real>));
  });
}

// What the vectors of a panel see of one block: every lane the first clean[v] keys, none anything from stop[v] on.
// Where one vector sees further than the other (on a causal diagonal, or where the other's lanes are not in use), the
// rest is computed for that one alone.
struct block_view {
  int64_t clean[panel_vectors], stop[panel_vectors];
  int64_t both() const { return at_most(stop[0], stop[1]); }
  int64_t keys() const { return at_least(stop[0], stop[1]); }
  int longer() const { return stop[1] > stop[0] ? 1 : 0; }
};

template <typename real>
ROOTDK_INLINE block_view view_block(const attention_problem& problem, const panel<real>& p, int64_t start, int64_t keys) {
  const bool anywhere = problem.mask.data || problem.bias.data;  // then any key may be hidden
  block_view view;
  for (int v = 0; v < panel_vectors; ++v) {
    view.stop[v] = at_least(at_most(p.vector_last[v] - start, keys), 0);
    view.clean[v] = anywhere || start < p.first_all[v] ? 0 : at_least(at_most(p.last_all[v] - start, view.stop[v]), 0);
  }
  return view;
}

// Both vectors over all keys: for the paths that look at every lane.
inline block_view whole_block(block_view view) {
  view.stop[0] = view.stop[1] = view.keys();
  return view;
}

template <typename real>
inline void hide_beyond_limits(const panel<real>& p, int64_t start, const block_view& view, real* scores) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int v = 0; v < panel_vectors; ++v) {
    const int64_t from = start < p.first_all[v] ? 0 : at_least(at_most(p.last_all[v] - start, view.stop[v]), 0);
    if (from >= view.stop[v]) continue;
    // Relative to the block the limits are small numbers: 32-bit lanes hold them however many keys there are.
    alignas(64) lane_int<real> first[width], last[width];
    for (int lane = 0; lane < width; ++lane) {
      first[lane] = lane_int<real>(at_least(at_most(p.first[v * width + lane] - start, view.stop[v]), 0));
      last[lane] = lane_int<real>(at_least(at_most(p.last[v * width + lane] - start, view.stop[v]), 0));
    }
    const ivec<real> first_v = load_int<real>(first), last_v = load_int<real>(last);
    for (int64_t key = from; key < view.stop[v]; ++key) {
      const ivec<real> key_v = lane_int<real>(key) - ivec<real>{};
      real* at = scores + key * lanes + v * width;
      store(at, select<real>((key_v >= first_v) & (key_v < last_v), load(at), broadcast(minus_infinity<real>)));
    }
  }
}

// Products -> logits: softcap, bias, and -inf where a pair is hidden.
template <typename real>
inline void shape_scores(const attention_problem& problem, int64_t batch, const panel<real>& p, int64_t start,
                         const block_view& view, real* scores, real* slope) {
  const int64_t keys = view.keys();
  if (unlikely(p.stretched)) multiply_lanes(p.stretch, keys, scores);
  if (problem.softcap > 0) cap_scores<real>(problem.softcap, keys, scores, slope);
  if (problem.bias.data) {
    switch (problem.bias_type) {
      case element::float32: add_bias<float>(problem, batch, p, start, keys, scores); break;
      case element::float64: add_bias<double>(problem, batch, p, start, keys, scores); break;
      case element::float16: add_bias<half_bits>(problem, batch, p, start, keys, scores); break;
      case element::bfloat16: add_bias<bfloat_bits>(problem, batch, p, start, keys, scores); break;
    }
  }
  if (problem.mask.data) hide_masked(problem, batch, p, start, keys, scores);
  hide_beyond_limits(p, start, view, scores);
}

template <typename real>
inline void compute_scores(const attention_problem& problem, int64_t batch, const panel<real>& p, const real* q_packed,
                           row_block<real> key_rows, int64_t start, const block_view& view, real* scores, real* slope) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const int64_t both = view.both(), keys = view.keys(), at = view.longer() * width;
  product<real, a_rows, panel_vectors>(key_rows.data, key_rows.stride, q_packed, lanes, problem.d_k, scores, lanes, both,
                                       overwrite{});
  if (both < keys)
    product<real, a_rows, 1>(key_rows.data + both * key_rows.stride, key_rows.stride, q_packed + at, lanes, problem.d_k,
                             scores + both * lanes + at, lanes, keys - both, overwrite{});
  shape_scores(problem, batch, p, start, view, scores, slope);
}

}  // namespace rootdk::ROOTDK_TARGET
