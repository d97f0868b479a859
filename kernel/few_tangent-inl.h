// The forward derivative for few query rows over many keys: the sums of tangent-inl.h, in the order of few-inl.h.

namespace rootdk::ROOTDK_TARGET {

// What one chunk leaves for the merge: the forward's part, and beside its output the sum of w dS v + w dv and that of w dS.
template <typename real>
struct few_tangent_part : few_part<real> {
  real *tangent, *means;
};

template <typename real>
inline int64_t few_tangent_bytes(const attention_problem& problem) {
  carver count{nullptr};
  count.take<real>(few_rows<real> * problem.d_v);
  count.take<real>(simd<real>::width);
  return few_part_bytes<real>(problem) + count.used;
}

template <typename real>
inline few_tangent_part<real> few_tangent_at(const attention_problem& problem, void* shared, int64_t pair, int64_t chunk) {
  carver carve{static_cast<char*>(shared) + (pair * few_chunks(problem) + chunk) * few_tangent_bytes<real>(problem)};
  few_tangent_part<real> part;
  part.rows = carve.take<row_sums<real>>(1);
  part.out = carve.take<real>(few_rows<real> * problem.d_v);
  part.tangent = carve.take<real>(few_rows<real> * problem.d_v);
  part.means = carve.take<real>(simd<real>::width);
  return part;
}

template <typename stored>
struct few_tangent_scratch : few_scratch<stored> {
  typedef compute<stored> real;
  real *d_queries, *again, *tangents, *slope;

