// The logits of one panel against one block of keys, in units of log2: scores[key][lane].
//
// A hidden pair is -inf, whether a limit, a mask or a bias of -inf hides it; nothing else about hiding is kept.

namespace rootdk::ROOTDK_TARGET {

template <typename real>
constexpr real minus_infinity = -std::numeric_limits<real>::infinity();

// The factor of q when it is packed.
template <typename real>
ROOTDK_INLINE void query_factors(const attention_problem& problem, int64_t batch, const panel<real>& p, real* factor) {
  const double common = problem.scale * log2_e;
  for (int lane = 0; lane < p.lanes; lane += simd<real>::width) store(factor + lane, broadcast(real(common)));
  if (unlikely(problem.row_scale))
    for (int lane = 0; lane < p.live; ++lane)
      factor[lane] = real(common * problem.row_scale[batch * problem.n_query + p.query[lane]]);
}

// A factor above 1 can carry a number out of the range, and infinity times a key of 0 is NaN, where the definition, which
// multiplies the product, says 0. Then the factor is at most 1, and a power of two, which rounds nothing, is left for later.
template <typename real>
ROOTDK_INLINE bool may_overflow(const attention_problem& problem, const real* factor) {
  if (likely(!problem.row_scale)) return !(factor[0] <= 1 && factor[0] >= -1);  // one for all
  bool above_one = false;
  for (int lane = 0; lane < panel_lanes<real>; ++lane) above_one |= !(factor[lane] <= 1 && factor[lane] >= -1);
  return above_one;
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

template <typename real>
ROOTDK_INLINE vec<real> biases_log2(vec<real> bias) {
  const vec<real> largest = broadcast(std::numeric_limits<real>::max()), scaled = bias * real(log2_e);
  return select<real>(bias - bias == vec<real>{}, minimum(largest, maximum(-largest, scaled)), bias);
}

// Bias and mask lie row by row, scores key by key. Blocks of width x width are transposed on the way: `read(lane, key, count)`
// gives a lane's numbers for some keys, `use(score, number)` makes the new score of them.
template <typename real, typename read_t, typename use_t>
ROOTDK_INLINE void for_pairs(const panel<real>& p, int64_t keys, real* scores, const read_t& read, const use_t& use) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int group = 0; group < p.live; group += width)
    for (int64_t key = 0; key < keys; key += width) {
      const int count = int(at_most(width, keys - key));
      vec<real> block[width];
      for (int lane = 0; lane < width; ++lane)
        block[lane] = likely(group + lane < p.live) ? read(group + lane, key, count) : vec<real>{};
      transpose<real>(block);
      for (int i = 0; i < count; ++i) {
        real* at = scores + (key + i) * lanes + group;
        store(at, use(load(at), block[i]));
      }
    }
}

// Magnitudes as bits: in this order NaN is above infinity, and infinity above the numbers.
template <typename real>
ROOTDK_INLINE ivec<real> magnitude(vec<real> x) {
  return (ivec<real>)x & std::numeric_limits<lane_int<real>>::max();
}

// `some_far`: whether a number of the vector may be far. A bias in units of log2 takes one multiplication, fused with the
// addition to its score; one that this would carry out of the range, or that is not finite, takes the slow path. -inf hides,
// whatever the score is: NaN - inf would be NaN.
template <typename real>
constexpr real far_bias = std::numeric_limits<real>::max() / 2;
template <typename real>
ROOTDK_INLINE vec<real> with_bias(vec<real> score, vec<real> bias, bool some_far) {
  const vec<real> sum = multiply_add(bias, broadcast(real(log2_e)), score);
  if (likely(!some_far)) return sum;
  const vec<real> bounded_sum = select<real>(bias == broadcast(minus_infinity<real>), bias, score + biases_log2<real>(bias));
  return select<real>(magnitude<real>(bias) > magnitude<real>(broadcast(far_bias<real>)), bounded_sum, sum);
}

