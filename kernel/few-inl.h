// Few query rows, many keys: the step of a decoder that writes one token at a time. There are not enough rows to fill the
// lanes, and all that counts is to read every key and value once, at the speed of the memory. So here the numbers of one
// key lie in the lanes, and the keys are split into chunks that threads share; the chunks' parts are merged by their
// maxima and sums in a fixed order. Logits, limits, softmax and measurement are the same code as everywhere.

namespace rootdk::ROOTDK_TARGET {

// Up to this many rows per key head: above it, filling part of the lanes is faster.
template <typename real>
constexpr int64_t few_rows = simd<real>::width / 2;

constexpr int64_t few_chunk_keys = 8 * key_block;

template <typename real>
inline bool has_few_rows(const attention_problem& problem) {
  const int64_t rows = problem.group() * problem.n_query;
  return rows > 0 && rows <= few_rows<real> && problem.n_key > 0;
}

inline int64_t few_chunks(const attention_problem& problem) { return ceil_div(problem.n_key, few_chunk_keys); }

// What one chunk leaves for the merge.
template <typename real>
struct few_part {
  row_sums<real>* rows;
  real* out;  // [row][d_v], relative to the chunk's own maxima
};

template <typename real>
inline int64_t few_part_bytes(const attention_problem& problem) {
  carver count{nullptr};
  count.take<row_sums<real>>(1);
  count.take<real>(few_rows<real> * problem.d_v);
  return count.used;
}

template <typename real>
inline few_part<real> few_part_at(const attention_problem& problem, void* shared, int64_t pair, int64_t chunk) {
  carver carve{static_cast<char*>(shared) + (pair * few_chunks(problem) + chunk) * few_part_bytes<real>(problem)};
  row_sums<real>* rows = carve.take<row_sums<real>>(1);
  return {rows, carve.take<real>(few_rows<real> * problem.d_v)};
}

template <typename stored>
struct few_scratch {
  typedef compute<stored> real;
  real *queries, *scores, *factors, *key_copy, *value_copy, *marks;
  int64_t bytes;

  few_scratch(const attention_problem& problem, void* buffer) {
    constexpr bool converted = !std::is_same<stored, real>::value;
    constexpr int64_t lanes = panel_lanes<real>;
    carver carve{static_cast<char*>(buffer)};
    queries = carve.take<real>(few_rows<real> * problem.d_k);
    scores = carve.take<real>(key_block * lanes);
    factors = carve.take<real>(problem.dropout > 0 ? key_block * lanes : 0);
    key_copy = carve.take<real>(converted ? key_block * problem.d_k : 0);
    value_copy = carve.take<real>(converted ? key_block * problem.d_v : 0);
    marks = carve.take<real>(key_block * lanes);
    bytes = carve.used;
  }
};

template <typename real>
ROOTDK_INLINE real dot(const real* a, const real* b, int64_t length) {
  constexpr int width = simd<real>::width;
  vec<real> even = vec<real>{}, odd = vec<real>{};
  int64_t d = 0;
  for (; d + 2 * width <= length; d += 2 * width) {
    even += load(a + d) * load(b + d);
    odd += load(a + d + width) * load(b + d + width);
  }
  if (d + width <= length) {
    even += load(a + d) * load(b + d);
    d += width;
  }
  real sum = sum_lanes<real>(even + odd);
  for (; d < length; ++d) sum += a[d] * b[d];
  return sum;
}

// The queries with their factors, [row][d].
template <typename stored>
inline void pack_few_queries(const attention_problem& problem, int64_t batch, const panel<compute<stored>>& p,
                             compute<stored>* to) {
  typedef compute<stored> real;
  alignas(64) real factor[panel_lanes<real>];
  query_factors(problem, batch, p, factor);
  for (int row = 0; row < p.live; ++row) {
    real* query = to + row * problem.d_k;
    widen_row(row_pointer<stored>(problem.query, batch, p.head[row], p.query[row]), problem.d_k, query);
    for (int64_t d = 0; d < problem.d_k; ++d) query[d] *= factor[row];
  }
}

// compute_scores() with the numbers of a key in the lanes. Not inlined: forward and backward must round alike.
template <typename real>
inline __attribute__((noinline)) void few_scores(const attention_problem& problem, int64_t batch, const panel<real>& p,
                                                 const real* queries, row_block<real> keys, int64_t start,
                                                 const block_view& view, real* scores, real* slope) {
  constexpr int lanes = panel_lanes<real>;
  for (int64_t key = 0; key < view.keys(); ++key)
    for (int row = 0; row < p.live; ++row)
      scores[key * lanes + row] = dot(keys.data + key * keys.stride, queries + row * problem.d_k, problem.d_k);
  shape_scores(problem, batch, p, start, view, scores, slope);
}

// out[d] = out[d] * before + block * sum over keys of weight[key] * value[key][d], for one row. `marks` as in tile-inl.h, or null.
template <typename real, int vectors>
ROOTDK_INLINE void few_values_at(row_block<real> values, int64_t count, const real* weights, const real* marks, real before,
                                 real block, real* out) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  vec<real> sum[vectors];
  for (int v = 0; v < vectors; ++v) sum[v] = vec<real>{};
  for (int64_t key = 0; key < count; ++key) {
    if (marks && marks[key * lanes] < 0) continue;
    const vec<real> weight = broadcast(weights[key * lanes]);
    for (int v = 0; v < vectors; ++v) sum[v] += weight * load(values.data + key * values.stride + v * width);
  }
  for (int v = 0; v < vectors; ++v) store(out + v * width, load(out + v * width) * before + sum[v] * block);
}