  few_tangent_scratch(const attention_problem& problem, void* buffer) : few_scratch<stored>(problem, buffer) {
    constexpr int64_t lanes = panel_lanes<real>;
    carver carve{static_cast<char*>(buffer), this->bytes};
    d_queries = carve.take<real>(queries_have_tangent(problem) ? few_rows<real> * problem.d_k : 0);
    // The queries by another factor, then the second of two products.
    again = carve.take<real>(at_least(few_rows<real> * problem.d_k, key_block * lanes));
    tangents = carve.take<real>(key_block * lanes);
    slope = carve.take<real>(problem.softcap > 0 ? key_block * lanes : 0);
    this->part = carve.take<char>(few_chunks(problem) == 1 ? few_tangent_bytes<real>(problem) : 0);
    this->bytes = carve.used;
  }
};

// As pack_tangents(), [row][d].
template <typename stored>
inline void pack_few_tangents(const attention_problem& problem, int64_t batch, panel<compute<stored>>& p,
                              few_tangent_scratch<stored>& s) {
  typedef compute<stored> real;
  const int64_t numbers = p.live * problem.d_k;
  pack_few_queries<stored>(problem, batch, p, s.queries);
  if (!queries_have_tangent(problem)) return;
  const auto packed = [&](const rows_view& of, double scale, real* to) {
    attention_problem other = problem;
    other.query = of, other.scale = scale;
    alignas(64) real factor[panel_lanes<real>];
    query_factors(other, batch, p, factor);
    for (int row = 0; row < p.live; ++row) {
      widen_row(row_pointer<stored>(of, batch, p.head[row], p.query[row]), problem.d_k, to + row * problem.d_k);
      const real by = p.stretched ? factor[row] / p.stretch[row] : factor[row];
      for (int64_t d = row * problem.d_k; d < (row + 1) * problem.d_k; ++d) to[d] *= by;
    }
  };
  const auto pack = [&] {
    if (problem.d_query.data)
      packed(problem.d_query, problem.scale, s.d_queries);
    else
      std::memset(s.d_queries, 0, size_t(numbers) * sizeof(real));
    if (problem.scale_tangent == 0) return;
    packed(problem.query, problem.scale_tangent, s.again);
    for (int64_t at = 0; at < numbers; ++at) s.d_queries[at] += s.again[at];
  };
  pack();
  alignas(64) real factor[panel_lanes<real>];
  query_factors(problem, batch, p, factor);
  if (p.stretched || likely(!may_overflow(problem, factor)) || finite_numbers(s.d_queries, numbers)) return;
  hold_back(p.lanes, factor, p.stretch);
  p.stretched = true;
  packed(problem.query, problem.scale, s.queries);
  pack();
}

// One chunk of keys. Returns whether its sums are finite.
template <typename stored>
inline bool walk_few_tangents(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t chunk,
                              const panel<compute<stored>>& p, few_tangent_scratch<stored>& s,
                              const few_tangent_part<compute<stored>>& part, bool slow_path) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  const bool with_tangents = scores_have_tangent(problem);
  const int64_t first = at_least(chunk * few_chunk_keys, p.first_any), last = at_most((chunk + 1) * few_chunk_keys, p.last_any);
  part.rows->reset();
  for (real* const sums : {part.out, part.tangent}) std::memset(sums, 0, size_t(p.live * problem.d_v) * sizeof(real));
  std::memset(part.means, 0, size_t(simd<real>::width) * sizeof(real));
  for (int64_t block = first / key_block * key_block; block < last; block += key_block) {
    between_steps(problem);
    block_view view;
    if (!view_block(problem, p, at_least(block, first), at_most(block + key_block, last), view)) continue;
    const int64_t start = view.start, keys = view.keys();
    const auto rows_at = [&](const rows_view& of) { return row_pointer<stored>(of, batch, kv_head, start); };
    real* const slope = problem.softcap > 0 ? s.slope : nullptr;
    few_scores<stored>(problem, batch, kv_head, p, s.queries, view, s.scores, slope);
    if (slow_path) mark_hidden(s.scores, keys * lanes, s.marks);
    if (with_tangents) {
      if (queries_have_tangent(problem))
        few_products<stored>(rows_at(problem.key), problem.key.row_stride, keys, p.live, s.d_queries, problem.d_k, s.tangents);
      else
        std::memset(s.tangents, 0, size_t(keys * lanes) * sizeof(real));
      if (problem.d_key.data) {
        few_products<stored>(rows_at(problem.d_key), problem.d_key.row_stride, keys, p.live, s.queries, problem.d_k, s.again);
        for (int64_t key = 0; key < keys; ++key)
          for (int row = 0; row < p.live; ++row) s.tangents[key * lanes + row] += s.again[key * lanes + row];
      }
      shape_tangents(problem, batch, p, view, s.scores, slope, s.tangents);
    }
    rescale_add<real> finish;
    softmax(problem, s.scores, view, *part.rows, finish, 1);
    if (with_tangents) weigh_tangents<real>(s.scores, view, finish, s.tangents, part.means, 1);
    if (problem.dropout > 0) {
      dropout_factors(problem, p, start, keys, s.factors);
      for (real* const tile : {s.scores, s.tangents})
        for (int64_t at = 0; at < keys * lanes; ++at) tile[at] *= s.factors[at];
    }
    const auto add = slow_path ? few_values<stored, true> : few_values<stored, false>;
    const auto add_rows = [&](const rows_view& of, const real* weights, real* to) {
      add(rows_at(of), of.row_stride, keys, 0, p.live, weights, s.marks, finish, problem.d_v, to);
    };
    add_rows(problem.value, s.scores, part.out);
    if (with_tangents) add_rows(problem.value, s.tangents, part.tangent);
    if (!problem.d_value.data) continue;
    if (with_tangents) finish.before[0] = broadcast(real(1));  // rescaled already
    add_rows(problem.d_value, s.scores, part.tangent);
  }
  if (part.rows->fresh) part.rows->clear();
  return finite_numbers(part.out, p.live * problem.d_v) && finite_numbers(part.tangent, p.live * problem.d_v);
}

