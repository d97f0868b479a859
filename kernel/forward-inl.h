// The forward pass. An item of work is one block of query rows of one key head: a few panels that walk over the keys
// together, so that a block of keys and values is fetched once for all of them.

namespace rootdk::ROOTDK_TARGET {

// Rows of one item at most. 128 floats wide, the keys and values of a block are each used 128 times per fetch.
template <typename real>
constexpr int64_t item_rows = 512 / int64_t(sizeof(real));

// The work is split into so many items where possible: one head must not leave the other cores idle.
constexpr int64_t wanted_items = 8;

// So a short sequence of few heads is split finer, down to one panel. This depends on the problem alone, and a row's numbers
// are the same in any item.
template <typename real>
inline int64_t rows_per_item(const attention_problem& problem) {
  const int64_t rows = problem.group() * problem.n_query, pairs = problem.batch * problem.kv_heads;
  int64_t together = item_rows<real>;
  while (together > panel_lanes<real> && pairs * ((rows + together - 1) / together) < wanted_items) together /= 2;
  return together;
}

// Hands out aligned pieces of one buffer. With no buffer it only counts, so that size and layout are written once.
struct carver {
  char* base;
  int64_t used = 0;
  template <typename type>
  type* take(int64_t count) {
    type* piece = base ? reinterpret_cast<type*>(base + used) : nullptr;
    used += (count * int64_t(sizeof(type)) + 63) / 64 * 64;
    return piece;
  }
};

// `cached` is what keys and values are stored in; `stored`, queries and results.
template <typename stored, typename cached = stored>
struct forward_scratch {
  typedef compute<stored> real;
  static constexpr int64_t panels = item_rows<real> / panel_lanes<real>;
  real *q_packed, *sums_out, *scores, *factors, *key_copy, *value_copy;
  panel<real>* places;
  block_view* views;
  row_sums<real>* rows;
  int64_t bytes;

  forward_scratch(const attention_problem& problem, void* buffer) {
    constexpr bool converted = !std::is_same<cached, real>::value;
    constexpr int64_t lanes = panel_lanes<real>;
    carver carve{static_cast<char*>(buffer)};
    q_packed = carve.take<real>(panels * problem.d_k * lanes);
    sums_out = carve.take<real>(panels * problem.d_v * lanes);
    scores = carve.take<real>(key_block * lanes);
    factors = carve.take<real>(problem.dropout > 0 ? key_block * lanes : 0);
    key_copy = carve.take<real>(converted ? key_block * problem.d_k : 0);
    value_copy = carve.take<real>(converted ? key_block * problem.d_v : 0);
    places = carve.take<panel<real>>(panels);
    views = carve.take<block_view>(panels);
    rows = carve.take<row_sums<real>>(panels);
    bytes = carve.used;
  }
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// out[d][lane] = out * rescale + sum over keys of value[key][d] * weight[key][lane].
template <typename real, typename skip_t>
inline void add_values(row_block<real> values, const real* weights, const block_view& view, int64_t d_v,
                       const rescale_add<real>& finish, real* out, skip_t skip) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const int64_t both = view.both(), keys = view.keys(), at = view.longer() * width;
  if (both > 0)
    product<real, a_columns, panel_vectors>(values.data, values.stride, weights, lanes, both, out, lanes, d_v, finish, skip);
  if (both == keys) return;
  const real* v_rest = values.data + both * values.stride;
  const real* w_rest = weights + both * lanes + at;
  if constexpr (!std::is_same<skip_t, skip_nothing>::value) skip.marks += both * lanes + at;
  if (both > 0) {
    product<real, a_columns, 1>(v_rest, values.stride, w_rest, lanes, keys - both, out + at, lanes, d_v,
                                scaled_add<real>{finish.block[view.longer()]}, skip);
  } else {
    // The other vector sees nothing of this block: its maximum stays, and there is nothing to rescale.
    const rescale_add<real> alone{{finish.before[view.longer()]}, {finish.block[view.longer()]}};
    product<real, a_columns, 1>(v_rest, values.stride, w_rest, lanes, keys, out + at, lanes, d_v, alone, skip);
  }
}

// Keeps where pairs are hidden while the scores turn into weights: -1 there, 0 elsewhere.
template <typename real>
inline void mark_hidden(const real* scores, int64_t count, real* marks) {
  for (int64_t i = 0; i < count; ++i) marks[i] = scores[i] == minus_infinity<real> ? real(-1) : real(0);
}

// Whether the first `live` lanes of every row are finite.
template <typename real>
inline bool all_finite(const real* rows, int64_t count, int live) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  alignas(64) real check[lanes];
  for (int v = 0; v < lanes; v += width) {
    vec<real> sum = vec<real>{};  // x - x is 0 for every finite x, NaN for the others
    for (int64_t row = 0; row < count; ++row) sum += load(rows + row * lanes + v) - load(rows + row * lanes + v);
    store(check + v, sum);
  }
  for (int lane = 0; lane < live; ++lane)
    if (check[lane] != 0) return false;
  return true;
}