template <typename stored, typename real>
inline void add_bias(const pairs_view& view, int64_t batch, const panel<real>& p, int64_t start, int64_t keys, real* scores) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const stored* base = reinterpret_cast<const stored*>(view.data) + view.batch_offset[batch] + start * view.key_stride;
  const auto row_of = [&](int lane) __attribute__((always_inline)) {
    return base + p.head[lane] * view.head_stride + p.query[lane] * view.query_stride;
  };
  const bool one_row = view.query_stride == 0 && (view.head_stride == 0 || p.head[0] == p.head[p.live - 1]);  // for all lanes
  if constexpr (!std::is_same<compute<stored>, real>::value) {  // of another width than the scores: number by number
    const auto use = [](vec<real> score, vec<real> bias) __attribute__((always_inline)) {
      return select<real>(bias == broadcast(minus_infinity<real>), bias, score + bias);
    };
    for_pairs(
        p, keys, scores,
        [&](int lane, int64_t key, int count) __attribute__((always_inline)) {
          alignas(64) real part[width] = {};
          for (int i = 0; i < count; ++i) part[i] = bias_log2<real>(widen(row_of(lane)[(key + i) * view.key_stride]));
          return load<real>(part);
        },
        use);
  } else if (one_row) {
    const stored* const row = row_of(0);
    for (int64_t key = 0; key < keys; ++key)
      for (int v = 0; v < lanes; v += width) {
        real* const at = scores + key * lanes + v;
        store(at, with_bias<real>(load(at), broadcast(widen(row[key * view.key_stride])), true));
      }
  } else {
    const stored* rows[lanes];
    for (int lane = 0; lane < p.live; ++lane) rows[lane] = row_of(lane);
    for (int64_t key = 0; key < keys; key += width)
      for (int group = 0; group < p.live; group += width) {
        const int count = int(at_most(width, keys - key));
        vec<real> block[width];
        // A whole block is loaded without a branch in between: its rows are far apart in memory, and are so fetched all at
        // once.
        if (likely(view.key_stride == 1 && count == width && group + width <= p.live)) {
          for (int lane = 0; lane < width; ++lane) block[lane] = load_wide(rows[group + lane] + key);
        } else {
          alignas(64) real part[width][width] = {};
          for (int lane = 0; lane < width && group + lane < p.live; ++lane)
            for (int i = 0; i < count; ++i) part[lane][i] = widen(rows[group + lane][(key + i) * view.key_stride]);
          for (int lane = 0; lane < width; ++lane) block[lane] = load(part[lane]);
        }
        ivec<real> largest = magnitude<real>(block[0]);
        for (int lane = 1; lane < width; ++lane) {
          const ivec<real> size = magnitude<real>(block[lane]);
          largest = size > largest ? size : largest;
        }
        const bool some_far = any_lane<real>(largest > magnitude<real>(broadcast(far_bias<real>)));
        transpose<real>(block);
        real* const at = scores + key * lanes + group;
        if (likely(count == width && !some_far)) {
          for (int i = 0; i < width; ++i) store(at + i * lanes, with_bias<real>(load(at + i * lanes), block[i], false));
        } else {
          for (int i = 0; i < width; ++i)
            if (i < count) store(at + i * lanes, with_bias<real>(load(at + i * lanes), block[i], some_far));
        }
      }
  }
}

// A bias, or its tangent.
template <typename real>
inline void add_bias(const pairs_view& view, element type, int64_t batch, const panel<real>& p, int64_t start, int64_t keys,
                     real* scores) {
  switch (type) {
    case element::float32: return add_bias<float>(view, batch, p, start, keys, scores);
    case element::float64: return add_bias<double>(view, batch, p, start, keys, scores);
    case element::float16: return add_bias<half_bits>(view, batch, p, start, keys, scores);
    case element::bfloat16: return add_bias<bfloat_bits>(view, batch, p, start, keys, scores);
  }
}

