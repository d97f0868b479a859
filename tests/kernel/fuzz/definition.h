// Attention, its Reading, its gradient and its tangent as plain loops over the definition in long double, each number with the largest
// error that rounding alone can explain. weights.h tells how the weights' errors are found; from there every sum
//
//   sum_j a_j b_j   is off by at most   sum |da_j| |b_j| + |a_j| |db_j|   (what its terms bring)
//                                     + terms * u * sum |a_j b_j|         (what adding them up brings)
//
// and a stored result by one more rounding to its type. NaN and infinity take their natural course, except that a hidden
// pair is never looked at.
#pragma once

#include <map>

#include "weights.h"

namespace fuzz {

// A sum with what is needed to bound its error.
struct bounded_sum {
  exact value = 0, brought = 0, size = 0;
  void add(exact a, exact a_error, exact b, exact b_error = 0) {
    value += a * b;
    brought += a_error * std::fabs(b) + (std::fabs(a) + a_error) * b_error;
    size += (std::fabs(a) + a_error) * (std::fabs(b) + b_error);
  }
  exact error(exact units, const precision& real) const { return brought + units * (real.unit * size + real.floor); }
};

struct bounded_number {
  exact value = 0, bound = 0;
  exact by_tiles = 0;  // on top of the bound where weights enter a product as two bfloat16, which round at 2^-16
};

// What one problem must give; every list in C order.
struct expectation {
  std::vector<bounded_number> out, reading, d_query, d_key, d_value, d_bias, d_alibi, weights, moved_out;
  std::vector<int64_t> keys;
};

inline bounded_number stored(exact value, exact error, const precision& type) {
  return {value, error + type.unit * (std::fabs(value) + error) + type.floor, 0};
}

inline uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

inline exact dropout_factor(const rootdk::attention_problem& f, int64_t flat_row, int64_t key) {
  if (!(f.dropout > 0)) return 1;
  const uint64_t z = mix64(mix64(f.seed) + uint64_t(flat_row + 1) * 0x9E3779B97F4A7C15ULL);
  uint32_t x = (uint32_t(key) * 0x9E3779B1u) ^ uint32_t(z);
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x += uint32_t(z >> 32), x *= 0x846ca68bu, x ^= x >> 16;
  const double threshold = std::min(std::floor(f.dropout * 4294967296.0 + 0.5), 4294967295.0);
  return double(x) < threshold ? 0 : 1 / (1 - exact(f.dropout));
}

inline void define_output(const random_problem& p, const query_row& row, int64_t flat, bounded_number* out) {
  const rootdk::attention_problem& f = p.facts;
  const precision real = compute_precision(f.type), type = stored_precision(f.type);
  for (int64_t d = 0; d < f.d_v; ++d) {
    bounded_sum sum;
    for (const logit& x : row.seen) {
      const exact kept = dropout_factor(f, flat, x.key);
      sum.add(x.weight * kept, x.weight_error * kept, p.value.get({row.batch, row.head / f.group(), x.key, d}));
    }
    // A row that sees nothing is exactly zero.
    if (row.seen.empty()) continue;
    out[d] = stored(sum.value, sum.error(row.sum_units, real), type);
    out[d].by_tiles = std::ldexp(sum.size, -16) * (1 + type.unit);
  }
}

struct reading_writer {
  std::vector<bounded_number>& to;
  int64_t rows, flat;
  precision real;
  void operator()(rootdk::reading_field field, exact value, exact error) const {
    to[size_t(field * rows + flat)] = std::isfinite(value) ? stored(value, error, real) : bounded_number{value, 0, 0};
  }
};

// Mean and variance: every logit may be off by the largest error e, the block's mean by as much and its own rounding.
inline void define_spread(const query_row& row, exact units, const reading_writer& write) {
  const exact u = write.real.unit, n = exact(row.seen.size());
  exact sum = 0, low = infinity, low_at_least = infinity, low_at_most = infinity, high_least = -infinity, high_most = -infinity;
  exact off = 0, size = 0;
  for (const logit& x : row.seen) {
    sum += x.value, low = std::min(low, x.value), size = std::max(size, std::fabs(x.value)), off = std::max(off, x.error);
    low_at_least = std::min(low_at_least, x.value - x.error), low_at_most = std::min(low_at_most, x.value + x.error);
    high_least = std::max(high_least, x.value - x.error), high_most = std::max(high_most, x.value + x.error);
  }
  const exact mean = sum / n;
  exact variance = 0;
  for (const logit& x : row.seen) variance += (x.value - mean) * (x.value - mean) / n;
  const exact mean_error = off + (units + 4) * u * size, high = row.highest;
  write(rootdk::reading_max, high, std::max(high_most - high, high - high_least) + 3 * u * std::fabs(high));
  write(rootdk::reading_min, low, std::max(low_at_most - low, low - low_at_least) + 3 * u * std::fabs(low));
  write(rootdk::reading_mean, mean, mean_error);
  const exact range = high - low, each = off + mean_error + 2 * u * size;
  write(rootdk::reading_variance, variance, 2 * range * each + each * each + (units + 8) * u * (range + each) * (range + each));
}

inline void define_reading(const query_row& row, const reading_writer& write) {
  using namespace rootdk;
  if (row.broken) {
    for (int field = 0; field < reading_fields; ++field) write(reading_field(field), nan_value, 0);
    return;
  }
  const exact u = write.real.unit, units = 2 * row.sum_units;
  write(reading_log_sum_exp, row.log_sum_exp, row.log_sum_exp_error);
  write(reading_sink_mass, row.sink_mass, row.sink_mass_error);
  if (row.seen.empty()) {
    write(reading_max, -infinity, 0), write(reading_min, infinity, 0);
    for (const reading_field field : {reading_mean, reading_variance, reading_entropy, reading_p_squared, reading_p_cubed})
      write(field, 0, 0);
    return;
  }
  define_spread(row, units, write);
  // entropy = log of the sum - sum p (logit - peak), both of them relative to the peak. Moving the origin when the
  // maximum moves by t costs a rounding of t 2^-t times the sum, less than one: hence the 1 in `size`.
  bounded_sum square, cube, moment;
  const exact peak_error = 2 * row.log_sum_exp_error;
  const auto outcome = [&](exact weight, exact error, exact value, exact value_error) {
    const exact distance = value - row.peak;
    moment.add(weight, error, distance, (value_error + peak_error) * (weight > 0 || error > 1e-30L ? 1 : 0));
  };
  for (const logit& x : row.seen) {
    outcome(x.weight, x.weight_error, x.value, x.error);
    square.add(x.weight, x.weight_error, x.weight, x.weight_error);
    cube.add(x.weight * x.weight, (2 * x.weight + x.weight_error) * x.weight_error, x.weight, x.weight_error);
  }
  if (row.has_sink) outcome(row.sink_mass, row.sink_mass_error, row.sink, 3 * u * std::fabs(row.sink));
  const exact log_of_sum = row.log_sum_exp - row.peak;
  moment.size += 1;
  write(reading_entropy, log_of_sum - moment.value,
        row.log_sum_exp_error + 2 * u * log_of_sum + moment.error(units, write.real));
  write(reading_p_squared, square.value, square.error(units, write.real));
  write(reading_p_cubed, cube.value, cube.error(units, write.real));
}

// What every number of d_bias is the sum of, by where it lies: pairs that share a number share its sum.
struct bias_sums {
  struct terms {
    bounded_sum sum;
    int64_t count = 0;
  };
  std::map<const char*, terms> at;
  void add(const char* place, exact value, exact error) {
    terms& t = at[place];
    t.sum.add(value, error, 1), ++t.count;
  }
};

// One row's part of the gradients.
inline void define_row_gradient(const random_problem& p, const query_row& row, int64_t flat, const bounded_number* out,
                                bounded_number* d_query, std::vector<bounded_sum>& d_key, std::vector<bounded_sum>& d_value,
                                bias_sums& d_bias, bounded_sum& d_alibi) {
  const rootdk::attention_problem& f = p.facts;
  const precision real = compute_precision(f.type);
  const exact u = real.unit;
  const int64_t kv_head = row.head / f.group(), first_key = (row.batch * f.kv_heads + kv_head) * f.n_key;
  const auto upstream = [&](int64_t d) { return p.d_out.get({row.batch, row.head, row.query, d}); };
  bounded_sum delta;  // <d_out, out>, with out as it was stored
  for (int64_t d = 0; d < f.d_v; ++d) delta.add(out[d].value, out[d].bound, upstream(d));
  const exact delta_error = delta.error(exact(f.d_v + 2), real);
  std::vector<bounded_sum> sums(static_cast<size_t>(f.d_k));
  for (const logit& x : row.seen) {
    const exact kept = dropout_factor(f, flat, x.key);
    bounded_sum d_weight;
    for (int64_t d = 0; d < f.d_v; ++d) {
      d_weight.add(upstream(d), 0, p.value.get({row.batch, kv_head, x.key, d}));
      d_value[size_t((first_key + x.key) * f.d_v + d)].add(x.weight * kept, x.weight_error * kept, upstream(d));
    }
    const exact difference = kept * d_weight.value - delta.value;
    const exact off = kept * d_weight.error(exact(f.d_v + 4), real) + delta_error + 2 * u * std::fabs(difference);
    bounded_sum d_logit, d_score;
    d_logit.add(x.weight, x.weight_error, difference, off);
    if (f.d_bias.data) d_bias.add(p.d_bias.at({row.batch, row.head, row.query, x.key}), d_logit.value, d_logit.error(2, real));
    const exact away = f.d_alibi ? distance(f, row.batch, row.query, x.key) : 0;
    d_alibi.add(d_logit.value, d_logit.error(2, real), -away, 2 * u * away);
    d_score.add(d_logit.value, d_logit.error(2, real), x.slope, x.slope_error);
    const exact gradient = d_score.value, gradient_error = d_score.error(3, real);
    for (int64_t d = 0; d < f.d_k; ++d) {
      const exact q = p.query.get({row.batch, row.head, row.query, d}), k = p.key.get({row.batch, kv_head, x.key, d});
      sums[size_t(d)].add(gradient, gradient_error, row.factor * k);
      d_key[size_t((first_key + x.key) * f.d_k + d)].add(gradient, gradient_error, row.factor * q, real.floor);
    }
  }
  // Products too small to be kept are lost before the factor is applied.
  const exact lost = row.sum_units * real.floor * std::fabs(row.factor);
  for (size_t d = 0; d < sums.size(); ++d)
    d_query[d] = stored(sums[d].value, sums[d].error(row.sum_units, real) + lost, stored_precision(f.type));
}

// Every weight, or, where the queries share, the sum of those of a key: in the first query's place then, and 0 elsewhere.
inline void define_weights(const random_problem& p, const query_row& row, std::vector<bounded_sum>& sums) {
  const rootdk::attention_problem& f = p.facts;
  const int64_t query = f.weights.query_stride == 0 ? 0 : row.query;
  for (const logit& x : row.seen)
    sums[size_t(((row.batch * f.heads + row.head) * f.n_query + query) * f.n_key + x.key)].add(x.weight, x.weight_error, 1);
}

// The tangent of a visible logit: its products as a logit's, then the softcap's slope, then that of the bias.
inline bounded_number define_moved_logit(const random_problem& p, const query_row& row, const logit& x) {
  const rootdk::attention_problem& f = p.moved;
  const precision real = compute_precision(f.type);
  const exact u = real.unit, row_factor = f.row_scale ? f.row_scale[row.batch * f.n_query + row.query] : 1.0;
  const exact scale_factor = exact(f.scale_tangent) * row_factor;
  const int64_t kv_head = row.head / f.group();
  exact moved = 0, size = 0, tiny = 0;
  for (int64_t d = 0; d < f.d_k; ++d) {
    const exact q = p.query.get({row.batch, row.head, row.query, d}), k = p.key.get({row.batch, kv_head, x.key, d});
    const exact d_q = f.d_query.data ? p.moved_query.get({row.batch, row.head, row.query, d}) : 0;
    const exact d_k = f.d_key.data ? p.moved_key.get({row.batch, kv_head, x.key, d}) : 0;
    exact terms[3] = {0, 0, 0};  // only what moves: 0 times an infinity that nobody multiplies would be NaN
    if (f.d_query.data) terms[0] = row.factor * d_q * k;
    if (f.d_key.data) terms[1] = row.factor * q * d_k;
    if (f.scale_tangent != 0) terms[2] = scale_factor * q * k;
    for (const exact term : terms) moved += term, size += std::fabs(term);
    tiny += 1 + 2 * std::fabs(k) + std::fabs(d_k);  // packed numbers, and products, too small to be kept
  }
  const exact error = exact(2 * f.d_k + 10) * u * size + real.floor * 2 * tiny;
  bounded_sum sloped;
  sloped.add(moved, error, x.slope, x.slope_error);
  bounded_number result{sloped.value, sloped.error(2, real), 0};
  if (f.alibi_tangent) {
    const exact lost = exact(f.alibi_tangent[row.batch * f.heads + row.head]) * distance(f, row.batch, row.query, x.key);
    result.value -= lost, result.bound += 6 * u * std::fabs(lost) + 2 * u * std::fabs(result.value);
  }
  if (f.d_bias.data) {
    const exact bias = p.moved_bias.get({row.batch, row.head, row.query, x.key});
    result.value += bias, result.bound += 4 * u * std::fabs(bias) + 2 * u * std::fabs(result.value);
  }
  return result;
}

// sum w ds v + w dv - m o, each of the sums with its own error.
inline void define_moved_row(const random_problem& p, const query_row& row, int64_t flat, bounded_number* moved_out) {
  const rootdk::attention_problem& f = p.moved;
  const precision real = compute_precision(f.type), type = stored_precision(f.type);
  const exact u = real.unit, units = row.sum_units + 4;
  const int64_t kv_head = row.head / f.group();
  if (row.seen.empty()) return;
  const bool moves = f.d_query.data || f.d_key.data || f.d_bias.data || f.alibi_tangent || f.scale_tangent != 0;
  std::vector<bounded_number> d_logits;
  bounded_sum mean;
  for (const logit& x : row.seen) {
    d_logits.push_back(moves ? define_moved_logit(p, row, x) : bounded_number{});
    if (moves) mean.add(x.weight, x.weight_error, d_logits.back().value, d_logits.back().bound);
  }
  if (f.sinks_tangent)
    mean.add(row.sink_mass, row.sink_mass_error, f.sinks_tangent[row.head], u * std::fabs(exact(f.sinks_tangent[row.head])));
  const exact mean_error = mean.error(units, real);
  for (int64_t d = 0; d < f.d_v; ++d) {
    bounded_sum moved, out;
    for (size_t i = 0; i < row.seen.size(); ++i) {
      const logit& x = row.seen[i];
      const exact kept = dropout_factor(f, flat, x.key), v = p.value.get({row.batch, kv_head, x.key, d});
      const bounded_number& d_logit = d_logits[i];
      if (moves) {
        bounded_sum weighed;
        weighed.add(x.weight * kept, x.weight_error * kept, d_logit.value, d_logit.bound);
        moved.add(weighed.value, weighed.error(3, real), v);
      }
      if (f.d_value.data) moved.add(x.weight * kept, x.weight_error * kept, p.moved_value.get({row.batch, kv_head, x.key, d}));
      out.add(x.weight * kept, x.weight_error * kept, v);
    }
    bounded_sum taken;
    taken.add(mean.value, mean_error, out.value, out.error(units, real));
    const exact value = moved.value - taken.value;
    const exact error = moved.error(2 * units, real) + taken.error(3, real) + 4 * u * (moved.size + taken.size);
    moved_out[d] = stored(value, error, type);
  }
}

inline expectation define(const random_problem& p) {
  const rootdk::attention_problem& f = p.facts;
  const precision real = compute_precision(f.type), type = stored_precision(f.type);
  expectation e;
  e.out.resize(size_t(f.rows() * f.d_v)), e.d_query.resize(size_t(f.rows() * f.d_k));
  e.moved_out.resize(size_t(f.rows() * f.d_v));
  e.reading.resize(f.reading ? size_t(rootdk::reading_fields * f.rows()) : 0);
  std::vector<bounded_sum> d_key(size_t(f.batch * f.kv_heads * f.n_key * f.d_k));
  std::vector<bounded_sum> d_value(size_t(f.batch * f.kv_heads * f.n_key * f.d_v));
  bias_sums d_bias;
  std::vector<bounded_sum> d_alibi(size_t(f.batch * f.heads));
  std::vector<bounded_sum> weights(f.weights.data ? size_t(f.rows() * f.n_key) : 0);
  for (int64_t flat = 0; flat < f.rows(); ++flat) {
    const int64_t pair = flat / f.n_query;
    const query_row row = define_row(p, pair / f.heads, pair % f.heads, flat % f.n_query);
    bounded_number* out = e.out.data() + flat * f.d_v;
    define_output(p, row, flat, out);
    if (f.weights.data) define_weights(p, row, weights);
    if (f.reading) define_reading(row, {e.reading, f.rows(), flat, real});
    e.keys.push_back(int64_t(row.seen.size()));
    if (p.with_tangent) define_moved_row(p, row, flat, e.moved_out.data() + flat * f.d_v);
    if (p.with_backward)
      define_row_gradient(p, row, flat, out, e.d_query.data() + flat * f.d_k, d_key, d_value, d_bias, d_alibi[size_t(pair)]);
  }
  const exact units = exact(f.group() * f.n_query + 8);
  for (const bounded_sum& sum : weights) e.weights.push_back(stored(sum.value, sum.error(exact(f.n_query + 4), real), real));
  for (const bounded_sum& sum : d_key) e.d_key.push_back(stored(sum.value, sum.error(units, real), type));
  for (const bounded_sum& sum : d_value) e.d_value.push_back(stored(sum.value, sum.error(units, real), type));
  if (f.d_alibi)
    for (const bounded_sum& sum : d_alibi) e.d_alibi.push_back(stored(sum.value, sum.error(exact(f.n_key + 8), real), real));
  if (f.d_bias.data)
    p.d_bias.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
      const auto found = d_bias.at.find(p.d_bias.at({b, h, i, j}));
      if (found == d_bias.at.end()) {  // every pair that reads it is hidden: exactly zero
        e.d_bias.push_back({});
        return;
      }
      const exact error = found->second.sum.error(exact(found->second.count + 4), real);
      e.d_bias.push_back(stored(found->second.sum.value, error, real));
    });
  return e;
}

}  // namespace fuzz