// The end of a panel's rows: the sink is added, state and Reading are written, and the factor that normalises the output is
// computed. It comes right after the softmax of the last block, while the sums are in the nearest cache, before the last values
// are added.
template <typename real>
inline void finish_rows(const attention_problem& problem, const panel<real>& p, row_sums<real>& rows) {
  constexpr int lanes = panel_lanes<real>;
  real* const factor = rows.normalise;
  if (rows.fresh) rows.clear();
  rows.finished = true;
  alignas(64) real scores_maximum[lanes], sink[lanes], sink_weight[lanes] = {};
  std::memcpy(scores_maximum, rows.maximum, sizeof scores_maximum);
  for (int lane = 0; lane < lanes; ++lane) factor[lane] = 1;
  if (problem.sinks)
    for (int lane = 0; lane < p.live; ++lane) {
      constexpr double largest = double(std::numeric_limits<real>::max());
      const double given = problem.sinks[p.head[lane]];
      sink[lane] = real(given > largest ? largest : given < -largest ? -largest : given);
      factor[lane] = add_sink(bias_log2<real>(given), lane, rows, &sink_weight[lane]);
    }
  // Not sum > 0: a NaN sum must stay NaN; only a row that saw nothing has exactly 0.
  for (int lane = 0; lane < lanes; ++lane) factor[lane] = rows.sum[lane] == 0 ? real(0) : factor[lane] / rows.sum[lane];
  if (problem.row_state) {
    real* state = static_cast<real*>(problem.row_state) + p.flat;
    std::memcpy(state, rows.maximum, size_t(p.live) * sizeof(real));
    std::memcpy(state + problem.rows(), rows.sum, size_t(p.live) * sizeof(real));
  }
  if (problem.reading) write_readings(problem, p, rows, scores_maximum, sink, sink_weight);
}