// The slopes of a panel's rows, and how far every key from `start` on is from them.
template <typename real>
struct lane_distances {
  alignas(64) real slope[panel_lanes<real>], behind[panel_lanes<real>];
  const int64_t* key_position;
  lane_distances(const attention_problem& problem, const double* slopes, int64_t batch, const panel<real>& p, int64_t start)
      : slope(), behind(), key_position(problem.key_position ? problem.key_position + batch * problem.n_key + start : nullptr) {
    for (int lane = 0; lane < p.live; ++lane) {
      slope[lane] = real(slopes[batch * problem.heads + p.head[lane]]);
      behind[lane] = real(problem.position(batch, p.query[lane]) - (key_position ? 0 : start));
    }
  }
  ROOTDK_INLINE vec<real> of(int64_t key, int at) const {
    const vec<real> difference = load(behind + at) - real(key_position ? key_position[key] : key);
    return maximum(difference, -difference);
  }
};

template <typename real>
inline void subtract_distances(const attention_problem& problem, const double* slopes, int64_t batch, const panel<real>& p,
                               int64_t start, int64_t keys, real* scores) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const lane_distances<real> distances(problem, slopes, batch, p, start);
  for (int v = 0; v < lanes; v += width) {
    const vec<real> slope = load(distances.slope + v) * real(-log2_e);
    for (int64_t key = 0; key < keys; ++key) {
      real* const at = scores + key * lanes + v;
      store(at, multiply_add(slope, distances.of(key, v), load(at)));
    }
  }
}

template <typename real>
inline void hide_masked(const attention_problem& problem, int64_t batch, const panel<real>& p, int64_t start, int64_t keys,
                        real* scores) {
  const pairs_view& view = problem.mask;
  const char* base = view.data + view.batch_offset[batch] + start * view.key_stride;
  // A byte per pair, widened to the lanes' integers; they travel through the transpose as the bits of numbers.
  constexpr int width = simd<real>::width;
  typedef int8_t bytes __attribute__((vector_size(width)));
  const auto read = [&](int lane, int64_t key, int count) __attribute__((always_inline)) {
    const char* row = base + p.head[lane] * view.head_stride + p.query[lane] * view.query_stride + key * view.key_stride;
    bytes of_lane = {};
    if (likely(view.key_stride == 1 && count == width)) {
      std::memcpy(&of_lane, row, width);
    } else {
      char part[width] = {};
      for (int i = 0; i < count; ++i) part[i] = row[i * view.key_stride];
      std::memcpy(&of_lane, part, width);
    }
    return (vec<real>)__builtin_convertvector(of_lane, ivec<real>);
  };
  for_pairs(p, keys, scores, read, [](vec<real> score, vec<real> keep) {
    return select<real>((ivec<real>)keep != ivec<real>{}, score, broadcast(minus_infinity<real>));
  });
}

template <typename real>
inline __attribute__((noinline)) void hide_other_segments(const attention_problem& problem, int64_t batch, const panel<real>& p,
                                                          int64_t start, int64_t keys, real* scores) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const int32_t* const of_keys = problem.segments->of_keys(batch) + start;
  for (int v = 0; v < lanes; v += width) {
    alignas(64) lane_int<real> own[width];
    for (int lane = 0; lane < width; ++lane) own[lane] = p.segment[v + lane];
    const ivec<real> own_v = load_int<real>(own);
    for (int64_t key = 0; key < keys; ++key) {
      real* const at = scores + key * lanes + v;
      store(at, select<real>(own_v == lane_int<real>(of_keys[key]) - ivec<real>{}, load(at), broadcast(minus_infinity<real>)));
    }
  }
}

// What a panel sees of one block of keys, from `start` on. Every lane of a vector sees the first clean[v] keys, none anything
// from stop[v] on. Where one vector sees further than the other (on a causal diagonal, or where the other's lanes are not in
// use), the rest is computed for that one alone.
struct block_view {
  static constexpr int most_lanes = panel_lanes<float>;
  int64_t start;
  int64_t clean[panel_vectors], stop[panel_vectors];
  int64_t within[panel_vectors];  // as clean, by the limits alone
  bool reads_mask;  // whether to read mask and bias: some lane has holes here
  alignas(64) uint8_t first[most_lanes], last[most_lanes];  // per lane, from `start`; set where within is less than stop
  int64_t both() const { return at_most(stop[0], stop[1]); }
  int64_t keys() const { return at_least(stop[0], stop[1]); }
  int64_t end() const { return start + keys(); }
  int longer() const { return stop[1] > stop[0] ? 1 : 0; }
};

