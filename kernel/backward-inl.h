// The backward pass: five products instead of the forward's two, and still nothing of size n x n.
//
// An item of work owns a chunk of the keys of one key head and walks over all query rows that see it. So the gradients of
// keys and values are summed in one place; the query's gradient is summed per chunk and merged afterwards in a fixed
// order. How many chunks there are follows from the problem alone.
//
//   P  = 2^(S - max) / sum          the forward's weights, from the row's saved maximum and sum
//   dP = dO V'                      (times the dropout factor)
//   dS = P * (dP - <dO, O>)         the gradient of the bias; times the softcap's slope that of the products
//   dV = P' dO     dK = dS' Q     dQ = dS K

namespace rootdk::ROOTDK_TARGET {

template <typename real>
ROOTDK_INLINE int64_t padded(int64_t length) {
  return ceil_div(length, simd<real>::width) * simd<real>::width;
}

// One panel's rows in the four shapes that the products need, and its numbers per lane.
template <typename real>
struct backward_panel {
  static constexpr int lanes = panel_lanes<real>;
  panel<real> place;
  bool sees_chunk;  // else nothing below is set
  alignas(64) real maximum[lanes], inverse_sum[lanes], delta[lanes], query_factor[lanes];
  alignas(64) real bias_sum[lanes];  // of dS over the chunk's keys; only where the bias has no axis of keys
  alignas(64) real
      distance_sum[lanes];  // of dS times the distance, over the chunk's keys; only where the slopes have a gradient
  bool stretched;                    // as in a panel, for the gradient of the keys: what query_factor leaves out
  alignas(64) real stretch[lanes];   // is applied to the gradient of the scores
  real *q_packed, *d_out_packed;  // [d][lane]
  real *q_rows, *d_out_rows;      // [lane][padded d]; the query's already times the scale
  real* d_query;                  // [d][lane]
  // Few rows, as in few-inl.h: where it says [d][lane] it is [row][d].
};

template <typename stored>
struct backward_scratch {
  typedef compute<stored> real;
  static constexpr int64_t panels = item_rows<real> / panel_lanes<real>;
  real *d_key, *d_value;  // sums of the chunk, [key][padded d]
  real *scores, *gradient, *slope, *d_bias, *factors, *key_copy, *value_copy, *out_packed, *marks;
  backward_panel<real>* rows;
  block_view* views;
  int64_t bytes;

  backward_scratch(const attention_problem& problem, void* buffer) {
    constexpr bool converted = !std::is_same<stored, real>::value;
    constexpr int64_t lanes = panel_lanes<real>;
    carver carve{static_cast<char*>(buffer)};
    const int64_t keys = at_most(chunk_keys(problem), problem.n_key);
    d_key = carve.take<real>(keys * padded<real>(problem.d_k));
    d_value = carve.take<real>(keys * padded<real>(problem.d_v));
    scores = carve.take<real>(key_block * lanes);
    gradient = carve.take<real>(key_block * lanes);
    slope = carve.take<real>(problem.softcap > 0 ? key_block * lanes : 0);
    d_bias = carve.take<real>(problem.softcap > 0 && (problem.d_bias.data || problem.d_alibi) ? key_block * lanes : 0);
    factors = carve.take<real>(problem.dropout > 0 ? key_block * lanes : 0);
    key_copy = carve.take<real>(converted ? key_block * problem.d_k : 0);
    value_copy = carve.take<real>(converted ? key_block * problem.d_v : 0);
    out_packed = carve.take<real>(problem.d_v * lanes);
    marks = carve.take<real>(key_block * lanes);
    rows = carve.take<backward_panel<real>>(panels);
    views = carve.take<block_view>(panels);
    for (int64_t i = 0; i < panels; ++i) {
      real* const pieces[] = {carve.take<real>(problem.d_k * lanes), carve.take<real>(problem.d_v * lanes),
                              carve.take<real>(padded<real>(problem.d_k) * lanes),
                              carve.take<real>(padded<real>(problem.d_v) * lanes), carve.take<real>(problem.d_k * lanes)};
      if (!buffer) continue;
      rows[i].q_packed = pieces[0], rows[i].d_out_packed = pieces[1];
      rows[i].q_rows = pieces[2], rows[i].d_out_rows = pieces[3], rows[i].d_query = pieces[4];
    }
    bytes = carve.used;
  }
};

// The weights must be the forward's, so the scores are computed in the same way: with logits of 1e11 another order of the same
// sums would be another problem. This is the way of forward-inl.h, or with `few` that of few-inl.h; the pass is made for one of
// them when it is chosen (target-inl.h), and its type says which one to the code below.
template <typename stored, bool few_rows>
struct vector_scores {
  typedef compute<stored> real;
  static constexpr bool few = few_rows;
  static constexpr int64_t extra_bytes(const attention_problem&) { return 0; }
  vector_scores(const attention_problem&, void* /*extra*/) {}

