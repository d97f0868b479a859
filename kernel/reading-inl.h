// The end of a row: a sink is added to its sums, and they become the numbers of a Reading.

namespace rootdk::ROOTDK_TARGET {

// A sink is one more logit in the denominator. Called once, after the last block: it can raise the row's maximum like any other
// score, and returns the factor by which the earlier sums must shrink. Without keys the sink takes all the weight.
template <typename real>
inline real add_sink(real sink_log2, int lane, row_sums<real>& rows, real* sink_weight) {
  const real before = rows.maximum[lane], now = sink_log2 > before ? sink_log2 : before;
  if (now == minus_infinity<real>) {
    *sink_weight = 0;
    return 1;
  }
  rows.maximum[lane] = now;
  const real shrink = std::exp2(before - now);
  *sink_weight = std::exp2(sink_log2 - now);
  // Steps are cut at the floor: a larger one could overflow while its factor is 0.
  constexpr real floor = simd<real>::exp2_floor;
  const real step = before - now > floor ? before - now : floor;
  const real sink_step = sink_log2 - now > floor ? sink_log2 - now : floor;
  rows.moment[lane] = (rows.moment[lane] + rows.sum[lane] * step) * shrink + *sink_weight * sink_step;
  rows.sum[lane] = rows.sum[lane] * shrink + *sink_weight;
  // One factor after the other: their product alone could be 0 while its product with a sum over many keys is not.
  rows.square[lane] = rows.square[lane] * shrink * shrink;
  rows.cube[lane] = rows.cube[lane] * shrink * shrink * shrink;
  return shrink;
}

// The finished rows of a panel, in natural units. `scores_maximum` is the largest key's, without the sink, and `sink` is the
// sink as it was given; without one rows.normalise is 1 / sum. Few divisions: with 128 keys the end of a row takes a noticeable
// time.
template <typename real>
ROOTDK_INLINE void write_readings(const attention_problem& problem, const panel<real>& p, row_sums<real>& rows,
                                  const real* scores_maximum, const real* sink, const real* sink_weight) {
  constexpr int width = simd<real>::width;
  const vec<real> zero = vec<real>{};
  const real ln2 = real(ln_2);
  // The largest floats stay as they are: they only come from bias_log2, which is bounded by them.
  const auto natural = [&](vec<real> x) __attribute__((always_inline)) {
    if (!problem.bias.data) return x * ln2;
    const vec<real> largest = broadcast(std::numeric_limits<real>::max());
    return select<real>((x == largest) | (x == -largest), x, x * ln2);
  };
  // Taken out of the problem once: after every store the compiler would read and multiply them anew.
  real* const reading = static_cast<real*>(problem.reading) + p.flat;
  int64_t* const keys = problem.keys + p.flat;
  const int64_t all_rows = problem.rows();
  const int64_t live = p.live;
  const bool sinks = problem.sinks;
  const auto at_line = [](const void* place) { return reinterpret_cast<uintptr_t>(place) % vector_bytes == 0; };
  const bool streams = can_stream && at_line(reading) && at_line(reading + all_rows);
  for (int at = 0; at < live; at += width) {  // a vector without rows may hold anything
    const int64_t alike = rows.alike[at / width];
    const vec<real> sum = load(rows.sum + at), count = alike < 0 ? load(rows.count + at) : broadcast(real(alike));
    const vec<real> inverse_count = alike > 0 ? broadcast(1 / real(alike)) : real(1) / count;
    const vec<real> log_sum = select<real>(sum > zero, log<real>(sum), zero);
    const vec<real> inverse = select<real>(sum > zero, sinks ? real(1) / sum : load(rows.normalise + at), zero);
    // Rounding can leave a number slightly below zero where one key holds all the weight.
    const vec<real> entropy = log_sum - load(rows.moment + at) * inverse * ln2;
    const vec<real> variance = load(rows.deviation + at) * inverse_count * (ln2 * ln2);
    vec<real> field[reading_fields];
    const vec<real> peak = load(rows.maximum + at), key_peak = load(scores_maximum + at);
    // In units of log2 the largest sinks are out of range, and stay as they were given.
    const vec<real> level = sinks ? select<real>(peak > key_peak, load(sink + at), natural(peak)) : natural(peak);
    field[reading_log_sum_exp] = level + log_sum;
    field[reading_max] = natural(key_peak);
    field[reading_min] = natural(load(rows.minimum + at));
    field[reading_mean] = load(rows.mean + at) * ln2;
    field[reading_variance] = select<real>(count > zero, variance, zero);
    field[reading_entropy] = select<real>(entropy < zero, zero, entropy);
    field[reading_p_squared] = load(rows.square + at) * inverse * inverse;
    field[reading_p_cubed] = load(rows.cube + at) * inverse * inverse * inverse;
    field[reading_sink_mass] = load(sink_weight + at) * inverse;
    // NaN or +inf among the visible logits reached the sum: then no number of that row is meaningful.
    const ivec<real> unsound = (sum - sum) != zero;
    if (any_lane<real>(unsound))
      for (vec<real>& x : field) x = select<real>(unsound, broadcast(std::numeric_limits<real>::quiet_NaN()), x);
    if (streams && at + width <= live) {
      for (int i = 0; i < reading_fields; ++i) stream(reading + i * all_rows + at, field[i]);
    } else if (at + width <= live) {
      for (int i = 0; i < reading_fields; ++i) store(reading + i * all_rows + at, field[i]);
    } else {
      alignas(64) real part[width];
      for (int i = 0; i < reading_fields; ++i) {
        store<real>(part, field[i]);
        for (int lane = 0; at + lane < live; ++lane) reading[i * all_rows + at + lane] = part[lane];
      }
    }
  }
  rows.count_each_lane();
  int lane = 0;
  if (can_stream && at_line(keys))
    for (; lane + simd<double>::width <= live; lane += simd<double>::width)
      stream(keys + lane, load_int<double>(rows.keys + lane));
  for (; lane < live; ++lane) keys[lane] = rows.keys[lane];
}

}  // namespace rootdk::ROOTDK_TARGET