// Some lanes have holes: the runs of this block, cut by the limits. False if nothing of the block is seen.
template <typename real>
inline __attribute__((noinline)) bool view_runs(const panel<real>& p, int64_t start, block_view& view) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const int64_t block = start / key_block, origin = block * key_block;
  int lowest = 127;
  uint8_t holes = 0;
  for (int lane = 0; lane < p.live; ++lane) {
    visibility::run seen = {0, uint8_t(key_block)};
    if (p.runs[lane]) seen = p.runs[lane][block];
    holes |= seen.first_and_holes;
    const int64_t first = at_least(seen.first_and_holes & ~visibility::holes_bit, p.first[lane] - origin);
    const int64_t last = at_most(seen.last, p.last[lane] - origin);
    view.first[lane] = uint8_t(first < last ? first : 127), view.last[lane] = uint8_t(first < last ? last : 0);
    lowest = view.first[lane] < lowest ? view.first[lane] : lowest;
  }
  lowest -= lowest % 2;  // as first_any
  view.reads_mask = holes & visibility::holes_bit;
  view.start = origin + lowest;
  for (int v = 0; v < panel_vectors; ++v) {
    view.stop[v] = 0, view.within[v] = key_block;
    int64_t last_first = 0;
    for (int lane = v * width; lane < (v + 1) * width && lane < p.live; ++lane) {
      view.first[lane] = uint8_t(view.first[lane] - lowest);
      view.last[lane] = uint8_t(at_least(view.last[lane] - lowest, 0));
      view.stop[v] = at_least(view.stop[v], view.last[lane]), view.within[v] = at_most(view.within[v], view.last[lane]);
      last_first = at_least(last_first, view.first[lane]);
    }
    view.within[v] = last_first > 0 ? 0 : at_most(view.within[v], view.stop[v]);
  }
  for (int lane = p.live; lane < lanes; ++lane) view.first[lane] = view.last[lane] = 0;
  return view.keys() > 0;
}

// What the panel sees of the keys from `block_first` to `block_last`, which lie in one block. False if nothing. `whole`: both
// vectors over all keys, for the paths that read every lane.
template <bool whole = false, typename real>
ROOTDK_INLINE bool view_block(const attention_problem& problem, const panel<real>& p, int64_t block_first, int64_t block_last,
                              block_view& view) {
  constexpr int width = simd<real>::width;
  const int64_t start = at_least(block_first, p.first_any), keys = at_most(block_last, p.last_any) - start;
  if (keys <= 0) return false;
  if (unlikely(p.holes)) {
    if (!view_runs(p, start, view)) return false;
    if (whole) view.stop[0] = view.stop[1] = view.keys();
  } else {
    view.start = start;
    view.reads_mask = false;
    for (int v = 0; v < panel_vectors; ++v) {
      view.stop[v] = whole ? keys : at_least(at_most(p.vector_last[v] - start, keys), 0);
      view.within[v] = start < p.first_all[v] ? 0 : at_least(at_most(p.last_all[v] - start, view.stop[v]), 0);
      if (view.within[v] < view.stop[v])
        for (int lane = v * width; lane < (v + 1) * width; ++lane) {
          view.first[lane] = uint8_t(at_least(at_most(p.first[lane] - start, view.stop[v]), 0));
          view.last[lane] = uint8_t(at_least(at_most(p.last[lane] - start, view.stop[v]), 0));
        }
    }
  }
  // With one of these, any key of the block may be hidden.
  const bool unread_bias = problem.bias.data && !(problem.seen && problem.seen->knows_bias());
  const bool may_hide = view.reads_mask || p.mixed_segments || unread_bias;
  for (int v = 0; v < panel_vectors; ++v) view.clean[v] = may_hide ? 0 : view.within[v];
  return true;
}