  void take_rows(const attention_problem& problem, int64_t batch, int64_t /*i*/, panel<real>& p, stored* const* query,
                 real* q_packed) {
    if constexpr (few)
      pack_few_queries<stored>(problem, batch, p, q_packed);
    else
      pack_scaled<stored>(problem, batch, query, p, q_packed);
  }
  void restore_registers() {}
  void take_keys(const attention_problem&, int64_t /*batch*/, int64_t /*kv_head*/, int64_t /*first*/, int64_t /*last*/) {}
  void make(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t /*i*/, const panel<real>& p,
            const real* q_packed, row_block<real> k, const block_view& view, real* scores, real* slope) {
    if constexpr (few)
      few_scores<stored>(problem, batch, kv_head, p, q_packed, view, scores, slope);
    else
      compute_scores<real>(problem, batch, p, q_packed, k, view, scores, slope);
  }
};

template <typename stored, typename maker>
inline void prepare_rows(const attention_problem& problem, int64_t batch, int64_t i, backward_panel<compute<stored>>& b,
                         compute<stored>* out_packed, maker& scores) {
  typedef compute<stored> real;
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  panel<real>& p = b.place;
  const real* state = static_cast<const real*>(problem.row_state);
  for (real* const numbers : {b.maximum, b.inverse_sum, b.query_factor, b.bias_sum, b.distance_sum})
    for (int lane = 0; lane < lanes; lane += width) store(numbers + lane, vec<real>{});
  for (int lane = 0; lane < p.live; ++lane) {
    const real maximum = state[p.flat + lane], sum = state[problem.rows() + p.flat + lane];
    // A row that saw nothing: weights 0, whatever is computed.
    b.maximum[lane] = maximum == minus_infinity<real> ? real(0) : maximum;
    b.inverse_sum[lane] = sum == 0 ? real(0) : 1 / sum;
    const double row_scale = problem.row_scale ? problem.row_scale[batch * problem.n_query + p.query[lane]] : 1.0;
    b.query_factor[lane] = real(problem.scale * row_scale);
  }
  stored *query[lanes], *d_out[lanes], *out[lanes];
  row_pointers(problem.query, batch, p, query);
  row_pointers(problem.d_out, batch, p, d_out);
  row_pointers(problem.out, batch, p, out);
  const int64_t k_width = padded<real>(problem.d_k), v_width = padded<real>(problem.d_v), d_v = problem.d_v;
  const int used = maker::few ? p.live : lanes;
  scores.take_rows(problem, batch, i, p, query, b.q_packed);
  std::memset(b.q_rows, 0, size_t(k_width * used) * sizeof(real));
  std::memset(b.d_out_rows, 0, size_t(v_width * used) * sizeof(real));
  for (int lane = 0; lane < p.live; ++lane) widen_row(d_out[lane], d_v, b.d_out_rows + lane * v_width);
  if constexpr (maker::few) {
    for (int row = 0; row < p.live; ++row) {
      const real* d_out_row = b.d_out_rows + row * v_width;
      std::memcpy(b.d_out_packed + row * d_v, d_out_row, size_t(d_v) * sizeof(real));
      widen_row(out[row], d_v, out_packed);
      std::memset(out_packed + d_v, 0, size_t(v_width - d_v) * sizeof(real));
      vec<real> delta = vec<real>{};
      for (int64_t d = 0; d < v_width; d += width) delta += load(d_out_row + d) * load(out_packed + d);
      b.delta[row] = sum_lanes<real>(delta);
    }
  } else {
    alignas(64) real one[lanes];
    for (real& x : one) x = 1;
    pack_transposed<stored>(d_out, p.live, one, d_v, b.d_out_packed);
    pack_transposed<stored>(out, p.live, one, d_v, out_packed);
    for (int v = 0; v < lanes; v += width) {
      vec<real> delta = vec<real>{};
      for (int64_t d = 0; d < d_v; ++d) delta += load(b.d_out_packed + d * lanes + v) * load(out_packed + d * lanes + v);
      store(b.delta + v, delta);
    }
  }
  const auto scale_queries = [&] {
    for (int lane = 0; lane < p.live; ++lane) {
      real* row = b.q_rows + lane * k_width;
      widen_row(query[lane], problem.d_k, row);
      for (int64_t d = 0; d < problem.d_k; ++d) row[d] *= b.query_factor[lane];
    }
  };
  scale_queries();
  b.stretched = may_overflow(problem, b.query_factor) && !finite_numbers(b.q_rows, k_width * used);
  if (b.stretched) {
    hold_back(lanes, b.query_factor, b.stretch);
    scale_queries();
  }
  std::memset(b.d_query, 0, size_t(problem.d_k * used) * sizeof(real));
}

// scores -> weights (dropout applied), dP -> dS. d_bias, where wanted, gets dS without the slope.
template <typename real>
inline void score_gradient(const backward_panel<real>& b, int64_t keys, real* scores, real* gradient, const real* slope,
                           const real* factors, real* d_bias) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int v = 0; v < b.place.live; v += width) {
    const vec<real> maximum = load(b.maximum + v), inverse_sum = load(b.inverse_sum + v), delta = load(b.delta + v);
    for (int64_t key = 0; key < keys; ++key) {
      const int64_t at = key * lanes + v;
      const vec<real> score = load(scores + at);
      const vec<real> p = exp2(score - maximum) * inverse_sum;
      vec<real> d_p = load(gradient + at);
      vec<real> dropped = p;
      if (factors) {
        const vec<real> factor = load(factors + at);
        d_p *= factor;
        dropped *= factor;
      }
      // A hidden pair has weight 0, but 0 times the NaN of a hidden value would not be 0.
      const ivec<real> hidden = score == broadcast(minus_infinity<real>);
      vec<real> d_s = p * (d_p - delta);
      if (d_bias) store(d_bias + at, select<real>(hidden, vec<real>{}, d_s));
      if (slope) d_s *= load(slope + at);
      store(gradient + at, select<real>(hidden, vec<real>{}, d_s));
      store(scores + at, dropped);
    }
  }
}