template <typename real>
inline void few_values(row_block<real> values, int64_t count, const real* weights, const real* marks, real before,
                       real block, int64_t d_v, real* out) {
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  int64_t d = 0;
  const auto at = [&] { return row_block<real>{values.data + d, values.stride}; };
  for (; d + 4 * width <= d_v; d += 4 * width) few_values_at<real, 4>(at(), count, weights, marks, before, block, out + d);
  for (; d + width <= d_v; d += width) few_values_at<real, 1>(at(), count, weights, marks, before, block, out + d);
  for (; d < d_v; ++d) {
    real sum = 0;
    for (int64_t key = 0; key < count; ++key)
      if (!(marks && marks[key * lanes] < 0)) sum += weights[key * lanes] * values.data[key * values.stride + d];
    out[d] = out[d] * before + sum * block;
  }
}

// One chunk of keys. Returns whether its output is finite.
template <typename stored>
inline bool walk_few(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t chunk,
                     const panel<compute<stored>>& p, few_scratch<stored>& s, const few_part<compute<stored>>& part,
                     bool careful) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  const int64_t first = at_least(chunk * few_chunk_keys, p.first_any);
  const int64_t last = at_most((chunk + 1) * few_chunk_keys, p.last_any);
  part.rows->reset();
  std::memset(part.out, 0, size_t(p.live * problem.d_v) * sizeof(real));
  for (int64_t block = first / key_block * key_block; block < last; block += key_block) {
    const int64_t start = at_least(block, first), keys = at_most(block + key_block, last) - start;
    const auto [k, v] = fetch_keys<stored>(problem, batch, kv_head, start, keys, s.key_copy, s.value_copy);
    const block_view view = view_block(problem, p, start, keys);
    few_scores(problem, batch, p, s.queries, k, start, view, s.scores, static_cast<real*>(nullptr));
    if (careful) mark_hidden(s.scores, keys * lanes, s.marks);
    rescale_add<real> finish;
    if (problem.reading)
      softmax_block<real, true>(s.scores, view, *part.rows, finish);
    else
      softmax_block<real, false>(s.scores, view, *part.rows, finish);
    if (problem.dropout > 0) {
      dropout_factors(problem, p, start, keys, s.factors);
      for (int64_t at = 0; at < keys * lanes; ++at) s.scores[at] *= s.factors[at];
    }
    for (int row = 0; row < p.live; ++row)
      few_values(v, keys, s.scores + row, careful ? s.marks + row : nullptr, finish.before[0][row], finish.block[0][row],
                 problem.d_v, part.out + row * problem.d_v);
  }
  if (part.rows->fresh) part.rows->clear();
  return finite_numbers(part.out, p.live * problem.d_v);
}

