// The forward derivative: attention and, from the same walk over the keys, its derivative along the tangents of the inputs.
//
//   dS = scale (dQ K' + Q dK') times the softcap's slope, - dslope |distance|, + dB     the tangent of the logits
//   m  = sum over keys of P dS (and of the sink, if its logit has a tangent)
//   dO = sum over keys of P (dS - m) V + P dV     =     (P dS) V + P dV - m O
//
// So beside the forward's sums a row has two more, relative to the same running maximum: of w dS v + w dv, as wide as the
// output, and of w dS, one number. Nothing of another pass is read: whichever way the forward took, this pass is consistent in
// itself.

namespace rootdk::ROOTDK_TARGET {

inline bool queries_have_tangent(const attention_problem& problem) {
  return problem.d_query.data || problem.scale_tangent != 0;
}
inline bool scores_have_tangent(const attention_problem& problem) {
  return queries_have_tangent(problem) || problem.d_key.data || added_terms_have_tangent(problem);
}

// What a sink with a tangent adds to the mean of dS.
template <typename real>
inline real sink_tangent(const attention_problem& problem, const panel<real>& p, const row_sums<real>& rows, int lane) {
  // Without a sum no key was seen, or the sink has all the weight, whatever its logit.
  if (!problem.sinks || !problem.sinks_tangent || lane >= p.live || rows.normalise[lane] == 0) return 0;
  const real weight = std::exp2(bias_log2<real>(problem.sinks[p.head[lane]]) - rows.maximum[lane]) / rows.sum[lane];
  return weight * real(problem.sinks_tangent[p.head[lane]]);
}

template <typename stored>
struct tangent_scratch : forward_scratch<stored> {
  typedef compute<stored> real;
  using forward_scratch<stored>::panels;
  real *d_q_packed, *q_packed_again, *sums_tangent, *means, *tangents, *slope, *d_key_copy, *d_value_copy, *marks;

  tangent_scratch(const attention_problem& problem, void* buffer) : forward_scratch<stored>(problem, buffer) {
    constexpr bool converted = !std::is_same<stored, real>::value;
    constexpr int64_t lanes = panel_lanes<real>;
    carver carve{static_cast<char*>(buffer), this->bytes};
    d_q_packed = carve.take<real>(queries_have_tangent(problem) ? panels * problem.d_k * lanes : 0);
    q_packed_again = carve.take<real>(problem.scale_tangent != 0 ? problem.d_k * lanes : 0);
    sums_tangent = carve.take<real>(panels * problem.d_v * lanes);
    means = carve.take<real>(panels * lanes);
    tangents = carve.take<real>(scores_have_tangent(problem) ? key_block * lanes : 0);
    slope = carve.take<real>(problem.softcap > 0 ? key_block * lanes : 0);
    d_key_copy = carve.take<real>(converted && problem.d_key.data ? key_block * problem.d_k : 0);
    d_value_copy = carve.take<real>(converted && problem.d_value.data ? key_block * problem.d_v : 0);
    marks = carve.take<real>(key_block * lanes);
    this->bytes = carve.used;
  }
};

// The queries of a panel and their tangents, both times the same factors: the part of a factor that one leaves for the product
// (`stretch`), the other leaves too.
template <typename stored>
inline void pack_tangents(const attention_problem& problem, int64_t batch, int64_t i, panel<compute<stored>>& p,
                          tangent_scratch<stored>& s) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  const int64_t numbers = problem.d_k * lanes;
  real *const q_packed = s.q_packed + i * numbers, *const d_q_packed = s.d_q_packed + i * numbers;
  stored *query[lanes], *d_query[lanes];
  row_pointers(problem.query, batch, p, query);
  pack_scaled<stored>(problem, batch, query, p, q_packed);
  if (!queries_have_tangent(problem)) return;