// dS times the distance of query and key, summed over the keys of a block: for the gradient of the slope of each row's head.
template <typename real>
inline void add_distance_gradient(const attention_problem& problem, int64_t batch, const panel<real>& p, int64_t start,
                                  int64_t keys, const real* d_logits, real* distance_sum) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  const lane_distances<real> distances(problem, problem.alibi, batch, p, start);
  for (int v = 0; v < lanes; v += width) {
    vec<real> sum = vec<real>{};
    for (int64_t key = 0; key < keys; ++key) sum += load(d_logits + key * lanes + v) * distances.of(key, v);
    store(distance_sum + v, load(distance_sum + v) + sum);
  }
}

// C[key][d] += sum over lanes of A[key][lane] * rows[lane][d], for a whole row of vectors.
template <typename real, typename skip_t>
inline void add_row_products(const real* a, const real* rows, int64_t row_width, int64_t live, int64_t keys, real* c,
                             const skip_t& skip) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  int64_t d = 0;
  for (; d + lanes <= row_width; d += lanes)
    product<real, a_rows, panel_vectors>(a, lanes, rows + d, row_width, live, c + d, row_width, keys, add{}, skip);
  if (d < row_width) product<real, a_rows, 1>(a, lanes, rows + d, row_width, live, c + d, row_width, keys, add{}, skip);
  static_assert(lanes == 2 * width, "a panel is two vectors: at most one is left over");
}

