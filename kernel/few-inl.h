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

// Over so few keys most of the time goes into what is done once per panel. So the key heads of a batch entry share panels, as
// many as fill the lanes: each makes its own products, and all of them one softmax.
constexpr int64_t few_shared_keys = 16;
template <typename real>
inline int64_t few_heads(const attention_problem& problem) {
  if (problem.n_key > few_shared_keys) return 1;
  return at_most(panel_lanes<real> / (problem.group() * problem.n_query), problem.kv_heads);
}
template <typename real>
inline int64_t few_panel_rows(const attention_problem& problem) {
  return few_heads<real>(problem) == 1 ? few_rows<real> : panel_lanes<real>;
}
template <typename real>
inline int64_t few_items(const attention_problem& problem) {
  return problem.batch * ceil_div(problem.kv_heads, few_heads<real>(problem)) * few_chunks(problem);
}

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
  count.take<real>(few_panel_rows<real>(problem) * problem.d_v);
  return count.used;
}

template <typename real>
inline few_part<real> few_part_at(const attention_problem& problem, void* shared, int64_t pair, int64_t chunk) {
  carver carve{static_cast<char*>(shared) + (pair * few_chunks(problem) + chunk) * few_part_bytes<real>(problem)};
  row_sums<real>* rows = carve.take<row_sums<real>>(1);
  return {rows, carve.take<real>(few_panel_rows<real>(problem) * problem.d_v)};
}

template <typename stored>
struct few_scratch {
  typedef compute<stored> real;
  real *queries, *scores, *factors, *marks;
  void* part;  // of a single chunk, which no other item uses
  int64_t bytes;

  few_scratch(const attention_problem& problem, void* buffer) {
    constexpr int64_t lanes = panel_lanes<real>;
    carver carve{static_cast<char*>(buffer)};
    queries = carve.take<real>(few_panel_rows<real>(problem) * problem.d_k);
    scores = carve.take<real>(key_block * lanes);
    factors = carve.take<real>(problem.dropout > 0 ? key_block * lanes : 0);
    marks = carve.take<real>(key_block * lanes);
    part = carve.take<char>(few_chunks(problem) == 1 ? few_part_bytes<real>(problem) : 0);
    bytes = carve.used;
  }
};

// The queries with their factors, [row][d].
template <typename stored>
inline void pack_few_queries(const attention_problem& problem, int64_t batch, panel<compute<stored>>& p, compute<stored>* to) {
  typedef compute<stored> real;
  alignas(64) real factor[panel_lanes<real>];
  query_factors(problem, batch, p, factor);
  const auto pack = [&] {
    for (int row = 0; row < p.live; ++row) {
      real* query = to + row * problem.d_k;
      widen_row(row_pointer<stored>(problem.query, batch, p.head[row], p.query[row]), problem.d_k, query);
      for (int64_t d = 0; d < problem.d_k; ++d) query[d] *= factor[row];
    }
  };
  pack();
  if (likely(!may_overflow(problem, factor)) || finite_numbers(to, problem.d_k * p.live)) return;
  hold_back(p.lanes, factor, p.stretch);
  p.stretched = true;
  pack();
}

// Calls f with 4, 2, 1 as compile-time constants, as far as there are so many rows on this target.
template <typename real, typename function>
ROOTDK_INLINE void few_row_groups(const function& f) {
  if constexpr (few_rows<real> >= 4) f(std::integral_constant<int, 4>{});
  if constexpr (few_rows<real> >= 2) f(std::integral_constant<int, 2>{});
  f(std::integral_constant<int, 1>{});
}