  alignas(64) real factor[lanes], scale_factor[lanes];
  query_factors(problem, batch, p, factor);
  if (p.stretched)
    for (int lane = 0; lane < lanes; ++lane) factor[lane] /= p.stretch[lane];
  const auto pack = [&] {
    if (problem.d_query.data) {
      row_pointers(problem.d_query, batch, p, d_query);
      pack_transposed<stored>(d_query, p.live, factor, problem.d_k, d_q_packed);
    } else {
      std::memset(d_q_packed, 0, size_t(numbers) * sizeof(real));
    }
    if (problem.scale_tangent == 0) return;
    attention_problem of_scale = problem;
    of_scale.scale = problem.scale_tangent;
    query_factors(of_scale, batch, p, scale_factor);
    if (p.stretched)
      for (int lane = 0; lane < lanes; ++lane) scale_factor[lane] /= p.stretch[lane];
    pack_transposed<stored>(query, p.live, scale_factor, problem.d_k, s.q_packed_again);
    for (int64_t at = 0; at < numbers; ++at) d_q_packed[at] += s.q_packed_again[at];
  };
  pack();
  if (p.stretched || likely(!may_overflow(problem, factor)) || finite_numbers(d_q_packed, numbers)) return;
  hold_back(p.lanes, factor, p.stretch);
  p.stretched = true;
  pack_transposed<stored>(query, p.live, factor, problem.d_k, q_packed);
  pack();
}

// dS of a panel against one block of keys.
template <typename real>
inline void tangent_scores(const attention_problem& problem, int64_t batch, const panel<real>& p, const real* q_packed,
                           const real* d_q_packed, row_block<real> k, row_block<real> d_k, const block_view& view,
                           const real* scores, const real* slope, real* tangents) {
  constexpr int lanes = panel_lanes<real>;
  const int64_t keys = view.keys();
  if (queries_have_tangent(problem))
    product<real, a_rows, panel_vectors>(k.data, k.stride, d_q_packed, lanes, problem.d_k, tangents, lanes, keys, overwrite{});
  else
    std::memset(tangents, 0, size_t(keys * lanes) * sizeof(real));
  if (d_k.data)
    product<real, a_rows, panel_vectors>(d_k.data, d_k.stride, q_packed, lanes, problem.d_k, tangents, lanes, keys, add{});
  shape_tangents(problem, batch, p, view, scores, slope, tangents);
}