// Keys of one block that some panel sees.
struct block_range {
  int64_t first, last;
  bool empty() const { return first >= last; }
};

// What each panel of an item sees of one block; a view without keys where that is nothing. `place_of(i)` is the i-th panel.
template <bool whole = false, typename place_t>
ROOTDK_INLINE block_range view_panels(const attention_problem& problem, int64_t panels, int64_t block_first, int64_t block_last,
                                      block_view* views, const place_t& place_of) {
  block_range range{block_last, block_first};
  for (int64_t i = 0; i < panels; ++i) {
    if (!view_block<whole>(problem, *place_of(i), block_first, block_last, views[i])) {
      views[i].stop[0] = views[i].stop[1] = 0;
      continue;
    }
    range.first = at_most(range.first, views[i].start), range.last = at_least(range.last, views[i].end());
  }
  return range;
}

// Between clean and stop some lanes see a key and others do not: by their limits.
template <typename real>
inline void hide_beyond_limits(const block_view& view, real* scores) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int v = 0; v < panel_vectors; ++v) {
    if (view.within[v] >= view.stop[v]) continue;
    alignas(64) lane_int<real> first[width], last[width];
    for (int lane = 0; lane < width; ++lane)
      first[lane] = view.first[v * width + lane], last[lane] = view.last[v * width + lane];
    const ivec<real> first_v = load_int<real>(first), last_v = load_int<real>(last);
    for (int64_t key = view.within[v]; key < view.stop[v]; ++key) {
      const ivec<real> key_v = lane_int<real>(key) - ivec<real>{};
      real* at = scores + key * lanes + v * width;
      store(at, select<real>((key_v >= first_v) & (key_v < last_v), load(at), broadcast(minus_infinity<real>)));
    }
  }
}

// Whether a logit is its product times the scale, and nothing else.
inline bool logits_are_products(const attention_problem& problem) {
  return !(problem.softcap > 0) && !problem.alibi && !problem.bias.data;
}

// Products -> logits: softcap, distance, bias, and -inf where a pair is hidden.
template <typename real>
inline void shape_scores(const attention_problem& problem, int64_t batch, const panel<real>& p, const block_view& view,
                         real* scores, real* slope) {
  const int64_t start = view.start, keys = view.keys();
  if (unlikely(p.stretched)) multiply_lanes(p.stretch, keys, scores);
  if (problem.softcap > 0) cap_scores<real>(problem.softcap, keys, scores, slope);
  if (problem.alibi) subtract_distances(problem, problem.alibi, batch, p, start, keys, scores);
  if (problem.bias.data) add_bias(problem.bias, problem.bias_type, batch, p, start, keys, scores);
  if (unlikely(p.mixed_segments)) hide_other_segments(problem, batch, p, start, keys, scores);
  if (view.reads_mask && problem.mask.data) hide_masked(problem, batch, p, start, keys, scores);
  hide_beyond_limits(view, scores);
}

// Whether a term that is added to the products (slopes, bias) has a tangent. The second adds these to `tangents`, in units of
// log2.
inline bool added_terms_have_tangent(const attention_problem& problem) { return problem.alibi_tangent || problem.d_bias.data; }
template <typename real>
inline void add_term_tangents(const attention_problem& problem, int64_t batch, const panel<real>& p, const block_view& view,
                              real* tangents) {
  const int64_t start = view.start, keys = view.keys();
  if (problem.alibi_tangent) subtract_distances(problem, problem.alibi_tangent, batch, p, start, keys, tangents);
  if (problem.d_bias.data) add_bias(problem.d_bias, problem.bias_type, batch, p, start, keys, tangents);
}