// scores[key][row] for some rows: one register per pair, and all of them are summed over their lanes together.
template <typename stored, int rows>
inline void few_dots(const stored* keys, int64_t stride, int64_t count, const compute<stored>* queries, int64_t d_k,
                     compute<stored>* scores) {
  typedef compute<stored> real;
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>, together = width / rows;
  // Several keys at once, so that a number of the query is loaded once for all, and there are enough sums to hide the latency
  // of an addition.
  constexpr int side_by_side = together < 4 ? together : rows == 4 ? 2 : 4;
  for (int64_t first = 0; first < count; first += together) {
    const int here = int(at_most(together, count - first));
    if (here * rows <= 2) {  // sums one by one, the lanes of each in the order in which sum_rows() adds them
      for (int i = 0; i < here; ++i)
        for (int row = 0; row < rows; ++row) {
          const stored* const key = keys + (first + i) * stride;
          const real* const query = queries + row * d_k;
          vec<real> own = vec<real>{};
          int64_t d = 0;
          for (; d + width <= d_k; d += width) own += load_wide(key + d) * load(query + d);
          real score = sum_lanes<real>(own);
          for (; d < d_k; ++d) score += widen(key[d]) * query[d];
          scores[(first + i) * lanes + row] = score;
        }
      continue;
    }
    vec<real> sum[width];
    int64_t d = 0;
    for (int i = 0; i < together; i += side_by_side) {
      if (i >= here) {  // a very short block
        for (int j = i * rows; j < width; ++j) sum[j] = vec<real>{};
        break;
      }
      const stored* key[side_by_side];
      vec<real> own[side_by_side][rows];
      for (int j = 0; j < side_by_side; ++j) {
        key[j] = keys + (first + (i + j < here ? i + j : here - 1)) * stride;  // beyond the last key: the last one again
        for (vec<real>& x : own[j]) x = vec<real>{};
      }
      for (d = 0; d + width <= d_k; d += width)
        for (int row = 0; row < rows; ++row) {
          const vec<real> query = load(queries + row * d_k + d);
          for (int j = 0; j < side_by_side; ++j) own[j][row] += load_wide(key[j] + d) * query;
        }
      for (int j = 0; j < side_by_side; ++j)
        for (int row = 0; row < rows; ++row) sum[(i + j) * rows + row] = own[j][row];
    }
    alignas(64) real total[width];
    store<real>(total, sum_rows<real>(sum));
    for (int i = 0; i < here; ++i)
      for (int row = 0; row < rows; ++row) {
        real score = total[i * rows + row];
        for (int64_t rest = d; rest < d_k; ++rest)
          score += widen(keys[(first + i) * stride + rest]) * queries[row * d_k + rest];
        scores[(first + i) * lanes + row] = score;
      }
  }
}

// scores[key][row] of all rows. Several rows at once load and widen a key once.
template <typename stored>
inline void few_products(const stored* keys, int64_t stride, int64_t count, int rows, const compute<stored>* queries, int64_t d,
                         compute<stored>* scores) {
  int row = 0;
  few_row_groups<compute<stored>>([&](auto together) __attribute__((always_inline)) {
    for (; row + together <= rows; row += together)
      few_dots<stored, together>(keys, stride, count, queries + row * d, d, scores + row);
  });
}

// compute_scores() with the numbers of a key in the lanes. Not inlined: forward and backward must round alike. The panel holds
// the rows of one key head, or those of several from this one on.
template <typename stored>
inline __attribute__((noinline)) void few_scores(const attention_problem& problem, int64_t batch, int64_t kv_head,
                                                 const panel<compute<stored>>& p, const compute<stored>* queries,
                                                 const block_view& view, compute<stored>* scores, compute<stored>* slope) {
  const int rows = int(problem.group() * problem.n_query);
  for (int row = 0; row < p.live; row += rows, ++kv_head)
    few_products<stored>(row_pointer<stored>(problem.key, batch, kv_head, view.start), problem.key.row_stride, view.keys(),
                         rows, queries + row * problem.d_k, problem.d_k, scores + row);
  shape_scores(problem, batch, p, view, scores, slope);
}

// Two registers of numbers from memory, in an order that is cheap to make, and back in the order of memory. A register of
// bfloat16 holds 32: those in the high halves of its 32-bit lanes are floats once the low halves are cleared, the others after
// a shift.
template <typename stored>
ROOTDK_INLINE void load_two(const stored* from, vec<compute<stored>>* to) {
#if defined(__AVX512F__)
  if constexpr (std::is_same<stored, bfloat_bits>::value) {
    const __m512i pairs = _mm512_loadu_si512(from);
    to[0] = (vec<float>)_mm512_slli_epi32(pairs, 16);
    to[1] = (vec<float>)_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u)));
    return;
  }
#endif
  to[0] = load_wide(from), to[1] = load_wide(from + simd<compute<stored>>::width);
}
template <typename stored>
ROOTDK_INLINE void in_order_of_memory([[maybe_unused]] vec<compute<stored>>* two) {
#if defined(__AVX512F__)
  if constexpr (std::is_same<stored, bfloat_bits>::value) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    const __m512 even = (__m512)two[0], odd = (__m512)two[1];
    two[0] = (vec<float>)_mm512_permutex2var_ps(even, first, odd);
    two[1] = (vec<float>)_mm512_permutex2var_ps(even, second, odd);
  }
#endif
}