// dS -> w dS, and its sum over the keys is updated.
template <typename real>
inline void weigh_tangents(const real* weights, const block_view& view, const rescale_add<real>& finish, real* tangents,
                           real* means, int vectors = panel_vectors) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>, chains = 4;
  for (int v = 0; v < vectors; ++v) {
    vec<real> sum[chains];
    for (vec<real>& x : sum) x = vec<real>{};
    for (int64_t key = 0; key < view.stop[v]; ++key) {
      const int64_t at = key * lanes + v * width;
      const vec<real> weighed = load(weights + at) * load(tangents + at);
      store(tangents + at, weighed);
      sum[key % chains] += weighed;
    }
    finish(means + v * width, v, (sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
}

template <typename stored>
ROOTDK_INLINE row_block<compute<stored>> fetch_rows(const rows_view& view, int64_t batch, int64_t kv_head, int64_t start,
                                                    int64_t count, int64_t length, compute<stored>* copy) {
  if (!view.data) return {nullptr, 0};
  return widen_rows(row_pointer<stored>(view, batch, kv_head, start), view.row_stride, count, length, copy);
}

// All panels of an item over all keys, skipping hidden pairs if asked to. Returns whether all sums are finite.
template <typename stored>
inline bool walk_tangents(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t panels,
                          tangent_scratch<stored>& s, bool slow_path) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  const bool with_tangents = scores_have_tangent(problem);
  int64_t first = problem.n_key, last = 0;
  for (int64_t i = 0; i < panels; ++i) {
    first = at_most(first, s.places[i].first_any), last = at_least(last, s.places[i].last_any);
    s.rows[i].reset();
  }
  std::memset(s.sums_out, 0, size_t(panels * problem.d_v * lanes) * sizeof(real));
  std::memset(s.sums_tangent, 0, size_t(panels * problem.d_v * lanes) * sizeof(real));
  std::memset(s.means, 0, size_t(panels * lanes) * sizeof(real));

  for (int64_t block = first / key_block * key_block; block < last; block += key_block) {
    between_steps(problem);
    const block_range range = view_panels(problem, panels, block, at_most(block + key_block, problem.n_key), s.views,
                                          [&](int64_t i) { return s.places + i; });
    if (range.empty()) continue;
    const int64_t count = range.last - range.first;
    const key_rows<real> rows = fetch_keys<stored>(problem, batch, kv_head, range.first, count, s.key_copy, s.value_copy);
    const key_rows<real> d_rows = {
        fetch_rows<stored>(problem.d_key, batch, kv_head, range.first, count, problem.d_k, s.d_key_copy),
        fetch_rows<stored>(problem.d_value, batch, kv_head, range.first, count, problem.d_v, s.d_value_copy)};
    for (int64_t i = 0; i < panels; ++i) {
      const panel<real>& p = s.places[i];
      const block_view& view = s.views[i];
      const int64_t start = view.start, keys = view.keys();
      if (keys == 0) continue;
      const auto [k, v] = rows.from(start - range.first);
      const auto [d_k, d_v] = d_rows.from(start - range.first);
      const real* const q_packed = s.q_packed + i * problem.d_k * lanes;
      real* const slope = problem.softcap > 0 ? s.slope : nullptr;
      compute_scores<real>(problem, batch, p, q_packed, k, view, s.scores, slope);
      if (slow_path) mark_hidden(s.scores, keys * lanes, s.marks);
      if (with_tangents)
        tangent_scores<real>(problem, batch, p, q_packed, s.d_q_packed + i * problem.d_k * lanes, k, d_k, view, s.scores, slope,
                             s.tangents);
      rescale_add<real> finish;
      softmax(problem, s.scores, view, s.rows[i], finish);
      if (with_tangents) weigh_tangents<real>(s.scores, view, finish, s.tangents, s.means + i * lanes);
      if (problem.dropout > 0) {
        dropout_factors(problem, p, start, keys, s.factors);
        for (int64_t at = 0; at < keys * lanes; ++at) s.scores[at] *= s.factors[at];
        if (with_tangents)
          for (int64_t at = 0; at < keys * lanes; ++at) s.tangents[at] *= s.factors[at];
      }
      real *const out = s.sums_out + i * problem.d_v * lanes, *const tangent = s.sums_tangent + i * problem.d_v * lanes;
      const auto add_all = [&](auto skip) {
        add_values(v, s.scores, view, problem.d_v, finish, out, skip);
        if (with_tangents) add_values(v, s.tangents, view, problem.d_v, finish, tangent, skip);
        if (!d_v.data) return;
        if (with_tangents)  // rescaled already
          for (vec<real>& before : finish.before) before = broadcast(real(1));
        add_values(d_v, s.scores, view, problem.d_v, finish, tangent, skip);
      };
      if (slow_path)
        add_all(skip_hidden<real>{s.marks});
      else
        add_all(skip_nothing{});
    }
  }
  for (int64_t i = 0; i < panels; ++i)
    for (const real* sums : {s.sums_out, s.sums_tangent})
      if (!all_finite(sums + i * problem.d_v * lanes, problem.d_v, s.places[i].live)) return false;
  return true;
}

// Beyond this, subtracting the mean of dS at the end loses the digits of the result.
template <typename real>
constexpr real far_mean = real(0x1p20);

// The end of a panel's rows: dO in the place of its sums. Returns whether some row is far: see far_tangents().
template <typename real>
inline bool finish_tangents(const attention_problem& problem, const panel<real>& p, const row_sums<real>& rows,
                            const real* sums_out, const real* means, real* sums_tangent, real* mean) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int lane = 0; lane < lanes; ++lane)
    mean[lane] = means[lane] * rows.normalise[lane] + sink_tangent(problem, p, rows, lane);
  for (int64_t d = 0; d < problem.d_v; ++d)
    for (int v = 0; v < lanes; v += width) {
      real* const at = sums_tangent + d * lanes + v;
      store(at, (load(at) - load(sums_out + d * lanes + v) * load(mean + v)) * load(rows.normalise + v));
    }
  bool far = !all_finite(sums_tangent, problem.d_v, p.live);
  for (int lane = 0; lane < p.live; ++lane) far |= !(std::fabs(mean[lane]) <= far_mean<real>);
  return far;
}