// Tangents of the products -> tangents of the logits, in natural units; 0 where the finished scores say that a pair is hidden.
template <typename real>
inline void shape_tangents(const attention_problem& problem, int64_t batch, const panel<real>& p, const block_view& view,
                           const real* scores, const real* slope, real* tangents) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const int64_t keys = view.keys();
  if (unlikely(p.stretched)) multiply_lanes(p.stretch, keys, tangents);
  if (slope)
    for (int64_t at = 0; at < keys * lanes; at += width) store(tangents + at, load(tangents + at) * load(slope + at));
  add_term_tangents(problem, batch, p, view, tangents);
  const vec<real> hidden = broadcast(minus_infinity<real>);
  for (int64_t at = 0; at < keys * lanes; at += width)
    store(tangents + at, select<real>(load(scores + at) == hidden, vec<real>{}, load(tangents + at) * real(ln_2)));
}

// Prefetches numbers of the bias, or bytes of the mask, that the pairs of some keys will read, while the products of the keys
// are computed, so that they have arrived by then. A row of them is short and the next is far away, which no processor
// predicts. A few at a time, because a processor waits for only so many; into the second cache, because rows whose distance is
// a power of two would push each other out of the first.
template <typename real>
class pairs_prefetch {
 public:
  pairs_prefetch(const pairs_view& view, int64_t size, int64_t batch, const panel<real>& p, int64_t start, int64_t keys)
      : view_(view),
        size_(size),
        p_(p),
        base_(view.data ? view.data + (view.batch_offset[batch] + start) * size : nullptr),
        bytes_(keys * size) {}
  // The share of the rows that `keys` is of `all`.
  void fetch(int64_t keys, int64_t all) {
    due_ += keys * p_.live;
    for (; due_ >= all && lane_ < p_.live; due_ -= all, ++lane_) {
      const char* const row = base_ + (p_.head[lane_] * view_.head_stride + p_.query[lane_] * view_.query_stride) * size_;
      for (int64_t at = 0; at < bytes_; at += line) __builtin_prefetch(row + at, 0, 2);
    }
  }

 private:
  static constexpr int64_t line = 64;
  const pairs_view& view_;
  const int64_t size_;
  const panel<real>& p_;
  const char* const base_;
  const int64_t bytes_;
  int64_t due_ = 0;
  int lane_ = 0;
};

template <typename real>
inline void compute_scores(const attention_problem& problem, int64_t batch, const panel<real>& p, const real* q_packed,
                           row_block<real> key_rows, const block_view& view, real* scores, real* slope) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const int64_t both = view.both(), keys = view.keys(), at = view.longer() * width;
  const auto reads_rows = [](const pairs_view& pairs) {
    return pairs.data && pairs.query_stride != 0 && pairs.key_stride == 1;
  };
  const bool fetches_bias = reads_rows(problem.bias), fetches_mask = view.reads_mask && reads_rows(problem.mask);
  if (likely(!fetches_bias && !fetches_mask)) {
    product<real, a_rows, panel_vectors>(key_rows.data, key_rows.stride, q_packed, lanes, problem.d_k, scores, lanes, both,
                                         overwrite{});
  } else {
    pairs_prefetch<real> bias(problem.bias, element_bytes(problem.bias_type), batch, p, view.start, both);
    pairs_prefetch<real> mask(problem.mask, 1, batch, p, view.start, both);
    for (int64_t key = 0; key < both; key += tile_rows) {
      const int64_t here = at_most(tile_rows, both - key);
      if (fetches_bias) bias.fetch(here, both);
      if (fetches_mask) mask.fetch(here, both);
      product<real, a_rows, panel_vectors>(key_rows.data + key * key_rows.stride, key_rows.stride, q_packed, lanes, problem.d_k,
                                           scores + key * lanes, lanes, here, overwrite{});
    }
  }
  if (both < keys)
    product<real, a_rows, 1>(key_rows.data + both * key_rows.stride, key_rows.stride, q_packed + at, lanes, problem.d_k,
                             scores + both * lanes + at, lanes, keys - both, overwrite{});
  shape_scores(problem, batch, p, view, scores, slope);
}

}  // namespace rootdk::ROOTDK_TARGET