// out[row][d] = out * before[row] + block[row] * sum over keys of weight[key][row] * value[key][d]. `marks` as in tile-inl.h:
// pairs that are skipped.
template <typename stored, int rows, int vectors, bool slow_path>
ROOTDK_INLINE void few_values_at(const stored* values, int64_t stride, int64_t count, const compute<stored>* weights,
                                 const compute<stored>* marks, const compute<stored>* before, const compute<stored>* block,
                                 int64_t out_stride, compute<stored>* out) {
  typedef compute<stored> real;
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  constexpr int chains = rows * vectors <= 4 ? 2 : 1;  // several keys together where one gives too few sums
  vec<real> sum[chains][rows][vectors];
  for (auto& chain : sum)
    for (auto& row : chain)
      for (auto& x : row) x = vec<real>{};
  const auto take = [&](int chain, int64_t key) __attribute__((always_inline)) {
    vec<real> numbers[vectors];
    if constexpr (vectors % 2 == 0)
      for (int v = 0; v < vectors; v += 2) load_two(values + key * stride + v * width, numbers + v);
    else
      for (int v = 0; v < vectors; ++v) numbers[v] = load_wide(values + key * stride + v * width);
    for (int v = 0; v < vectors; ++v)
      for (int row = 0; row < rows; ++row) {
        if (slow_path && marks[key * lanes + row] < 0) continue;
        sum[chain][row][v] += broadcast(weights[key * lanes + row]) * numbers[v];
      }
  };
  int64_t key = 0;
  for (; key + chains <= count; key += chains)
    for (int chain = 0; chain < chains; ++chain) take(chain, key + chain);
  for (; key < count; ++key) take(0, key);
  for (int row = 0; row < rows; ++row) {
    for (int v = 0; v < vectors; ++v)
      for (int chain = 1; chain < chains; ++chain) sum[0][row][v] += sum[chain][row][v];
    if constexpr (vectors % 2 == 0)
      for (int v = 0; v < vectors; v += 2) in_order_of_memory<stored>(sum[0][row] + v);
    for (int v = 0; v < vectors; ++v) {
      real* to = out + row * out_stride + v * width;
      store(to, load(to) * before[row] + sum[0][row][v] * block[row]);
    }
  }
}

template <typename stored, int rows, bool slow_path>
inline void few_values(const stored* values, int64_t stride, int64_t count, const compute<stored>* weights,
                       const compute<stored>* marks, const compute<stored>* before, const compute<stored>* block, int64_t d_v,
                       compute<stored>* out) {
  typedef compute<stored> real;
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  int64_t d = 0;
  for (; d + 4 * width <= d_v; d += 4 * width)
    few_values_at<stored, rows, 4, slow_path>(values + d, stride, count, weights, marks, before, block, d_v, out + d);
  for (; d + width <= d_v; d += width)
    few_values_at<stored, rows, 1, slow_path>(values + d, stride, count, weights, marks, before, block, d_v, out + d);
  for (; d < d_v; ++d)
    for (int row = 0; row < rows; ++row) {
      real sum = 0;
      for (int64_t key = 0; key < count; ++key)
        if (!(slow_path && marks[key * lanes + row] < 0)) sum += weights[key * lanes + row] * widen(values[key * stride + d]);
      out[row * d_v + d] = out[row * d_v + d] * before[row] + sum * block[row];
    }
}

// `first`, `last`: the rows of the panel that see these values.
template <typename stored, bool slow_path>
inline void few_values(const stored* values, int64_t stride, int64_t count, int first, int last, const compute<stored>* weights,
                       const compute<stored>* marks, const rescale_add<compute<stored>>& finish, int64_t d_v,
                       compute<stored>* out) {
  typedef compute<stored> real;
  constexpr int width = simd<real>::width;
  alignas(64) real before[panel_lanes<real>], block[panel_lanes<real>];
  for (int v = first / width; v * width < last; ++v) {
    store<real>(before + v * width, finish.before[v]);
    store<real>(block + v * width, finish.block[v]);
  }
  int row = first;
  few_row_groups<real>([&](auto together) __attribute__((always_inline)) {
    for (; row + together <= last; row += together)
      few_values<stored, together, slow_path>(values, stride, count, weights + row, marks + row, before + row, block + row, d_v,
                                              out + row * d_v);
  });
}