// With a query of 1e38 a tangent of usual size moves the logits to the end of the range or beyond, and a row whose weight is
// all on one key has infinity - infinity, or the rounding error of two large numbers, where the definition has 0. Such rows are
// computed once more as in the definition: with the known weights, first the mean of dS, then the sum of P (dS - mean) V. dS is
// kept small by a power of two, and by leaving out what a factor above 1 would add to it; both are put back at the end. The
// results go into `tangents`, [d][lane], for the rows whose mean is `far`, or that are not finite.
template <typename stored>
inline __attribute__((noinline, cold)) void far_tangents(const attention_problem& problem, int64_t batch, int64_t kv_head,
                                                         const panel<compute<stored>>& p, row_sums<compute<stored>> rows,
                                                         const compute<stored>* q_packed, const compute<stored>* far,
                                                         tangent_scratch<stored>& s, compute<stored>* tangents) {
  typedef compute<stored> real;
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  constexpr real small = real(0x1p-64), large = real(0x1p64);
  const int64_t numbers = problem.d_k * lanes;
  std::vector<real> queries(static_cast<size_t>(numbers)), d_queries(static_cast<size_t>(numbers)), added(key_block * lanes);
  std::vector<real> sums(static_cast<size_t>(problem.d_v * lanes)), sums_of_d_value(static_cast<size_t>(problem.d_v * lanes));
  alignas(64) real factor[lanes], stretch[lanes], shrink[lanes], mean[lanes] = {};
  query_factors(problem, batch, p, factor);
  hold_back(lanes, factor, stretch);
  for (int lane = 0; lane < lanes; ++lane) factor[lane] *= small, shrink[lane] = small / stretch[lane];
  stored *query[lanes], *d_query[lanes];
  row_pointers(problem.query, batch, p, query);
  pack_transposed<stored>(query, p.live, factor, problem.d_k, queries.data());
  if (problem.d_query.data) {
    row_pointers(problem.d_query, batch, p, d_query);
    pack_transposed<stored>(d_query, p.live, factor, problem.d_k, d_queries.data());
  }
  if (problem.scale_tangent != 0) {
    attention_problem of_scale = problem;
    of_scale.scale = problem.scale_tangent;
    query_factors(of_scale, batch, p, factor);
    for (int lane = 0; lane < lanes; ++lane) factor[lane] *= shrink[lane];
    pack_transposed<stored>(query, p.live, factor, problem.d_k, s.q_packed_again);
    for (size_t at = 0; at < d_queries.size(); ++at) d_queries[at] += s.q_packed_again[at];
  }
  for (int lane = 0; lane < lanes; ++lane) {
    if (rows.maximum[lane] == minus_infinity<real>) rows.maximum[lane] = 0;
    rows.normalise[lane] = rows.sum[lane] == 0 ? real(0) : 1 / rows.sum[lane];
  }
  const rescale_add<real> plain_sum = {{broadcast(real(1)), broadcast(real(1))}, {broadcast(real(1)), broadcast(real(1))}};
  for (const bool mean_known : {false, true}) {
    for (int64_t block = p.first_any / key_block * key_block; block < p.last_any; block += key_block) {
      between_steps(problem);
      block_view view;
      if (!view_block<true>(problem, p, block, at_most(block + key_block, problem.n_key), view)) continue;
      const int64_t start = view.start, keys = view.keys();
      const auto [k, v] = fetch_keys<stored>(problem, batch, kv_head, start, keys, s.key_copy, s.value_copy);
      const row_block<real> d_k = fetch_rows<stored>(problem.d_key, batch, kv_head, start, keys, problem.d_k, s.d_key_copy);
      const row_block<real> d_v = fetch_rows<stored>(problem.d_value, batch, kv_head, start, keys, problem.d_v, s.d_value_copy);
      real* const slope = problem.softcap > 0 ? s.slope : nullptr;
      compute_scores<real>(problem, batch, p, q_packed, k, view, s.scores, slope);
      mark_hidden(s.scores, keys * lanes, s.marks);
      product<real, a_rows, panel_vectors>(k.data, k.stride, d_queries.data(), lanes, problem.d_k, s.tangents, lanes, keys,
                                           overwrite{});
      if (d_k.data)
        product<real, a_rows, panel_vectors>(d_k.data, d_k.stride, queries.data(), lanes, problem.d_k, s.tangents, lanes, keys,
                                             add{});
      if (slope)
        for (int64_t at = 0; at < keys * lanes; ++at) s.tangents[at] *= slope[at];
      std::memset(added.data(), 0, added.size() * sizeof(real));
      add_term_tangents(problem, batch, p, view, added.data());
      weigh_scores(rows, keys, s.scores);
      if (mean_known && problem.dropout > 0) dropout_factors(problem, p, start, keys, s.factors);
      for (int64_t at = 0; at < keys * lanes; at += width) {
        const int lane = int(at % lanes);
        const vec<real> weight = load(s.scores + at);
        const vec<real> d_logit = (load(s.tangents + at) + load(added.data() + at) * load(shrink + lane)) * real(ln_2);
        const vec<real> weighed = weight * (mean_known ? d_logit - load(mean + lane) : d_logit);
        const vec<real> seen = select<real>(load(s.marks + at) < vec<real>{}, vec<real>{}, weighed);
        if (!mean_known) {
          store(mean + lane, load(mean + lane) + seen);
        } else {
          const vec<real> kept = problem.dropout > 0 ? load(s.factors + at) : broadcast(real(1));
          store(s.tangents + at, seen * kept);
          store(s.scores + at, weight * kept);
        }
      }
      if (!mean_known) continue;
      add_values(v, s.tangents, view, problem.d_v, plain_sum, sums.data(), skip_hidden<real>{s.marks});
      if (d_v.data) add_values(d_v, s.scores, view, problem.d_v, plain_sum, sums_of_d_value.data(), skip_hidden<real>{s.marks});
    }
    if (!mean_known)
      for (int lane = 0; lane < lanes; ++lane) mean[lane] += sink_tangent(problem, p, rows, lane) * shrink[lane];
  }
  for (int64_t at = 0; at < problem.d_v * lanes; ++at)
    if (!(std::fabs(far[at % lanes]) <= far_mean<real>) || !(tangents[at] - tangents[at] == 0))
      tangents[at] = sums[size_t(at)] * large * stretch[at % lanes] + sums_of_d_value[size_t(at)];
}