// The finished rows of a key head. Rows that left the range are computed once more, in the lanes of a panel: see
// far_tangents().
template <typename stored>
inline void finish_few_tangents(const attention_problem& problem, int64_t pair, const panel<compute<stored>>& p,
                                const few_tangent_part<compute<stored>>& whole) {
  typedef compute<stored> real;
  const int64_t batch = pair / problem.kv_heads, d_v = problem.d_v;
  finish_rows(problem, p, *whole.rows);
  bool far[few_rows<real>] = {}, some_far = false;
  for (int row = 0; row < p.live; ++row) {
    real *const out = whole.out + row * d_v, *const tangent = whole.tangent + row * d_v;
    const real normalise = whole.rows->normalise[row];
    const real mean = whole.means[row] * normalise + sink_tangent(problem, p, *whole.rows, row);
    for (int64_t d = 0; d < d_v; ++d) {
      tangent[d] = (tangent[d] - out[d] * mean) * normalise;
      out[d] *= normalise;
    }
    some_far |= far[row] = scores_have_tangent(problem) && !(std::fabs(mean) <= far_mean<real> && finite_numbers(tangent, d_v));
    if (problem.out.data) narrow_row(out, d_v, row_pointer<stored>(problem.out, batch, p.head[row], p.query[row]));
    narrow_row(tangent, d_v, row_pointer<stored>(problem.d_out, batch, p.head[row], p.query[row]));
  }
  if (likely(!some_far)) return;
  std::vector<real> memory(size_t(tangent_scratch<stored>(problem, nullptr).bytes) / sizeof(real) + 64 / sizeof(real));
  char* const from = reinterpret_cast<char*>(memory.data());
  tangent_item<stored>(problem, pair, from + (64 - reinterpret_cast<uintptr_t>(from) % 64) % 64, far);
}

template <typename stored>
inline void few_tangent_item(const attention_problem& problem, int64_t item, void* buffer, void* shared) {
  typedef compute<stored> real;
  const int64_t chunks = few_chunks(problem), pair = item / chunks, chunk = item % chunks;
  const int64_t batch = pair / problem.kv_heads, kv_head = pair % problem.kv_heads;
  panel<real> p;
  place_panel(problem, batch, kv_head, 0, problem.group() * problem.n_query, p);
  few_tangent_scratch<stored> s(problem, buffer);
  pack_few_tangents<stored>(problem, batch, p, s);
  // As in few_item(): lanes without a row are computed on zeros.
  for (real* const tile : {s.scores, s.tangents})
    std::memset(tile, 0, size_t(at_most(key_block, problem.n_key) * panel_lanes<real>) * sizeof(real));
  const few_tangent_part<real> part =
      chunks == 1 ? few_tangent_at<real>(problem, s.part, 0, 0) : few_tangent_at<real>(problem, shared, pair, chunk);
  if (!walk_few_tangents(problem, batch, kv_head, chunk, p, s, part, false))
    walk_few_tangents(problem, batch, kv_head, chunk, p, s, part, true);
  if (chunks == 1) finish_few_tangents<stored>(problem, pair, p, part);
}

// As few_merge_item().
template <typename stored>
inline void few_tangent_merge_item(const attention_problem& problem, int64_t pair, void* shared) {
  typedef compute<stored> real;
  panel<real> p;
  place_panel(problem, pair / problem.kv_heads, pair % problem.kv_heads, 0, problem.group() * problem.n_query, p);
  const few_tangent_part<real> whole = few_tangent_at<real>(problem, shared, pair, 0);
  for (int64_t chunk = 1; chunk < few_chunks(problem); ++chunk) {
    const few_tangent_part<real> part = few_tangent_at<real>(problem, shared, pair, chunk);
    for (int row = 0; row < p.live; ++row) {
      real shrink, other_shrink;
      merge_sums(*whole.rows, *part.rows, row, false, &shrink, &other_shrink);
      whole.means[row] = whole.means[row] * shrink + part.means[row] * other_shrink;
      for (int64_t d = row * problem.d_v; d < (row + 1) * problem.d_v; ++d) {
        whole.out[d] = whole.out[d] * shrink + part.out[d] * other_shrink;
        whole.tangent[d] = whole.tangent[d] * shrink + part.tangent[d] * other_shrink;
      }
    }
  }
  finish_few_tangents<stored>(problem, pair, p, whole);
}

}  // namespace rootdk::ROOTDK_TARGET
