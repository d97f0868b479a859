// The online softmax of a panel, and what a Reading measures along the way. Scores are in units of log2.
//
// Everything that is kept is relative to the running maximum or to a block's own mean, so nothing cancels: the plain sum
// of squares in float32 would lose the variance of logits that sit far from zero.

namespace rootdk::ROOTDK_TARGET {

template <typename real>
struct row_sums {
  static constexpr int lanes = panel_lanes<real>;
  alignas(64) real maximum[lanes];   // of the scores so far
  alignas(64) real sum[lanes];       // of e = 2^(score - maximum)
  // The rest only when measuring.
  alignas(64) real minimum[lanes];
  alignas(64) int64_t keys[lanes];    // exact, where a float would stop counting at 2^24
  alignas(64) real count[lanes];      // the same, as a number to divide with
  alignas(64) real mean[lanes];
  alignas(64) real deviation[lanes];  // sum of (score - mean)^2
  alignas(64) real moment[lanes];     // sum of e * (score - maximum)
  alignas(64) real square[lanes];     // sum of e^2
  alignas(64) real cube[lanes];       // sum of e^3

  void reset() {
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
  vec<real> maximum, minimum, sum, count;
};

// First look at one column of vectors. Four chains, because a maximum takes four cycles and two can start in each.
template <typename real, bool measuring, bool mixed>
ROOTDK_INLINE block_extremes<real> look(const real* column, int64_t keys) {
  constexpr int lanes = panel_lanes<real>, chains = 4;
  vec<real> high[chains], low[chains], sum[chains], count[chains];
  for (int c = 0; c < chains; ++c) {
    high[c] = broadcast(minus_infinity<real>);
    low[c] = broadcast(-minus_infinity<real>);
    sum[c] = count[c] = vec<real>{};
  }
  const auto take = [&](int c, int64_t key) __attribute__((always_inline)) {
    const vec<real> score = load(column + key * lanes);
    high[c] = maximum(score, high[c]);
    if constexpr (measuring) {
      if constexpr (mixed) {
        const ivec<real> hidden = score == broadcast(minus_infinity<real>);
        low[c] = minimum(select<real>(hidden, low[c], score), low[c]);
        sum[c] += select<real>(hidden, vec<real>{}, score);
        count[c] += select<real>(hidden, vec<real>{}, broadcast(real(1)));
      } else {
        low[c] = minimum(score, low[c]);
        sum[c] += score;
      }
    }
  };
  int64_t key = 0;
  for (; key + chains <= keys; key += chains)
    for (int c = 0; c < chains; ++c) take(c, key + c);
  for (; key < keys; ++key) take(0, key);
  block_extremes<real> seen{maximum(maximum(high[0], high[1]), maximum(high[2], high[3])),
                            minimum(minimum(low[0], low[1]), minimum(low[2], low[3])),
                            (sum[0] + sum[1]) + (sum[2] + sum[3]), (count[0] + count[1]) + (count[2] + count[3])};
  if constexpr (measuring && !mixed) seen.count = broadcast(real(keys));
  return seen;
}

// One column of vectors in one block of keys: scores become weights relative to the new maximum, the sums move on, and
// the result says by how much everything that was summed before must shrink. `mixed`: some scores are -inf.
template <typename real, bool measuring, bool mixed>
ROOTDK_INLINE vec<real> softmax_column(real* column, int64_t keys, const block_extremes<real>& seen, row_sums<real>& rows,
                                       int at) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const vec<real> nowhere = broadcast(minus_infinity<real>);
  const vec<real> before = load(rows.maximum + at);
  const vec<real> now = maximum(seen.maximum, before);
  // A row that has seen nothing keeps -inf; subtracting it would make NaN, so it is measured from zero.
  const vec<real> base = select<real>(now == nowhere, vec<real>{}, now);
  const vec<real> shrink = exp2(before - base);
  const vec<real> block_mean = select<real>(seen.count > vec<real>{}, seen.sum / seen.count, vec<real>{});

  vec<real> sum = vec<real>{}, moment = vec<real>{}, square = vec<real>{}, cube = vec<real>{}, deviation = vec<real>{};
  for (int64_t key = 0; key < keys; ++key) {
    const vec<real> score = load(column + key * lanes);
    const vec<real> relative = score - base;
    const vec<real> e = exp2(relative);
    store(column + key * lanes, e);
    sum += e;
    if constexpr (measuring) {
      // Hidden, e is 0 and the distance infinite: bounded, it adds 0.
      moment += e * (mixed ? at_least<real>(relative, simd<real>::exp2_floor) : relative);
      const vec<real> e_squared = e * e;
      square += e_squared;
      cube += e_squared * e;
      vec<real> from_mean = score - block_mean;
      if constexpr (mixed) from_mean = select<real>(score == nowhere, vec<real>{}, from_mean);
      deviation += from_mean * from_mean;
    }
  }