template <typename stored>
inline void few_item(const attention_problem& problem, int64_t item, void* buffer, void* shared) {
  typedef compute<stored> real;
  const int64_t chunks = few_chunks(problem), pair = item / chunks, chunk = item % chunks;
  const int64_t batch = pair / problem.kv_heads, kv_head = pair % problem.kv_heads;
  panel<real> p;
  place_panel(problem, batch, kv_head, 0, problem.group() * problem.n_query, p);
  few_scratch<stored> s(problem, buffer);
  pack_few_queries<stored>(problem, batch, p, s.queries);
  // Lanes without a row are never read as a result, but they are computed: on zeros, not on what lay here before.
  std::memset(s.scores, 0, size_t(key_block * panel_lanes<real>) * sizeof(real));
  const few_part<real> part = few_part_at<real>(problem, shared, pair, chunk);
  if (!walk_few<stored>(problem, batch, kv_head, chunk, p, s, part, false))
    walk_few<stored>(problem, batch, kv_head, chunk, p, s, part, true);
}

// Adds the rows of `other`, which saw other keys, to `rows`. The factors say by how much each side's output must shrink.
template <typename real>
inline void merge_sums(row_sums<real>& rows, const row_sums<real>& other, int lane, real* shrink, real* other_shrink) {
  const real before = rows.maximum[lane], theirs = other.maximum[lane], now = theirs > before ? theirs : before;
  const real base = now == minus_infinity<real> ? real(0) : now;
  const real f = std::exp2(before - base), g = std::exp2(theirs - base);
  constexpr real floor = simd<real>::exp2_floor;  // below it a side has shrunk to 0, and a larger step would overflow
  const real step = before - base > floor ? before - base : floor;
  const real their_step = theirs - base > floor ? theirs - base : floor;
  rows.moment[lane] = (rows.moment[lane] + rows.sum[lane] * step) * f +
                      (other.moment[lane] + other.sum[lane] * their_step) * g;
  rows.maximum[lane] = now;
  rows.sum[lane] = rows.sum[lane] * f + other.sum[lane] * g;
  rows.square[lane] = rows.square[lane] * (f * f) + other.square[lane] * (g * g);
  rows.cube[lane] = rows.cube[lane] * (f * f * f) + other.cube[lane] * (g * g * g);
  rows.minimum[lane] = other.minimum[lane] < rows.minimum[lane] ? other.minimum[lane] : rows.minimum[lane];
  const real count = rows.count[lane] + other.count[lane];
  const real share = count > 0 ? other.count[lane] / count : real(0), distance = other.mean[lane] - rows.mean[lane];
  rows.deviation[lane] += other.deviation[lane] + distance * (rows.count[lane] * share) * distance;
  rows.mean[lane] += distance * share;
  rows.count[lane] = count;
  rows.keys[lane] += other.keys[lane];
  *shrink = f, *other_shrink = g;
}

// One key head: its chunks, first to last, into the first one's part; then the finished rows.
template <typename stored>
inline void few_merge_item(const attention_problem& problem, int64_t pair, void* shared) {
  typedef compute<stored> real;
  constexpr int lanes = panel_lanes<real>;
  const int64_t batch = pair / problem.kv_heads, kv_head = pair % problem.kv_heads;
  panel<real> p;
  place_panel(problem, batch, kv_head, 0, problem.group() * problem.n_query, p);
  const few_part<real> whole = few_part_at<real>(problem, shared, pair, 0);
  for (int64_t chunk = 1; chunk < few_chunks(problem); ++chunk) {
    const few_part<real> part = few_part_at<real>(problem, shared, pair, chunk);
    for (int row = 0; row < p.live; ++row) {
      real shrink, other_shrink;
      merge_sums(*whole.rows, *part.rows, row, &shrink, &other_shrink);
      for (int64_t d = row * problem.d_v; d < (row + 1) * problem.d_v; ++d)
        whole.out[d] = whole.out[d] * shrink + part.out[d] * other_shrink;
    }
  }
  alignas(64) real factor[lanes];
  finish_rows(problem, p, *whole.rows, factor);
  for (int row = 0; row < p.live; ++row) {
    real* out = whole.out + row * problem.d_v;
    for (int64_t d = 0; d < problem.d_v; ++d) out[d] *= factor[row];
    narrow_row(out, problem.d_v, row_pointer<stored>(problem.out, batch, p.head[row], p.query[row]));
  }
}

}  // namespace rootdk::ROOTDK_TARGET
