// The online softmax of a panel, and what a Reading measures along the way. Scores are in units of log2.
//
// Everything that is kept is relative to the running maximum or to a block's own mean, so nothing cancels: the plain sum
// of squares in float32 would lose the variance of logits that sit far from zero.

namespace rootdk::ROOTDK_TARGET {

template <typename real>
struct row_sums {
  static constexpr int lanes = panel_lanes<real>;
  bool fresh;     // no block yet: nothing below is set
  bool finished;  // by finish_rows
  alignas(64) real maximum[lanes];   // of the scores so far
  alignas(64) real sum[lanes];       // of e = 2^(score - maximum)
  alignas(64) real normalise[lanes];  // what the output is multiplied with; set at the end of the row
  // The rest only when measuring.
  int64_t alike[panel_vectors];  // keys that each lane of a vector saw, while all saw the same number; -1: they differ
  alignas(64) real minimum[lanes];
  alignas(64) int64_t keys[lanes];    // exact, where a float would stop counting at 2^24; not set while they are alike
  alignas(64) real count[lanes];      // the same, as a number to divide with
  alignas(64) real mean[lanes];
  alignas(64) real deviation[lanes];  // sum of (score - mean)^2
  alignas(64) real moment[lanes];     // sum of e * (score - maximum)
  alignas(64) real square[lanes];     // sum of e^2
  alignas(64) real cube[lanes];       // sum of e^3

  void reset() {
    fresh = true;
    finished = false;
    for (int64_t& number : alike) number = -1;
  }

  // From here on the lanes of a vector are counted one by one.
  void count_each_lane(int v) {
    if (alike[v] < 0) return;
    for (int lane = v * simd<real>::width; lane < (v + 1) * simd<real>::width; ++lane)
      keys[lane] = alike[v], count[lane] = real(alike[v]);
    alike[v] = -1;
  }
  void count_each_lane() {
    for (int v = 0; v < panel_vectors; ++v) count_each_lane(v);
  }