template <typename real, typename skip_t>
inline void add_key_gradients(const attention_problem& problem, const backward_panel<real>& b, const real* weights,
                              const real* gradient, int64_t keys, real* d_key, real* d_value, const skip_t& skip) {
  add_row_products(weights, b.d_out_rows, padded<real>(problem.d_v), b.place.live, keys, d_value, skip);
  add_row_products(gradient, b.q_rows, padded<real>(problem.d_k), b.place.live, keys, d_key, skip);
}

// d_query += sum over keys of gradient[key][lane] * k[key]. `marks` as in few-inl.h.
template <typename stored, bool few, bool slow_path>
inline void add_query_gradients(const attention_problem& problem, int64_t batch, int64_t kv_head,
                                const backward_panel<compute<stored>>& b, const compute<stored>* gradient,
                                row_block<compute<stored>> k, int64_t start, int64_t keys, const compute<stored>* marks) {
  typedef compute<stored> real;
  constexpr int lanes = panel_lanes<real>;
  const int64_t d_k = problem.d_k;
  if constexpr (few) {
    const rescale_add<real> plain_sum{{broadcast(real(1))}, {broadcast(real(1))}};
    few_values<stored, slow_path>(row_pointer<stored>(problem.key, batch, kv_head, start), problem.key.row_stride, keys, 0,
                                  b.place.live, gradient, marks, plain_sum, d_k, b.d_query);
  } else if constexpr (slow_path) {
    product<real, a_columns, panel_vectors>(k.data, k.stride, gradient, lanes, keys, b.d_query, lanes, d_k, add{},
                                            skip_hidden<real>{marks});
  } else {
    product<real, a_columns, panel_vectors>(k.data, k.stride, gradient, lanes, keys, b.d_query, lanes, d_k, add{});
  }
}

