// The weights themselves, for callers that ask for them: a second pass over the scores of the rows, with the maximum and the
// sum of each row known.
//
// P of every pair is added to a number of `weights`: to one of its own, or, where all queries of a head share (stride 0), to
// what a key received. An item owns a chunk of the keys of one key head, as in the backward pass: no other item adds to its
// numbers, and the order is always the same.

namespace rootdk::ROOTDK_TARGET {

// scores -> weights. A hidden pair of a row that is NaN is still 0.
template <typename real>
inline void weigh_scores(const row_sums<real>& rows, int64_t keys, real* scores) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int v = 0; v < lanes; v += width) {
    const vec<real> maximum = load(rows.maximum + v), inverse_sum = load(rows.normalise + v);
    for (int64_t at = v; at < keys * lanes; at += lanes) {
      const vec<real> score = load(scores + at), weight = exp2(score - maximum) * inverse_sum;
      store(scores + at, select<real>(score == broadcast(minus_infinity<real>), vec<real>{}, weight));
    }
  }
}

template <typename stored, typename maker>
void weights_item_of(const attention_problem& problem, int64_t item, void* buffer, void* /*shared*/) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  forward_scratch<stored> s(problem, buffer);
  maker scores(problem, static_cast<char*>(buffer) + s.bytes);
  const int64_t chunks = backward_chunks(problem), chunk = item % chunks, pair = item / chunks;
  const int64_t batch = pair / problem.kv_heads, kv_head = pair % problem.kv_heads;
  const int64_t chunk_first = at_most(chunk * chunk_keys(problem), problem.n_key);
  const int64_t chunk_last = at_most(chunk_first + chunk_keys(problem), problem.n_key);
  const int64_t rows = problem.group() * problem.n_query;
  const real* const state = static_cast<const real*>(problem.row_state);
  std::memset(s.scores, 0, size_t(key_block * lanes) * sizeof(real));  // lanes without a row stay 0 where rows are few
  for (int64_t start = 0; start < rows; start += item_rows<real>) {
    const int64_t stop = at_most(start + item_rows<real>, rows), panels = ceil_div(stop - start, lanes);
    for (int64_t i = 0; i < panels; ++i) {
      panel<real>& p = s.places[i];
      place_panel(problem, batch, kv_head, start + i * lanes, at_most(start + (i + 1) * lanes, stop), p);
      stored* from[lanes];
      row_pointers(problem.query, batch, p, from);
      scores.take_rows(problem, batch, i, p, from, s.q_packed + i * problem.d_k * lanes);
      for (int lane = 0; lane < lanes; ++lane) {
        const real maximum = lane < p.live ? state[p.flat + lane] : real(0);
        const real sum = lane < p.live ? state[problem.rows() + p.flat + lane] : real(0);
        s.rows[i].maximum[lane] = maximum == minus_infinity<real> ? real(0) : maximum;
        s.rows[i].normalise[lane] = sum == 0 ? real(0) : 1 / sum;
      }
    }
    for (int64_t block = chunk_first; block < chunk_last; block += key_block) {
      if (between_steps(problem)) scores.restore_registers();
      const block_range range = view_panels<true>(problem, panels, block, at_most(block + key_block, chunk_last), s.views,
                                                  [&](int64_t i) { return s.places + i; });
      if (range.empty()) continue;
      const key_rows<real> keys_of_block =
          fetch_keys<stored>(problem, batch, kv_head, range.first, range.last - range.first, s.key_copy, s.value_copy);
      scores.take_keys(problem, batch, kv_head, range.first, range.last);
      for (int64_t i = 0; i < panels; ++i) {
        const block_view& view = s.views[i];
        if (view.keys() == 0) continue;
        const auto [k, v] = keys_of_block.from(view.start - range.first);
        scores.make(problem, batch, kv_head, i, s.places[i], s.q_packed + i * problem.d_k * lanes, k, view, s.scores,
                    static_cast<real*>(nullptr));
        weigh_scores(s.rows[i], view.keys(), s.scores);
        add_pairs(problem.weights, batch, s.places[i], view.start, view.keys(), s.scores);
      }
    }
  }
}

template <typename stored, typename maker>
kernel_pass weights_pass_by(const attention_problem& problem) {
  kernel_pass pass;
  pass.items = backward_items_of(problem);
  pass.scratch_bytes = forward_scratch<stored>(problem, nullptr).bytes + maker::extra_bytes(problem);
  pass.item = weights_item_of<stored, maker>;
  return pass;
}

}  // namespace rootdk::ROOTDK_TARGET