// All panels of an item over all keys, skipping hidden pairs where there are `marks` (memory for one block). Returns whether
// some output is not finite.
template <typename stored, typename cached>
inline bool walk_keys(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t panels,
                      forward_scratch<stored, cached>& s, compute<stored>* marks) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  int64_t first = problem.n_key, last = 0;
  for (int64_t i = 0; i < panels; ++i) {
    first = at_most(first, s.places[i].first_any), last = at_least(last, s.places[i].last_any);
    s.rows[i].reset();
  }
  std::memset(s.sums_out, 0, size_t(panels * problem.d_v * lanes) * sizeof(real));

  for (int64_t block = first / key_block * key_block; block < last; block += key_block) {
    between_steps(problem);
    const block_range range = view_panels(problem, panels, block, at_most(block + key_block, problem.n_key), s.views,
                                          [&](int64_t i) { return s.places + i; });
    if (range.empty()) continue;
    const key_rows<real> rows =
        fetch_keys<cached>(problem, batch, kv_head, range.first, range.last - range.first, s.key_copy, s.value_copy);
    for (int64_t i = 0; i < panels; ++i) {
      const panel<real>& p = s.places[i];
      const block_view& view = s.views[i];
      const int64_t start = view.start, keys = view.keys();
      if (keys == 0) continue;
      const auto [k, v] = rows.from(start - range.first);
      compute_scores<real>(problem, batch, p, s.q_packed + i * problem.d_k * lanes, k, view, s.scores,
                           static_cast<real*>(nullptr));
      if (marks) mark_hidden(s.scores, keys * lanes, marks);
      rescale_add<real> finish;
      softmax(problem, s.scores, view, s.rows[i], finish);
      if (view.end() == p.last_any) finish_rows(problem, p, s.rows[i]);
      if (problem.dropout > 0) {
        dropout_factors(problem, p, start, keys, s.factors);
        for (int64_t at = 0; at < keys * lanes; ++at) s.scores[at] *= s.factors[at];
      }
      real* out = s.sums_out + i * problem.d_v * lanes;
      if (marks)
        add_values(v, s.scores, view, problem.d_v, finish, out, skip_hidden<real>{marks});
      else
        add_values(v, s.scores, view, problem.d_v, finish, out, skip_nothing{});
    }
  }

  for (int64_t i = 0; i < panels; ++i)
    if (!all_finite(s.sums_out + i * problem.d_v * lanes, problem.d_v, s.places[i].live)) return true;
  return false;
}

template <typename stored>
inline void write_outputs(const attention_problem& problem, int64_t batch, const panel<compute<stored>>& p,
                          const row_sums<compute<stored>>& rows, const compute<stored>* sums_out) {
  stored* to[panel_lanes<compute<stored>>];
  row_pointers(problem.out, batch, p, to);
  unpack_transposed<stored>(sums_out, p.live, rows.normalise, problem.d_v, to);
}

// The end of an item: the outputs of all panels. Those of one begin `panel_size` numbers after those of the one before.
template <typename stored>
inline void finish_panels(const attention_problem& problem, int64_t batch, int64_t panels, const panel<compute<stored>>* places,
                          row_sums<compute<stored>>* rows, const compute<stored>* sums_out, int64_t panel_size) {
  for (int64_t i = 0; i < panels; ++i) {
    // No key was visible, or a mask hides those that would have been the last.
    if (!rows[i].finished) finish_rows(problem, places[i], rows[i]);
    write_outputs<stored>(problem, batch, places[i], rows[i], sums_out + i * panel_size);
  }
  if (problem.reading) fence_streams();
}

template <typename stored, typename cached = stored>
inline void row_block_item(const attention_problem& problem, int64_t item, void* buffer) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  const int64_t together = rows_per_item<real>(problem);
  const int64_t rows = problem.group() * problem.n_query, blocks = ceil_div(rows, together);
  // Head by head, so that its keys stay in cache; within a head the last rows first, because under a causal limit
  // they are the longest and the short ones then fill the gaps at the end.
  const int64_t block = blocks - 1 - item % blocks, pair = item / blocks;
  const int64_t batch = pair / problem.kv_heads, kv_head = pair % problem.kv_heads;
  const int64_t start = block * together, stop = at_most(start + together, rows);
  const int64_t panels = ceil_div(stop - start, lanes);

  forward_scratch<stored, cached> s(problem, buffer);
  for (int64_t i = 0; i < panels; ++i) {
    panel<real>& p = s.places[i];
    place_panel(problem, batch, kv_head, start + i * lanes, at_most(start + (i + 1) * lanes, stop), p);
    stored* from[lanes];
    row_pointers(problem.query, batch, p, from);
    pack_scaled<stored>(problem, batch, from, p, s.q_packed + i * problem.d_k * lanes);
  }
  if (walk_keys(problem, batch, kv_head, panels, s, static_cast<real*>(nullptr))) {
    std::vector<real> marks(size_t(key_block * lanes));
    walk_keys(problem, batch, kv_head, panels, s, marks.data());
  }
  finish_panels<stored>(problem, batch, panels, s.places, s.rows, s.sums_out, problem.d_v * lanes);
}

}  // namespace rootdk::ROOTDK_TARGET
