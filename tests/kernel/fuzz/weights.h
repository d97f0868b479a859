// One query row by the definition: its logits, its weights, and between which limits a computed weight may lie.
//
// How far may the kernel be off? Its rounding is followed step by step, u being the unit roundoff of the type that it
// computes in. Nothing here is fitted to what the kernel returns; constants count operations, rounded up.
//
//   q * factor, then d_k multiply-adds        (d_k + 4) u * |factor| sum |q_d k_d|
//   tanh                                      the argument's error (its slope is at most 1) + tanh_units u |t|
//   distance: rounded twice, times a slope    8 u |slope| distance + 2 u |logit|
//   bias: rounded, times log2(e), added       3 u |bias| + 2 u |logit|
//
// That is the error of a logit. A weight is 2^(logit - maximum) over a sum of such, so an error of the logits moves it
// within limits that follow from the definition itself: p_j is largest when logit j is as high as it may be and all
// others as low. The subtraction adds u |distance|, exp2 and each rescaling by a moved maximum exp2_units u; both act
// like errors of the logit.
#pragma once

#include <algorithm>

#include "problem.h"

namespace fuzz {

// exp2: the polynomial (at most 1.4 u), its last three steps and the scaling (4 u), the multiplication it enters (1 u).
constexpr int exp2_units = 8;
// tanh = -m / (2 + m), m = exp2(.) - 1. m is at least 0.29 in size where it is a difference, so exp2's error counts
// 0.71 / 0.29 times and the exponent's own once more; then a sum and a quotient.
constexpr int tanh_units = 24;

struct logit {
  int64_t key;
  exact value, error;
  exact slope = 1, slope_error = 0;  // of the softcap
  exact weight = 0, weight_error = 0;
};

// log(sum of exp(x)), and the same without one of the terms, without cancellation at the largest.
class log_sum {
 public:
  explicit log_sum(const std::vector<exact>& terms) : terms_(terms) {
    for (size_t i = 0; i < terms.size(); ++i)
      if (top_ == none || terms[i] > terms[top_]) top_ = i;
    second_ = -infinity;
    for (size_t i = 0; i < terms.size(); ++i)
      if (i != top_) second_ = std::max(second_, terms[i]);
    for (size_t i = 0; i < terms.size(); ++i)
      if (i != top_ && second_ > -infinity) rest_ += std::exp(terms[i] - second_);
  }
  exact all() const { return top_ == none ? -infinity : terms_[top_] + std::log1p(rest_over_top()); }
  exact without(size_t i) const {
    if (i == top_) return rest_ > 0 ? second_ + std::log(rest_) : -infinity;
    const exact share = rest_over_top() - std::exp(terms_[i] - terms_[top_]);
    return terms_[top_] + std::log1p(std::max(share, exact(0)));
  }
  bool wins(size_t i, const log_sum& lowest) const { return i == top_ && lowest.terms_[i] > second_; }