// One chunk of keys of the panel's key heads, `kv_head` and those after it. Returns whether its output is finite.
template <typename stored, typename cached>
inline bool walk_few(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t chunk,
                     const panel<compute<stored>>& p, few_scratch<stored>& s, const few_part<compute<stored>>& part,
                     bool slow_path) {
  typedef compute<stored> real;
  constexpr int64_t lanes = panel_lanes<real>;
  const int64_t first = at_least(chunk * few_chunk_keys, p.first_any);
  const int64_t last = at_most((chunk + 1) * few_chunk_keys, p.last_any);
  const int rows = int(problem.group() * problem.n_query);
  part.rows->reset();
  std::memset(part.out, 0, size_t(p.live * problem.d_v) * sizeof(real));
  for (int64_t block = first / key_block * key_block; block < last; block += key_block) {
    block_view view;
    if (!view_block<true>(problem, p, at_least(block, first), at_most(block + key_block, last), view)) continue;
    const int64_t start = view.start, keys = view.keys();
    few_scores<cached>(problem, batch, kv_head, p, s.queries, view, s.scores, static_cast<real*>(nullptr));
    if (slow_path) mark_hidden(s.scores, keys * lanes, s.marks);
    rescale_add<real> finish;
    softmax(problem, s.scores, view, *part.rows, finish, int(ceil_div(p.live, simd<real>::width)));
    if (problem.dropout > 0) {
      dropout_factors(problem, p, start, keys, s.factors);
      for (int64_t at = 0; at < keys * lanes; ++at) s.scores[at] *= s.factors[at];
    }
    const auto add = slow_path ? few_values<cached, true> : few_values<cached, false>;
    for (int row = 0; row < p.live; row += rows)
      add(row_pointer<cached>(problem.value, batch, kv_head + row / rows, start), problem.value.row_stride, keys, row,
          row + rows, s.scores, s.marks, finish, problem.d_v, part.out);
  }
  if (part.rows->fresh) part.rows->clear();
  if (problem.reading) part.rows->count_each_lane();
  return finite_numbers(part.out, p.live * problem.d_v);
}

// The finished rows of a panel.
template <typename stored>
inline void finish_few(const attention_problem& problem, int64_t batch, const panel<compute<stored>>& p,
                       const few_part<compute<stored>>& whole) {
  typedef compute<stored> real;
  finish_rows(problem, p, *whole.rows);
  for (int row = 0; row < p.live; ++row) {
    real* out = whole.out + row * problem.d_v;
    for (int64_t d = 0; d < problem.d_v; ++d) out[d] *= whole.rows->normalise[row];
    narrow_row(out, problem.d_v, row_pointer<stored>(problem.out, batch, p.head[row], p.query[row]));
  }
  if (problem.reading) fence_streams();
}

template <typename stored, typename cached = stored>
inline void few_item(const attention_problem& problem, int64_t item, void* buffer, void* shared) {
  typedef compute<stored> real;
  between_steps(problem);
  const int64_t chunks = few_chunks(problem), chunk = item % chunks;
  const int64_t heads = few_heads<real>(problem), panels = ceil_div(problem.kv_heads, heads);
  const int64_t batch = item / chunks / panels, kv_head = item / chunks % panels * heads;
  panel<real> p;
  place_panel(problem, batch, kv_head, 0, at_most(heads, problem.kv_heads - kv_head) * problem.group() * problem.n_query, p);
  few_scratch<stored> s(problem, buffer);
  pack_few_queries<stored>(problem, batch, p, s.queries);
  // Lanes without a row are never read as a result, but they are computed: on zeros, not on what lay here before.
  std::memset(s.scores, 0, size_t(at_most(key_block, problem.n_key) * panel_lanes<real>) * sizeof(real));
  const few_part<real> part =
      chunks == 1 ? few_part_at<real>(problem, s.part, 0, 0) : few_part_at<real>(problem, shared, item / chunks, chunk);
  if (!walk_few<stored, cached>(problem, batch, kv_head, chunk, p, s, part, false))
    walk_few<stored, cached>(problem, batch, kv_head, chunk, p, s, part, true);
  if (chunks == 1) finish_few<stored>(problem, batch, p, part);
}

// One key head with several chunks: first to last, into the first one's part; then the finished rows.
template <typename stored>
inline void few_merge_item(const attention_problem& problem, int64_t pair, void* shared) {
  typedef compute<stored> real;
  const int64_t batch = pair / problem.kv_heads, kv_head = pair % problem.kv_heads;
  panel<real> p;
  place_panel(problem, batch, kv_head, 0, problem.group() * problem.n_query, p);
  const few_part<real> whole = few_part_at<real>(problem, shared, pair, 0);
  for (int64_t chunk = 1; chunk < few_chunks(problem); ++chunk) {
    const few_part<real> part = few_part_at<real>(problem, shared, pair, chunk);
    for (int row = 0; row < p.live; ++row) {
      real shrink, other_shrink;
      merge_sums(*whole.rows, *part.rows, row, problem.reading != nullptr, &shrink, &other_shrink);
      for (int64_t d = row * problem.d_v; d < (row + 1) * problem.d_v; ++d)
        whole.out[d] = whole.out[d] * shrink + part.out[d] * other_shrink;
    }
  }
  finish_few<stored>(problem, batch, p, whole);
}

}  // namespace rootdk::ROOTDK_TARGET
