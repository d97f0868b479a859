// How the backward pass is split into items, which partial sums they leave, and how these are merged.
//
// An item is a chunk of the keys of one pair (batch, key head). Chunks add to the same rows of the query's gradient, and to the
// same numbers of the bias' where the bias has no axis of keys: each leaves its part in a shared buffer, and the merge adds the
// parts up, first to last, whichever thread made them and whenever.

namespace rootdk::ROOTDK_TARGET {

// More chunks than items are wanted cost more memory than they bring speed.
inline int64_t backward_chunks(const attention_problem& problem) {
  const int64_t pairs = problem.pairs(), most = ceil_div(problem.n_key, 2 * key_block);
  return pairs == 0 || most == 0 ? 1 : at_least(1, at_most(ceil_div(wanted_items, pairs), most));
}

inline int64_t chunk_keys(const attention_problem& problem) {
  return ceil_div(ceil_div(problem.n_key, backward_chunks(problem)), key_block) * key_block;
}

inline int64_t backward_items_of(const attention_problem& problem) { return problem.pairs() * backward_chunks(problem); }

// Rows of the present pairs, one after the other: what the shared buffer holds for each chunk.
inline int64_t shared_rows(const attention_problem& problem) { return problem.pairs() * problem.group() * problem.n_query; }

// Where an item leaves its part of the query's gradient when several add to the same rows: [chunk][row][d].
template <typename real>
ROOTDK_INLINE real* partial_row(const attention_problem& problem, void* shared, int64_t chunk, int64_t row) {
  return static_cast<real*>(shared) + (chunk * shared_rows(problem) + row) * problem.d_k;
}

// And behind them its sums of dS where the bias has no axis of keys: [chunk][row].
template <typename real>
ROOTDK_INLINE real* partial_bias(const attention_problem& problem, void* shared, int64_t chunk, int64_t row) {
  const int64_t chunks = backward_chunks(problem);
  const int64_t before = chunks == 1 ? 0 : chunks * shared_rows(problem) * problem.d_k;
  return static_cast<real*>(shared) + before + chunk * shared_rows(problem) + row;
}

// And behind those its sums of dS times the distance where the slopes have a gradient: [chunk][row].
template <typename real>
ROOTDK_INLINE real* partial_distances(const attention_problem& problem, void* shared, int64_t chunk, int64_t row) {
  const int64_t bias = bias_lacks_keys(problem) ? backward_chunks(problem) * shared_rows(problem) : 0;
  return partial_bias<real>(problem, shared, chunk, row) + bias;
}

inline int64_t backward_shared_bytes_of(const attention_problem& problem) {
  const int64_t chunks = backward_chunks(problem), real_bytes = problem.type == element::float64 ? 8 : 4;
  const int64_t numbers_per_row =
      (chunks == 1 ? 0 : problem.d_k) + (bias_lacks_keys(problem) ? 1 : 0) + (problem.d_alibi ? 1 : 0);
  return chunks * shared_rows(problem) * numbers_per_row * real_bytes;
}

constexpr int64_t merge_rows = 256;

inline int64_t query_merges(const attention_problem& problem) {
  return backward_chunks(problem) == 1 ? 0 : ceil_div(shared_rows(problem), merge_rows);
}

inline int64_t backward_merge_items_of(const attention_problem& problem) {
  return query_merges(problem) + (bias_lacks_keys(problem) || problem.d_alibi ? problem.pairs() : 0);
}

template <typename stored>
inline void merge_query_rows(const attention_problem& problem, int64_t item, void* shared) {
  typedef compute<stored> real;
  std::vector<real> sum(static_cast<size_t>(problem.d_k));
  const int64_t rows = problem.group() * problem.n_query, stop = at_most((item + 1) * merge_rows, shared_rows(problem));
  for (int64_t row = item * merge_rows; row < stop; ++row) {
    const int64_t pair = problem.pair(row / rows),
                  head = pair % problem.kv_heads * problem.group() + row % rows / problem.n_query;
    for (real& x : sum) x = 0;
    for (int64_t chunk = 0; chunk < backward_chunks(problem); ++chunk) {
      const real* part = partial_row<real>(problem, shared, chunk, row);
      for (int64_t d = 0; d < problem.d_k; ++d) sum[size_t(d)] += part[d];
    }
    narrow_row(sum.data(), problem.d_k,
               row_pointer<stored>(problem.d_query, pair / problem.kv_heads, head, row % problem.n_query));
  }
}

// One pair's sums over the keys, chunk by chunk and row by row, into the bias' gradient.
template <typename real>
inline void merge_bias_rows(const attention_problem& problem, int64_t slot, void* shared) {
  const int64_t rows = problem.group() * problem.n_query, pair = problem.pair(slot), batch = pair / problem.kv_heads;
  for (int64_t row = 0; row < rows; ++row) {
    real sum = 0;
    for (int64_t chunk = 0; chunk < backward_chunks(problem); ++chunk)
      sum += *partial_bias<real>(problem, shared, chunk, slot * rows + row);
    const int64_t head = pair % problem.kv_heads * problem.group() + row / problem.n_query;
    *pairs_row<real>(problem.d_bias, batch, head, row % problem.n_query) += sum;
  }
}

// One pair's slopes, head by head.
template <typename real>
inline void merge_distances(const attention_problem& problem, int64_t slot, void* shared) {
  const int64_t rows = problem.group() * problem.n_query, pair = problem.pair(slot), batch = pair / problem.kv_heads;
  for (int64_t i = 0; i < problem.group(); ++i) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < backward_chunks(problem); ++chunk)
      for (int64_t query = 0; query < problem.n_query; ++query)
        sum -= double(*partial_distances<real>(problem, shared, chunk, slot * rows + i * problem.n_query + query));
    const int64_t head = pair % problem.kv_heads * problem.group() + i;
    static_cast<real*>(problem.d_alibi)[batch * problem.heads + head] = real(sum);
  }
}

template <typename stored>
void backward_merge_item_of(const attention_problem& problem, int64_t item, void* shared) {
  if (item < query_merges(problem)) return merge_query_rows<stored>(problem, item, shared);
  if (bias_lacks_keys(problem)) merge_bias_rows<compute<stored>>(problem, item - query_merges(problem), shared);
  if (problem.d_alibi) merge_distances<compute<stored>>(problem, item - query_merges(problem), shared);
}

}  // namespace rootdk::ROOTDK_TARGET