 private:
  static constexpr size_t none = size_t(-1);
  exact rest_over_top() const { return rest_ > 0 ? rest_ * std::exp(second_ - terms_[top_]) : 0; }
  const std::vector<exact>& terms_;
  size_t top_ = none;
  exact second_, rest_ = 0;
};

struct query_row {
  int64_t batch, head, query;
  exact factor;                // scale * row_scale
  std::vector<logit> seen;     // visible pairs only
  bool broken = false;         // NaN or +inf among them
  bool has_sink = false;
  exact sink = 0, sink_mass = 0, sink_mass_error = 0;
  exact highest = -infinity;   // of the keys
  exact peak = -infinity;      // of keys and sink
  exact log_sum_exp = -infinity, log_sum_exp_error = 0;
  exact sum_units = 0;         // roundings of a sum over the keys, block by block, and of the division by it
};

inline int64_t query_position(const rootdk::attention_problem& f, int64_t batch, int64_t query) {
  if (f.query_position) return f.query_position[batch * f.n_query + query];
  return query + (f.query_offset ? f.query_offset[batch] : 0);
}
inline int64_t key_position(const rootdk::attention_problem& f, int64_t batch, int64_t key) {
  return f.key_position ? f.key_position[batch * f.n_key + key] : key;
}

inline bool within_limits(const rootdk::attention_problem& f, int64_t batch, int64_t query, int64_t key) {
  if (f.key_segment && f.key_segment[batch * f.n_key + key] != f.query_segment[batch * f.n_query + query]) return false;
  const int64_t at = key_position(f, batch, key), position = query_position(f, batch, query);
  if (f.left >= 0 && at < position - f.left) return false;
  if (f.right >= 0 && at > position + f.right) return false;
  return !f.key_length || key < f.key_length[batch];
}

inline exact distance(const rootdk::attention_problem& f, int64_t batch, int64_t query, int64_t key) {
  return exact(std::llabs(query_position(f, batch, query) - key_position(f, batch, key)));
}

inline logit compute_logit(const random_problem& p, const query_row& row, int64_t key) {
  const rootdk::attention_problem& f = p.facts;
  const precision real = compute_precision(f.type);
  const exact u = real.unit;
  const int64_t kv_head = row.head / f.group();
  exact dot = 0, size = 0, key_size = 0;
  for (int64_t d = 0; d < f.d_k; ++d) {
    const exact q = p.query.get({row.batch, row.head, row.query, d}), k = p.key.get({row.batch, kv_head, key, d});
    dot += q * k, size += std::fabs(q * k), key_size += std::fabs(k);
  }
  logit x{key, row.factor * dot, exact(f.d_k + 4) * u * std::fabs(row.factor) * size};
  x.error += real.floor * (exact(f.d_k) + key_size);  // products too small to be kept
  if (f.softcap > 0) {
    const exact t = std::tanh(x.value / f.softcap);
    const exact t_error = std::min(exact(2), x.error / f.softcap + tanh_units * u * std::fabs(t));
    x.value = f.softcap * t, x.error = f.softcap * t_error + 3 * u * std::fabs(x.value);
    x.slope = 1 - t * t, x.slope_error = std::min(exact(1), 2 * std::fabs(t) * t_error + t_error * t_error) + 2 * u;
  }
  if (f.alibi) {
    const exact lost = exact(f.alibi[row.batch * f.heads + row.head]) * distance(f, row.batch, row.query, key);
    x.value -= lost, x.error += 8 * u * std::fabs(lost) + 2 * u * std::fabs(x.value);
  }
  if (f.bias.data) {
    const exact bias = p.bias.get({row.batch, row.head, row.query, key});
    x.value += bias, x.error += 3 * u * std::fabs(bias) + 2 * u * std::fabs(x.value);
  }
  return x;
}

inline void find_logits(const random_problem& p, query_row& row) {
  const rootdk::attention_problem& f = p.facts;
  for (int64_t key = 0; key < f.n_key; ++key) {
    if (!within_limits(f, row.batch, row.query, key)) continue;
    if (f.mask.data && !*p.mask.at({row.batch, row.head, row.query, key})) continue;
    if (f.bias.data && p.bias.get({row.batch, row.head, row.query, key}) == -infinity) continue;
    const logit x = compute_logit(p, row, key);
    if (x.value == -infinity) continue;
    row.broken |= std::isnan(x.value) || x.value == infinity;
    row.highest = std::max(row.highest, x.value);
    row.seen.push_back(x);
  }
}

inline void find_weights(const random_problem& p, query_row& row) {
  const precision real = compute_precision(p.facts.type);
  const exact u = real.unit;
  const int64_t blocks = p.facts.n_key / rootdk::current_target().key_block + 2;
  row.sum_units = exact(p.facts.n_key + 2 * blocks + 8);
  row.peak = row.has_sink ? std::max(row.sink, row.highest) : row.highest;
  if (row.broken) {
    for (logit& x : row.seen) x.weight = nan_value;
    return;
  }
  exact top_error = row.has_sink ? 3 * u * std::fabs(row.sink) : 0;
  for (const logit& x : row.seen) top_error = std::max(top_error, x.error);

  std::vector<exact> value, low, high, rounding;
  const auto term = [&](exact s, exact error) {
    rounding.push_back(2 * u * (row.peak - s + error + top_error) + exp2_units * u * exact(blocks));
    value.push_back(s), low.push_back(s - error - rounding.back()), high.push_back(s + error + rounding.back());
  };
  for (const logit& x : row.seen) term(x.value, x.error);
  if (row.has_sink) term(row.sink, 3 * u * std::fabs(row.sink));
  const log_sum middle(value), lowest(low), highest(high);
  row.log_sum_exp = middle.all();
  row.log_sum_exp_error = std::max(highest.all() - row.log_sum_exp, row.log_sum_exp - lowest.all()) + row.sum_units * u +
                          4 * u * (std::fabs(row.peak) + std::fabs(row.log_sum_exp));

  const auto share = [](exact mine, exact others) {
    return others == -infinity ? exact(1) : 1 / (1 + std::exp(others - mine));
  };
  const auto weigh = [&](size_t i, exact& weight, exact& error) {
    weight = share(value[i], middle.without(i));
    // Backward rounds anew, with the same logits: once more the rounding. A certain winner is subtracted from itself.
    const exact again = 2 * (highest.wins(i, lowest) ? exp2_units * u * exact(blocks) : rounding[i]);
    const exact most = std::min(exact(1), share(high[i], lowest.without(i)) * std::exp(again)) * (1 + row.sum_units * u);
    const exact least = share(low[i], highest.without(i)) * std::exp(-again) * (1 - row.sum_units * u);
    error = std::max(most - weight, weight - least) + 4 * real.floor;  // below the normal numbers a weight becomes 0
  };
  for (size_t i = 0; i < row.seen.size(); ++i) weigh(i, row.seen[i].weight, row.seen[i].weight_error);
  if (row.has_sink) weigh(row.seen.size(), row.sink_mass, row.sink_mass_error);
}

inline query_row define_row(const random_problem& p, int64_t batch, int64_t head, int64_t query) {
  const rootdk::attention_problem& f = p.facts;
  query_row row{};
  row.batch = batch, row.head = head, row.query = query;
  row.factor = exact(f.scale) * (f.row_scale ? f.row_scale[batch * f.n_query + query] : 1.0);
  row.has_sink = f.sinks != nullptr;
  row.sink = f.sinks ? f.sinks[head] : 0;
  find_logits(p, row);
  find_weights(p, row);
  return row;
}

}  // namespace fuzz