  // A row that saw nothing at all.
  void clear() {
    reset();
    fresh = false;
    for (int lane = 0; lane < lanes; ++lane) {
      maximum[lane] = minus_infinity<real>;
      minimum[lane] = -minus_infinity<real>;
      keys[lane] = 0;
      sum[lane] = count[lane] = mean[lane] = deviation[lane] = moment[lane] = square[lane] = cube[lane] = 0;
    }
  }
};

template <typename real>
struct block_extremes {
  vec<real> maximum, minimum, count;
};

// Maximum, minimum and count of one column of vectors. Scores before `clean` are all visible, later ones may be -inf: those
// must stay out of minimum, mean and count. Four chains, because a maximum takes four cycles and two can start in each.
template <typename real, bool measuring>
ROOTDK_INLINE block_extremes<real> find_extremes(const real* column, int64_t clean, int64_t keys) {
  constexpr int lanes = panel_lanes<real>, chains = 4;
  const vec<real> hidden = broadcast(minus_infinity<real>);
  vec<real> high[chains], low[chains], count = broadcast(real(measuring ? clean : 0));
  for (int c = 0; c < chains; ++c) high[c] = hidden, low[c] = -hidden;
  const auto take = [&](int c, int64_t key, auto mixed) __attribute__((always_inline)) {
    const vec<real> score = load(column + key * lanes);
    high[c] = maximum(score, high[c]);
    if constexpr (mixed) {
      const auto seen = seen_lanes(score);
      low[c] = minimum_if(seen, score, low[c]);
      count = add_if(seen, count, broadcast(real(1)));
    } else if constexpr (measuring) {
      low[c] = minimum(score, low[c]);
    }
  };
  const auto take_keys = [&](int64_t from, int64_t to, auto mixed) __attribute__((always_inline)) {
    int64_t key = from;
    for (; key + chains <= to; key += chains)
      for (int c = 0; c < chains; ++c) take(c, key + c, mixed);
    if (unlikely(key < to))
      for (; key < to; ++key) take(0, key, mixed);
  };
  if constexpr (measuring) {
    take_keys(0, clean, std::false_type{});
    take_keys(clean, keys, std::true_type{});
  } else {
    take_keys(0, keys, std::false_type{});  // unmeasured, a hidden key is like any other: it is -inf, never the maximum
  }
  return {maximum(maximum(high[0], high[1]), maximum(high[2], high[3])),
          minimum(minimum(low[0], low[1]), minimum(low[2], low[3])), count};
}

// The exact counts of a row; of one block they fit the integers of the lanes.
template <typename real, bool more>
ROOTDK_INLINE void add_keys(vec<real> count, int64_t* keys) {
  alignas(64) lane_int<real> whole[simd<real>::width];
  const ivec<real> counted = __builtin_convertvector(count, ivec<real>);
  std::memcpy(whole, &counted, sizeof whole);
  for (int lane = 0; lane < simd<real>::width; ++lane) keys[lane] = (more ? keys[lane] : 0) + whole[lane];
}

// What a column holds before, and after: logits, and the weights that take their place.
template <typename real>
struct logits_to_weights {
  ROOTDK_INLINE vec<real> logit(vec<real> score, int /*v*/) const { return score; }
  ROOTDK_INLINE vec<real> distance(vec<real> score, vec<real> base, int /*v*/) const { return score - base; }
  ROOTDK_INLINE void keep(real* column, int64_t key, vec<real> a) const { store(column + key * panel_lanes<real>, a); }
  ROOTDK_INLINE void keep(real* column, int64_t key, vec<real> a, vec<real> b) const {
    keep(column, key, a);
    keep(column, key + 1, b);
  }
};

// The same where the weights are not needed.
template <typename contents>
struct without_weights : contents {
  template <typename... given>
  ROOTDK_INLINE void keep(given...) const {}
};

// All visible; some hidden; some hidden and some very far below the others.
enum key_kind { clean_keys, mixed_keys, far_keys };

// How many keys one round of the loop takes. Found by timing: while a neighbour shares the core, a measured round of this
// length is faster than a shorter or a longer one, an unmeasured one slower. Alone on the core it makes no difference.
template <bool measuring>
constexpr int unroll = measuring ? 2 * in_step : in_step;

// Below this a distance is so large that sums of its squares would overflow.
template <typename real>
constexpr real far_away = real(-1e15);

// What one column of vectors adds up over one block of keys. Distances are taken from the block's own maximum, which serves
// weights, moment and variance with one subtraction: the maximum is one of at most 128 scores, so its distance from the
// mean is at most sqrt(128) deviations, and the shifted sum of squares loses at most that much; from the row's running
// maximum, which may be far away, it could lose everything.
template <typename real>
struct block_sums {
  vec<real> sum = {}, moment = {}, square = {}, cube = {}, distance = {}, distance_squared = {};
};

// The weights of two keys. a^3 + b^3 = (a + b)(a^2 + b^2 - ab), where a + b serves the sum and a^2 + b^2 the sum of squares,
// takes seven operations for the three sums in place of eight.
template <typename real, bool measuring>
ROOTDK_INLINE void add_weights(block_sums<real>& sums, vec<real> a, vec<real> b) {
  const vec<real> both = a + b;
  sums.sum += both;
  if constexpr (measuring) {
    const vec<real> squares = a * a + b * b;
    sums.square += squares;
    sums.cube += both * (squares - a * b);
  }
}

// Adds one key's distance to the sums of a Reading. `unit` is for far keys; see softmax_column.
template <typename real, key_kind keys_are>
ROOTDK_INLINE void add_distance(block_sums<real>& sums, vec<real> score, vec<real> relative, vec<real> weight, vec<real> unit) {
  const vec<real> distance = keys_are == far_keys ? relative * unit : relative;
  if constexpr (keys_are == clean_keys) {
    sums.distance += distance;
    sums.distance_squared += distance * distance;
    sums.moment += weight * relative;
  } else {  // hidden, the distance is infinite and must add nothing
    const auto visible = seen_lanes(score);
    sums.distance = add_if(visible, sums.distance, distance);
    sums.distance_squared = add_product_if(visible, sums.distance_squared, distance, distance);
    sums.moment = add_product_if(visible, sums.moment, weight, relative);
  }
}

// `count` keys from `key` on: scores become weights relative to `base`, and the sums are updated.
template <typename real, bool measuring, key_kind keys_are, int count, typename contents>
ROOTDK_INLINE void weigh_keys(real* column, int64_t key, int v, vec<real> base, vec<real> unit, const contents& holds,
                              block_sums<real>& sums) {
  constexpr int lanes = panel_lanes<real>;
  vec<real> score[count], relative[count], weight[count];
  for (int i = 0; i < count; ++i) {
    score[i] = load(column + (key + i) * lanes);
    relative[i] = holds.distance(score[i], base, v);
  }
  constexpr int step = count < in_step ? count : in_step;
  for (int i = 0; i < count; i += step) exp2<step>(relative + i, weight + i);
  if constexpr (count == 1)
    holds.keep(column, key, weight[0]);
  else
    for (int i = 0; i < count; i += 2) holds.keep(column, key + i, weight[i], weight[i + 1]);
  // Pair by pair with all sums of each pair, and not sum by sum: found by timing, like `unroll`.
  for (int pair = 0; pair < count; pair += 2) {
    if constexpr (measuring)
      for (int i = pair; i < pair + 2 && i < count; ++i)
        add_distance<real, keys_are>(sums, score[i], relative[i], weight[i], unit);
    if constexpr (count == 1)
      add_weights<real, measuring>(sums, weight[0], vec<real>{});
    else
      add_weights<real, measuring>(sums, weight[pair], weight[pair + 1]);
  }
}

template <typename real, bool measuring, key_kind keys_are, typename contents>
ROOTDK_INLINE void weigh_range(real* column, int64_t from, int64_t to, int v, vec<real> base, vec<real> unit,
                               const contents& holds, block_sums<real>& sums) {
  int64_t key = from;
  constexpr int together = unroll<measuring>;
  if constexpr (keys_are == clean_keys)  // the others are few, or slowed by a mask anyway
    for (; key + together <= to; key += together)
      weigh_keys<real, measuring, keys_are, together>(column, key, v, base, unit, holds, sums);
  if (unlikely(key < to)) {
    for (; key + 2 <= to; key += 2) weigh_keys<real, measuring, keys_are, 2>(column, key, v, base, unit, holds, sums);
    if (key < to) weigh_keys<real, measuring, keys_are, 1>(column, key, v, base, unit, holds, sums);
  }
}

// The first block of a row: what the merge below would give, without its work. `even`: no lane saw more of this block than
// another.
template <typename real, bool measuring>
ROOTDK_INLINE void first_block(row_sums<real>& rows, int v, const block_extremes<real>& seen, const block_sums<real>& sums,
                               vec<real> mean, vec<real> deviation, bool even, int64_t keys) {
  const int at = v * simd<real>::width;
  store(rows.sum + at, sums.sum);
  if constexpr (measuring) {
    store(rows.moment + at, sums.moment);
    store(rows.square + at, sums.square);
    store(rows.cube + at, sums.cube);
    store(rows.minimum + at, seen.minimum);
    store(rows.mean + at, mean);
    store(rows.deviation + at, deviation);
    rows.alike[v] = even ? keys : -1;
    if (!even) {
      store(rows.count + at, seen.count);
      add_keys<real, false>(seen.count, rows.keys + at);
    }
  }
}

// One more block of a row. `before` and `now_base`: the row's maximum before this block, and after it.
template <typename real, bool measuring>
ROOTDK_INLINE void merge_block(row_sums<real>& rows, int v, const block_extremes<real>& seen, const block_sums<real>& sums,
                               vec<real> mean, vec<real> deviation, bool even, int64_t keys, vec<real> before,
                               vec<real> now_base, const rescale_add<real>& rescale) {
  const int at = v * simd<real>::width;
  const vec<real> zero = vec<real>{};
  const vec<real> f = rescale.before[v], g = rescale.block[v], sum_before = load(rows.sum + at);
  store(rows.sum + at, sum_before * f + sums.sum * g);
  if constexpr (measuring) {
    // Each side's moment was taken from its own maximum: move the origins, then shrink. The step is cut where its side shrinks
    // to 0: a larger one could overflow.
    const vec<real> step = at_least<real>(before - now_base, simd<real>::exp2_floor);
    const vec<real> block_step = at_least<real>(seen.maximum - now_base, simd<real>::exp2_floor);
    store(rows.moment + at, (load(rows.moment + at) + sum_before * step) * f + (sums.moment + sums.sum * block_step) * g);
    store(rows.square + at, load(rows.square + at) * (f * f) + sums.square * (g * g));
    store(rows.cube + at, load(rows.cube + at) * (f * f * f) + sums.cube * (g * g * g));
    store(rows.minimum + at, minimum(seen.minimum, load(rows.minimum + at)));
    // Chan's merge of two means and two sums of squared deviations.
    vec<real> count_before, share;
    if (likely(even && rows.alike[v] >= 0)) {
      const int64_t before_block = rows.alike[v], count = before_block + keys;
      count_before = broadcast(real(before_block));
      share = broadcast(count > 0 ? real(keys) / real(count) : real(0));
      rows.alike[v] = count;
    } else {
      rows.count_each_lane(v);
      count_before = load(rows.count + at);
      const vec<real> count = count_before + seen.count;
      share = select<real>(count > zero, seen.count / count, zero);
      store(rows.count + at, count);
      add_keys<real, true>(seen.count, rows.keys + at);
    }
    const vec<real> shift = mean - load(rows.mean + at);
    store(rows.mean + at, load(rows.mean + at) + shift * share);
    // In this order a side without keys adds 0 even where the square of a mean overflows.
    store(rows.deviation + at, load(rows.deviation + at) + deviation + shift * (count_before * share) * shift);
  }
}

// Adds the rows of `other`, which saw other keys, to `rows`. The factors say by how much each side's output must shrink.
template <typename real>
inline void merge_sums(row_sums<real>& rows, const row_sums<real>& other, int lane, bool measured, real* shrink,
                       real* other_shrink) {
  const real before = rows.maximum[lane], other_maximum = other.maximum[lane],
             now = other_maximum > before ? other_maximum : before;
  const real base = now == minus_infinity<real> ? real(0) : now;
  const real f = std::exp2(before - base), g = std::exp2(other_maximum - base);
  const real sum = rows.sum[lane];
  *shrink = f, *other_shrink = g;
  rows.maximum[lane] = now;
  rows.sum[lane] = sum * f + other.sum[lane] * g;
  if (!measured) return;  // the rest was never set
  constexpr real floor = simd<real>::exp2_floor;  // below it a side has shrunk to 0, and a larger step would overflow
  const real step = before - base > floor ? before - base : floor;
  const real other_step = other_maximum - base > floor ? other_maximum - base : floor;
  rows.moment[lane] = (rows.moment[lane] + sum * step) * f + (other.moment[lane] + other.sum[lane] * other_step) * g;
  rows.square[lane] = rows.square[lane] * (f * f) + other.square[lane] * (g * g);
  rows.cube[lane] = rows.cube[lane] * (f * f * f) + other.cube[lane] * (g * g * g);
  rows.minimum[lane] = other.minimum[lane] < rows.minimum[lane] ? other.minimum[lane] : rows.minimum[lane];
  const real count = rows.count[lane] + other.count[lane];
  const real share = count > 0 ? other.count[lane] / count : real(0), distance = other.mean[lane] - rows.mean[lane];
  rows.deviation[lane] += other.deviation[lane] + distance * (rows.count[lane] * share) * distance;
  rows.mean[lane] += distance * share;
  rows.count[lane] = count;
  rows.keys[lane] += other.keys[lane];
}

// One column of vectors in one block of keys: scores become weights relative to the block's own maximum, and the sums of the
// rows are updated. A measured column with a visible score of -inf, or one so far down that sums of distances would overflow,
// needs slow_path: without it nothing is done and the result is false. So the usual path is short.
template <typename real, bool measuring, bool slow_path, typename contents>
ROOTDK_INLINE bool softmax_column(real* column, int64_t clean, int64_t keys, row_sums<real>& rows, int v,
                                  rescale_add<real>& rescale, const contents& holds) {
  const int at = v * simd<real>::width;
  const vec<real> zero = vec<real>{}, hidden = broadcast(minus_infinity<real>);
  block_extremes<real> seen = find_extremes<real, measuring>(column, clean, keys);
  if constexpr (measuring && slow_path)
    if (any_lane<real>(seen.minimum == hidden)) {  // a visible product overflowed to -inf: it counts as hidden
      clean = 0;
      seen = find_extremes<real, measuring>(column, clean, keys);
    }
  seen.maximum = holds.logit(seen.maximum, v), seen.minimum = holds.logit(seen.minimum, v);
  if constexpr (measuring && !slow_path)
    if (unlikely(any_below(seen.minimum, far_away<real>))) return false;
  // Where nothing was seen the maximum is -inf; subtracting it would make NaN, so distances are taken from zero.
  const vec<real> base = select<real>(seen.maximum == hidden, zero, seen.maximum);

  // The factors by which the earlier sums and the sums of this block must shrink. They do not depend on the weights, and are
  // computed here: the exponentials are a long chain, for which everything would wait at the end of the block.
  const bool first = rows.fresh;
  const vec<real> before = first ? hidden : load(rows.maximum + at);
  const vec<real> now = first ? seen.maximum : maximum(seen.maximum, before);
  const vec<real> now_base = select<real>(now == hidden, zero, now);
  rescale.before[v] = first ? zero : exp2(before - now_base);
  rescale.block[v] = first ? broadcast(real(1)) : exp2(seen.maximum - now_base);
  store(rows.maximum + at, now);

  // Under a bias like the most negative float the distances would overflow their sums: such a row adds them up in smaller
  // units. Its mean is then finite, and its variance correct, infinite if need be. The rows beside it keep their units, in
  // which the squares of small distances are not lost.
  const ivec<real> far_lanes = seen.minimum < broadcast(far_away<real>);
  const bool far = measuring && slow_path && any_lane<real>(far_lanes);
  const vec<real> unit = select<real>(far_lanes, broadcast(real(0x1p-80)), broadcast(real(1)));
  block_sums<real> sums;
  // Pairs begin at even keys (blocks do too), so that the same keys are paired wherever the visible ones begin and end.
  const int64_t plain = !measuring || clean == keys ? keys : clean / 2 * 2;
  if (far) {
    weigh_range<real, measuring, far_keys>(column, 0, keys, v, base, unit, holds, sums);
  } else {
    weigh_range<real, measuring, clean_keys>(column, 0, plain, v, base, unit, holds, sums);
    if constexpr (measuring) weigh_range<real, measuring, mixed_keys>(column, plain, keys, v, base, unit, holds, sums);
  }

  const bool even = clean == keys;  // no lane saw more of this block than another
  vec<real> block_mean = zero, deviation = zero;
  if constexpr (measuring) {
    // Where all lanes count alike, one division is enough for all.
    const vec<real> inverse =
        even && keys > 0 ? broadcast(real(1) / real(keys)) : select<real>(seen.count > zero, real(1) / seen.count, zero);
    const vec<real> mean_distance = sums.distance * inverse;
    deviation = maximum(sums.distance_squared - sums.distance * mean_distance, zero);
    block_mean = base + mean_distance;
    if (far) {
      deviation = deviation / unit / unit;
      block_mean = base + mean_distance / unit;
    }
  }
  if (first)
    first_block<real, measuring>(rows, v, seen, sums, block_mean, deviation, even, keys);
  else
    merge_block<real, measuring>(rows, v, seen, sums, block_mean, deviation, even, keys, before, now_base, rescale);
  return true;
}

template <typename real, typename contents>
inline __attribute__((noinline, cold)) void slow_column(real* column, int64_t clean, int64_t keys, row_sums<real>& rows, int v,
                                                        rescale_add<real>& rescale, const contents& holds) {
  softmax_column<real, true, true>(column, clean, keys, rows, v, rescale, holds);
}

// `vectors`: how many of the panel's hold rows.
template <typename real, bool measuring, typename contents = logits_to_weights<real>>
inline __attribute__((noinline)) void softmax_block(real* scores, const block_view& view, row_sums<real>& rows,
                                                    rescale_add<real>& rescale, int vectors = panel_vectors,
                                                    const contents& holds = {}) {
  constexpr int width = simd<real>::width;
  for (int v = 0; v < vectors; ++v) {
    real* const column = scores + v * width;
    if (!softmax_column<real, measuring, false>(column, view.clean[v], view.stop[v], rows, v, rescale, holds))
      slow_column(column, view.clean[v], view.stop[v], rows, v, rescale, holds);
  }
  rows.fresh = false;
}

// With or without a Reading, as the problem asks.
template <typename real, typename contents = logits_to_weights<real>>
ROOTDK_INLINE void softmax(const attention_problem& problem, real* scores, const block_view& view, row_sums<real>& rows,
                           rescale_add<real>& rescale, int vectors = panel_vectors, const contents& holds = {}) {
  if (problem.only_reads)
    softmax_block<real, true>(scores, view, rows, rescale, vectors, without_weights<contents>{holds});
  else if (problem.reading)
    softmax_block<real, true>(scores, view, rows, rescale, vectors, holds);
  else
    softmax_block<real, false>(scores, view, rows, rescale, vectors, holds);
}

}  // namespace rootdk::ROOTDK_TARGET