// One block of query rows against the chunk's keys. Returns whether its gradients are finite.
template <typename stored, typename maker>
inline bool walk_chunk(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t panels, int64_t chunk_first,
                       int64_t chunk_last, backward_scratch<stored>& s, maker& scores, bool slow_path) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  const int64_t k_width = padded<real>(problem.d_k), v_width = padded<real>(problem.d_v);
  constexpr bool few = maker::few;
  int64_t first = chunk_last, last = chunk_first;
  for (int64_t i = 0; i < panels; ++i) {
    first = at_most(first, s.rows[i].place.first_any), last = at_least(last, s.rows[i].place.last_any);
  }
  first = at_least(first, chunk_first), last = at_most(last, chunk_last);
  for (int64_t block = first / key_block * key_block; block < last; block += key_block) {
    if (between_steps(problem)) scores.restore_registers();
    const block_range range = view_panels<true>(problem, panels, at_least(block, first), at_most(block + key_block, last),
                                                s.views, [&](int64_t i) { return &s.rows[i].place; });
    if (range.empty()) continue;
    const key_rows<real> rows =
        fetch_keys<stored>(problem, batch, kv_head, range.first, range.last - range.first, s.key_copy, s.value_copy);
    scores.take_keys(problem, batch, kv_head, range.first, range.last);
    for (int64_t i = 0; i < panels; ++i) {
      backward_panel<real>& b = s.rows[i];
      const block_view& view = s.views[i];
      const int64_t start = view.start, keys = view.keys();
      if (keys == 0) continue;
      const auto [k, v] = rows.from(start - range.first);
      real* slope = problem.softcap > 0 ? s.slope : nullptr;
      scores.make(problem, batch, kv_head, i, b.place, b.q_packed, k, view, s.scores, slope);
      if (slow_path) mark_hidden(s.scores, keys * lanes, s.marks);
      if constexpr (few)
        few_products<stored>(row_pointer<stored>(problem.value, batch, kv_head, start), problem.value.row_stride, keys,
                             b.place.live, b.d_out_packed, problem.d_v, s.gradient);
      else
        product<real, a_rows, panel_vectors>(v.data, v.stride, b.d_out_packed, lanes, problem.d_v, s.gradient, lanes, keys,
                                             overwrite{});
      if (problem.dropout > 0) dropout_factors(problem, b.place, start, keys, s.factors);
      // Only once, not again in the slow path: dS is the same both times, and d_bias is added to.
      const bool adds_bias = problem.d_bias.data && !slow_path;
      score_gradient<real>(b, keys, s.scores, s.gradient, slope, problem.dropout > 0 ? s.factors : nullptr,
                           (adds_bias || problem.d_alibi) && slope ? s.d_bias : nullptr);
      const real* const d_logits = slope ? s.d_bias : s.gradient;
      if (adds_bias) add_bias_gradient(problem, batch, b.place, start, keys, d_logits, b.bias_sum);
      if (problem.d_alibi) add_distance_gradient(problem, batch, b.place, start, keys, d_logits, b.distance_sum);
      if (b.stretched) multiply_lanes(b.stretch, keys, s.gradient);
      real* d_key = s.d_key + (start - chunk_first) * k_width;
      real* d_value = s.d_value + (start - chunk_first) * v_width;
      if (slow_path) {
        add_key_gradients(problem, b, s.scores, s.gradient, keys, d_key, d_value, skip_hidden<real>{s.marks});
        add_query_gradients<stored, few, true>(problem, batch, kv_head, b, s.gradient, k, start, keys, s.marks);
      } else {
        add_key_gradients(problem, b, s.scores, s.gradient, keys, d_key, d_value, skip_nothing{});
        add_query_gradients<stored, few, false>(problem, batch, kv_head, b, s.gradient, k, start, keys, s.marks);
      }
    }
  }
  for (int64_t i = 0; i < panels; ++i) {
    const backward_panel<real>& b = s.rows[i];
    if (!b.sees_chunk) continue;
    if (few ? !finite_numbers(b.d_query, b.place.live * problem.d_k) : !all_finite(b.d_query, problem.d_k, b.place.live))
      return false;
  }
  return true;
}

template <typename target, bool few, typename real>
inline void write_query_gradient(const attention_problem& problem, const backward_panel<real>& b, target* const* to) {
  if constexpr (!few) return unpack_transposed<target>(b.d_query, b.place.live, b.query_factor, problem.d_k, to);
  for (int row = 0; row < b.place.live; ++row) {
    real* const d_query = b.d_query + row * problem.d_k;
    for (int64_t d = 0; d < problem.d_k; ++d) d_query[d] *= b.query_factor[row];
    narrow_row(d_query, problem.d_k, to[row]);
  }
}