// `only`, where given, says which rows are written.
template <typename stored>
inline void tangent_item(const attention_problem& problem, int64_t item, void* buffer, const bool* only = nullptr) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  const int64_t together = rows_per_item<real>(problem), rows = problem.group() * problem.n_query;
  const int64_t blocks = ceil_div(rows, together);
  const int64_t block = blocks - 1 - item % blocks, pair = item / blocks;  // as row_block_item()
  const int64_t batch = pair / problem.kv_heads, kv_head = pair % problem.kv_heads;
  const int64_t start = block * together, stop = at_most(start + together, rows);
  const int64_t panels = ceil_div(stop - start, lanes);

  tangent_scratch<stored> s(problem, buffer);
  for (int64_t i = 0; i < panels; ++i) {
    place_panel(problem, batch, kv_head, start + i * lanes, at_most(start + (i + 1) * lanes, stop), s.places[i]);
    pack_tangents<stored>(problem, batch, i, s.places[i], s);
  }
  if (!walk_tangents(problem, batch, kv_head, panels, s, false)) walk_tangents(problem, batch, kv_head, panels, s, true);
  alignas(64) real one[lanes];
  for (real& number : one) number = 1;
  std::vector<stored> unused_row(only ? size_t(problem.d_v) : 0);
  for (int64_t i = 0; i < panels; ++i) {
    const panel<real>& p = s.places[i];
    real *const out = s.sums_out + i * problem.d_v * lanes, *const tangent = s.sums_tangent + i * problem.d_v * lanes;
    alignas(64) real mean[lanes];
    finish_rows(problem, p, s.rows[i]);
    const bool far = finish_tangents(problem, p, s.rows[i], out, s.means + i * lanes, tangent, mean);
    if (unlikely(far && scores_have_tangent(problem)))
      far_tangents<stored>(problem, batch, kv_head, p, s.rows[i], s.q_packed + i * problem.d_k * lanes, mean, s, tangent);
    stored* to[lanes];
    const auto write = [&](const rows_view& view, const real* from, const real* factor) {
      row_pointers(view, batch, p, to);
      for (int lane = 0; only && lane < p.live; ++lane)
        if (!only[lane]) to[lane] = unused_row.data();
      unpack_transposed<stored>(from, p.live, factor, problem.d_v, to);
    };
    if (problem.out.data) write(problem.out, out, s.rows[i].normalise);
    write(problem.d_out, tangent, one);
  }
}

}  // namespace rootdk::ROOTDK_TARGET