  store(rows.maximum + at, now);
  const vec<real> sum_before = load(rows.sum + at);
  store(rows.sum + at, sum_before * shrink + sum);
  if constexpr (measuring) {
    // The old moment was taken from the old maximum: move its origin, then shrink.
    const vec<real> step = select<real>(before == nowhere, vec<real>{}, before - base);
    store(rows.moment + at, (load(rows.moment + at) + sum_before * step) * shrink + moment);
    store(rows.square + at, load(rows.square + at) * (shrink * shrink) + square);
    store(rows.cube + at, load(rows.cube + at) * (shrink * shrink * shrink) + cube);
    store(rows.minimum + at, minimum(seen.minimum, load(rows.minimum + at)));
    // Chan's merge of two means and two sums of squared deviations.
    const vec<real> count_before = load(rows.count + at), count = count_before + seen.count;
    const vec<real> distance = block_mean - load(rows.mean + at);
    const vec<real> share = select<real>(count > vec<real>{}, seen.count / count, vec<real>{});
    store(rows.mean + at, load(rows.mean + at) + distance * share);
    store(rows.deviation + at,
          load(rows.deviation + at) + deviation + distance * distance * (count_before * share));
    store(rows.count + at, count);
    for (int lane = 0; lane < width; ++lane) rows.keys[at + lane] += int64_t(seen.count[lane]);
  }
  return shrink;
}

template <typename real>
ROOTDK_INLINE bool any_lane(ivec<real> condition) {
  lane_int<real> any = 0;
  for (int lane = 0; lane < simd<real>::width; ++lane) any |= condition[lane];
  return any != 0;
}

template <typename real, bool measuring>
inline __attribute__((noinline)) void softmax_block(real* scores, int64_t keys, row_sums<real>& rows, vec<real>* rescale) {
  constexpr int width = simd<real>::width;
  for (int v = 0; v < panel_vectors; ++v) {
    real* column = scores + v * width;
    block_extremes<real> seen = look<real, measuring, false>(column, keys);
    // Unmeasured, a hidden key needs no care: its weight is 0. Measured, it must stay out of mean, minimum and count.
    if (measuring && any_lane<real>(seen.minimum == broadcast(minus_infinity<real>))) {
      seen = look<real, measuring, true>(column, keys);
      rescale[v] = softmax_column<real, measuring, true>(column, keys, seen, rows, v * width);
    } else {
      rescale[v] = softmax_column<real, measuring, false>(column, keys, seen, rows, v * width);
    }
  }
}

// A sink is one more logit in the denominator. Called once, after the last block: it moves the row's maximum like any
// other score, and returns by how much what was summed before must shrink. Without keys the sink takes everything.
template <typename real>
inline real add_sink(real sink_log2, int lane, row_sums<real>& rows, real* sink_weight) {
  const real before = rows.maximum[lane], now = sink_log2 > before ? sink_log2 : before;
  if (now == minus_infinity<real>) {
    *sink_weight = 0;
    return 1;
  }
  const real shrink = std::exp2(before - now);
  *sink_weight = std::exp2(sink_log2 - now);
  const real step = before == minus_infinity<real> ? real(0) : before - now;
  rows.moment[lane] = (rows.moment[lane] + rows.sum[lane] * step) * shrink + *sink_weight * (sink_log2 - now);
  rows.sum[lane] = rows.sum[lane] * shrink + *sink_weight;
  rows.square[lane] *= shrink * shrink;
  rows.cube[lane] *= shrink * shrink * shrink;
  return shrink;
}

// The finished row, in natural units. `scores_maximum` is the largest key's, the sink apart.
template <typename real>
inline void write_reading(const attention_problem& problem, const row_sums<real>& rows, int lane, int64_t flat,
                          real scores_maximum, real sink_weight) {
  const int64_t field_stride = problem.rows();
  real* to = static_cast<real*>(problem.reading) + flat;
  const auto write = [&](reading_field field, real x) { to[field * field_stride] = x; };
  const real sum = rows.sum[lane], count = rows.count[lane];
  problem.keys[flat] = rows.keys[lane];
  if (!(sum - sum == 0)) {  // NaN or +inf among the visible logits: no number of this row means anything
    for (int field = 0; field < reading_fields; ++field) to[field * field_stride] = std::numeric_limits<real>::quiet_NaN();
    return;
  }
  const real ln2 = real(ln_2);
  const real inverse = sum > 0 ? 1 / sum : 0;
  const real log_sum = sum > 0 ? std::log(sum) : 0;
  write(reading_log_sum_exp, rows.maximum[lane] * ln2 + log_sum);
  write(reading_max, scores_maximum * ln2);
  write(reading_min, rows.minimum[lane] * ln2);
  write(reading_mean, rows.mean[lane] * ln2);
  write(reading_variance, count > 0 ? rows.deviation[lane] / count * (ln2 * ln2) : 0);
  // Rounding can leave a hair below zero where one key holds all the weight.
  const real entropy = log_sum - rows.moment[lane] * inverse * ln2;
  write(reading_entropy, entropy > 0 ? entropy : 0);
  write(reading_p_squared, rows.square[lane] * inverse * inverse);
  write(reading_p_cubed, rows.cube[lane] * inverse * inverse * inverse);
  write(reading_sink_mass, sink_weight * inverse);
}

}  // namespace rootdk::ROOTDK_TARGET