template <typename stored, typename maker>
inline bool try_backward_item(const attention_problem& problem, int64_t item, backward_scratch<stored>& s, void* shared,
                              maker& scores, bool slow_path) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  const int64_t chunks = backward_chunks(problem), chunk = item % chunks, pair = problem.pair(item / chunks);
  const int64_t batch = pair / problem.kv_heads, kv_head = pair % problem.kv_heads;
  const int64_t chunk_first = at_most(chunk * chunk_keys(problem), problem.n_key);
  const int64_t chunk_last = at_most(chunk_first + chunk_keys(problem), problem.n_key), keys = chunk_last - chunk_first;
  const int64_t k_width = padded<real>(problem.d_k), v_width = padded<real>(problem.d_v);
  const int64_t rows = problem.group() * problem.n_query;
  // Lanes without a row stay 0 where rows are few.
  std::memset(s.scores, 0, size_t(at_most(key_block, keys) * lanes) * sizeof(real));
  std::memset(s.d_key, 0, size_t(keys * k_width) * sizeof(real));
  std::memset(s.d_value, 0, size_t(keys * v_width) * sizeof(real));
  bool finite = true;
  for (int64_t start = 0; start < rows; start += item_rows<real>) {
    if (between_steps(problem)) scores.restore_registers();
    const int64_t stop = at_most(start + item_rows<real>, rows), panels = ceil_div(stop - start, lanes);
    for (int64_t i = 0; i < panels; ++i) {
      place_panel(problem, batch, kv_head, start + i * lanes, at_most(start + (i + 1) * lanes, stop), s.rows[i].place);
      const panel<real>& p = s.rows[i].place;
      s.rows[i].sees_chunk = at_least(p.first_any, chunk_first) < at_most(p.last_any, chunk_last);
      if (s.rows[i].sees_chunk) prepare_rows<stored>(problem, batch, i, s.rows[i], s.out_packed, scores);
    }
    finite &= walk_chunk(problem, batch, kv_head, panels, chunk_first, chunk_last, s, scores, slow_path);
    for (int64_t i = 0; i < panels; ++i) {
      const panel<real>& p = s.rows[i].place;
      const int64_t row = item / chunks * rows + start + i * lanes;
      if (bias_lacks_keys(problem) && !slow_path) {
        real* const sums = partial_bias<real>(problem, shared, chunk, row);
        if (s.rows[i].sees_chunk)
          std::memcpy(sums, s.rows[i].bias_sum, size_t(p.live) * sizeof(real));
        else
          std::memset(sums, 0, size_t(p.live) * sizeof(real));
      }
      if (problem.d_alibi) {
        real* const sums = partial_distances<real>(problem, shared, chunk, row);
        for (int lane = 0; lane < p.live; ++lane) sums[lane] = s.rows[i].sees_chunk ? s.rows[i].distance_sum[lane] : real(0);
      }
      if (!s.rows[i].sees_chunk) {  // the bits of 0 are those of a number 0 in every type
        for (int lane = 0; lane < p.live; ++lane)
          if (chunks == 1)
            std::memset(row_pointer<stored>(problem.d_query, batch, p.head[lane], p.query[lane]), 0,
                        size_t(problem.d_k) * sizeof(stored));
          else if (problem.d_k > 0)  // else there may be no shared buffer
            std::memset(partial_row<real>(problem, shared, chunk, row + lane), 0, size_t(problem.d_k) * sizeof(real));
      } else if (chunks == 1) {
        stored* to[lanes];
        row_pointers(problem.d_query, batch, p, to);
        write_query_gradient<stored, maker::few>(problem, s.rows[i], to);
      } else {
        real* to[lanes];
        for (int lane = 0; lane < p.live; ++lane) to[lane] = partial_row<real>(problem, shared, chunk, row + lane);
        write_query_gradient<real, maker::few>(problem, s.rows[i], to);
      }
    }
  }
  finite = finite && finite_numbers(s.d_key, keys * k_width) && finite_numbers(s.d_value, keys * v_width);
  if (!finite && !slow_path) return false;
  for (int64_t key = 0; key < keys; ++key) {
    narrow_row(s.d_key + key * k_width, problem.d_k, row_pointer<stored>(problem.d_key, batch, kv_head, chunk_first + key));
    narrow_row(s.d_value + key * v_width, problem.d_v, row_pointer<stored>(problem.d_value, batch, kv_head, chunk_first + key));
  }
  return true;
}

template <typename stored, typename maker>
void backward_item_of(const attention_problem& problem, int64_t item, void* buffer, void* shared) {
  backward_scratch<stored> s(problem, buffer);
  maker scores(problem, static_cast<char*>(buffer) + s.bytes);
  if (!try_backward_item(problem, item, s, shared, scores, false)) try_backward_item(problem, item, s, shared, scores, true);
}

template <typename stored, typename maker>
int64_t backward_bytes_of(const attention_problem& problem) {
  return backward_scratch<stored>(problem, nullptr).bytes + maker::extra_bytes(problem);
}

}  // namespace rootdk::ROOTDK_TARGET
